"""What a quant looks for in a series of returns, net and a session each: ratios, drawdowns with dates, months.

Ratios are a year's, of 252 sessions, without a risk-free rate; shares are of the equity.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dtml.backtest.performance import drawdown
from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.markets.trading import YEAR
from dtml.pages.charts import Chart, Panel, cells, over_sessions

ROLLED = 63  # sessions of a rolling ratio
DRAWDOWNS = 5  # the deepest ones
BARS = 41  # of a histogram
MONTHS = tuple(f"{pd.Timestamp(2000, month, 1):%b}" for month in range(1, 13))

Net = Mapping[str, "pd.Series[float]"]


def tracks_chart(net: Net, hidden: tuple[str, ...], dashed: tuple[str, ...]) -> Chart | None:
    """Return what 1 became, the drawdown and the rolling Sharpe ratio of each portfolio, on one axis of time."""
    value = {name: _since((1 + line).cumprod(), 1.0) for name, line in net.items()}
    fallen = {name: _since(pd.Series(drawdown(line.to_numpy()), line.index), 0.0) for name, line in net.items()}
    last = {name: line.rolling(ROLLED) for name, line in net.items()}
    sharpe = {name: each.mean() / each.std().replace(0, np.nan) * np.sqrt(YEAR) for name, each in last.items()}
    rolled = {name: line.dropna() for name, line in sharpe.items()}
    panels = [Panel("value of 1, after costs", value, base=1.0, height=230)]
    panels += [Panel("drawdown", fallen, "percent", 0.0, height=110)]
    panels += [Panel("Sharpe ratio, rolling", rolled, base=0.0, height=110)]
    return over_sessions("Each portfolio after costs", panels, hidden=hidden, dashed=dashed)


def _since(line: "pd.Series[float]", start: float) -> "pd.Series[float]":
    """Return a line from `start` on the evening before its first session."""
    return pd.concat([pd.Series([start], index=[line.index[0] - pd.Timedelta(days=1)]), line])


def ratios(line: "pd.Series[float] | None", index: "pd.Series[float] | None") -> dict[str, float]:
    """Return sortino, calmar, value_at_risk, expected_shortfall, beta; NaN with too few sessions for them.

    The value at risk is the return that one session in twenty falls below, the shortfall the mean of those below;
    `beta` is the slope on the index's return over the sessions of both.
    """
    names = ("sortino", "calmar", "value_at_risk", "expected_shortfall", "beta")
    if line is None or len(line) < MINIMUM_DAYS:
        return dict.fromkeys(names, np.nan)
    below, deepest = float(np.sqrt((line.clip(upper=0) ** 2).mean())), float(drawdown(line.to_numpy()).min())
    grown = float(np.prod(1 + line.to_numpy(dtype=float)) ** (YEAR / len(line)) - 1)
    risk = float(line.quantile(0.05))
    found = {"sortino": float(line.mean()) / below * np.sqrt(YEAR) if below else np.nan}
    found |= {"calmar": grown / -deepest if deepest else np.nan, "value_at_risk": risk}
    found |= {"expected_shortfall": float(line[line <= risk].mean()), "beta": np.nan}
    if index is not None:
        both = pd.concat([line, index], axis=1, join="inner").to_numpy()
        spread = both[:, 1].var()
        found["beta"] = float(np.cov(both.T, ddof=0)[0, 1] / spread) if spread else np.nan
    return found


def drawdowns(line: "pd.Series[float]") -> list[dict[str, Any]]:
    """Return the deepest drawdowns: first below a peak, lowest, depth, recovered (None: not yet), sessions."""
    depth = pd.Series(drawdown(line.to_numpy()), line.index)
    below = depth < 0
    found = []
    for _, run in depth[below].groupby((~below).cumsum()[below]):
        after = depth.index[depth.index > run.index[-1]]
        recovered = after[0] if len(after) else None
        lowest = {"lowest": run.idxmin(), "depth": float(run.min())}
        found.append({"first": run.index[0], **lowest, "recovered": recovered, "sessions": len(run)})
    return sorted(found, key=lambda each: each["depth"])[:DRAWDOWNS]


def months_chart(name: str, line: "pd.Series[float]") -> Chart:
    """Return a map of the returns of each month, a row a year."""
    grown = (1 + line).groupby(pd.DatetimeIndex(line.index).strftime("%Y-%m")).prod() - 1
    made = {"x": [MONTHS[int(str(month)[5:]) - 1] for month in grown.index], "y": grown.index.str[:4]}
    rows = pd.DataFrame(made | {"value": grown.to_numpy(dtype=float)})
    words = f"from {100 * rows['value'].min():.1f} % to {100 * rows['value'].max():.1f} %"
    whole = pd.DataFrame([(month, year) for year in sorted(set(rows["y"])) for month in MONTHS], columns=["x", "y"])
    rows = whole.merge(rows, how="left")
    return cells(f"Net return of each month, {name}", words, rows, (44, 24), "percent", is_signed=True, is_written=True)


def histogram(name: str, line: "pd.Series[float]") -> Chart:
    """Return how often each return of a session came."""
    counts, edges = np.histogram(line, bins=BARS)
    rows = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "sessions": counts})
    words = f"{len(line)} sessions, from {100 * line.min():.1f} % to {100 * line.max():.1f} %"
    return Chart(f"Net returns of sessions, {name}", words, "histogram", {"rows": rows})
