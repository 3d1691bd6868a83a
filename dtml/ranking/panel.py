"""Bars of a market on a grid of sessions, all prices adjusted by one factor, and ranks within a day."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from dtml.markets.definition import Returns
from dtml.prices.returns import adjusted_price, on_grid, sessions_met

Grid = Float[ndarray, "sessions stocks"]
There = Bool[ndarray, "sessions stocks"]
Features = Float[ndarray, "sessions stocks features"]


@dataclass(frozen=True)
class Panel:
    """Bars of stocks by session; NaN where there is none.

    `open, high, low, close` are in currency units, each times adjusted over unadjusted close of its bar, so that no
    dividend or split opens a gap; `volume` counts shares, `value` is close times volume. A bar without volume repeats
    an old price and is left out, where the source has had volumes of that stock.
    """

    sessions: pd.DatetimeIndex
    symbols: tuple[str, ...]
    open: Grid
    high: Grid
    low: Grid
    close: Grid
    volume: Grid
    value: Grid

    @property
    def observed(self) -> There:
        """Return whether a stock has a bar."""
        return np.asarray(np.isfinite(self.close))


def panel_of(bars: pd.DataFrame, *, sessions: pd.DatetimeIndex, symbols: tuple[str, ...], returns: Returns) -> Panel:
    """Return the panel of these stocks on the sessions in which a quorum of them has a bar.

    `bars` is the long frame `symbol, session, open, high, low, close, adj_close, volume`; `returns` says which close
    returns are taken from. A missing open, high or low stays missing; one of 0 or less is missing.
    """
    bars = bars[bars["symbol"].isin(symbols)]
    had_volume = bars.sort_values("session")["volume"].gt(0).groupby(bars["symbol"]).cummax().reindex(bars.index)
    bars = bars[bars["volume"].isna() | (bars["volume"] > 0) | ~had_volume]
    factor = adjusted_price(bars, returns) / bars["close"]
    priced = {name: (bars[name] * factor).where(bars[name] > 0) for name in ("open", "high", "low", "close")}
    held = bars.assign(**priced, value=bars["close"] * bars["volume"])
    grid = sessions_met(held, sessions)
    columns = ("open", "high", "low", "close", "volume", "value")
    return Panel(grid, symbols, *(on_grid(held, name, grid, symbols) for name in columns))


def ranked(values: Float[ndarray, "days stocks"]) -> Float[ndarray, "days stocks"]:
    """Return the ranks within each day, scaled to [-0.5, 0.5]; ties share their mean rank, NaN stays.

    A stock that is alone on its day has rank 0.
    """
    places = pd.DataFrame(values).rank(axis=1).to_numpy()
    others = np.isfinite(places).sum(axis=1, keepdims=True) - 1
    return np.where(others > 0, (places - 1) / np.maximum(others, 1) - 0.5, np.where(np.isfinite(places), 0.0, np.nan))


def mean_of_known(values: Float[ndarray, "..."], axis: int) -> Float[ndarray, "..."]:
    """Return the mean along an axis of the values that are not NaN; 0 where there is none."""
    known = np.isfinite(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis=axis) / np.maximum(known.sum(axis=axis), 1))
