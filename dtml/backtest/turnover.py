"""Follow the order of each day with fewer trades.

Orders are averaged over nights, and holdings kept while they do well. What a daily order is worth
before costs it mostly pays for turnover. Two remedies are chosen on validation days, by the net
return above equal parts of all stocks, over its standard deviation: the mean rank of several nights
in place of one night's, and a band in which a stock held is not yet sold (Garleanu and Pedersen,
2013, say why both pay).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from dtml.backtest.performance import performance, session_sharpe
from dtml.backtest.portfolio import Quotes, Strategy, equal_weight_track, follow_on
from dtml.markets.definition import BASIS_POINT, Trading
from dtml.ranking.panel import places, ranked, with_ties

Days = Float[ndarray, "days stocks"]
Kept = Bool[ndarray, "days stocks"]
Weights = Float[ndarray, " stocks"]
Stocks = Bool[ndarray, " stocks"]

LEAST_SHARE = 3  # at most one in so many of the stocks ordered is held
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


@dataclass(frozen=True)
class _Tried:
    """A way to trade, and its score on validation days."""

    trading: Trading
    sharpe: float


def targets(scores: Days, trading: Trading) -> tuple[Days, Kept]:
    """Return what the order of each day makes a portfolio hold.

    It holds `trading.top` stocks, or a third of those ordered. `scores` order the stocks of a day
    (`dtml.ranking.panel.places`), NaN where one is not ordered; the first `trading.smooth` - 1 days
    average fewer. A day without an order is NaN throughout. Returns shares of equity, and which
    stocks, if they are held already, are not traded.
    """
    place = places(_mean_of_last(ranked(scores), trading.smooth))
    weights = np.empty(place.shape)
    kept = np.empty(place.shape, dtype=bool)
    aimed = np.zeros(place.shape[1], dtype=bool)
    for day, place_of_day in enumerate(place):
        weights[day], kept[day] = _aim(place_of_day, trading, aimed)
        aimed = np.where(np.isnan(weights[day]), aimed, weights[day] > 0)
    return weights, kept


def target_of_night(scores: Days, trading: Trading, aimed: Stocks) -> tuple[Weights, Stocks]:
    """Return the weights and the kept stocks of the last of some nights.

    `aimed` are the stocks of the one before. The last `trading.smooth` nights decide: earlier ones
    change nothing.
    """
    place = places(_mean_of_last(ranked(scores), trading.smooth))
    return _aim(place[-1], trading, aimed)


def _aim(place: Weights, trading: Trading, before: Stocks) -> tuple[Weights, Stocks]:
    """Return the weights of a day, and which stocks of those aimed at before are kept.

    Without an order the weights are NaN, and none is kept.
    """
    ordered = np.isfinite(place)
    if not ordered.any():
        return np.full(place.shape, np.nan), np.zeros(place.shape, dtype=bool)
    most = min(trading.top, max(1, int(ordered.sum()) // LEAST_SHARE))
    kept = before & (place <= trading.band * most) & (trading.band > 1)
    others = np.where(kept, np.nan, place)
    vacancies = max(0, most - int(kept.sum()))
    filling = np.sort(others[np.isfinite(others)])[:vacancies]
    aimed = kept | (others <= filling.max(initial=0))
    return aimed / aimed.sum(), kept


def _mean_of_last(ranks: Days, nights: int) -> Days:
    """Return the mean rank of each stock over the last nights that have one.

    NaN where the last has none. Means that only rounding keeps apart are equal.
    """
    total = np.zeros_like(ranks)
    known = np.zeros_like(ranks)
    for lag in range(min(nights, len(ranks))):
        earlier = ranks[: len(ranks) - lag]
        total[lag:] += np.where(np.isfinite(earlier), earlier, 0.0)
        known[lag:] += np.isfinite(earlier)
    means = total / np.maximum(known, 1)
    return with_ties(np.where(np.isfinite(ranks), means, np.nan))


def strategy_of(trading: Trading) -> Strategy:
    """Return how a night's targets are traded: long, at the next open, at the market's costs."""
    return Strategy("long", top=trading.top, max_weight=1.0, costs=trading.costs)


def track_of(
    scores: Days, as_of: pd.DatetimeIndex, quotes: Quotes, trading: Trading
) -> pd.DataFrame:
    """Return what following the order of each day earned.

    The columns are those of `dtml.backtest.portfolio.follow_on`.
    """
    weights, kept = targets(scores, trading)
    return follow_on(weights, as_of, quotes, strategy_of(trading), kept=kept).track


def after_costs(
    scores: Days, as_of: pd.DatetimeIndex, quotes: Quotes, trading: Trading, first: pd.Timestamp
) -> pd.DataFrame:
    """Return what is left of an order after costs.

    It has every way to trade it before `first`, and those chosen from then on. Columns: `span`
    ("validation", "test"), `version` (one of `VERSIONS` if it was chosen for one, `EQUAL`, or ""),
    `smooth`, `band`, and `FIGURES` of `dtml.backtest.performance.performance`, whose index are
    equal parts of all stocks ordered, without costs; `break_even` is the cost, in basis points of
    what is traded, at which the mean return equals theirs.
    """
    begin = int(as_of.searchsorted(first))
    known = max(0, begin - 1)  # what the order of the last close before `first` earns ends after it
    rows: list[dict[str, Any]] = []
    tried: list[_Tried] = []
    if known:
        validation = slice(0, known)
        equal = _equal_track(scores[validation], as_of[validation], quotes)
        for smooth, band in product(SMOOTH, BANDS):
            way = replace(trading, smooth=smooth, band=band)
            track = track_of(scores[validation], as_of[validation], quotes, way)
            rows.append(_row("validation", "", way, track, equal))
            gain = track["net"] - equal["net"]
            tried.append(_Tried(trading=way, sharpe=session_sharpe(gain.to_numpy())))

    test = slice(begin, len(as_of))
    equal = _equal_track(scores[test], as_of[test], quotes)
    chosen = _chosen(tried) or {DAILY: replace(trading, smooth=1, band=1.0)}
    for version, way in chosen.items():
        track = track_of(scores[test], as_of[test], quotes, way)
        rows.append(_row("test", version, way, track, equal))
    rows.append(_row("test", EQUAL, trading, equal, equal))
    return pd.DataFrame(rows)


def _equal_track(scores: Days, as_of: pd.DatetimeIndex, quotes: Quotes) -> pd.DataFrame:
    """Return the track of equal parts of all stocks ordered, without costs."""
    is_ordered = np.where(np.isfinite(scores), 0.5, np.nan)
    return equal_weight_track(is_ordered, as_of, quotes, "next_open")


def _chosen(tried: Sequence[_Tried]) -> dict[str, Trading]:
    """Return the best choice for each version, by the score of each on validation days."""
    if not tried:
        return {}
    unsmoothed = [way for way in tried if way.trading.smooth == 1]
    unbanded = [way for way in tried if way.trading.band == 1]
    allowed = {
        DAILY: [way for way in unsmoothed if way.trading.band == 1],
        SMOOTHED: unbanded,
        BANDED: unsmoothed,
        BOTH: tried,
    }
    return {
        version: max(ways, key=lambda way: way.sharpe).trading for version, ways in allowed.items()
    }


def _row(
    span: str, version: str, trading: Trading, track: pd.DataFrame, equal: pd.DataFrame
) -> dict[str, Any]:
    """Return a row of `after_costs`: a way to trade and its figures beside equal parts."""
    result = performance(track, trials=None, index=equal)
    break_even = np.nan
    if version != EQUAL:
        gain = float((track["gross"] - equal["gross"]).mean())
        break_even = gain / result.turnover / BASIS_POINT
    figures = asdict(replace(result, break_even=break_even))
    return {
        "span": span,
        "version": version,
        "smooth": trading.smooth,
        "band": trading.band,
        **{name: value for name, value in figures.items() if name in FIGURES},
    }
