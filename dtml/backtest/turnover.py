"""Follow the order of each day with fewer trades: orders averaged over nights, and holdings kept
while they do well.

What a daily order is worth before costs it mostly pays for turnover. Two remedies are chosen on
validation days, by the
net return above equal parts of all stocks, over its standard deviation: the mean rank of several
nights in place of one night's, and a band in which a stock held is not yet sold (Garleanu and
Pedersen, 2013, say why both pay).
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
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
DAILY, SMOOTHED, BANDED, BOTH = VERSIONS = ("daily", "smoothed", "banded", "smoothed and banded")
EQUAL = "equal parts"
FIGURES = (
    *(
        "days",
        "annual_return",
        "annual_volatility",
        "sharpe",
        "sharpe_low",
        "sharpe_high",
        "max_drawdown",
    ),
    *("index_gain", "index_gain_low", "index_gain_high", "turnover", "break_even"),
)


def targets(scores: Days, trading: Trading) -> tuple[Days, Kept]:
    """Return what the order of each day makes a portfolio hold: `trading.top` stocks, or a third of
    those ordered.

    `scores` order the stocks of a day (`dtml.ranking.panel.places`), NaN where one is not ordered;
    the first `trading.smooth` - 1 days average fewer. A day without an order is NaN throughout.
    Returns shares of equity, and which stocks, if they are held already, are not traded.
    """
    place = places(_mean_of_last(ranked(scores), trading.smooth))
    aimed, found = np.zeros(place.shape[1], dtype=bool), []
    for each in place:
        found.append(_aim(each, trading, aimed))
        aimed = np.where(np.isnan(found[-1][0]), aimed, found[-1][0] > 0)
    weights, kept = (np.array(each) for each in zip(*found, strict=True))
    return weights, kept


def target_of_night(scores: Days, trading: Trading, aimed: Stocks) -> tuple[Weights, Stocks]:
    """Return the weights and the kept stocks of the last of some nights; `aimed` are the stocks of
    the one before.

    The last `trading.smooth` nights decide: earlier ones change nothing.
    """
    return _aim(places(_mean_of_last(ranked(scores), trading.smooth))[-1], trading, aimed)


def _aim(place: Weights, trading: Trading, before: Stocks) -> tuple[Weights, Stocks]:
    ordered = np.isfinite(place)
    if not ordered.any():
        return np.full(place.shape, np.nan), np.zeros(place.shape, dtype=bool)
    most = min(trading.top, max(1, int(ordered.sum()) // LEAST_SHARE))
    kept = before & (place <= trading.band * most) & (trading.band > 1)
    others = np.where(kept, np.nan, place)
    free = np.sort(others[np.isfinite(others)])[: max(0, most - int(kept.sum()))]
    aimed = kept | (others <= free.max(initial=0))
    return aimed / aimed.sum(), kept


def _mean_of_last(ranks: Days, nights: int) -> Days:
    """Return the mean rank of each stock over the last nights that have one; NaN where the last has
    none.

    Means that only rounding keeps apart are equal.
    """
    total, known = np.zeros_like(ranks), np.zeros_like(ranks)
    for lag in range(min(nights, len(ranks))):
        earlier = ranks[: len(ranks) - lag]
        total[lag:] += np.where(np.isfinite(earlier), earlier, 0.0)
        known[lag:] += np.isfinite(earlier)
    return with_ties(np.where(np.isfinite(ranks), total / np.maximum(known, 1), np.nan))


def strategy_of(trading: Trading) -> Strategy:
    """Return how a night's targets are traded: long, at the next open, at the
    costs of the market.
    """
    return Strategy("long", top=trading.top, max_weight=1.0, costs=trading.costs)


def track_of(
    scores: Days, as_of: pd.DatetimeIndex, quotes: Quotes, trading: Trading
) -> pd.DataFrame:
    """Return what following the order of each day earned, in the columns of
    `dtml.backtest.portfolio.follow_on`.
    """
    weights, kept = targets(scores, trading)
    return follow_on(weights, as_of, quotes, strategy_of(trading), kept=kept).track


def after_costs(
    scores: Days, as_of: pd.DatetimeIndex, quotes: Quotes, trading: Trading, first: pd.Timestamp
) -> pd.DataFrame:
    """Return what is left of an order after costs: every way to trade it before `first`, and those
    chosen from then on.

    Columns: `span` ("validation", "test"), `version` (one of `VERSIONS` if it was chosen for one,
    `EQUAL`, or ""), `smooth`, `band`, and `FIGURES` of `dtml.backtest.performance.performance`,
    whose index are equal parts of all stocks ordered, without costs; `break_even` is the cost, in
    basis points of what is traded, at which the mean return equals theirs.
    """
    frontier: list[tuple[Trading, float]] = []
    begin, rows = int(as_of.searchsorted(first)), []
    known = max(0, begin - 1)  # what the order of the last close before `first` earns ends after it
    spans = {"validation": slice(0, known), "test": slice(begin, len(as_of))}
    equal = {
        span: equal_weight_track(
            np.where(np.isfinite(scores[days]), 0.5, np.nan), as_of[days], quotes, "next_open"
        )
        for span, days in spans.items()
        if days.stop > days.start
    }

    def add(span: str, version: str, each: Trading) -> pd.DataFrame:
        track = track_of(scores[spans[span]], as_of[spans[span]], quotes, each)
        rows.append(_row(span, version, each, track, equal[span]))
        return track

    for smooth, band in product(SMOOTH, BANDS) if known else ():
        each = replace(trading, smooth=smooth, band=band)
        gain = add("validation", "", each)["net"] - equal["validation"]["net"]
        frontier.append((each, session_sharpe(gain.to_numpy())))
    for version, each in (
        _chosen(frontier) or {DAILY: replace(trading, smooth=1, band=1.0)}
    ).items():
        add("test", version, each)
    return pd.DataFrame([*rows, _row("test", EQUAL, trading, equal["test"], equal["test"])])


def _chosen(frontier: Sequence[tuple[Trading, float]]) -> dict[str, Trading]:
    """Return the best choice for each version, by the score of each on validation days."""
    if not frontier:
        return {}
    allowed = {
        DAILY: [row for row in frontier if row[0].smooth == 1 and row[0].band == 1],
        SMOOTHED: [row for row in frontier if row[0].band == 1],
        BANDED: [row for row in frontier if row[0].smooth == 1],
        BOTH: list(frontier),
    }
    return {version: max(found, key=lambda row: row[1])[0] for version, found in allowed.items()}


def _row(
    span: str, version: str, of: Trading, track: pd.DataFrame, equal: pd.DataFrame
) -> dict[str, Any]:
    found = performance(track, trials=None, index=equal)
    gain = float((track["gross"] - equal["gross"]).mean())
    found = replace(
        found, break_even=gain / found.turnover / BASIS_POINT if version != EQUAL else np.nan
    )
    figures = {name: value for name, value in asdict(found).items() if name in FIGURES}
    return {"span": span, "version": version, "smooth": of.smooth, "band": of.band} | figures
