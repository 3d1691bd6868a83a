"""Set published figures on the NASDAQ stocks of 2017 beside orders without skill, a leak, and ours.

`python -m benchmarks.nasdaq_2017 [--boosting] [--prices FOLDER]`. StockMixer (Fan and Shen, AAAI
2024) and RSR (Feng et al., TOIS 2019) predict the 1,026 stocks of one file on 237 days. All figures
here are computed by their formulas on the same days: returns from close to close, no costs. Printed
are equal parts of all stocks, 200 random orders, the order by the close over the highest close of
the whole file, which is what their inputs are divided by, and rankers that are trained on earlier
days alone.
"""

import argparse
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from benchmarks.horizons import (
    PriceFile,
    Prices,
    RidgeWalk,
    boosting_scores,
)
from benchmarks.shared_data import SHARED
from dtml.backtest.performance import sharpe
from dtml.evaluation.metrics import day_interval, ratio
from dtml.evaluation.ranking import score_ranking
from dtml.prices.returns import on_grid
from dtml.ranking.models import RidgeConfig, blend
from dtml.ranking.panel import places

Days = Float[ndarray, "days stocks"]

# The closes after which stocks are ranked: the sessions before their 237 test days.
FILE = PriceFile("ndx100", "nasdaq_2017", "2016-12-30", "2017-12-07")
DAYS = 237
RANDOM_ORDERS = 200
RESAMPLES = 10_000
# What the paper prints for StockMixer on NASDAQ. Its "RIC" is no rank IC: its program divides the
# mean of the daily ICs by their standard deviation.
STOCKMIXER = "| StockMixer, as printed | .043 | .501 | .545 | 1.465 | - | - |"
# The abstract of RSR (arXiv 1809.09441) gives the sum of the daily returns of the first stock.
RSR = "| RSR, as printed | - | - | - | - | 71 % | - |"
HEADING = (
    '| | IC | mean IC over its deviation (their "RIC") | share of the first 10 with a return of 0 '
    "or more | Sharpe of the first 5 | sum of returns of the first | rank IC [95 %] |"
)


@dataclass(frozen=True)
class Figures:
    """The figures of an order by the formulas of StockMixer's program, a number a day each."""

    ic: Float[ndarray, " days"]
    precision: Float[ndarray, " days"]
    first_five: Float[ndarray, " days"]
    first: Float[ndarray, " days"]

    @classmethod
    def of(cls, scores: Days, returns: Days) -> "Figures":
        """Return the figures of scores, on the stocks that have a score and a return."""
        known = np.isfinite(scores) & np.isfinite(returns)
        place = places(np.where(known, scores, np.nan))
        return cls(
            ic=correlations(np.where(known, scores, np.nan), np.where(known, returns, np.nan)),
            precision=mean_where(returns >= 0, place <= 10),
            first_five=mean_where(returns, place <= 5),
            first=mean_where(returns, place <= 1),
        )

    @property
    def summary(self) -> tuple[float, float, float, float, float]:
        """Return the mean IC, the ratio to its deviation, the share, the Sharpe and the sum."""
        return (
            float(self.ic.mean()),
            float(self.ic.mean() / self.ic.std()),
            float(self.precision.mean()),
            sharpe(self.first_five).value,
            float(self.first.sum()),
        )


def mean_where(values: ndarray, counted: ndarray) -> Float[ndarray, " days"]:
    """Return each day's mean of the values that count."""
    return np.where(counted, values, 0).sum(axis=1) / counted.sum(axis=1)


def correlations(scores: Days, returns: Days) -> Float[ndarray, " days"]:
    """Return Pearson's correlation of each day; what is missing is missing in both."""
    x = np.nan_to_num(scores - np.nanmean(scores, axis=1, keepdims=True))
    y = np.nan_to_num(returns - np.nanmean(returns, axis=1, keepdims=True))
    return np.asarray((x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1)))


def interval_of(daily: Float[ndarray, " days"]) -> str:
    """Return the 95 % interval of a mean over days."""
    summands = np.stack([daily, np.ones_like(daily)], axis=-1)[:, None]
    low, high = day_interval(summands, ratio, resamples=RESAMPLES)
    return f"[{low[0]:.3f}, {high[0]:.3f}]"


def row(name: str, scores: Days, returns: Days) -> str:
    """Return the row of an order, with intervals over days."""
    figures = Figures.of(scores, returns)
    ic, deviation_ratio, precision, ratio_a_year, total = figures.summary
    ends = sharpe(figures.first_five, resamples=RESAMPLES)
    found = score_ranking(scores, returns)
    cells = (
        name,
        f"{ic:.3f} {interval_of(figures.ic)}",
        f"{deviation_ratio:.3f}",
        f"{precision:.3f} {interval_of(figures.precision)}",
        f"{ratio_a_year:.2f} [{ends.low:.2f}, {ends.high:.2f}]",
        f"{total:.0%}",
        "{rank_ic:.4f} [{rank_ic_low:.4f}, {rank_ic_high:.4f}]".format(**found),
    )
    return f"| {' | '.join(cells)} |"


def random_row(returns: Days) -> str:
    """Return the row of random orders: the median, and where 95 of 100 lie."""
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(RANDOM_ORDERS):
        scores = generator.random(returns.shape)
        drawn.append(Figures.of(scores, returns).summary)
    low, middle, high = np.quantile(drawn, (0.025, 0.5, 0.975), axis=0)
    formats = ("{:.3f}", "{:.3f}", "{:.3f}", "{:.2f}", "{:.0%}")
    cells = [
        f"{form.format(middle[column])} ({form.format(low[column])} to {form.format(high[column])})"
        for column, form in enumerate(formats)
    ]
    return f"| {RANDOM_ORDERS} random orders (95 of 100) | {' | '.join(cells)} | - |"


def equal_row(returns: Days) -> str:
    """Return the row of equal parts of all stocks, and the share of all returns of 0 or more."""
    known = np.isfinite(returns)
    daily = mean_where(returns, known)
    base_rate = mean_where(returns >= 0, known)
    ends = sharpe(daily, resamples=RESAMPLES)
    share = f"{base_rate.mean():.3f} {interval_of(base_rate)}"
    ratio_words = f"{ends.value:.2f} [{ends.low:.2f}, {ends.high:.2f}]"
    return (
        f"| equal parts of all stocks | - | - | {share} | {ratio_words} | {daily.sum():.0%} | - |"
    )


def over_highest(close: Float[ndarray, "sessions stocks"]) -> Float[ndarray, "sessions stocks"]:
    """Return minus the close over the highest close of the whole file, later closes included."""
    return -close / np.nanmax(close, axis=0)


def our_scores(prices: Prices, *, with_boosting: bool) -> Mapping[str, Days]:
    """Return the scores of rankers with the product's settings, walked over their days."""
    history = prices.history_of("next_close")
    _, scored = prices.spans
    walked = prices.folds(history, scored)
    found = {"ridge": RidgeWalk(history).scores(walked, "usual", RidgeConfig().penalty)}
    if with_boosting:
        found["boosting"] = boosting_scores(history, walked, "usual")
        found["blend"] = blend(found)
    return {name: scores[scored] for name, scores in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boosting", action="store_true", help="also train boosting")
    parser.add_argument("--prices", type=Path, default=SHARED / "prices", metavar="FOLDER")
    options = parser.parse_args()
    begin = time.perf_counter()
    table = pd.read_parquet(options.prices / f"{FILE.prices}.parquet")
    bars = table.rename(columns={"date": "session"})
    sessions = pd.DatetimeIndex(np.unique(bars["session"]))
    symbols = tuple(sorted(bars["symbol"].unique()))
    close = on_grid(bars, "close", sessions, symbols)
    first = int(sessions.searchsorted(pd.Timestamp(FILE.first)))
    days = slice(first, first + DAYS)
    returns = (close[1:] / close[:-1] - 1)[days]
    print(f"{HEADING}\n|{' --- |' * 7}", flush=True)
    print(STOCKMIXER)
    print(RSR)
    print(equal_row(returns))
    print(random_row(returns), flush=True)
    leak = over_highest(close)[days]
    print(row("the leak alone: the close over the highest of the file", leak, returns), flush=True)
    daily = score_ranking(leak, returns)
    prices = Prices.read(FILE, options.prices)
    if prices.history.panel.symbols != symbols:
        raise ValueError("the stocks of the panel are not those of the file")
    for name, scores in our_scores(prices, with_boosting=options.boosting).items():
        print(row(f"our {name}", scores, returns), flush=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = time.perf_counter() - begin
    print(f"\nthe leak's t is {daily['t']:.1f}; {seconds:.0f} s, {memory:.1f} GB")


if __name__ == "__main__":
    main()
