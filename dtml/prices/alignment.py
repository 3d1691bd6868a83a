"""Find an index or a stock whose dates are not those of the others: a session early is look-ahead,
and no bar is bad.

The index and the mean of its stocks move together on the same session (their correlation is .90 to
.98 in seven public sets) and hardly a session apart (at most .15), so that a shift shows in any but
the shortest history. So does a single stock's: of the 1,137 of these sets none looks shifted, and
1,132 do once they are.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.markets.definition import Returns
from dtml.prices.returns import adjusted_price

RESTATED = 1e-6  # relative; restated prices differ by far more, unchanged ones not at all
STEP = (
    0.01,
    0.2,
)  # of adj_close / close from one bar to the next: a dividend; less hardly shows, more is a split
LEAST_EXCESS = 0.01  # mean adjusted return on ex-days, each counted up to its own step
ERRORS = 2  # standard errors of a mean of ordinary sessions that the excess exceeds
OVER_CORRECTED = "over_corrected_dividends"
Changes = Float[ndarray, "sessions series"]

ENOUGH = 60  # sessions with a return of the index, or bars of a stock; with fewer nothing is said
SHIFTS = (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)  # sessions
# standard errors; 3 at most in random parts of 60 to 250 sessions of those sets, of one stock and
# more
SURE = 5
LEAST_APART = (
    0.2  # correlation of a shifted stock with the others; a stock that leads some of them has .1
)
LEAST_STOCKS = 10  # the mean of fewer is no market
SHIFTED = "shifted_dates"
SAME = 1e-6  # relative; prices as close as this are the same price


def index_fault(bars: pd.DataFrame, index_symbol: str, returns: Returns) -> str | None:
    """Return what is wrong with the dates of the index, or with the choice of it, in words; None
    when nothing shows.

    `bars` is a bars frame of accepted bars, one for each symbol and session. Fewer than `ENOUGH`
    sessions show nothing.
    """
    if (bars["symbol"] == index_symbol).sum() <= ENOUGH:
        return None
    priced = bars.assign(price=adjusted_price(bars, returns))
    closes, changes = (
        priced.pivot(index="session", columns="symbol", values=name) for name in ("close", "price")
    )
    index = closes.pop(index_symbol)
    equal = ((closes.div(index, axis=0) - 1).abs() <= SAME).sum() == closes.notna().sum()
    twins = [name for name in closes.columns[equal] if closes[name].count() > ENOUGH]
    if twins and index.nunique() > 1:  # prices that never move are equal by chance
        return (
            f"the index {index_symbol} has the closes of the stock {twins[0]}: it is that "
            "stock, not the index"
        )
    changes = changes.pct_change(fill_method=None)
    own = changes.pop(index_symbol).to_frame().to_numpy()
    found = _shifts(own, changes.mean(axis=1).to_frame().to_numpy())
    ((shift, apart, together),) = found.itertuples(index=False)
    if not shift:
        return None
    return (
        f"the index {index_symbol} is {_dated(shift)}: the mean return of the stocks has a "
        f"correlation of {apart:.2f} "
        f"with the index so many sessions {'before' if shift < 0 else 'after'}, and of "
        f"{together:.2f} on the same one"
    )


def shifted_stocks(bars: pd.DataFrame, index_symbol: str, returns: Returns) -> pd.DataFrame:
    """Return symbol, reason and value, in words, of each stock that moves with the mean of the
    others sessions apart.

    It is a warning, as stocks of exchanges that close at other hours may do so too. `bars` is a
    bars frame of accepted bars; nothing is said of fewer than `LEAST_STOCKS` stocks, nor of one
    with fewer than `ENOUGH` returns.
    """
    stocks = bars[bars["symbol"] != index_symbol].assign(
        price=lambda rows: adjusted_price(rows, returns)
    )
    changes = stocks.pivot(index="session", columns="symbol", values="price").pct_change(
        fill_method=None
    )
    if changes.shape[1] < LEAST_STOCKS:
        return pd.DataFrame(columns=["symbol", "reason", "value"], dtype=str)
    own, known = changes.fillna(0.0).to_numpy(), changes.notna().to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        others = (own.sum(axis=1, keepdims=True) - own) / (known.sum(axis=1, keepdims=True) - known)
    found = _shifts(changes.to_numpy(), others).assign(symbol=changes.columns, reason=SHIFTED)
    found = found[(found["shift"] != 0) & (found["apart"] >= LEAST_APART)]
    said = [
        f"it looks {_dated(shift)}: its returns have a correlation of {apart:.2f} with those of "
        "the other stocks so "
        f"many sessions apart, and of {together:.2f} on the same session"
        for shift, apart, together in found[["shift", "apart", "together"]].itertuples(index=False)
    ]
    return found.assign(value=pd.Series(said, index=found.index, dtype=str))[
        ["symbol", "reason", "value"]
    ]


def _dated(shift: int) -> str:
    return f"dated {abs(shift)} session{'s'[: abs(shift) > 1]} {'early' if shift < 0 else 'late'}"


def _shifts(own: Changes, others: Changes) -> pd.DataFrame:
    """Return by how many sessions each series of returns is dated late (below
    0: early), 0 when it is not.
    """
    # With `shift` come `apart` and `together`, its correlations with the others at the best shift
    # and at none. NaN is a return that is not known.
    with np.errstate(divide="ignore", invalid="ignore"):
        together = _correlations(own, others)
        at = np.array([_correlations(np.roll(own, -shift, axis=0), others) for shift in SHIFTS])
        best = np.nan_to_num(at, nan=-1).argmax(axis=0)
        apart = np.take_along_axis(at, best[None], axis=0)[0]
        sessions = (np.isfinite(own) & np.isfinite(others)).sum(axis=0)
        sure = (np.arctanh(apart) - np.arctanh(together)) * np.sqrt((sessions - 3) / 2)
    shift = np.where(sure > SURE, np.array(SHIFTS)[best], 0)
    return pd.DataFrame({"shift": shift, "apart": apart, "together": together})


def _correlations(one: Changes, other: Changes) -> Float[ndarray, " series"]:
    """Return the correlation of each two series where both are known; NaN where
    they are on too few sessions.
    """
    count = (np.isfinite(one) & np.isfinite(other)).sum(axis=0)
    return np.where(
        count >= ENOUGH, pd.DataFrame(one).corrwith(pd.DataFrame(other)).to_numpy(), np.nan
    )


def restated_symbols(stored: pd.DataFrame, fresh: pd.DataFrame) -> list[str]:
    """Return the symbols, sorted, whose past the source has restated since `stored`: to be fetched
    again as a whole.

    Both are bars frames; only their common sessions can tell, so a fetch should reach back over
    some stored ones. A dividend changes adj_close / close on every earlier session; a split scales
    close itself, which shows on the oldest common session (a correction of the last close does not
    reach that far).
    """
    both = stored.merge(fresh, on=["symbol", "session"], suffixes=("", "_fresh"))
    both = both.sort_values(["symbol", "session"])
    adjusted_anew = _differs(
        both["adj_close"] / both["close"], both["adj_close_fresh"] / both["close_fresh"]
    )
    scaled = _differs(both["close"], both["close_fresh"]) & ~both.duplicated("symbol")
    return sorted(both.loc[adjusted_anew | scaled, "symbol"].unique())


def _differs(old: pd.Series, new: pd.Series) -> pd.Series:
    """Return where two values differ by more than rounding; a value missing on
    one side alone differs.
    """
    return ~(((new / old - 1).abs() <= RESTATED) | (old.isna() & new.isna()))


def judged(bars: pd.DataFrame) -> list[str]:
    """Return the stocks of a bars frame with enough bars to say something of them."""
    counts = bars["symbol"].value_counts()
    return sorted(counts.index[counts >= ENOUGH])


def over_corrected(bars: pd.DataFrame) -> pd.DataFrame:
    """Return symbol, reason and value, in words, of each stock whose adjusted close rises on its
    ex-days.

    A close falls by about the dividend on an ex-day, and the adjusted close by nothing. Its mean
    return on these days is held against `LEAST_EXCESS` and the scatter of all the stock's returns;
    a return beyond the step of the factor is news, not the adjustment, and counts as the step. Bars
    are sorted here; adj_close may be missing.
    """
    rows = bars[bars["symbol"].isin(judged(bars)) & bars["adj_close"].notna()].sort_values(
        ["symbol", "session"]
    )
    by_symbol = rows["symbol"]
    factor = rows["adj_close"] / rows["close"]
    step = factor / factor.groupby(by_symbol).shift() - 1
    change = rows["adj_close"] / rows["adj_close"].groupby(by_symbol).shift() - 1
    days = pd.DataFrame({"symbol": by_symbol, "step": step, "excess": change.clip(-step, step)})
    days = days[(step > STEP[0]) & (step < STEP[1])]
    mean = days.groupby("symbol").agg(
        days=("step", "size"), step=("step", "mean"), excess=("excess", "mean")
    )
    error = change.groupby(by_symbol).std().reindex(mean.index) / np.sqrt(mean["days"])
    found = mean[(mean["excess"] >= LEAST_EXCESS) & (mean["excess"] > ERRORS * error)]
    said = [
        f"adj_close rises by {row.excess:.1%} in the mean of {row.days} ex-days, on which "
        "adj_close / close steps by "
        f"{row.step:.1%}"
        for row in found.itertuples()
    ]
    return pd.DataFrame(
        {"symbol": list(found.index), "reason": OVER_CORRECTED, "value": said}, dtype=str
    )
