"""The price that returns are taken from, prices on a grid of sessions, and the returns between two sessions."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.markets.definition import Returns


def adjusted_price(bars: pd.DataFrame, returns: Returns) -> "pd.Series[float]":
    """Return the price that returns are taken from: the close, or the adjusted close where a symbol has any."""
    if returns == "close":
        return bars["close"]
    has_adjusted = bars["adj_close"].notna().groupby(bars["symbol"]).transform("any")
    return bars["adj_close"].where(has_adjusted, bars["close"])


def on_grid(
    bars: pd.DataFrame, name: str, sessions: pd.DatetimeIndex, symbols: Sequence[str]
) -> Float[ndarray, "sessions stocks"]:
    """Return a column of a bars frame by session and symbol, NaN where there is no bar; other bars are left out."""
    row = sessions.get_indexer(pd.DatetimeIndex(bars["session"]))
    column = pd.Index(symbols).get_indexer(pd.Index(bars["symbol"]))
    placed = (row >= 0) & (column >= 0)
    grid = np.full((len(sessions), len(symbols)), np.nan)
    grid[row[placed], column[placed]] = bars[name].to_numpy()[placed]
    return grid


def returns_between(
    bars: pd.DataFrame, as_of: pd.DatetimeIndex, target: pd.DatetimeIndex, symbols: tuple[str, ...], returns: Returns
) -> Float[ndarray, "days stocks"]:
    """Return the returns from each `as_of` to its `target`, ratios minus 1; NaN where either bar is missing."""
    priced = bars.assign(price=adjusted_price(bars, returns))
    prices = priced.pivot(index="session", columns="symbol", values="price").reindex(columns=list(symbols))
    before, after = (prices.reindex(sessions).to_numpy() for sessions in (as_of, target))
    return np.asarray(after / before - 1)
