"""Find the stocks whose adjusted close takes out more than a dividend: each of its ex-days then looks like a rise."""

import numpy as np
import pandas as pd

STEP = (0.01, 0.2)  # of adj_close / close from one bar to the next: a dividend; less hardly shows, more is a split
LEAST_EXCESS = 0.01  # mean adjusted return on ex-days, each counted up to its own step
ERRORS = 2  # standard errors of a mean of ordinary sessions that the excess exceeds
ENOUGH = 60  # bars of a stock; with fewer nothing is said of it
OVER_CORRECTED = "over_corrected_dividends"


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
