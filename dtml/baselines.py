"""The one-line rules that every model is printed beside.

Each rule gives all stocks of a session the same call. On the public sets these rules, chosen on the training span
alone, tie the published figures: a model that does not beat them has shown nothing.
"""

import numpy as np
import pandas as pd

NAIVE_RULES = {
    "always_up": "every stock rises",
    "index_reversal": "every stock rises after a session in which the index fell, and falls after the others",
    "index_below_mean20": "every stock rises while the index closes below its mean of 20 sessions, else falls",
}
RULE_HISTORY = 20  # sessions of the index, the last one included, that the longest rule reads


def naive_calls(index_close: "pd.Series[float]") -> pd.DataFrame:
    """Call the session after each row of `index_close` (currency units, by session).

    Returns one column a rule: 1.0 for a rise, 0.0 for a fall, NaN while the rule lacks history.
    """
    move = index_close.pct_change(fill_method=None)
    mean = index_close.rolling(RULE_HISTORY).mean()
    calls = {
        "always_up": pd.Series(1.0, index=index_close.index),
        "index_reversal": (move < 0).where(move.notna(), np.nan),
        "index_below_mean20": (index_close < mean).where(mean.notna(), np.nan),
    }
    return pd.DataFrame(calls).astype(float)
