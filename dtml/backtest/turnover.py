"""Follow the ranking of each day with fewer trades.

Two remedies are chosen on validation days by the net return above equal parts, over its standard
deviation: the mean rank of several nights, and a band of places in which a stock held is not yet
sold (Garleanu and Pedersen, 2013, explain why both pay).
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from dtml.backtest.performance import performance, session_sharpe
from dtml.backtest.portfolio import (
    KeptDays,
    PerDay,
    Stocks,
    Strategy,
    Weights,
    equal_weight_track,
    follow_on,
)
from dtml.backtest.quotes import Quotes
from dtml.markets.definition import BASIS_POINT, Trading
from dtml.ranking.panel import places, ranked, with_ties

RANKED_PER_TARGET = 3  # at most one in so many of the stocks ranked is a target
SMOOTH = (1, 2, 3, 5, 10, 20)  # nights whose ranks are averaged
BANDS = (1.0, 1.5, 2.0, 3.0, 5.0)  # times `top`: the last place at which a stock is kept
VERSIONS = ("daily", "smoothed", "banded", "smoothed and banded")
DAILY, SMOOTHED, BANDED, BOTH = VERSIONS
EQUAL = "equal parts"
FIGURES = (
    "days",
    "annual_return",
    "annual_volatility",
    "sharpe",
    "sharpe_low",
    "sharpe_high",
    "max_drawdown",
    "index_gain",
    "index_gain_low",
    "index_gain_high",
    "turnover",
    "break_even",
)


def targets(scores: PerDay, trading: Trading) -> tuple[PerDay, KeptDays]:
    """Return the holdings of a portfolio that follows the ranking of each day, and which are kept.

    It holds the best `trading.top` stocks in equal parts, or a third of those ranked if fewer, but
    at least one. With a `trading.band` above 1, a target stays one while its place is at most
    `band` times that number. `scores` (`dtml.ranking.panel.places`) are NaN where not ranked; ranks
    are averaged over the last `trading.smooth` days.

    Two grids, [days stocks]: the share of equity, NaN on a day without a ranking; and what the band
    keeps, not traded if held already.
    """
    place = places(mean_of_last(ranked(scores), trading.smooth))
    weights = np.empty(place.shape)
    is_kept = np.empty(place.shape, dtype=bool)
    is_target = np.zeros(place.shape[1], dtype=bool)  # of the last day with a ranking
    for day, place_of_day in enumerate(place):
        weights[day], is_kept[day] = aim(place_of_day, trading, is_target)
        is_target = np.where(np.isnan(weights[day]), is_target, weights[day] > 0)
    return weights, is_kept


def target_of_night(scores: PerDay, trading: Trading, was_target: Stocks) -> tuple[Weights, Stocks]:
    """Return the last night's row of both grids of `targets`, given the night before's targets."""
    place = places(mean_of_last(ranked(scores), trading.smooth))
    return aim(place[-1], trading, was_target)


def aim(place: Weights, trading: Trading, was_target: Stocks) -> tuple[Weights, Stocks]:
    """Return the weights of a day, and which targets before it are kept, as `targets` says.

    `place` is 1 for the best stock, NaN if not ranked. Without a ranking: NaN, and none.
    """
    is_ranked = np.isfinite(place)
    if not is_ranked.any():
        return np.full(place.shape, np.nan), np.zeros(place.shape, dtype=bool)
    size = min(trading.top, max(1, int(is_ranked.sum()) // RANKED_PER_TARGET))
    last_kept_place = trading.band * size
    # A band of 1 keeps no stock: each day trades to equal weights again.
    is_kept = was_target & (place <= last_kept_place) & (trading.band > 1)
    others = np.where(is_kept, np.nan, place)
    vacancies = max(0, size - int(is_kept.sum()))
    best_others = np.sort(others[np.isfinite(others)])[:vacancies]
    # Without a vacancy the limit is 0, which no place reaches.
    is_target = is_kept | (others <= best_others.max(initial=0))
    return is_target / is_target.sum(), is_kept


def mean_of_last(ranks: PerDay, nights: int) -> PerDay:
    """Return the mean rank of each stock over the last `nights` on which it has one.

    It is NaN on a night on which the stock has no rank. Means that differ only by rounding are made
    equal.
    """
    total = np.zeros_like(ranks)
    count = np.zeros_like(ranks)
    for lag in range(min(nights, len(ranks))):
        earlier = ranks[: len(ranks) - lag]
        total[lag:] += np.where(np.isfinite(earlier), earlier, 0.0)
        count[lag:] += np.isfinite(earlier)
    means = total / np.maximum(count, 1)
    return with_ties(np.where(np.isfinite(ranks), means, np.nan))


def strategy_of(trading: Trading) -> Strategy:
    """Return how a night's targets are traded: long, at the next open, at the market's costs."""
    return Strategy("long", top=trading.top, max_weight=1.0, costs=trading.costs)


def track_of(
    scores: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, trading: Trading
) -> pd.DataFrame:
    """Return what following each day's ranking earned: `dtml.backtest.portfolio.follow_on`."""
    weights, is_kept = targets(scores, trading)
    return follow_on(weights, as_of, quotes, strategy_of(trading), kept=is_kept).track


def after_costs(
    scores: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, trading: Trading, first: pd.Timestamp
) -> pd.DataFrame:
    """Return the performance of a ranking after costs, a row for each way to trade it.

    Span "validation": all pairs of `SMOOTH` and `BANDS`, on days before `first` without the last.
    Span "test": from `first` on, the way chosen for each of `VERSIONS` (`DAILY` alone without
    validation days), and `EQUAL`: equal parts of all stocks ranked, without costs.

    Columns: `span`, `version` ("" on validation), `smooth`, `band`, and `FIGURES` as
    `dtml.backtest.performance.performance`, with equal parts as the index; `break_even` is the cost
    in basis points at which the mean return equals theirs, NaN for them and without turnover.
    """
    begin = int(as_of.searchsorted(first))
    rows: list[dict[str, Any]] = []
    tried: list[tuple[float, Trading]] = []
    if begin > 1:
        # The last ranking before `first` is left out, because its return ends after `first`.
        validation = slice(0, begin - 1)
        equal = equal_weight_track(scores[validation], as_of[validation], quotes, "next_open")
        for smooth, band in product(SMOOTH, BANDS):
            way = replace(trading, smooth=smooth, band=band)
            track = track_of(scores[validation], as_of[validation], quotes, way)
            rows.append(_row("validation", "", way, track, equal, quotes.year))
            tried.append((session_sharpe((track["net"] - equal["net"]).to_numpy()), way))

    test = slice(begin, None)
    equal = equal_weight_track(scores[test], as_of[test], quotes, "next_open")
    for version, way in _chosen(tried, trading).items():
        track = track_of(scores[test], as_of[test], quotes, way)
        rows.append(_row("test", version, way, track, equal, quotes.year))
    rows.append(_row("test", EQUAL, trading, equal, equal, quotes.year))
    return pd.DataFrame(rows)


def _chosen(tried: Sequence[tuple[float, Trading]], trading: Trading) -> dict[str, Trading]:
    """Return the way to trade of each version that has the highest Sharpe ratio of those tried."""
    if not tried:
        return {DAILY: replace(trading, smooth=1, band=1.0)}
    chosen = {}
    for version in VERSIONS:
        allowed = [
            (-np.inf if np.isnan(ratio) else ratio, way)
            for ratio, way in tried
            if (version in (SMOOTHED, BOTH) or way.smooth == 1)
            and (version in (BANDED, BOTH) or way.band == 1)
        ]
        chosen[version] = max(allowed, key=itemgetter(0))[1]
    return chosen


def _row(
    span: str, version: str, trading: Trading, track: pd.DataFrame, equal: pd.DataFrame, year: int
) -> dict[str, Any]:
    """Return a row of `after_costs` from the tracks of a way to trade and of equal parts."""
    figures = asdict(performance(track, trials=None, index=equal, year=year))
    figures["break_even"] = np.nan
    if version != EQUAL and figures["turnover"] > 0:
        gain = float((track["gross"] - equal["gross"]).mean())
        figures["break_even"] = gain / figures["turnover"] / BASIS_POINT
    named = {"span": span, "version": version, "smooth": trading.smooth, "band": trading.band}
    return named | {name: figures[name] for name in FIGURES}
