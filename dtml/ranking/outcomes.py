"""The legs of a return that can be predicted at a close, and what became of each stock."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dtml.markets.definition import LEGS, Leg
from dtml.ranking.features import FEATURES
from dtml.ranking.panel import Features, Grid, Panel

# Name: the feature whose rank is the score, and 1 or -1 for the end that comes first.
RULES: Mapping[str, tuple[str, int]] = {
    "day_losers": ("return_1", -1),
    "five_day_losers": ("return_5", -1),
    "low_volatility": ("volatility_20", -1),
    "volume_shock": ("relative_volume_20", 1),
    "intraday_reversal": ("session", -1),
}
HISTORY = max(FEATURES[feature].bars for feature, _ in RULES.values())  # sessions that they read
__all__ = ["LEGS", "Leg", "outcomes", "sessions_to"]

# From which price to which: the field, and the sessions after `as_of` on which it is.
ENDS: dict[Leg, tuple[tuple[str, int], tuple[str, int]]] = {
    "next_close": (("close", 0), ("close", 1)),
    "overnight": (("close", 0), ("open", 1)),
    "intraday": (("open", 1), ("close", 1)),
    "open_to_open": (("open", 1), ("open", 2)),
    "second_close": (("close", 1), ("close", 2)),  # the label of Qlib's published tables
    "five_days": (("open", 1), ("open", 6)),
}


def sessions_to(leg: Leg) -> int:
    """Return the number of sessions after `as_of` whose bars the outcome needs."""
    return ENDS[leg][1][1]


def outcomes(panel: Panel, leg: Leg, *, max_return: float = np.inf) -> Grid:
    """Return the return of each stock over a leg that begins at each session's close, or after it.

    Ratios minus 1. Missing where either price is, and where a close moves by more than `max_return`
    from the close
    before it, however many sessions earlier, on the way: a corporate action is no return. Nor is an
    open that lies so far from the close before it a price.
    """
    (start, first), (end, last) = ENDS[leg]
    before = pd.DataFrame(panel.close).ffill().to_numpy()
    opened = panel.open.copy()
    opened[1:][np.abs(panel.open[1:] / before[:-1] - 1) > max_return] = np.nan
    price = {"open": opened, "close": panel.close}
    found = _later(price[end], last) / _later(price[start], first) - 1
    moves = np.abs(_later(panel.close, 1) / before - 1) > max_return
    for step in range(last):
        found[_later(moves.astype(float), step) == 1] = np.nan
    return np.asarray(found)


def _later(values: Grid, count: int) -> Grid:
    found = np.full_like(values, np.nan)
    found[: max(len(values) - count, 0)] = values[count:]
    return found


def rule_scores(features: Features, rule: str) -> Grid:
    """Return the score that a rule gives each stock-day, from ranked features
    in the order of `FEATURES`.
    """
    feature, sign = RULES[rule]
    return sign * np.asarray(features[..., list(FEATURES).index(feature)], dtype=float)
