"""Follow the ranking of each day with fewer trades.

A daily ranking loses most of what it earns before costs to turnover. Two remedies are chosen on
validation days: the mean rank of several nights in place of one night's, and a band of places in
which a stock held is not yet sold (Garleanu and Pedersen, 2013, explain why both pay). The choice
is by the net return above equal parts of all stocks, over its standard deviation.
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
    """Return the holdings of a portfolio that follows the ranking of each day.

    It holds the best `trading.top` stocks in equal parts, or a third of those ranked if that is
    fewer, but at least one. With a `trading.band` above 1, a stock that was a target on the ranked
    day before remains one while its place is at most `band` times that number. `scores` rank the
    stocks of a day (`dtml.ranking.panel.places`), NaN where one is not ranked. Ranks are averaged
    over the last `trading.smooth` days; the first days average fewer.

    Returns two grids, [days stocks]. The first has the share of equity to hold, NaN on a day
    without a ranking. The second is true for the stocks that the band keeps: if they are held
    already, they are not traded.
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
    """Return the weights and the kept stocks of the last of some nights, as `targets` does.

    `was_target` marks the stocks that were targets on the ranked night before. Only the last
    `trading.smooth` nights of `scores` matter.
    """
    place = places(mean_of_last(ranked(scores), trading.smooth))
    return aim(place[-1], trading, was_target)


def aim(place: Weights, trading: Trading, was_target: Stocks) -> tuple[Weights, Stocks]:
    """Return the weights of a day, and which of the stocks that were targets before are kept.

    `targets` states the rule. `place` is 1 for the best stock of the day, NaN for one that is not
    ranked. Without a ranking the weights are NaN, and no stock is kept.
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
    """Return the mean rank of each stock over the last `nights` up to each night.

    Nights on which the stock has no rank are left out; NaN where the night itself has none. Means
    that differ only by rounding are made equal.
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
    """Return what following the ranking of each day earned.

    The columns are those of `dtml.backtest.portfolio.follow_on`.
    """
    weights, is_kept = targets(scores, trading)
    return follow_on(weights, as_of, quotes, strategy_of(trading), kept=is_kept).track


def after_costs(
    scores: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, trading: Trading, first: pd.Timestamp
) -> pd.DataFrame:
    """Return the performance of a ranking after costs, a row for each way to trade it.

    Rows of the span "validation" are all pairs of `SMOOTH` and `BANDS`, on the days before `first`
    without the last of them. Rows of the span "test", from `first` on, are the way chosen on
    validation days for each of `VERSIONS` (`DAILY` alone if there are no such days), and `EQUAL`:
    equal parts of all stocks ranked, without costs.

    Columns: `span`, `version` ("" on validation), `smooth`, `band` (for `EQUAL` those of `trading`,
    which it does not use), and `FIGURES` as `dtml.backtest.performance.performance` gives them,
    with the track of equal parts as its index. But `break_even` is the cost, in basis points of the
    value traded, at which the mean return equals that of equal parts; NaN for equal parts
    themselves and without turnover.
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
    """Return a row of `after_costs`: a way to trade and its figures.

    `track` is what it earned, `equal` what equal parts earned in the same sessions.
    """
    figures = asdict(performance(track, trials=None, index=equal, year=year))
    figures["break_even"] = np.nan
    if version != EQUAL and figures["turnover"] > 0:
        gain = float((track["gross"] - equal["gross"]).mean())
        figures["break_even"] = gain / figures["turnover"] / BASIS_POINT
    named = {"span": span, "version": version, "smooth": trading.smooth, "band": trading.band}
    return named | {name: figures[name] for name in FIGURES}
