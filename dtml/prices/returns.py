"""Which bars can be traded, when an outcome is known, and prices on a grid."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.markets import Market
from dtml.markets.definition import LabelProtocol, Returns
from dtml.prices.bars import PRICES, bars_frame, no_bars

# The paper's labels: a return of +0.55 % or more is a rise, one of -0.5 % or less a fall.
RISE = 0.0055
FALL = -0.005
BASE = 100.0  # the level of the first session
QUORUM = 0.5  # share of the usual number of bars; a session with fewer is left out
LISTED = 30  # sessions, up to the one in question, whose largest number of bars is the usual one


def doubts(symbols: Iterable[str], reason: str, values: Sequence[str]) -> pd.DataFrame:
    """Return a row for each symbol that is doubted: symbol, reason, and value in words."""
    return pd.DataFrame({"symbol": list(symbols), "reason": reason, "value": values}, dtype=str)


def traded(bars: pd.DataFrame) -> "pd.Series[bool]":
    """Return which bars of stocks, not of an index, somebody traded, and anybody could have.

    Not the fills of a halt: volume 0 of a stock with a volume on an earlier bar, or whose single
    price is the close before. A missing volume is not 0.
    """
    is_silent = bars["volume"] == 0
    if not is_silent.any():
        return ~is_silent
    ordered = bars[bars["symbol"].isin(bars.loc[is_silent, "symbol"])].sort_values("session")
    symbol = ordered["symbol"]
    had_volume = ordered["volume"].gt(0).groupby(symbol).cummax()
    close_before = ordered["close"].groupby(symbol).shift()
    is_repeat = ordered[list(PRICES)].eq(close_before, axis=0).all(axis=1)
    is_fill = (had_volume | is_repeat).reindex(bars.index, fill_value=False)
    return ~(is_silent & is_fill)


def outcome(
    before: Float[ndarray, "*shape"], after: Float[ndarray, "*shape"], max_return: float
) -> Float[ndarray, "*shape"]:
    """Return the return between two prices of `traded` bars, a ratio minus 1.

    NaN unknown, and above `max_return`: a corporate action.
    """
    change = np.asarray(after / before - 1)
    change[np.abs(change) > max_return] = np.nan
    return change


def adjusted_price(bars: pd.DataFrame, returns: Returns) -> "pd.Series[float]":
    """Return the price of returns: the close, or the adjusted close where a symbol has any."""
    if returns == "close":
        return bars["close"]
    has_adjusted = bars["adj_close"].notna().groupby(bars["symbol"]).transform("any")
    return bars["adj_close"].where(has_adjusted, bars["close"])


def on_grid(
    bars: pd.DataFrame, name: str, sessions: pd.DatetimeIndex, symbols: Sequence[str]
) -> Float[ndarray, "sessions stocks"]:
    """Return a column of a bars frame by session and symbol, NaN where there is no bar."""
    # The row and the column of each bar in the grid, -1 for a session or symbol that is not in it.
    row = sessions.get_indexer(pd.DatetimeIndex(bars["session"]))
    column = pd.Index(symbols).get_indexer(pd.Index(bars["symbol"]))
    is_placed = (row >= 0) & (column >= 0)
    grid = np.full((len(sessions), len(symbols)), np.nan)
    grid[row[is_placed], column[is_placed]] = bars[name].to_numpy()[is_placed]
    return grid


def sessions_met(bars: pd.DataFrame, sessions: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Return the sessions on which at least `QUORUM` of the usual number of stocks has a bar."""
    counts = bars.groupby("session")["symbol"].count()
    usual_count = counts.rolling(LISTED, min_periods=1).max()
    has_quorum = counts >= QUORUM * usual_count
    return sessions.intersection(pd.DatetimeIndex(counts.index[has_quorum]))


def returns_of(
    rows: pd.DataFrame, bars: pd.DataFrame, returns: Returns, max_return: float = np.inf
) -> Float[ndarray, " rows"]:
    """Return the `outcome` of each row from `as_of` to `target`; NaN without a `traded` bar."""
    price = _traded_price(bars, returns).set_index(["symbol", "session"])["price"]
    before, after = (
        price.reindex(pd.MultiIndex.from_frame(rows[["symbol", day]])).to_numpy()
        for day in ("as_of", "target")
    )
    return outcome(before, after, max_return)


def _traded_price(bars: pd.DataFrame, returns: Returns) -> pd.DataFrame:
    """Return the bars that were `traded`, with the `price` of their returns."""
    return bars.assign(price=adjusted_price(bars, returns))[traded(bars)]


def returns_between(
    bars: pd.DataFrame,
    as_of: pd.DatetimeIndex,
    target: pd.DatetimeIndex,
    symbols: tuple[str, ...],
    returns: Returns,
    max_return: float = np.inf,
) -> Float[ndarray, "days stocks"]:
    """Return each stock's `outcome` from `as_of` to `target`; NaN without a `traded` bar."""
    priced = _traded_price(bars, returns)
    prices = priced.pivot(index="session", columns="symbol", values="price")
    prices = prices.reindex(columns=list(symbols))
    before = prices.reindex(as_of).to_numpy()
    return outcome(before, prices.reindex(target).to_numpy(), max_return)


def index_of_constituents(market: Market, bars: pd.DataFrame, level: float = BASE) -> pd.DataFrame:
    """Return the bars of a market's index as the equal-weight mean of its constituents.

    It starts at `level` on the first session with an accepted bar. Each session it changes by the
    mean return of that session's constituents with a `traded` bar on it and on the session before;
    without any it stays. Open, high and low are means too. The adjusted close is the close; the
    volume is missing.
    """
    symbols = market.symbols
    stocks = bars[bars["symbol"].isin(symbols)]
    stocks = stocks[traded(stocks)]
    if stocks.empty:
        return no_bars()
    sessions = pd.DatetimeIndex(np.unique(stocks["session"]))
    stocks = stocks.assign(price=adjusted_price(stocks, market.returns))
    price = on_grid(stocks, "price", sessions, symbols)
    close = on_grid(stocks, "close", sessions, symbols)
    # No stock has a price before the first session: `_mean` is 1 there, and the index at `level`.
    no_price = np.full((1, len(symbols)), np.nan)
    price_before = np.vstack([no_price, price[:-1]])
    is_constituent = market.is_constituent(sessions)
    # What the prices of a bar are multiplied by: price / close adjusts them as the close is
    # adjusted, and 1 / price_before makes them relative to the adjusted close of the session
    # before. NaN leaves out a stock that is no constituent on the session.
    scale = np.where(is_constituent, price / (close * price_before), np.nan)
    relative = {name: _mean(on_grid(stocks, name, sessions, symbols) * scale) for name in PRICES}
    closes = level * np.cumprod(relative["close"])
    closes_before = np.concatenate([[level], closes[:-1]])
    index = pd.DataFrame(
        {
            "symbol": market.index.symbol,
            "session": sessions,
            "open": closes_before * relative["open"],
            "high": closes_before * relative["high"],
            "low": closes_before * relative["low"],
            "close": closes,
            "adj_close": closes,
        }
    )
    return bars_frame(index)


def _mean(relative: Float[ndarray, "sessions stocks"]) -> Float[ndarray, " sessions"]:
    """Return the mean of prices relative to the closes before; 1 where none is known."""
    is_known = np.isfinite(relative).any(axis=1, keepdims=True)
    filled = np.where(is_known, relative, 1.0)
    return np.asarray(np.nanmean(filled, axis=1))


def published_labels(change: Float[ndarray, "*shape"]) -> Int[ndarray, "*shape"]:
    """Return 1 for a rise, -1 for a fall (section 4.1 of Yoo et al., KDD 2021), else 0."""
    return np.select([change >= RISE, change <= FALL], [1, -1], default=0)


def labelled(change: Float[ndarray, "*shape"], protocol: LabelProtocol) -> Bool[ndarray, "*shape"]:
    """Return which returns are known and, under the paper's protocol, large enough for a label."""
    is_known = np.isfinite(change)
    if protocol == "all":
        return np.asarray(is_known)
    has_label = published_labels(change) != 0
    return np.asarray(is_known & has_label)
