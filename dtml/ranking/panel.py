"""Bars of a market on a grid of sessions, all prices adjusted by one factor, and ranks in a day."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from dtml.markets.definition import Returns
from dtml.prices.returns import adjusted_price, on_grid, sessions_met, traded

Grid = Float[ndarray, "sessions stocks"]
There = Bool[ndarray, "sessions stocks"]  # whether a stock is ranked in a session
Features = Float[ndarray, "sessions stocks features"]

GRIDS = ("open", "high", "low", "close", "volume", "value")  # of a panel
ROUNDING = 1e-12  # above the differences of sums of equal ranks, below those of unequal means


@dataclass(frozen=True)
class Panel:
    """Bars of stocks by session; NaN where there is none.

    Prices are in currency units times adjusted over unadjusted close; `volume` in shares, `value`
    the unadjusted close times volume.
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

    def cut(self, days: slice) -> "Panel":
        """Return some sessions of the panel."""
        return Panel(
            sessions=self.sessions[days],
            symbols=self.symbols,
            **{name: getattr(self, name)[days] for name in GRIDS},
        )


def panel_of(
    bars: pd.DataFrame, *, sessions: pd.DatetimeIndex, symbols: tuple[str, ...], returns: Returns
) -> Panel:
    """Return the panel of these stocks on the sessions in which enough have a bar (`sessions_met`).

    `bars`: `symbol, session, open, high, low, close, adj_close, volume`; `returns` names the close
    of returns. A price of 0 or less is missing; bars that nobody `traded` are left out.
    """
    bars = bars[bars["symbol"].isin(symbols)]
    bars = bars[traded(bars)]
    factor = adjusted_price(bars, returns) / bars["close"]

    def adjusted(name: str) -> "pd.Series[float]":
        """Return a price adjusted as the close of its bar is."""
        return (bars[name] * factor).where(bars[name] > 0)

    priced = bars.assign(
        open=adjusted("open"),
        high=adjusted("high"),
        low=adjusted("low"),
        close=adjusted("close"),
        value=bars["close"] * bars["volume"],
    )
    panel_sessions = sessions_met(priced, sessions)
    return Panel(
        sessions=panel_sessions,
        symbols=symbols,
        **{name: on_grid(priced, name, panel_sessions, symbols) for name in GRIDS},
    )


def ranked(values: Float[ndarray, "days stocks"]) -> Float[ndarray, "days stocks"]:
    """Return the ranks within each day, scaled to [-0.5, 0.5], ties sharing their mean; NaN stays.

    A stock that is alone on its day has rank 0.
    """
    ranks = pd.DataFrame(values).rank(axis=1).to_numpy()  # 1 for the lowest
    # A day in one piece: its sums are then the same to the last bit whatever days are beside it.
    from_lowest = np.ascontiguousarray(ranks)
    others = np.isfinite(from_lowest).sum(axis=1, keepdims=True) - 1  # [days 1]
    alone = np.where(np.isfinite(from_lowest), 0.0, np.nan)
    scaled = (from_lowest - 1) / np.maximum(others, 1) - 0.5
    return np.where(others > 0, scaled, alone)


def places(scores: Float[ndarray, "days stocks"]) -> Float[ndarray, "days stocks"]:
    """Return the place of each stock in its day, 1 for the highest score, NaN without one.

    The first column of equal scores comes first: columns are sorted by symbol, so that a reader of
    stored scores can decide ties the same way.
    """
    has_score = np.isfinite(scores)
    # In rising order the best score comes first and a missing one last.
    negated = np.where(has_score, -scores.astype(float), np.inf)
    order = np.argsort(negated, axis=1, kind="stable")  # the column of each place
    place = np.argsort(order, axis=1) + 1.0  # the place of each column
    return np.where(has_score, place, np.nan)


def with_ties(means: Float[ndarray, "days stocks"]) -> Float[ndarray, "days stocks"]:
    """Return means of ranks, those equal that differ only by rounding, at most `ROUNDING` in a row.

    Otherwise equal means would be ranked by chance, by the order of their terms. NaN stays.
    """
    order = np.argsort(means, axis=1, kind="stable")  # NaN comes last
    rising = np.take_along_axis(means, order, axis=1)
    # Ties are groups of neighbours in a rising day; each takes the mean that its group starts with.
    # NaN, which comes last, joins the group before it, and is put back in the end.
    begins_group = np.diff(rising, axis=1, prepend=-np.inf) > ROUNDING
    group_start = np.where(begins_group, np.arange(means.shape[1]), 0)
    first = np.maximum.accumulate(group_start, axis=1)  # the place where the group of each starts
    tied_rising = np.take_along_axis(rising, first, axis=1)
    tied = np.empty_like(rising)
    np.put_along_axis(tied, order, tied_rising, axis=1)
    return np.where(np.isfinite(means), tied, np.nan)


def mean_of_known(values: Float[ndarray, "..."], axis: int) -> Float[ndarray, "..."]:
    """Return the mean along an axis of the values that are not NaN; 0 where there is none."""
    is_known = np.isfinite(values)
    total = np.where(is_known, values, 0.0).sum(axis=axis)
    return np.asarray(total / np.maximum(is_known.sum(axis=axis), 1))
