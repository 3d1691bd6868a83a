"""Bars of a market on a grid of sessions, all prices adjusted by one factor, and ranks in a day."""

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

ROUNDING = 1e-12  # more than sums of equal ranks differ by, and less than means of other ranks do


@dataclass(frozen=True)
class Panel:
    """Bars of stocks by session; NaN where there is none.

    `open, high, low, close` are in currency units, each times adjusted over unadjusted close of its
    bar, so that no dividend or split opens a gap; `volume` counts shares, `value` is close times
    volume. A bar without volume repeats an old price and is left out, where the source has had
    volumes of that stock.
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


def panel_of(
    bars: pd.DataFrame, *, sessions: pd.DatetimeIndex, symbols: tuple[str, ...], returns: Returns
) -> Panel:
    """Return the panel of these stocks on the sessions in which a quorum of them has a bar.

    `bars` is the long frame `symbol, session, open, high, low, close, adj_close, volume`; `returns`
    says which close returns are taken from. A missing open, high or low stays missing; one of 0 or
    less is missing.
    """
    bars = bars[bars["symbol"].isin(symbols)]
    has_volume = bars.sort_values("session")["volume"].gt(0)
    had_volume = has_volume.groupby(bars["symbol"]).cummax().reindex(bars.index)
    bars = bars[bars["volume"].isna() | (bars["volume"] > 0) | ~had_volume]
    factor = adjusted_price(bars, returns) / bars["close"]

    def adjusted(name: str) -> "pd.Series[float]":
        return (bars[name] * factor).where(bars[name] > 0)

    priced = bars.assign(
        open=adjusted("open"),
        high=adjusted("high"),
        low=adjusted("low"),
        close=adjusted("close"),
        value=bars["close"] * bars["volume"],
    )
    met = sessions_met(priced, sessions)
    return Panel(
        sessions=met,
        symbols=symbols,
        open=on_grid(priced, "open", met, symbols),
        high=on_grid(priced, "high", met, symbols),
        low=on_grid(priced, "low", met, symbols),
        close=on_grid(priced, "close", met, symbols),
        volume=on_grid(priced, "volume", met, symbols),
        value=on_grid(priced, "value", met, symbols),
    )


def ranked(values: Float[ndarray, "days stocks"]) -> Float[ndarray, "days stocks"]:
    """Return the ranks within each day, scaled to [-0.5, 0.5].

    Ties share their mean rank, NaN stays. A stock that is alone on its day has rank 0.
    """
    places = pd.DataFrame(values).rank(axis=1).to_numpy()
    others = np.isfinite(places).sum(axis=1, keepdims=True) - 1
    alone = np.where(np.isfinite(places), 0.0, np.nan)
    return np.where(others > 0, (places - 1) / np.maximum(others, 1) - 0.5, alone)


def places(scores: Float[ndarray, "days stocks"]) -> Float[ndarray, "days stocks"]:
    """Return the place of each stock in its day, 1 for the highest score.

    NaN for one without a finite score. Rankings, portfolios, orders and the paper account all order
    stocks by this. Of equal scores the first column comes first. Columns stand in the order of
    symbols, which every market's context sorts: a tie is decided by what a reader of the stored
    scores knows too.
    """
    known = np.isfinite(scores)
    falling = np.where(known, -scores.astype(float), np.inf)
    order = np.argsort(falling, axis=1, kind="stable")
    return np.where(known, np.argsort(order, axis=1) + 1.0, np.nan)


def with_ties(means: Float[ndarray, "days stocks"]) -> Float[ndarray, "days stocks"]:
    """Return means of ranks, those of a day that only rounding keeps apart made equal.

    NaN stays. A sum of ranks that are no binary fractions depends on the order of its terms in the
    last bits: equal means would be ordered by chance. A mean ties with the next lower one of its
    day where they are at most `ROUNDING` apart.
    """
    order = np.argsort(means, axis=1, kind="stable")
    rising = np.take_along_axis(means, order, axis=1)
    begins = np.diff(rising, axis=1, prepend=-np.inf) > ROUNDING
    first = np.maximum.accumulate(np.where(begins, np.arange(means.shape[1]), 0), axis=1)
    tied = np.empty_like(rising)
    np.put_along_axis(tied, order, np.take_along_axis(rising, first, axis=1), axis=1)
    return np.where(np.isfinite(means), tied, np.nan)


def mean_of_known(values: Float[ndarray, "..."], axis: int) -> Float[ndarray, "..."]:
    """Return the mean along an axis of the values that are not NaN; 0 where there is none."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.asarray(total / np.maximum(known.sum(axis=axis), 1))
