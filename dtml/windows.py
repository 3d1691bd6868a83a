"""From bars to windows: what a model may see of each day, and the movement that followed.

A window for the session `target` holds the rows of the sessions up to `as_of`, the session before
it on the exchange. Later prices are used for the movement, which is the label, and for nothing
else.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from dtml.errors import DtmlError, UsageError
from dtml.features import HISTORY, Panel, Prices, features, returns
from dtml.markets.definition import LabelProtocol, Returns, ZClose
from dtml.prices.returns import adjusted_price, labelled, on_grid, sessions_met


@dataclass(frozen=True)
class WindowConfig:
    """The settings by which bars become windows."""

    window: int = 10  # sessions the model sees
    z_close: ZClose = "adjusted"
    returns: Returns = "adj_close"  # the price that returns and averages come from
    max_return: float | None = (
        None  # a larger adjusted price change is no return; None: every one is
    )

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UsageError(f"window must be 1 session or more, got {self.window}")

    @property
    def largest_return(self) -> float:
        """Return `max_return` as a number, infinite for None."""
        return np.inf if self.max_return is None else self.max_return

    @property
    def history(self) -> int:
        """Return the number of sessions up to `as_of`, it included, that a full window reads."""
        return self.window + HISTORY - 1


@dataclass(frozen=True)
class Windows:
    """Windows of consecutive days; tensors share their storage, so a span of days copies nothing.

    `stocks` and `index` hold features in percent, 0 where `observed` is false. `movement` is the
    adjusted return from `as_of` to `target` as a ratio minus 1, NaN where it is not known. `as_of`
    and `target` are sessions.
    """

    stocks: Float[Tensor, "days stocks window features"]
    index: Float[Tensor, "days window features"]
    observed: Bool[Tensor, "days stocks"]
    movement: Float[Tensor, "days stocks"]
    as_of: pd.DatetimeIndex
    target: pd.DatetimeIndex
    symbols: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.target)

    @property
    def window(self) -> int:
        """Return the number of sessions in a window."""
        return self.index.shape[1]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all that a model reads: symbols, sessions,
        features, which stocks are observed.
        """
        said = hashlib.sha256(
            repr([self.symbols, [str(day.date()) for day in self.as_of]]).encode()
        )
        for tensor in (self.stocks, self.index, self.observed):
            said.update(tensor.contiguous().numpy().tobytes())
        return said.hexdigest()

    def rows(self) -> Float[Tensor, "sessions symbols features"]:
        """Return the sessions behind the windows, the index the last symbol:
        day d sees rows d .. d + window - 1.
        """
        if not len(self):
            return self.stocks.new_zeros(0, len(self.symbols) + 1, self.stocks.shape[-1])
        together = torch.cat([self.stocks, self.index.unsqueeze(1)], dim=1)
        return torch.cat([together[0].movedim(1, 0), together[1:, :, -1]])

    def between(
        self, first: pd.Timestamp | None = None, last: pd.Timestamp | None = None
    ) -> "Windows":
        """Return the days whose target lies in first .. last, both included."""
        start = 0 if first is None else int(self.target.searchsorted(first, side="left"))
        stop = len(self) if last is None else int(self.target.searchsorted(last, side="right"))
        return self.days(slice(start, stop))

    def days(self, which: slice) -> "Windows":
        """Return the days at these positions."""
        by_day = ("stocks", "index", "observed", "movement", "as_of", "target")
        return replace(self, **{name: getattr(self, name)[which] for name in by_day})

    def only(self, constituents: Bool[ndarray, "days stocks"]) -> "Windows":
        """Return the same days with only each day's `constituents` observed."""
        return replace(self, observed=self.observed & torch.from_numpy(constituents))

    def labelled(self, protocol: LabelProtocol) -> Bool[Tensor, "days stocks"]:
        """Return which stock-days count: observed, with a known movement that
        counts under a protocol.
        """
        return self.observed & torch.from_numpy(labelled(self.movement.numpy(), protocol))

    def rises(self) -> Bool[Tensor, "days stocks"]:
        """Return whether the return is above zero; a tie is a fall.

        Where the paper has a label, this is it.
        """
        return self.movement > 0


def build_windows(
    bars: pd.DataFrame,
    *,
    sessions: pd.DatetimeIndex,
    symbols: tuple[str, ...],
    index_symbol: str,
    config: WindowConfig,
) -> Windows:
    """Return the window of every day that the bars allow, the session after the last bar included.

    `bars` is the long frame `symbol, session, open, high, low, close, adj_close`; `sessions` are
    the sessions of the exchange from the first bar to at least one after the last. A day needs a
    whole window of the index; a stock without a whole window of its own is not `observed` that day.
    Raises DtmlError where no day has one.
    """
    grid = _grid(bars, sessions, symbols, index_symbol)
    panel = panel_on(bars, grid, [*symbols, index_symbol], config.returns)
    seen = features(panel, z_close=config.z_close, max_return=config.largest_return).astype(
        np.float32
    )
    present = pd.DataFrame(np.asarray(np.isfinite(seen).all(axis=-1)))
    complete = (present.rolling(config.window).sum() == config.window).to_numpy()
    days = np.flatnonzero(complete[:, -1] & complete[:, :-1].any(axis=1))
    if not len(days):
        there = (
            f"{bars['session'].nunique()} sessions of bars for {len(symbols)} stocks and "
            f"{index_symbol}"
        )
        needs = f"the first window needs {config.history} sessions with a bar of the index"
        raise DtmlError(
            f"no day has a whole window of {config.window} sessions: {there}, and {needs}"
        )
    days = np.arange(days[0], days[-1] + 1)
    views = (
        torch.from_numpy(np.nan_to_num(seen, nan=0.0))
        .unfold(0, config.window, 1)
        .permute(0, 1, 3, 2)
    )
    movement = torch.from_numpy(
        _movement(panel, grid, sessions, config.largest_return)[days, :-1]
    ).float()
    inside = slice(int(days[0]) - config.window + 1, int(days[-1]) - config.window + 2)
    observed = torch.from_numpy(complete[days, :-1] & complete[days, -1:])
    target = sessions[sessions.searchsorted(grid[days], side="right")]
    return Windows(
        views[inside, :-1], views[inside, -1], observed, movement, grid[days], target, symbols
    )


def _grid(
    bars: pd.DataFrame, sessions: pd.DatetimeIndex, symbols: Sequence[str], index: str
) -> pd.DatetimeIndex:
    """Return the sessions of the exchange on which the index and a quorum of
    the stocks have a bar.
    """
    met = sessions_met(bars[bars["symbol"].isin(symbols)], sessions)
    return met.intersection(pd.DatetimeIndex(bars.loc[bars["symbol"] == index, "session"]))


def panel_on(
    bars: pd.DataFrame, grid: pd.DatetimeIndex, symbols: Sequence[str], returns: Returns
) -> Panel:
    """Return the prices of some symbols on the sessions of a grid."""
    bars = bars.assign(adjusted=adjusted_price(bars, returns))
    return Panel(
        *(
            on_grid(bars, name, grid, symbols)
            for name in ("open", "high", "low", "close", "adjusted")
        )
    )


def _movement(
    panel: Panel, grid: pd.DatetimeIndex, sessions: pd.DatetimeIndex, max_return: float
) -> Prices:
    """Return the return to the next session of the exchange; missing where that
    session is not on the grid.
    """
    following = np.full_like(panel.adjusted, np.nan)
    following[:-1] = returns(panel, max_return)[1:]
    following[:-1][np.diff(sessions.get_indexer(grid)) != 1] = np.nan
    return following
