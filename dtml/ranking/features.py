"""Some forty price-volume features of a stock in a session, to be ranked within the day.

Each is a pure function of `Bars` that states its unit and range. It reads the session's own bar and
earlier ones only; a stock's bars are counted as they come, so the bar before a halt precedes the
bar after it. A feature that lacks a bar it needs is missing (NaN). What is divided by a price, a
deviation or a mean that is 0 is missing too.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.lib.stride_tricks import sliding_window_view

from dtml.ranking.panel import Features, Grid, Panel, There, mean_of_known, ranked

Column = Float[ndarray, "bars stocks"]
Places = Int[ndarray, "bars stocks"]

MAX_GAP = 5  # sessions that may be missing inside the bars of a feature
STOCKS_AT_ONCE = 64  # whose windows are in memory together
# the stocks that a stock moves with: their returns, less the mean of each day, were closest to its
# own
PEERS = 10
SESSIONS = 250  # before a month, in which peers moved together
LEAST_SESSIONS = 60  # with fewer returns, a stock has no peers and is none
MONTH = 23  # sessions, at most


@dataclass(frozen=True)
class Bars:
    """The bars of each stock in time, those it lacks last; adjusted currency units, `volume` in
    shares.

    `market` is the mean return, over the stocks, of the session of each bar, without the changes
    beyond a `max_return`; `peers` the same over the stocks that it moves with; `position` its row
    in the grid.
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
        """Return the bars of a panel."""
        position = np.argsort(
            ~panel.observed, axis=0, kind="stable"
        )  # rows of the grid with a bar, then the others
        names = ("open", "high", "low", "close", "volume", "value")
        taken = {name: np.take_along_axis(getattr(panel, name), position, axis=0) for name in names}
        grid = np.full_like(panel.close, np.nan)
        returns = change(taken["close"])
        np.put_along_axis(
            grid, position, np.where(np.abs(returns) > max_return, np.nan, returns), axis=0
        )
        market = np.take_along_axis(
            np.broadcast_to(mean_of_known(grid, 1)[:, None], grid.shape), position, axis=0
        )
        peers = np.take_along_axis(peer_returns(grid, panel.sessions), position, axis=0)
        return cls(**taken, market=market, peers=peers, position=position)

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
    """A column and the number of bars, the session's own included, that it reads."""

    bars: int
    of: Callable[[Bars], Column]


def before(values: Column, count: int) -> Column:
    """Return the values of so many bars earlier."""
    found = np.full_like(values, np.nan)
    found[count:] = values[: max(len(values) - count, 0)]
    return found


def change(values: Column, count: int = 1) -> Column:
    """Return the ratio to the value of so many bars earlier, minus 1."""
    return np.asarray(values / before(values, count) - 1)


def rolling(values: Column, count: int, statistic: Callable[..., ndarray]) -> Column:
    """Return a statistic of the last `count` values; NaN where one is missing,
    or where there are fewer.
    """
    found = np.full_like(values, np.nan)
    if len(values) >= count:
        for first in range(0, values.shape[1], STOCKS_AT_ONCE):
            some = slice(first, first + STOCKS_AT_ONCE)
            found[count - 1 :, some] = statistic(
                sliding_window_view(values[:, some], count, axis=0), axis=-1
            )
    return found


def mean(values: Column, count: int) -> Column:
    """Return the mean of the last `count` values."""
    return rolling(values, count, np.mean)


def past_return(bars: Bars, *, count: int, less: int = 0) -> Column:
    """Return the return from `count` bars ago to `less` bars ago, above -1."""
    return np.asarray(before(bars.close, less) / before(bars.close, count) - 1)


def day_range(bars: Bars) -> Column:
    """Return high less low, over the close, 0 or more."""
    return np.asarray((bars.high - bars.low) / bars.close)


def place_in_range(bars: Bars, *, count: int) -> Column:
    """Return where the close lies from the lowest low, 0, to the highest high,
    1, of so many bars.
    """
    low, high = rolling(bars.low, count, np.min), rolling(bars.high, count, np.max)
    return _share(bars.close - low, high - low)


def of_returns(bars: Bars, *, count: int, statistic: Callable[..., ndarray]) -> Column:
    """Return a statistic of the last returns: their standard deviation, 0 or
    more, or an extreme, above -1.
    """
    return rolling(bars.returns, count, statistic)


def relative_volume(bars: Bars, *, count: int) -> Column:
    """Return the volume over the mean of the last volumes, 0 to `count`."""
    return _share(bars.volume, mean(bars.volume, count))


def illiquidity(bars: Bars, *, count: int) -> Column:
    """Return the mean of the absolute return over the traded value, a unit of
    currency (Amihud, 2002).
    """
    return mean(_share(np.abs(bars.returns), bars.value), count)


def volume_correlation(bars: Bars, *, count: int) -> Column:
    """Return the correlation, -1 to 1, of the last returns with the logarithms
    of the changes of volume.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = np.log(bars.volume / before(bars.volume, 1))
    changes[~np.isfinite(changes)] = np.nan
    covariance, one, other = _moments(bars.returns, changes, count)
    return _share(covariance, np.sqrt(one * other))


def excess_in_deviations(bars: Bars, *, count: int) -> Column:
    """Return the last return less the market's, in standard deviations of the last returns."""
    return _share(bars.returns - bars.market, rolling(bars.returns, count, np.std))


def beta(bars: Bars, *, count: int) -> Column:
    """Return the slope of the last returns on the market's."""
    covariance, _, variance = _moments(bars.returns, bars.market, count)
    return _share(covariance, variance)


def residual(bars: Bars, *, count: int, last: int) -> Column:
    """Return the mean of the last returns less `beta` times the market's, with
    the beta of `count` bars.
    """
    return np.asarray(mean(bars.returns, last) - beta(bars, count=count) * mean(bars.market, last))


def less_peers(bars: Bars, *, last: int) -> Column:
    """Return the mean of the last returns less that of the stocks that it moves with."""
    return np.asarray(mean(bars.returns, last) - mean(bars.peers, last))


def average_over_close(bars: Bars, *, count: int) -> Column:
    """Return the mean of the last closes over the close, minus 1, above -1: the
    paper's moving averages.
    """
    return np.asarray(mean(bars.close, count) / bars.close - 1)


def over_close(bars: Bars, *, name: str) -> Column:
    """Return the open, high or low over the close, minus 1, above -1: the paper's."""
    return np.asarray(getattr(bars, name) / bars.close - 1)


FEATURES: Mapping[str, Feature] = {
    **{
        f"return_{k}": Feature(k + 1, partial(past_return, count=k))
        for k in (1, 2, 3, 5, 10, 20, 60)
    },
    **{f"momentum_{k}": Feature(k + 1, partial(past_return, count=k, less=20)) for k in (120, 250)},
    **{
        f"volatility_{k}": Feature(k + 1, partial(of_returns, count=k, statistic=np.std))
        for k in (5, 20, 60)
    },
    "range": Feature(1, day_range),
    "session": Feature(1, lambda bars: bars.session),
    "gap": Feature(2, lambda bars: bars.gap),
    "place_in_day": Feature(1, partial(place_in_range, count=1)),
    **{f"place_in_range_{k}": Feature(k, partial(place_in_range, count=k)) for k in (5, 20, 60)},
    "highest_return_20": Feature(21, partial(of_returns, count=20, statistic=np.max)),
    "lowest_return_20": Feature(21, partial(of_returns, count=20, statistic=np.min)),
    **{f"relative_volume_{k}": Feature(k, partial(relative_volume, count=k)) for k in (5, 20, 60)},
    "traded_value_20": Feature(20, lambda bars: mean(bars.value, 20)),  # in currency units
    "overnight_20": Feature(21, lambda bars: mean(bars.gap, 20)),
    "intraday_20": Feature(20, lambda bars: mean(bars.session, 20)),
    "volume_correlation_20": Feature(21, partial(volume_correlation, count=20)),
    "excess_20": Feature(21, partial(excess_in_deviations, count=20)),
    "beta_60": Feature(61, partial(beta, count=60)),
    **{f"residual_{k}": Feature(61, partial(residual, count=60, last=k)) for k in (1, 5, 20)},
    **{f"less_peers_{k}": Feature(k + 1, partial(less_peers, last=k)) for k in (1, 5, 20)},
    "illiquidity_20": Feature(21, partial(illiquidity, count=20)),
    **{
        f"{name}_over_close": Feature(1, partial(over_close, name=name))
        for name in ("open", "high", "low")
    },
    **{
        f"average_{k}": Feature(k, partial(average_over_close, count=k))
        for k in (5, 10, 15, 20, 25, 30)
    },
}
Names = Collection[str]
ALL: Names = tuple(FEATURES)
HISTORY = max(
    SESSIONS + 2 * MONTH, *(feature.bars for feature in FEATURES.values())
)  # peers of the month before too


def ranked_features(
    panel: Panel, among: There | None = None, *, max_return: float = np.inf, names: Names = ALL
) -> Features:
    """Return every feature's rank within the day, in [-0.5, 0.5], NaN where it is missing, in the
    order of `FEATURES`.

    Those that `names` leaves out are missing throughout. A stock is ranked on the days on which it
    is `among` the constituents, by default always. No feature reads prices from both sides of a
    change beyond `max_return`: it is a change of the unit of account.
    """
    bars = Bars.of(panel, max_return=max_return)
    era = np.cumsum(np.abs(np.nan_to_num(bars.returns)) > max_return, axis=0)
    there = panel.observed if among is None else panel.observed & among
    found = np.full((*panel.close.shape, len(FEATURES)), np.nan, dtype=np.float32)
    for column, feature in ((list(FEATURES).index(name), FEATURES[name]) for name in names):
        grid = np.full_like(panel.close, np.nan)
        values = np.where(reads_enough(bars.position, era, feature.bars), feature.of(bars), np.nan)
        np.put_along_axis(grid, bars.position, values, axis=0)
        found[..., column] = ranked(np.where(there, grid, np.nan))
    return found


def reads_enough(position: Places, era: Places, count: int) -> Bool[ndarray, "bars stocks"]:
    """Return whether the last `count` bars lie close enough together and share
    one unit of account.
    """
    back = count - 1
    enough: Bool[ndarray, "bars stocks"] = np.zeros_like(position, dtype=bool)
    earlier = slice(0, max(len(position) - back, 0))
    enough[back:] = (position[back:] - position[earlier] <= back + MAX_GAP) & (
        era[back:] == era[earlier]
    )
    return enough


def _moments(one: Column, other: Column, count: int) -> tuple[Column, Column, Column]:
    """Return the covariance and the two variances of the last values."""
    first, second = mean(one, count), mean(other, count)
    squares = mean(one * one, count) - first**2, mean(other * other, count) - second**2
    return mean(one * other, count) - first * second, *squares


def _share(part: Column, whole: Column) -> Column:
    return np.asarray(np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0))


def peer_returns(returns: Grid, sessions: pd.DatetimeIndex) -> Grid:
    """Return the mean return of the peers of each stock in each session, a ratio minus 1; NaN where
    it has none.

    Its peers of a month are the `PEERS` stocks with the highest correlation, above 0, over the
    `SESSIONS` before that month. The month is the calendar's, so that neither later bars nor an
    earlier beginning change them.
    """
    found, months = np.full_like(returns, np.nan), sessions.year * 12 + sessions.month
    for month in months.unique():
        days = np.flatnonzero(months == month)
        seen = returns[max(0, days[0] - SESSIONS) : days[0]]
        if len(seen) >= LEAST_SESSIONS:
            chosen = _peers(seen)
            theirs = np.where(chosen < 0, np.nan, returns[days][:, chosen])  # [days, stocks, peers]
            found[days] = np.where(
                np.isfinite(theirs).any(axis=-1), mean_of_known(theirs, -1), np.nan
            )
    return found


def _peers(returns: Float[ndarray, "sessions stocks"]) -> Int[ndarray, "stocks peers"]:
    """Return the positions of each stock's peers, -1 for one that is missing; a
    missing return is the day's mean.
    """
    known = np.isfinite(returns)
    excess = np.where(known, returns - mean_of_known(returns, 1)[:, None], np.nan)
    excess = np.where(known, excess - mean_of_known(excess, 0), 0.0)
    size = np.sqrt((excess**2).sum(axis=0))
    together = excess.T @ excess / np.maximum(np.outer(size, size), np.finfo(float).tiny)
    np.fill_diagonal(together, 0.0)
    few = known.sum(axis=0) < LEAST_SESSIONS
    together[:, few] = together[few] = 0.0
    chosen = np.argsort(-together, axis=1, kind="stable")[:, :PEERS]
    return np.where(np.take_along_axis(together, chosen, axis=1) > 0, chosen, -1)
