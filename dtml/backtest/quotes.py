"""The prices that portfolios trade at: adjusted, cleared of moves nobody explains, with limits."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from dtml.markets.definition import YEAR, Rate, Returns, rate_on
from dtml.prices.returns import adjusted_price, on_grid, traded

Fill = Literal["next_open", "close"]

PerSession = Float[ndarray, "sessions stocks"]
Flags = Bool[ndarray, "sessions stocks"]

ROUNDING = 0.005  # a price limit is rounded to a tick, which is up to this share of the price


@dataclass(frozen=True)
class Quotes:
    """Adjusted prices on all sessions of the exchange; NaN where a stock cannot be traded.

    `moved`: an unexplained move lies before these prices, so that they cannot be compared with
    earlier ones. `limit`: 1 where a stock opens at its upper price limit and cannot be bought, -1
    at its lower and cannot be sold, else 0. `year` is the exchange's sessions a year.
    """

    sessions: pd.DatetimeIndex
    open: PerSession
    close: PerSession
    symbols: tuple[str, ...]
    moved: Flags | bool = False
    limit: PerSession | float = 0.0
    year: int = YEAR

    @classmethod
    def of(
        cls,
        bars: pd.DataFrame,
        sessions: pd.DatetimeIndex,
        symbols: tuple[str, ...],
        returns: Returns,
        *,
        max_return: float = np.inf,
        refused: pd.DataFrame | None = None,
        price_limit: Rate | None = None,
        year: int = YEAR,
    ) -> "Quotes":
        """Return the quotes in a bars frame of stocks, or of an index whose volume is missing.

        Bars that nobody `traded` have no price. `returns` names the price that returns are taken
        from (`dtml.prices.returns.adjusted_price`); opens are adjusted by their close's factor.

        Where a recorded split explains a move of more than `max_return`, later prices are
        multiplied by it. Other such moves are unexplained, and their bars get no price; bars
        `refused` by the checks for their return (`symbol, session`) count as such, but the price
        after one is kept. `moved` marks the first price after either. An open that alone is more
        than `max_return` from the close before gets no price, except where `moved`. `price_limit`
        is the largest move of an open from the last close; None is none.
        """
        price = adjusted_price(bars, returns)
        adjusted = bars.assign(open=bars["open"] * price / bars["close"], close=price)
        split = on_grid(bars, "split", sessions, symbols)
        adjusted = adjusted[traded(bars)]
        unsplit_close = on_grid(adjusted, "close", sessions, symbols)
        # The splits since the last price: where they explain a move of more than `max_return`, the
        # prices have not been adjusted for them.
        so_far = np.where(np.isfinite(split), split, 1.0).cumprod(axis=0)
        since_price = so_far / _last_before(np.where(np.isfinite(unsplit_close), so_far, np.nan))
        multiple = unsplit_close / _last_before(unsplit_close)
        is_large = np.abs(multiple - 1) > max_return
        is_explained = np.abs(multiple * since_price - 1) <= max_return
        factor = np.where(is_large & is_explained, since_price, 1.0).cumprod(axis=0)
        opened = on_grid(adjusted, "open", sessions, symbols) * factor
        closed = unsplit_close * factor

        rejected = bars[:0] if refused is None else refused
        rejected_cells = on_grid(rejected.assign(there=1.0), "there", sessions, symbols)
        # A rejected bar counts only where no accepted one is in its place.
        is_rejected = np.isfinite(rejected_cells) & np.isnan(closed)
        is_leap = np.abs(closed / _last_before(closed) - 1) > max_return
        is_leap &= ~_first_after(is_rejected, closed)  # the rejected bar is the move, not this one
        opened[is_leap] = np.nan
        closed[is_leap] = np.nan
        moved = _first_after(is_rejected | is_leap, closed)
        # After an unexplained move, the close before is of no use to judge an open.
        is_open_leap = np.abs(opened / _last_before(closed) - 1) > max_return
        opened[is_open_leap & ~moved] = np.nan

        limit: PerSession | float = 0.0
        if price_limit is not None:
            change = opened / _last_before(closed) - 1
            is_at_limit = np.abs(change) >= rate_on(price_limit, sessions)[:, None] - ROUNDING
            limit = np.where(is_at_limit, np.sign(change), 0.0)
        return cls(
            sessions=sessions,
            open=opened,
            close=closed,
            symbols=tuple(symbols),
            moved=moved,
            limit=limit,
            year=year,
        )

    def fills(self, fill: Fill) -> PerSession:
        """Return the price at which positions are opened in each session."""
        return self.open if fill == "next_open" else self.close

    def marks(self, fill: Fill) -> PerSession:
        """Return the value of a stock at each fill: its price, or else its last known one."""
        if fill == "close":
            return pd.DataFrame(self._known).ffill().to_numpy()
        return np.where(np.isfinite(self.open), self.open, _last_before(self._known))

    def exits(self, fill: Fill) -> PerSession:
        """Return what a holder gets at each fill: the value, or the last price before a move."""
        return np.where(self.breaks, _last_before(self._known), self.marks(fill))

    @property
    def breaks(self) -> Flags:
        """Return `moved` of every session and stock."""
        return np.broadcast_to(self.moved, self.open.shape)

    def limits(self, fill: Fill) -> PerSession:
        """Return `limit` of every session and stock; 0 where positions are opened at the close."""
        return np.broadcast_to(0.0 if fill == "close" else self.limit, self.open.shape)

    @property
    def _known(self) -> PerSession:
        """Return the last price of each session: its close, or else its open."""
        return np.where(np.isfinite(self.close), self.close, self.open)


def _last_before(price: PerSession) -> PerSession:
    """Return the last price of an earlier session; NaN where there is none."""
    return pd.DataFrame(price).ffill().shift().to_numpy()


def _first_after(marked: Flags, price: PerSession) -> Flags:
    """Return which prices are the first after a `marked` session; false for a stock's first."""
    priced = np.isfinite(price)
    marked_so_far = marked.cumsum(axis=0)
    marked_by_last_price = _last_before(np.where(priced, marked_so_far, np.nan))
    return np.asarray((marked_so_far > marked_by_last_price) & priced)
