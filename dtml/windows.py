"""From bars to windows: what a model may see of each day, and the movement that followed.

A window for the session `target` holds the rows up to `as_of`, the session before it; later prices
are used only for the movement, which is the label.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from dtml.errors import DtmlError, UsageError
from dtml.features import HISTORY, Features, Panel, Prices, features, returns
from dtml.markets.definition import LabelProtocol, Returns, ZClose
from dtml.prices.returns import adjusted_price, labelled, on_grid, sessions_met, traded


@dataclass(frozen=True)
class WindowConfig:
    """The settings by which bars become windows."""

    window: int = 10  # sessions the model sees
    z_close: ZClose = "adjusted"
    returns: Returns = "adj_close"  # the price that returns and averages come from
    # A larger change of the adjusted price is no return; None: every change is a return.
    max_return: float | None = None

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UsageError(f"window must be 1 session or more, got {self.window}")

    @property
    def largest_return(self) -> float:
        """Return `max_return` as a number, infinite for None."""
        return np.inf if self.max_return is None else self.max_return

    @property
    def history(self) -> int:
        """Return the number of sessions, up to and including `as_of`, that a full window reads."""
        return self.window + HISTORY - 1


@dataclass(frozen=True)
class Windows:
    """Windows of consecutive days: day d sees the rows d .. d + window - 1.

    `rows` hold features in percent, the index last, missing 0. `observed`: windows of stock and
    index lack no feature. `movement` is the adjusted return from `as_of` to `target`, a ratio minus
    1, NaN unknown.
    """

    rows: Float[Tensor, "sessions symbols features"]
    window: int  # sessions that a day sees
    observed: Bool[Tensor, "days stocks"]
    movement: Float[Tensor, "days stocks"]
    as_of: pd.DatetimeIndex
    target: pd.DatetimeIndex
    symbols: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.target)

    @property
    def views(self) -> Float[Tensor, "days symbols window features"]:
        """Return the window of each symbol on each day, without copies."""
        return self.rows.unfold(0, self.window, 1).permute(0, 1, 3, 2)[: len(self)]

    @property
    def stocks(self) -> Float[Tensor, "days stocks window features"]:
        """Return the windows of the stocks."""
        return self.views[:, :-1]

    @property
    def index(self) -> Float[Tensor, "days window features"]:
        """Return the windows of the index."""
        return self.views[:, -1]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of symbols, sessions, features, and which stocks are observed."""
        sessions = [str(day.date()) for day in self.as_of]
        digest = hashlib.sha256(repr([self.symbols, sessions]).encode())
        for tensor in (self.stocks, self.index, self.observed):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def between(
        self, first: pd.Timestamp | None = None, last: pd.Timestamp | None = None
    ) -> "Windows":
        """Return the days whose target lies in first .. last, both included."""
        start = 0 if first is None else int(self.target.searchsorted(first, side="left"))
        stop = len(self) if last is None else int(self.target.searchsorted(last, side="right"))
        return self.days(slice(start, stop))

    def days(self, positions: slice) -> "Windows":
        """Return the days at these positions."""
        first, stop, _step = positions.indices(len(self))
        if first >= stop:  # no day; the rows still hold a window
            first = stop = 0
        return replace(
            self,
            rows=self.rows[first : max(stop, first + 1) + self.window - 1],
            observed=self.observed[positions],
            movement=self.movement[positions],
            as_of=self.as_of[positions],
            target=self.target[positions],
        )

    def only(self, constituents: Bool[ndarray, "days stocks"]) -> "Windows":
        """Return the same days with only each day's `constituents` observed."""
        return replace(self, observed=self.observed & torch.from_numpy(constituents))

    def labelled(self, protocol: LabelProtocol) -> Bool[Tensor, "days stocks"]:
        """Return which stock-days count: observed, with a movement that the protocol counts."""
        counted = labelled(self.movement.numpy(), protocol)
        return self.observed & torch.from_numpy(counted)

    def rises(self) -> Bool[Tensor, "days stocks"]:
        """Return whether the return is above zero: the label of labelled ones; false unknown."""
        return self.movement > 0


def build_windows(
    bars: pd.DataFrame,
    *,
    sessions: pd.DatetimeIndex,
    symbols: tuple[str, ...],
    index_symbol: str,
    config: WindowConfig,
) -> Windows:
    """Return the windows of all days from the first to the last for which the bars suffice.

    `bars` is the long frame `symbol, session, open, high, low, close, adj_close`; `sessions` reach
    to at least one after the last. Days are sessions on which the index and a quorum of stocks have
    a bar that was `traded` (`_grid`). Bars suffice with a whole window of the index and of a stock;
    other stocks, and days between without, are not `observed`. Raises DtmlError where they suffice
    for no day.
    """
    bars = bars[traded(bars) | (bars["symbol"] == index_symbol)]
    grid = _grid(bars, sessions, symbols, index_symbol)
    panel = panel_on(bars, grid, [*symbols, index_symbol], config.returns)
    values = features(
        panel,
        z_close=config.z_close,
        max_return=config.largest_return,
    ).astype(np.float32)
    complete = _has_whole_window(values, config.window)
    day_places = _days_with_a_window(complete)  # positions on the grid
    if not len(day_places):
        raise _no_window(bars, symbols, index_symbol, config)

    # The window of a day begins window - 1 sessions before it.
    first_row = int(day_places[0]) - config.window + 1
    rows = values[first_row : int(day_places[-1]) + 1]
    movement = _movement(panel, grid, sessions, config.largest_return)
    stock_is_complete = complete[day_places, :-1]
    index_is_complete = complete[day_places, -1:]  # [days 1], to combine with every stock
    observed = stock_is_complete & index_is_complete
    return Windows(
        rows=torch.from_numpy(np.nan_to_num(rows)),
        window=config.window,
        observed=torch.from_numpy(observed),
        movement=torch.from_numpy(movement[day_places, :-1]).float(),
        as_of=grid[day_places],
        # The session of the exchange after each day.
        target=sessions[sessions.searchsorted(grid[day_places], side="right")],
        symbols=symbols,
    )


def _has_whole_window(values: Features, window: int) -> Bool[ndarray, "sessions symbols"]:
    """Return where all features are known on a session and on the `window - 1` before it."""
    is_known = np.isfinite(values).all(axis=-1)
    known_in_window = pd.DataFrame(np.asarray(is_known)).rolling(window).sum()
    return np.asarray((known_in_window == window).to_numpy())


def _days_with_a_window(complete: Bool[ndarray, "sessions symbols"]) -> Int[ndarray, " days"]:
    """Return all positions from the first to the last day with a window; none where none has.

    A window needs the index, the last symbol, and a stock to be `complete`.
    """
    has_index = complete[:, -1]
    has_stock = complete[:, :-1].any(axis=1)
    days = np.flatnonzero(has_index & has_stock)
    if not len(days):
        return days
    return np.arange(days[0], days[-1] + 1)


def _no_window(
    bars: pd.DataFrame,
    symbols: tuple[str, ...],
    index_symbol: str,
    config: WindowConfig,
) -> DtmlError:
    with_index = bars.loc[bars["symbol"] == index_symbol, "session"].nunique()
    return DtmlError(
        f"no day has a whole window of {config.window} sessions: the first window needs "
        f"{config.history} sessions with bars of the index {index_symbol} and of a stock, and the "
        f"bars of {len(symbols)} stocks cover {bars['session'].nunique()} sessions, {with_index} "
        "of them with a bar of the index; use prices that begin earlier or have fewer gaps"
    )


def _grid(
    bars: pd.DataFrame, sessions: pd.DatetimeIndex, symbols: Sequence[str], index: str
) -> pd.DatetimeIndex:
    """Return the sessions on which the index and a quorum of the stocks have a bar."""
    stocks_met = sessions_met(bars[bars["symbol"].isin(symbols)], sessions)
    of_index = bars.loc[bars["symbol"] == index, "session"]
    return stocks_met.intersection(pd.DatetimeIndex(of_index))


def panel_on(
    bars: pd.DataFrame, grid: pd.DatetimeIndex, symbols: Sequence[str], price_of_returns: Returns
) -> Panel:
    """Return the prices of some symbols on the sessions of a grid."""
    bars = bars.assign(adjusted=adjusted_price(bars, price_of_returns))
    prices = ("open", "high", "low", "close", "adjusted")
    return Panel(**{name: on_grid(bars, name, grid, symbols) for name in prices})


def _movement(
    panel: Panel, grid: pd.DatetimeIndex, sessions: pd.DatetimeIndex, max_return: float
) -> Prices:
    """Return the return to the exchange's next session; NaN off the grid or without one."""
    following = np.full_like(panel.adjusted, np.nan)
    following[:-1] = returns(panel, max_return)[1:]
    # A row whose next row skips a session of the exchange has the return over several sessions.
    following[:-1][np.diff(sessions.get_indexer(grid)) != 1] = np.nan
    return following
