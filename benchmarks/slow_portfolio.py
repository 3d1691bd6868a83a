"""Measure whether a portfolio that is traded slowly keeps what a ranking earns.

`python -m benchmarks.slow_portfolio [kospi200_2020 ...] [--prices FOLDER]`. A ridge for the return
over five sessions is walked, and the ranks of each stock are averaged with a half-life of 30
sessions. A stock enters among the best 16 % and leaves when it is not among the best 30 %; equal
weights are restored every 20 sessions. This was the best of 382 ways to hold a ranking on the
sessions before the first scored close of all files but acl18 together
(figures/portfolio_experiments.csv). Only this way is measured on the scored days, beside low
volatility held in the same way and beside all stocks.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import horizons
from benchmarks.horizons import PriceFile, Prices, RidgeWalk, a_year
from benchmarks.shared_data import SHARED
from dtml.backtest.portfolio import KeptDays, PerDay, Strategy, equal_weight_track, follow_on
from dtml.ranking.features import FEATURE_SETS
from dtml.ranking.panel import Grid, ranked
from flows.studies.ranking import SETS

LEG = "five_days"
PENALTY = 1.0
HALF_LIFE = 30  # sessions
ENTERS, STAYS = 0.84, 0.7  # the share of stocks that rank below
REBALANCED = 20  # sessions between two returns to equal weights
WARM_UP = 120  # sessions before the first scored one whose ranks are averaged too

WALKED = 2000  # more than any file has: the ridge is walked from the first possible session on
FILES: Mapping[str, PriceFile] = {
    "csi300": replace(horizons.FILES["csi300"], validation=WALKED),
    **{
        name: PriceFile(each.market, name, str(each.first), str(each.last), WALKED)
        for name, each in SETS.items()
    },
}


def smoothed(ranks: Grid) -> Grid:
    """Return the mean of each stock's ranks so far, with the half-life; NaN where not ranked."""
    means = pd.DataFrame(ranks).ewm(halflife=HALF_LIFE, ignore_na=True).mean().to_numpy()
    return np.where(np.isfinite(ranks), means, np.nan)


def slow_targets(score: PerDay, *, enters: float, stays: float) -> tuple[PerDay, KeptDays]:
    """Return equal weights of the stocks held, and which of them are not traded on a day.

    Both thresholds are shares of the day's stocks that rank below, in [0, 1).
    """
    below = ranked(score) + 0.5
    weights = np.full(score.shape, np.nan)
    is_kept = np.zeros(score.shape, dtype=bool)
    is_out = was_held = np.zeros(score.shape[1], dtype=bool)
    for day, share in enumerate(below):
        is_ranked = np.isfinite(share)
        is_out = np.where(is_ranked, np.where(is_out, share < enters, share < stays), is_out)
        is_held = is_ranked & ~is_out
        weights[day] = is_held / is_held.sum()
        if day % REBALANCED:
            is_kept[day] = is_held & was_held
        was_held = is_held
    return weights, is_kept


def measure(name: str, folder: Path) -> None:
    """Print the table's row of a price file."""
    prices = Prices.read(FILES[name], folder)
    history = prices.history_of(LEG)
    before, scored = prices.spans
    ridge = RidgeWalk(history)
    scores = ridge.scores(prices.folds(history, before), "long", PENALTY)
    scores[scored] = ridge.scores(prices.folds(history, scored), "long", PENALTY)[scored]
    calm = -history.features[:, :, list(FEATURE_SETS["long"]).index("volatility_60")]

    there = history.there
    as_of = history.panel.sessions[scored]
    quotes = prices.quotes_on(scored)
    strategy = Strategy(
        "long", top=there.shape[1], max_weight=1.0, costs=prices.market.trading.costs
    )
    warm = max(before.start, scored.start - WARM_UP)

    def net_of(score: Grid, *, enters: float = ENTERS, stays: float = STAYS) -> np.ndarray:
        known = ranked(np.where(there, score, np.nan)[warm : scored.stop])
        held = smoothed(known)[scored.start - warm :]
        weights, is_kept = slow_targets(held, enters=enters, stays=stays)
        return follow_on(weights, as_of, quotes, strategy, kept=is_kept).track["net"].to_numpy()

    slow, calmest = net_of(scores), net_of(calm)
    all_stocks = net_of(np.zeros_like(scores), enters=0.0, stays=0.0)
    free = equal_weight_track(np.where(there[scored], 0.5, np.nan), as_of, quotes, "next_open")
    differences = (
        slow - all_stocks,
        slow - free["net"].to_numpy(),
        slow - calmest,
        calmest - all_stocks,
    )
    print(f"| {name} | {len(slow)} | {' | '.join(map(a_year, differences))} |", flush=True)


def main() -> None:
    """Print the table of the price files named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help=", ".join(FILES))
    parser.add_argument("--prices", type=Path, default=SHARED / "prices", metavar="FOLDER")
    options = parser.parse_args()
    if unknown := [name for name in options.files if name not in FILES]:
        parser.error(f"no such file: {', '.join(unknown)}")
    print(
        "| set | days | slow portfolio, a year, minus all stocks at the same costs "
        "| minus all stocks without costs | minus low volatility held so "
        "| low volatility held so minus all stocks |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for name in options.files or FILES:
        measure(name, options.prices)


if __name__ == "__main__":
    main()
