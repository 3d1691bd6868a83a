"""Find an index or a stock whose dates do not match those of the others: look-ahead, if early.

The index and the mean of its stocks move together on the same session (correlation .90 to .98 in
seven public sets), hardly a session apart (at most .15). Of the 1,137 stocks of these sets none
appears shifted, and 1,132 do when they are shifted on purpose.
"""

import numpy as np
import pandas as pd

from dtml.markets.definition import Returns
from dtml.prices.returns import adjusted_price, doubts

RESTATED = 1e-6  # relative; restated prices differ by far more, unchanged ones not at all
# Bounds of a change of adj_close / close from one bar to the next, a ratio minus 1, that is a
# dividend. A smaller one hardly shows, a larger one is a split.
STEP = (0.01, 0.2)
LEAST_EXCESS = 0.01  # mean adjusted return on ex-days, each clipped to its own step
ERRORS = 2  # standard errors of a mean of ordinary sessions that the excess must exceed
OVER_CORRECTED = "over_corrected_dividends"

ENOUGH = 60  # bars of a stock; fewer are not judged
ENOUGH_OF_INDEX = 20  # sessions with a return of the index; fewer are not judged
SHIFTS = (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)  # sessions
# Standard errors by which the correlation at a shift must exceed that at none. In random parts of
# the seven public sets, of 60 to 250 sessions and one stock or more, it exceeds it by at most 3.
SURE = 5
# The least correlation of a shifted stock with the others; a stock that leads some of them has .1.
LEAST_APART = 0.2
LEAST_STOCKS = 10  # the mean of fewer does not represent a market
SHIFTED = "shifted_dates"
SAME = 1e-6  # relative; prices as close as this are the same price
# A symbol is redated if more than this share of its closes, and at least so many of them, come back
# beside another session than the stored one.
MOST_MATCHES = 0.8
LEAST_MATCHES = 3
SAME_BARS = "same_bars"
LEAST_CLOSES = 20  # different ones of `ENOUGH`; stocks that hardly move may have the same few
RESCALED = "rescaled_past"
STEADY = 0.01  # log; the largest difference between the factors of a symbol's closes that is one
LEAST_FACTOR = 0.02  # log; a smaller factor is rounding
# Log; closes that are adjusted for dividends, as adj_close is, change by such a factor with each.
LARGEST_DIVIDEND = 0.22


def index_fault(bars: pd.DataFrame, index_symbol: str, returns: Returns) -> str | None:
    """Return what is wrong with the dates or the choice of the index, in words; None if nothing is.

    A stock has its closes, or it is dated early or late against the mean. With `ENOUGH_OF_INDEX`
    accepted bars or fewer it is not judged.
    """
    if (bars["symbol"] == index_symbol).sum() <= ENOUGH_OF_INDEX:
        return None
    priced = bars.assign(price=adjusted_price(bars, returns))
    closes = priced.pivot(index="session", columns="symbol", values="close")
    index = closes.pop(index_symbol)
    is_same_price = (closes.div(index, axis=0) - 1).abs() <= SAME
    count = closes.notna().sum()
    twins = closes.columns[(is_same_price.sum() == count) & (count > ENOUGH_OF_INDEX)]
    if len(twins) and index.nunique() > 1:  # closes that never move are equal by chance
        return (
            f"the index {index_symbol} has the closes of the stock {twins[0]}: it is that "
            "stock, not the index"
        )
    prices = priced.pivot(index="session", columns="symbol", values="price")
    changes = prices.pct_change(fill_method=None)
    of_index = changes.pop(index_symbol).to_frame("index")
    of_stocks = changes.mean(axis=1).to_frame("index")
    ((shift, apart, together),) = _shifts(of_index, of_stocks, ENOUGH_OF_INDEX).itertuples(
        index=False
    )
    if not shift:
        return None
    side = "before" if shift < 0 else "after"
    return (
        f"the index {index_symbol} is {_dated(shift)}: the mean return of the stocks has a "
        f"correlation of {apart:.2f} with the index that many sessions {side}, and of "
        f"{together:.2f} on the same session"
    )


def shifted_stocks(bars: pd.DataFrame, index_symbol: str, returns: Returns) -> pd.DataFrame:
    """Return symbol, reason and value (words) of each stock that appears to be dated early or late.

    Its returns correlate with the others' mean significantly more a few sessions apart, and at
    least `LEAST_APART`; a warning, as exchanges close at other hours. Fewer than `LEAST_STOCKS`
    stocks, or `ENOUGH` returns, are not judged.
    """
    stocks = bars[bars["symbol"] != index_symbol]
    stocks = stocks.assign(price=adjusted_price(stocks, returns))
    prices = stocks.pivot(index="session", columns="symbol", values="price")
    changes = prices.pct_change(fill_method=None)
    if changes.shape[1] < LEAST_STOCKS:
        return doubts([], SHIFTED, [])
    # The mean return of all other stocks, for each stock.
    is_known = changes.notna()
    change = changes.fillna(0.0)
    sum_of_others = -change.sub(change.sum(axis=1), axis=0)
    number_of_others = -is_known.astype(int).sub(is_known.sum(axis=1), axis=0)
    shifts = _shifts(changes, sum_of_others / number_of_others, ENOUGH)
    shifted = shifts[(shifts["shift"] != 0) & (shifts["apart"] >= LEAST_APART)]
    values = [
        f"it appears to be {_dated(shift)}: its returns have a correlation of {apart:.2f} with "
        f"those of the other stocks that many sessions apart, and of {together:.2f} on the same "
        "session"
        for shift, apart, together in shifted.itertuples(index=False)
    ]
    return doubts(shifted.index, SHIFTED, values)


def _dated(shift: int) -> str:
    sessions = "sessions" if abs(shift) > 1 else "session"
    side = "early" if shift < 0 else "late"
    return f"dated {abs(shift)} {sessions} {side}"


def _shifts(series: pd.DataFrame, others: pd.DataFrame, enough: int) -> pd.DataFrame:
    """Return a row for each series of returns, beside its other: by how many sessions it is late.

    `shift` is below 0 for early, 0 with fewer than `enough` returns; `apart` and `together` are the
    correlations at the best of `SHIFTS` and at 0.
    """
    enough_when_shifted = enough - max(SHIFTS)  # a shift leaves as many sessions without a pair
    with np.errstate(divide="ignore", invalid="ignore"):
        together = _correlations(series, others, enough)
        at_shifts = pd.DataFrame(
            {
                shift: _correlations(series.shift(-shift), others, enough_when_shifted)
                for shift in SHIFTS
            }
        )
        apart = at_shifts.max(axis=1)
        sessions = (series.notna() & others.notna()).sum()
        # By Fisher's transformation a correlation has the standard error 1 / sqrt(sessions - 3),
        # and the difference of two has sqrt(2) times that.
        errors = (np.arctanh(apart) - np.arctanh(together)) * np.sqrt((sessions - 3) / 2)
    # The errors of a series that is not judged are NaN, which is not above `SURE`.
    shift = at_shifts.fillna(-1.0).idxmax(axis=1).where(errors > SURE, 0)
    return pd.DataFrame({"shift": shift, "apart": apart, "together": together})


def _correlations(series: pd.DataFrame, others: pd.DataFrame, enough: int) -> "pd.Series[float]":
    """Return the correlation of each pair of series, NaN where fewer than `enough` have both."""
    count = (series.notna() & others.notna()).sum()
    return series.corrwith(others).where(count >= enough)


def redated_symbols(stored: pd.DataFrame, fresh: pd.DataFrame) -> dict[str, int]:
    """Return the symbols whose stored closes come back a session later (1) or earlier (-1).

    Both arguments are bars frames. Only closes that differ from the neighbouring session's count:
    more than the share `MOST_MATCHES` of them, and at least `LEAST_MATCHES`, must come back beside
    that session, and none beside its own.
    """
    # Sorted, so that the shifts below give the closes of the sessions before and after.
    known = stored[["symbol", "session", "close"]].sort_values(["symbol", "session"])
    of_symbol = known.groupby("symbol")["close"]
    known = known.assign(before=of_symbol.shift(1), after=of_symbol.shift(-1))
    common = known.merge(fresh, on=["symbol", "session"], suffixes=("", "_fresh"))
    is_unchanged = _is_same(common["close_fresh"], common["close"])
    redated: dict[str, int] = {}
    # A fresh bar with the stored close of the next session is dated a session early; one with that
    # of the session before is dated late.
    for neighbour, shift in (("after", -1), ("before", 1)):
        # Where two sessions have the same close, a fresh bar could belong to either.
        is_distinct = common[neighbour].notna() & ~_is_same(common[neighbour], common["close"])
        matches = _is_same(common["close_fresh"], common[neighbour]) & is_distinct
        flags = pd.DataFrame(
            {
                "symbol": common["symbol"],
                "distinct": is_distinct,
                "matches": matches,
                "unchanged": is_unchanged & is_distinct,
            }
        )
        counts = flags.groupby("symbol").sum()
        is_redated = (counts["matches"] >= LEAST_MATCHES) & (counts["unchanged"] == 0)
        is_redated &= counts["matches"] > MOST_MATCHES * counts["distinct"]
        redated |= dict.fromkeys(counts.index[is_redated].astype(str), shift)
    return redated


def _is_same(price: pd.Series, other: pd.Series) -> pd.Series:
    return (price / other - 1).abs() <= SAME


def restated_symbols(stored: pd.DataFrame, fresh: pd.DataFrame) -> list[str]:
    """Return the symbols, sorted, whose past the source has restated since `stored`.

    Only common sessions of the two bars frames are compared. A symbol is restated if adj_close /
    close differs on any of them, or is known on one side only, or if the close of the oldest
    differs, as after a split. A fresh row without a close is ignored.
    """
    common = stored.merge(fresh, on=["symbol", "session"], suffixes=("", "_fresh"))
    common = common[common["close_fresh"].notna()]
    common = common.sort_values(["symbol", "session"])  # the first row of a symbol is its oldest
    adjusted_anew = _differs(
        common["adj_close"] / common["close"],
        common["adj_close_fresh"] / common["close_fresh"],
    )
    is_oldest = ~common.duplicated("symbol")
    scaled = _differs(common["close"], common["close_fresh"]) & is_oldest
    return sorted(common.loc[adjusted_anew | scaled, "symbol"].unique())


def rescaled(stored: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    """Return symbol, factor and is_unit of each symbol whose past closes were all multiplied.

    `factor` is fresh / stored close, the same on at least `LEAST_MATCHES` common sessions. Factors
    that new splits explain are left out and, where closes are adjusted, those that a dividend
    explains. `is_unit` says that the factor is a power of ten and volumes are the same.
    """
    common = stored.merge(fresh, on=["symbol", "session"], suffixes=("", "_fresh"))
    ratios = pd.DataFrame(
        {
            "factor": common["close_fresh"] / common["close"],
            "volume": common["volume_fresh"] / common["volume"],
            "adjustment": common["adj_close_fresh"] / common["close_fresh"],
        }
    )
    logs = ratios.where(ratios > 0).apply(np.log).groupby(common["symbol"])
    factor, middle = logs["factor"], logs.median()
    key = ["symbol", "session", "split"]
    splits = fresh.loc[fresh["split"].notna(), key].merge(stored[key], how="left", indicator=True)
    new = splits[splits["_merge"] == "left_only"]
    split = new.groupby("symbol")["split"].prod().reindex(middle.index, fill_value=1.0)
    is_one_factor = (factor.count() >= LEAST_MATCHES) & (factor.max() - factor.min() <= STEADY)
    is_adjusted = middle["adjustment"].abs() <= LEAST_FACTOR
    least = np.where(is_adjusted, LARGEST_DIVIDEND, LEAST_FACTOR)
    size = middle["factor"].abs()
    is_explained = np.abs(middle["factor"] + np.log(split)) <= STEADY
    found = middle[is_one_factor & (size > least) & ~is_explained]
    tens = found["factor"] / np.log(10)
    is_power_of_ten = (tens - tens.round()).abs() * np.log(10) <= STEADY
    return pd.DataFrame(
        {
            "symbol": found.index.astype(str),
            "factor": np.exp(found["factor"]).to_numpy(),
            "is_unit": (is_power_of_ten & ~(found["volume"].abs() > STEADY)).to_numpy(),
        }
    )


def twin_stocks(bars: pd.DataFrame, index_symbol: str) -> pd.DataFrame:
    """Return symbol, reason and value of each stock whose newest bars are those of another one.

    Both have the same last `ENOUGH` sessions, volumes and closes, `LEAST_CLOSES` of them distinct.
    """
    stocks = bars[bars["symbol"] != index_symbol].sort_values(["symbol", "session"])
    newest = stocks.groupby("symbol").tail(ENOUGH)
    hashes = pd.util.hash_pandas_object(newest[["session", "close", "volume"]], index=False)
    of_stock = newest.assign(hash=hashes).groupby("symbol")
    is_judged = (of_stock.size() >= ENOUGH) & (of_stock["close"].nunique() >= LEAST_CLOSES)
    sums = of_stock["hash"].sum()[is_judged]
    twins = sums[sums.duplicated(keep=False)]
    values = []
    for symbol, total in twins.items():
        others = twins.index[(twins == total) & (twins.index != symbol)]
        values.append(f"its last {ENOUGH} bars are those of {', '.join(others)}, volumes included")
    return doubts(twins.index, SAME_BARS, values)


def unadjusted_again(stored: pd.DataFrame, fresh: pd.DataFrame) -> list[str]:
    """Return the symbols, sorted, with stored adjusted closes but only unadjusted fresh ones."""
    known = stored.loc[stored["adj_close"].notna(), "symbol"].unique()
    priced = fresh[fresh["close"].notna() & fresh["symbol"].isin(known)]
    is_adjusted = priced["adj_close"].notna().groupby(priced["symbol"]).any()
    return sorted(is_adjusted.index[~is_adjusted])


def _differs(old: pd.Series, new: pd.Series) -> pd.Series:
    """Return where two values differ by more than rounding, or only one of them is missing."""
    is_close = (new / old - 1).abs() <= RESTATED
    both_missing = old.isna() & new.isna()
    return ~(is_close | both_missing)


def judged(bars: pd.DataFrame) -> list[str]:
    """Return the symbols of a bars frame with enough bars to be judged, sorted."""
    counts = bars["symbol"].value_counts()
    return sorted(counts.index[counts >= ENOUGH])


def over_corrected(bars: pd.DataFrame) -> pd.DataFrame:
    """Return symbol, reason and value (words) of symbols whose adj_close rises on its ex-days.

    Ex-days are those on which adj_close / close rises by a step within `STEP`. The mean of the
    adjusted returns on them, each clipped to its step because more is news, is at least
    `LEAST_EXCESS` and above `ERRORS` standard errors. A symbol with fewer than `ENOUGH` bars is not
    judged.
    """
    rows = bars[bars["symbol"].isin(judged(bars)) & bars["adj_close"].notna()]
    rows = rows.sort_values(["symbol", "session"])
    symbol = rows["symbol"]
    factor = rows["adj_close"] / rows["close"]
    step = factor / factor.groupby(symbol).shift() - 1
    change = rows["adj_close"] / rows["adj_close"].groupby(symbol).shift() - 1
    days = pd.DataFrame({"symbol": symbol, "step": step, "excess": change.clip(-step, step)})
    is_dividend = (step > STEP[0]) & (step < STEP[1])
    ex_days = days[is_dividend]
    means = ex_days.groupby("symbol").agg(
        days=("step", "size"),
        step=("step", "mean"),
        excess=("excess", "mean"),
    )
    scatter = change.groupby(symbol).std().reindex(means.index)
    error = scatter / np.sqrt(means["days"])
    is_large = means["excess"] >= LEAST_EXCESS
    is_significant = means["excess"] > ERRORS * error
    rising = means[is_large & is_significant]
    values = [
        f"adj_close rises by {row.excess:.1%} on average over {row.days} ex-days, on which "
        f"adj_close / close steps by {row.step:.1%}"
        for row in rising.itertuples()
    ]
    return doubts(rising.index, OVER_CORRECTED, values)
