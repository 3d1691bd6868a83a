"""Find the histories that a source has restated since they were stored, and those that it adjusts by too much.

An adjusted close that takes out more than a dividend makes each ex-day look like a rise.
"""

import numpy as np
import pandas as pd

RESTATED = 1e-6  # relative; restated prices differ by far more, unchanged ones not at all
STEP = (0.01, 0.2)  # of adj_close / close from one bar to the next: a dividend; less hardly shows, more is a split
LEAST_EXCESS = 0.01  # mean adjusted return on ex-days, each counted up to its own step
ERRORS = 2  # standard errors of a mean of ordinary sessions that the excess exceeds
ENOUGH = 60  # bars of a stock; with fewer nothing is said of it
OVER_CORRECTED = "over_corrected_dividends"


def restated_symbols(stored: pd.DataFrame, fresh: pd.DataFrame) -> list[str]:
    """Return the symbols, sorted, whose past the source has restated since `stored`: to be fetched again as a whole.

    Both are bars frames; only their common sessions can tell, so a fetch should reach back over some stored ones. A
    dividend changes adj_close / close on every earlier session; a split scales close itself, which shows on the oldest
    common session (a correction of the last close does not reach that far).
    """
    both = stored.merge(fresh, on=["symbol", "session"], suffixes=("", "_fresh"))
    both = both.sort_values(["symbol", "session"])
    adjusted_anew = _differs(both["adj_close"] / both["close"], both["adj_close_fresh"] / both["close_fresh"])
    scaled = _differs(both["close"], both["close_fresh"]) & ~both.duplicated("symbol")
    return sorted(both.loc[adjusted_anew | scaled, "symbol"].unique())


def _differs(old: pd.Series, new: pd.Series) -> pd.Series:
    """Return where two values differ by more than rounding; a value missing on one side alone differs."""
    return ~(((new / old - 1).abs() <= RESTATED) | (old.isna() & new.isna()))


def judged(bars: pd.DataFrame) -> list[str]:
    """Return the stocks of a bars frame with enough bars to say something of them."""
    counts = bars["symbol"].value_counts()
    return sorted(counts.index[counts >= ENOUGH])


def over_corrected(bars: pd.DataFrame) -> pd.DataFrame:
    """Return symbol, reason and value, in words, of each stock whose adjusted close rises on its ex-days.

    A close falls by about the dividend on an ex-day, and the adjusted close by nothing. Its mean return on these days
    is held against `LEAST_EXCESS` and the scatter of all the stock's returns; a return beyond the step of the factor is
    news, not the adjustment, and counts as the step. Bars are sorted here; adj_close may be missing.
    """
    rows = bars[bars["symbol"].isin(judged(bars)) & bars["adj_close"].notna()].sort_values(["symbol", "session"])
    by_symbol = rows["symbol"]
    factor = rows["adj_close"] / rows["close"]
    step = factor / factor.groupby(by_symbol).shift() - 1
    change = rows["adj_close"] / rows["adj_close"].groupby(by_symbol).shift() - 1
    days = pd.DataFrame({"symbol": by_symbol, "step": step, "excess": change.clip(-step, step)})
    days = days[(step > STEP[0]) & (step < STEP[1])]
    mean = days.groupby("symbol").agg(days=("step", "size"), step=("step", "mean"), excess=("excess", "mean"))
    error = change.groupby(by_symbol).std().reindex(mean.index) / np.sqrt(mean["days"])
    found = mean[(mean["excess"] >= LEAST_EXCESS) & (mean["excess"] > ERRORS * error)]
    said = [
        f"adj_close rises by {row.excess:.1%} in the mean of {row.days} ex-days, on which adj_close / close steps by "
        f"{row.step:.1%}"
        for row in found.itertuples()
    ]
    return pd.DataFrame({"symbol": list(found.index), "reason": OVER_CORRECTED, "value": said}, dtype=str)
