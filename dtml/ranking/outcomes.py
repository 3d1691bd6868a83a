"""The legs of a return that can be predicted at a close, and the outcome of each stock.

A leg is from one open or close to a later one.
"""

from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from dtml.markets.definition import LEGS, Leg
from dtml.ranking.panel import Grid, Panel

__all__ = ["LEGS", "Leg", "has_opens", "measured_legs", "outcomes", "overlap_of", "sessions_to"]


class Price(NamedTuple):
    """A price of a leg: its field, and its session, counted from `as_of`."""

    field: Literal["open", "close"]
    sessions: int


class Ends(NamedTuple):
    """The prices at which a leg starts and ends."""

    start: Price
    end: Price


ENDS: dict[Leg, Ends] = {
    "next_close": Ends(Price("close", 0), Price("close", 1)),
    "overnight": Ends(Price("close", 0), Price("open", 1)),
    "intraday": Ends(Price("open", 1), Price("close", 1)),
    "open_to_open": Ends(Price("open", 1), Price("open", 2)),
    # The label of Qlib's published tables.
    "second_close": Ends(Price("close", 1), Price("close", 2)),
    "five_days": Ends(Price("open", 1), Price("open", 6)),
    "ten_days": Ends(Price("open", 1), Price("open", 11)),
    "twenty_days": Ends(Price("open", 1), Price("open", 21)),
}


def sessions_to(leg: Leg) -> int:
    """Return the number of sessions after `as_of` whose bars the outcome needs."""
    return ENDS[leg].end.sessions


def overlap_of(leg: Leg) -> int:
    """Return the number of days whose outcomes share a part of their span; 1 if none do."""
    start, end = ENDS[leg]
    return max(end.sessions - start.sessions, 1)


def has_opens(panel: Panel) -> bool:
    """Say whether any bar has an open, high or low other than its close; True without a bar."""
    is_flat = (panel.open == panel.close) & (panel.high == panel.close)
    is_flat &= panel.low == panel.close
    return not panel.observed.any() or not is_flat[panel.observed].all()


def measured_legs(panel: Panel) -> tuple[Leg, ...]:
    """Return the legs that a panel's prices measure: all, or those between closes without opens."""
    if has_opens(panel):
        return LEGS
    return tuple(leg for leg in LEGS if {price.field for price in ENDS[leg]} == {"close"})


def outcomes(panel: Panel, leg: Leg, *, max_return: float = np.inf) -> Grid:
    """Return the return of each stock over a leg that begins at each session's close or after.

    Ratios minus 1, [sessions stocks], NaN where a price is missing, and where a close within the
    leg moves by more than `max_return` from the one before it, however long ago: a corporate
    action. An open so far from it is missing.
    """
    start, end = ENDS[leg]
    last_close = pd.DataFrame(panel.close).ffill().to_numpy()  # of each session, or before it
    opened = panel.open.copy()
    gap = np.abs(panel.open[1:] / last_close[:-1] - 1)
    opened[1:][gap > max_return] = np.nan
    price = {"open": opened, "close": panel.close}
    bought = _later(price[start.field], start.sessions)
    sold = _later(price[end.field], end.sessions)
    returns = sold / bought - 1
    # Row t is about the move from the last close known at session t to the close of session t + 1.
    change_after = _later(panel.close, 1) / last_close - 1
    is_action = (np.abs(change_after) > max_return).astype(float)
    for sessions_on in range(end.sessions):  # every close after the session, to the leg's last
        returns[_later(is_action, sessions_on) == 1] = np.nan
    return np.asarray(returns)


def _later(values: Grid, count: int) -> Grid:
    """Return the values of `count` sessions later; NaN where there are none."""
    later = np.full_like(values, np.nan)
    rows = max(len(values) - count, 0)
    later[:rows] = values[count:]
    return later
