# %% [markdown]
# # A first analysis
# A market, its bars, an idea of your own, walked forward beside one-line rules and a ridge
# regression. Everything here is the public interface of `dtml`, `db` and `flows`:
# `dtml/own/README.md`.
"""The first analysis of a market, cell by cell; `python -m benchmarks.notebook`
makes the notebook from it.
"""

# %%
from pathlib import Path

from sklearn.linear_model import Ridge

import dtml

study = dtml.Study("simulated", "2022-01-03", "2023-12-29")
study

# %% [markdown]
# ## What rankers read
# Forty-three features of each stock, as ranks within the day.

# %%
study.features("2023-12-28").iloc[:5, :8]

# %% [markdown]
# ## An idea
# A stock that has fallen today rises tomorrow, more so on a busy day.

# %%
Path("idea.py").write_text(
    """
def busy_fall(bars):
    busy = bars.volume / bars.volume.rolling(20).mean()
    return -bars.close.pct_change(fill_method=None) * busy
"""
)
study.features("2023-06-01", code="idea.py").describe()

# %% [markdown]
# ## Is it worth anything?
# Trained every 63 sessions on what was known, scored on the sessions after it. Brackets are 95 %
# intervals.

# %%
study.walk("idea.py", "2023-06-01")

# %%
study.walk("day_losers", "2023-06-01")

# %%
study.walk(Ridge(), "2023-06-01")
