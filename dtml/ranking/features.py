"""Some forty price-volume features of a stock in a session, to be ranked within the day.

Each is a function of `Bars` that states its unit and range, and reads the session's own bar and
earlier ones, across halts. NaN where a bar is missing, or a divisor is 0.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.lib.stride_tricks import sliding_window_view

from dtml.markets.definition import FeatureSet
from dtml.prices.changes import Column, Places, before, change, reads_enough
from dtml.ranking.panel import GRIDS, Features, Grid, Panel, There, mean_of_known, ranked

STOCKS_AT_ONCE = 64  # stocks whose windows are in memory together
# The number of stocks that a stock moves with: their returns, less the mean of each day, have the
# highest correlation with its own.
PEERS = 10
SESSIONS = 250  # sessions before a month, over which the correlations are taken
LEAST_SESSIONS = 60  # with fewer returns a stock has no peers and is nobody's peer
MONTH = 23  # sessions, at most


@dataclass(frozen=True)
class Bars:
    """The bars of each stock in time, [bars stocks], the missing ones last.

    Prices are in adjusted currency units, `volume` in shares, `value` in currency units. `market`
    is the session's mean return over all stocks, `peers` over the stock's peers; `position` the row
    in the panel.
    """

    open: Column
    high: Column
    low: Column
    close: Column
    volume: Column
    value: Column
    market: Column
    peers: Column
    position: Places

    @classmethod
    def of(cls, panel: Panel, *, max_return: float = np.inf) -> "Bars":
        """Return a panel's bars; changes beyond `max_return` enter no mean of others."""
        # For each stock, the rows of the grid with a bar, then the others.
        position = np.argsort(~panel.observed, axis=0, kind="stable")

        def by_bar(grid: Grid) -> Column:
            """Move the values of each stock up, so that its bars follow one another."""
            return np.take_along_axis(grid, position, axis=0)

        returns = change(by_bar(panel.close))
        plausible = np.where(np.abs(returns) > max_return, np.nan, returns)
        # Means over stocks are those of a session, so the returns go back to their sessions.
        by_session = np.full_like(panel.close, np.nan)  # [sessions stocks]
        np.put_along_axis(by_session, position, plausible, axis=0)
        market = mean_of_known(by_session, 1)[:, None]  # [sessions 1]
        session_mean = np.broadcast_to(market, by_session.shape)
        return cls(
            **{name: by_bar(getattr(panel, name)) for name in GRIDS},
            market=by_bar(session_mean),
            peers=by_bar(peer_returns(by_session, panel.sessions)),
            position=position,
        )

    @cached_property
    def returns(self) -> Column:
        """Return the ratio of each close to the one before, minus 1."""
        return change(self.close)

    @cached_property
    def gap(self) -> Column:
        """Return the ratio of each open to the close before, minus 1."""
        return np.asarray(self.open / before(self.close, 1) - 1)

    @cached_property
    def session(self) -> Column:
        """Return the ratio of each close to its open, minus 1."""
        return np.asarray(self.close / self.open - 1)


@dataclass(frozen=True)
class Feature:
    """A feature: its function, and how many bars that reads, the session's own included."""

    bars: int
    of: Callable[[Bars], Column]


def rolling(values: Column, count: int, statistic: Callable[..., ndarray]) -> Column:
    """Return a statistic of the last `count` values; NaN where one is missing."""
    result = np.full_like(values, np.nan)
    if len(values) < count:
        return result
    for first in range(0, values.shape[1], STOCKS_AT_ONCE):
        stocks = slice(first, first + STOCKS_AT_ONCE)
        windows = sliding_window_view(values[:, stocks], count, axis=0)  # [rows stocks count]
        result[count - 1 :, stocks] = statistic(windows, axis=-1)
    return result


def mean(values: Column, count: int) -> Column:
    """Return the mean of the last `count` values."""
    return rolling(values, count, np.mean)


def past_return(bars: Bars, *, count: int, less: int = 0) -> Column:
    """Return the return from `count` bars ago to `less` bars ago, above -1."""
    return np.asarray(before(bars.close, less) / before(bars.close, count) - 1)


def cumulated(returns: Column, count: int) -> Column:
    """Return what the last `count` returns make together, above -1; NaN if missing or lost."""
    with np.errstate(divide="ignore"):
        logarithms = np.log1p(returns)
    logarithms[~np.isfinite(logarithms)] = np.nan
    return np.asarray(np.expm1(rolling(logarithms, count, np.sum)))


def day_range(bars: Bars) -> Column:
    """Return high less low, over the close, 0 or more."""
    return np.asarray((bars.high - bars.low) / bars.close)


def place_in_range(bars: Bars, *, count: int) -> Column:
    """Return where the close lies between the lowest low, 0, and the highest high, 1, of bars."""
    low = rolling(bars.low, count, np.min)
    high = rolling(bars.high, count, np.max)
    return _share(bars.close - low, high - low)


def of_returns(bars: Bars, *, count: int, statistic: Callable[..., ndarray]) -> Column:
    """Return a statistic of the last returns: a deviation, 0 or more, or an extreme, above -1."""
    return rolling(bars.returns, count, statistic)


def relative_volume(bars: Bars, *, count: int) -> Column:
    """Return the volume divided by the mean of the last volumes, 0 to `count`."""
    return _share(bars.volume, mean(bars.volume, count))


def illiquidity(bars: Bars, *, count: int) -> Column:
    """Return the mean absolute return over traded value (Amihud, 2002), per unit of currency."""
    return mean(_share(np.abs(bars.returns), bars.value), count)


def volume_correlation(bars: Bars, *, count: int) -> Column:
    """Return the correlation of the last returns with log changes of volume, -1 to 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = np.log(bars.volume / before(bars.volume, 1))
    changes[~np.isfinite(changes)] = np.nan
    moments = _moments(bars.returns, changes, count)
    norm = np.sqrt(moments.variance * moments.other_variance)
    return _share(moments.covariance, norm)


def excess_in_deviations(bars: Bars, *, count: int) -> Column:
    """Return the last return less the market's, in standard deviations of the last returns."""
    deviation = rolling(bars.returns, count, np.std)
    return _share(bars.returns - bars.market, deviation)


def beta(bars: Bars, *, count: int) -> Column:
    """Return the slope of the last returns on the market's."""
    moments = _moments(bars.returns, bars.market, count)
    return _share(moments.covariance, moments.other_variance)


def residual(bars: Bars, *, count: int, last: int) -> Column:
    """Return the mean of the last returns less `beta`, of `count` bars, times the market's."""
    of_market = beta(bars, count=count) * mean(bars.market, last)
    return np.asarray(mean(bars.returns, last) - of_market)


def less_peers(bars: Bars, *, count: int) -> Column:
    """Return the mean of the last returns less that of the stock's peers."""
    return np.asarray(mean(bars.returns, count) - mean(bars.peers, count))


def overnight_return(bars: Bars, *, count: int) -> Column:
    """Return what the last `count` gaps between a close and the next open make together."""
    return cumulated(bars.gap, count)


def intraday_return(bars: Bars, *, count: int) -> Column:
    """Return what the last `count` returns from an open to its close make together."""
    return cumulated(bars.session, count)


def average_over_close(bars: Bars, *, count: int) -> Column:
    """Return the mean of the last closes over the close, minus 1, above -1 (the paper's)."""
    return np.asarray(mean(bars.close, count) / bars.close - 1)


def _each(
    name: str, of: Callable[..., Column], counts: Sequence[int], *, more: int = 0, **settings: Any
) -> dict[str, Feature]:
    """Return a feature for each number of bars, of which it reads `more` than its name says."""
    return {
        f"{name}_{count}": Feature(count + more, partial(of, count=count, **settings))
        for count in counts
    }


# The features of the "usual" set, in the order of the columns.
FEATURES: Mapping[str, Feature] = {
    **_each("return", past_return, (1, 2, 3, 5, 10, 20, 60), more=1),
    **_each("momentum", past_return, (120, 250), more=1, less=20),
    **_each("volatility", of_returns, (5, 20, 60), more=1, statistic=np.std),
    "range": Feature(1, day_range),
    "session": Feature(1, lambda bars: bars.session),
    "gap": Feature(2, lambda bars: bars.gap),
    "place_in_day": Feature(1, partial(place_in_range, count=1)),
    **_each("place_in_range", place_in_range, (5, 20, 60)),
    **_each("highest_return", of_returns, (20,), more=1, statistic=np.max),
    **_each("lowest_return", of_returns, (20,), more=1, statistic=np.min),
    **_each("relative_volume", relative_volume, (5, 20, 60)),
    "traded_value_20": Feature(20, lambda bars: mean(bars.value, 20)),  # in units of currency
    "overnight_20": Feature(21, lambda bars: mean(bars.gap, 20)),
    "intraday_20": Feature(20, lambda bars: mean(bars.session, 20)),
    **_each("volume_correlation", volume_correlation, (20,), more=1),
    **_each("excess", excess_in_deviations, (20,), more=1),
    **_each("beta", beta, (60,), more=1),
    "residual_1": Feature(61, partial(residual, count=60, last=1)),
    "residual_5": Feature(61, partial(residual, count=60, last=5)),
    "residual_20": Feature(61, partial(residual, count=60, last=20)),
    **_each("less_peers", less_peers, (1, 5, 20), more=1),
    **_each("illiquidity", illiquidity, (20,), more=1),
    "open_over_close": Feature(1, lambda bars: bars.open / bars.close - 1),
    "high_over_close": Feature(1, lambda bars: bars.high / bars.close - 1),
    "low_over_close": Feature(1, lambda bars: bars.low / bars.close - 1),
    **_each("average", average_over_close, (5, 10, 15, 20, 25, 30)),
}
# What the "long" set adds: overnight and intraday continuation, the return over the last sessions
# split into what was earned from each close to the next open and what was earned from each open to
# its close (Lou, Polk and Skouras, "A tug of war: overnight versus intraday expected returns",
# 2019).
LONG: Mapping[str, Feature] = {
    **_each("overnight_return", overnight_return, (60, 120, 250), more=1),
    **_each("intraday_return", intraday_return, (60, 120, 250)),
}
# Columns of "long" follow those of "usual", so that each feature has one place in both sets.
FEATURE_SETS: Mapping[FeatureSet, Mapping[str, Feature]] = {
    "usual": FEATURES,
    "long": {**FEATURES, **LONG},
}
Names = Collection[str]
ALL: Names = tuple(FEATURE_SETS["long"])
# Bars that the features read; the peers need those of the month before too.
HISTORY = max(SESSIONS + 2 * MONTH, *(each.bars for each in FEATURE_SETS["long"].values()))


def ranked_features(
    panel: Panel,
    among: There | None = None,
    *,
    max_return: float = np.inf,
    names: Names = ALL,
    feature_set: FeatureSet = "usual",
) -> Features:
    """Return every feature's rank within the day, [sessions stocks features], in [-0.5, 0.5].

    In the order of FEATURE_SETS; NaN where missing, not in `names`, or the stock has no bar or is
    not `among` the constituents (None: all are). No feature reads prices from both sides of a
    change beyond `max_return`, nor over a long halt (`reads_enough`).
    """
    bars = Bars.of(panel, max_return=max_return)
    is_unit_change = np.abs(np.nan_to_num(bars.returns)) > max_return
    # The number of unit changes so far: bars with the same number share a unit.
    era = np.cumsum(is_unit_change, axis=0)
    there = panel.observed if among is None else panel.observed & among
    features = FEATURE_SETS[feature_set]
    ranks = np.full((*panel.close.shape, len(features)), np.nan, dtype=np.float32)
    for column, (name, feature) in enumerate(features.items()):
        if name not in names:
            continue
        # Not over a long halt, and not over a change of the unit.
        enough = reads_enough(bars.position, era, feature.bars)
        values = np.where(enough, feature.of(bars), np.nan)
        # From bars back to sessions, where the stocks of a day are ranked.
        grid = np.full_like(panel.close, np.nan)
        np.put_along_axis(grid, bars.position, values, axis=0)
        ranks[..., column] = ranked(np.where(there, grid, np.nan))
    return ranks


@dataclass(frozen=True)
class _Moments:
    """The covariance of two columns over their last values, and the variance of each."""

    covariance: Column
    variance: Column
    other_variance: Column


def _moments(values: Column, others: Column, count: int) -> _Moments:
    values_mean = mean(values, count)
    others_mean = mean(others, count)
    return _Moments(
        covariance=mean(values * others, count) - values_mean * others_mean,
        variance=mean(values * values, count) - values_mean**2,
        other_variance=mean(others * others, count) - others_mean**2,
    )


def _share(part: Column, whole: Column) -> Column:
    """Return part / whole, NaN where `whole` is not above 0."""
    missing = np.full_like(part, np.nan)
    return np.asarray(np.divide(part, whole, out=missing, where=whole > 0))


def peer_returns(returns: Grid, sessions: pd.DatetimeIndex) -> Grid:
    """Return the mean return of each stock's peers in each session, a ratio minus 1.

    It is NaN where no peer has a return. A stock's peers in a month are at most `PEERS` stocks:
    those whose returns, less the day's mean, have the highest correlation, above 0, with its own
    over the `SESSIONS` before that month, or over as many as there are, if at least
    `LEAST_SESSIONS`. Later bars do not change them, nor does an earlier start of the history where
    all `SESSIONS` are there.
    """
    means = np.full_like(returns, np.nan)
    months = sessions.year * 12 + sessions.month
    for month in months.unique():
        days = np.flatnonzero(months == month)
        first = days[0]
        past = returns[max(0, first - SESSIONS) : first]
        if len(past) < LEAST_SESSIONS:  # no stock can have enough returns to have peers
            continue
        peers = _peers(past)  # [stocks peers]
        # A missing peer, -1, reads the last stock, whose return is discarded.
        of_peers = np.where(peers < 0, np.nan, returns[days][:, peers])  # [days stocks peers]
        is_known = np.isfinite(of_peers).any(axis=-1)
        means[days] = np.where(is_known, mean_of_known(of_peers, -1), np.nan)
    return means


def _peers(returns: Float[ndarray, "sessions stocks"]) -> Int[ndarray, "stocks peers"]:
    """Return the positions of each stock's peers, -1 missing; a missing return adds nothing."""
    is_known = np.isfinite(returns)
    day_mean = mean_of_known(returns, 1)[:, None]  # [sessions 1]
    excess = np.where(is_known, returns - day_mean, np.nan)
    # Centred on each stock's own mean; a missing excess is 0 and does not enter a product.
    excess = np.where(is_known, excess - mean_of_known(excess, 0), 0.0)
    size = np.sqrt((excess**2).sum(axis=0))
    # A stock whose excess is always 0 has the correlation 0: nothing is divided by 0.
    norm = np.maximum(np.outer(size, size), np.finfo(float).tiny)
    correlation = excess.T @ excess / norm
    # A correlation of 0 makes no peer: no stock is its own, and one with few returns has none and
    # is nobody's.
    np.fill_diagonal(correlation, 0.0)
    has_few = is_known.sum(axis=0) < LEAST_SESSIONS
    correlation[:, has_few] = 0.0
    correlation[has_few] = 0.0
    closest = np.argsort(-correlation, axis=1, kind="stable")[:, :PEERS]
    is_peer = np.take_along_axis(correlation, closest, axis=1) > 0
    return np.where(is_peer, closest, -1)


# The feature whose rank is the score, by the name of the rule; with -1 the lowest rank is the best.
RULES: Mapping[str, tuple[str, int]] = {
    "day_losers": ("return_1", -1),
    "five_day_losers": ("return_5", -1),
    "low_volatility": ("volatility_20", -1),
    "volume_shock": ("relative_volume_20", 1),
    "intraday_reversal": ("session", -1),
}
# Sessions that the rules read, that of the ranking included.
RULES_READ = max(FEATURES[feature].bars for feature, _ in RULES.values())


def rule_scores(features: Features, rule: str) -> Grid:
    """Return the score that a rule gives each stock-day, from ranked `features` in order."""
    feature, sign = RULES[rule]
    column = list(FEATURES).index(feature)
    return sign * np.asarray(features[..., column], dtype=float)
