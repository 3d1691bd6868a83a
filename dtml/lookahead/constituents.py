"""Compare a list of constituents with itself as it was known earlier.

A list that ends a spell before the removal was announced, or begins one before the stock joined,
knows the future: a walk over it leaves out losers before they were removed. The list alone cannot
show that; what it said on an earlier day can.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import pandas as pd

from dtml.lookahead.audit import Finding
from dtml.markets import Market

CHECK = "list_known_earlier"
SHOWN = 5  # stocks that a finding names


@dataclass(frozen=True)
class EarlierList:
    """A list of constituents as a training recorded it.

    `day` is the last day on which it was known and true: that of the training, or the list's own
    date if that is earlier.
    """

    market: Market
    day: date


def audit_list(market: Market, earlier: Sequence[EarlierList], at: pd.Timestamp) -> Finding:
    """Check that a market's list has the constituents that earlier lists had on their own day.

    Only earlier lists whose day is before the date of this list are compared, because a list agrees
    with itself; all are, if this list has no date. Without such an earlier list the check cannot be
    made: no list can be known before it is recorded for the first time.
    """
    own_day = market.constituents_as_of
    comparable = [each for each in earlier if own_day is None or each.day < own_day]
    if not comparable:
        detail = (
            f"no training recorded this list before {own_day or 'today'}, so it cannot be checked "
            "yet, for any day, whether a stock leaves the list before its removal was announced"
        )
        return Finding(CHECK, at, passed=None, detail=detail)
    days = sorted({each.day for each in comparable})
    changes = [change for each in comparable for change in _changes(market, each)]
    if changes:
        more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        detail = (
            f"the past of the list has changed: {'; '.join(changes[:SHOWN])}{more}. This "
            "is look-ahead, unless the earlier list was wrong"
        )
        return Finding(CHECK, at, passed=False, detail=detail)
    detail = (
        f"the constituents of {len(days)} days from {days[0]} to {days[-1]} are those that were "
        f"known then; before {days[0]} no earlier list is stored, so nothing can be checked"
    )
    return Finding(CHECK, at, passed=True, detail=detail)


def _changes(market: Market, earlier: EarlierList) -> list[str]:
    """Say which stocks only one of the two lists has as constituents on the day of the earlier one.

    Stocks whose removal the market's list dates after that day are in both.
    """
    now = {stay.symbol for stay in market.constituents_on(earlier.day)}
    then = {stay.symbol for stay in earlier.market.constituents_on(earlier.day)}
    day = earlier.day
    changes = [
        f"{symbol} was a constituent on {day} in the earlier list, but not in the present one"
        for symbol in then - now
    ]
    changes += [
        f"{symbol} was no constituent on {day} in the earlier list, but is in the present one"
        for symbol in now - then
    ]
    return sorted(changes)
