"""Find an index whose dates are not those of its stocks: a session early it is look-ahead, and no bar is bad.

The index and the mean of its stocks move together on the same session (their correlation is .90 to .98 in seven public
sets) and hardly a session apart (at most .15), so that a shift shows in any but the shortest history.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.markets.definition import Returns
from dtml.prices.returns import adjusted_price

ENOUGH = 60  # sessions with a return of the index; with fewer nothing is said
SHIFTS = (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)  # sessions
SURE = 5  # standard errors; 3 at most in random parts of 60 to 250 sessions of those sets, of one stock and more
SAME = 1e-6  # relative; prices as close as this are the same price


def index_fault(bars: pd.DataFrame, index_symbol: str, returns: Returns) -> str | None:
    """Return what is wrong with the dates of the index, or with the choice of it, in words; None when nothing shows.

    `bars` is a bars frame of accepted bars, one for each symbol and session. Fewer than `ENOUGH` sessions show nothing.
    """
    if (bars["symbol"] == index_symbol).sum() <= ENOUGH:
        return None
    priced = bars.assign(price=adjusted_price(bars, returns))
    closes, changes = (priced.pivot(index="session", columns="symbol", values=name) for name in ("close", "price"))
    index = closes.pop(index_symbol)
    equal = ((closes.div(index, axis=0) - 1).abs() <= SAME).sum() == closes.notna().sum()
    twins = [name for name in closes.columns[equal] if closes[name].count() > ENOUGH]
    if twins and index.nunique() > 1:  # prices that never move are equal by chance
        return f"the index {index_symbol} has the closes of the stock {twins[0]}: it is that stock, not the index"
    changes = changes.pct_change(fill_method=None)
    own = changes.pop(index_symbol)
    found = shift_of(own.to_numpy(), changes.mean(axis=1).to_numpy())
    if found is None:
        return None
    shift, apart, together = found
    return (
        f"the index {index_symbol} is dated {abs(shift)} session{'s'[: abs(shift) > 1]} "
        f"{'early' if shift < 0 else 'late'}: the mean return of the stocks has a correlation of {apart:.2f} with the "
        f"index so many sessions {'before' if shift < 0 else 'after'}, and of {together:.2f} on the same session"
    )


def shift_of(
    own: Float[ndarray, " sessions"], others: Float[ndarray, " sessions"], shifts: Sequence[int] = SHIFTS
) -> tuple[int, float, float] | None:
    """Return by how many sessions one series of returns is dated late (below 0: early), None when it is not.

    With it come the correlations at that shift and at none. NaN is a return that is not known.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        together, sessions = _correlation(own, others)
        apart = {shift: _correlation(np.roll(own, -shift), others)[0] for shift in shifts}
        best = max(apart, key=lambda shift: np.nan_to_num(apart[shift], nan=-1))
        sure = (np.arctanh(apart[best]) - np.arctanh(together)) * np.sqrt((sessions - 3) / 2)
    return (best, apart[best], together) if sessions >= ENOUGH and sure > SURE else None


def _correlation(one: Float[ndarray, " sessions"], other: Float[ndarray, " sessions"]) -> tuple[float, int]:
    """Return the correlation of two series where both are known, and on how many sessions they are."""
    known = np.isfinite(one) & np.isfinite(other)
    if known.sum() < ENOUGH:
        return np.nan, 0
    return float(np.corrcoef(one[known], other[known])[0, 1]), int(known.sum())
