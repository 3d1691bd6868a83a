"""The portfolios that follow the predictions: positions, fills, costs and what they would have
earned.

A prediction is made after the close of `as_of`. Filled at the next open, it is traded at the open
of the session after `as_of` and held to the open of the session after that. Filled at the close, as
the paper does it, it is traded at the very close it was made from, which is impossible. Returns are
shares of the equity at the fill, so equity compounds.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import FREE, STANDARD, Costs, Rate, Returns, rate_on
from dtml.prices.returns import adjusted_price, on_grid
from dtml.ranking.panel import places

Form = Literal["long", "long_short", "weighted"]
Fill = Literal["next_open", "close"]

PerDay = Float[ndarray, "days stocks"]
PerSession = Float[ndarray, "sessions stocks"]
Flags = Bool[ndarray, "sessions stocks"]
PerRow = Float[ndarray, "rows stocks"]
Rows = Float[ndarray, " rows"]
Weights = Float[ndarray, " stocks"]
Stocks = Bool[ndarray, " stocks"]
KeptDays = Bool[ndarray, "days stocks"]

PATIENCE = (
    20  # sessions that a position waits for a price; then it is settled at the last price known
)
FILLED_AGAIN = 3 * PATIENCE  # sessions before a fill that decide how it is traded
ROUNDING = 0.005  # a price limit is rounded to a tick, which is up to this share of the price
COLUMNS = [
    "session",
    "gross",
    "turnover",
    "cost",
    "borrow",
    "net",
    "long",
    "short",
    "settled",
    "unbooked",
]


@dataclass(frozen=True)
class Strategy:
    """The rule by which predictions become positions.

    "long" holds the `top` stocks of highest probability in equal parts. "long_short" has a gross
    exposure of 1: half in these, minus half in the `top` of lowest. "weighted" has one too, in
    proportion to probability - 1/2. No stock gets more than `max_weight` of the equity, a share in
    (0, 1]; the rest stays in cash.
    """

    form: Form
    fill: Fill = "next_open"
    top: int = 10
    max_weight: float = 0.1
    costs: Costs = STANDARD

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UsageError(f"top must be 1 stock or more, got {self.top}")
        if not 0 < self.max_weight <= 1:
            raise UsageError(f"max_weight must be above 0 and at most 1, got {self.max_weight}")

    @property
    def name(self) -> str:
        """Return the form, the fill and whether trading is free, in words."""
        costs = (
            ""
            if self.costs != FREE
            else ", no costs (the paper's)"
            if self.fill == "close"
            else ", no costs"
        )
        return f"{self.form.replace('_', '-')}, {self.fill.replace('_', ' ')}{costs}"


@dataclass(frozen=True)
class Quotes:
    """Adjusted prices on all sessions of the exchange; NaN where there is none and the stock cannot
    be traded.

    `moved` says whether a move that nothing explains lies between a session's prices and those
    before: they cannot be
    compared. None: no such move. `limit` is 1 where a stock opens at its upper price limit and
    cannot be bought, -1
    where it opens at its lower one and cannot be sold, else 0. None: no limits.
    """

    sessions: pd.DatetimeIndex
    open: PerSession
    close: PerSession
    symbols: tuple[str, ...]
    moved: Flags | None = None
    limit: PerSession | None = None

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
    ) -> "Quotes":
        """Return the quotes in a bars frame `symbol, session, open, close, adj_close, split`; other
        sessions are out.

        `returns` names the price that returns are taken from
        (`dtml.prices.returns.adjusted_price`); opens are adjusted by the factor of their session's
        close. A recorded split is followed where it explains a move of more than `max_return`.
        Nothing explains other such moves, whose bars get no price, nor those of the bars that the
        checks refused for their return (`refused`: `symbol, session`). An open so far from the
        close before it is no price either, though its close may be one. `price_limit` is that of a
        session, a ratio, if there is one.
        """
        price = adjusted_price(bars, returns)
        adjusted = bars.assign(open=bars["open"] * price / bars["close"], close=price)
        opened, closed, split = (
            on_grid(adjusted, name, sessions, symbols) for name in ("open", "close", "split")
        )
        factor = _unreflected(closed, split, max_return)
        opened, closed = opened * factor, closed * factor
        rejected = bars[:0] if refused is None else refused
        gone = np.isfinite(
            on_grid(rejected.assign(there=1.0), "there", sessions, symbols)
        ) & np.isnan(closed)
        leap = (np.abs(closed / _last_before(closed) - 1) > max_return) & ~_first_after(
            gone, closed
        )
        opened[leap] = closed[leap] = np.nan
        moved = _first_after(gone | leap, closed)
        opened[(np.abs(opened / _last_before(closed) - 1) > max_return) & ~moved] = np.nan
        limit = (
            None
            if price_limit is None
            else _at_limit(opened, closed, rate_on(price_limit, sessions))
        )
        return cls(sessions, opened, closed, tuple(symbols), moved, limit)

    def fills(self, fill: Fill) -> PerSession:
        """Return the price at which positions are opened in each session."""
        return self.open if fill == "next_open" else self.close

    def marks(self, fill: Fill) -> PerSession:
        """Return the value of a stock at each fill: its price, or else its last
        price known by then, open or close.
        """
        if fill == "close":
            return pd.DataFrame(self._known).ffill().to_numpy()
        return np.where(np.isfinite(self.open), self.open, _last_before(self._known))

    def exits(self, fill: Fill) -> PerSession:
        """Return what a holder of a stock gets at each fill: its value, or its
        last price before such a move.
        """
        return np.where(self.breaks, _last_before(self._known), self.marks(fill))

    @property
    def breaks(self) -> Flags:
        """Return `moved`, false throughout where there is none."""
        return np.zeros(self.open.shape, dtype=bool) if self.moved is None else self.moved

    def limits(self, fill: Fill) -> PerSession:
        """Return `limit` where positions are opened at the open, 0 throughout
        where there is none.
        """
        return np.zeros(self.open.shape) if self.limit is None or fill == "close" else self.limit

    @property
    def _known(self) -> PerSession:
        return np.where(np.isfinite(self.close), self.close, self.open)


def positions(probability: PerDay, strategy: Strategy) -> PerDay:
    """Return the share of equity to hold in each stock, negative where short, 0 where there is no
    prediction.

    `probability` of a rise is in [0, 1], NaN where there is none; `dtml.ranking.panel.places` says
    which ranks higher. With fewer than `top` stocks (in long-short: twice `top`) all are held (an
    odd one in the middle is not). A day without any prediction is NaN throughout, and `follow` then
    keeps its holdings.
    """
    predicted = np.isfinite(probability)
    count = predicted.sum(axis=1, keepdims=True)
    if strategy.form == "weighted":
        tilt = np.where(predicted, probability - 0.5, 0.0)
        size = np.abs(tilt).sum(axis=1, keepdims=True)
        wanted = tilt / np.where(size > 0, size, 1.0)
    else:
        place = places(probability)
        if strategy.form == "long":
            held = np.minimum(strategy.top, count)
            wanted = (place <= held) / np.maximum(held, 1)
        else:
            held = np.minimum(strategy.top, count // 2)
            wanted = ((place <= held) * 1.0 - (place > count - held)) / np.maximum(2 * held, 1)
    return np.where(count > 0, np.clip(wanted, -strategy.max_weight, strategy.max_weight), np.nan)


@dataclass(frozen=True)
class Followed:
    """What following some weights earned, by session of a fill, and the shares of equity held after
    each fill.

    `held` has a row for each row of `track`, and one more where the last fill is not yet sold
    again.
    """

    track: pd.DataFrame
    held: PerRow


def follow(
    weights: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, strategy: Strategy
) -> pd.DataFrame:
    """Return what holding `weights` earned, as `follow_on` does from cash on."""
    return follow_on(weights, as_of, quotes, strategy).track


def follow_on(
    weights: PerDay,
    as_of: pd.DatetimeIndex,
    quotes: Quotes,
    strategy: Strategy,
    *,
    kept: KeptDays | None = None,
    held_before: Weights | None = None,
) -> Followed:
    """Return what holding `weights`, decided after the close of each `as_of`, earned: a row for
    each session of a fill.

    Rows run from the first to the last `as_of` without a gap, as far as the next fill's prices are
    known: the last prediction, not yet sold, has no row. In a session without weights (or with NaN
    throughout) nothing is traded. A stock that is `kept` is not traded while it is held.
    `held_before` is what was held after the fill before the first one; None is cash. The columns,
    all but `session` (that of the fill) shares of the equity at the fill:

    - `long`, `short`: values held after trading, both 0 or more; `gross`: what they earned until
      the next fill;
    - `turnover`: value bought and sold. Before it, a weight is what the last fill left, drifted
      with prices. The first row buys everything; the last sells nothing;
    - `cost` of that turnover, `borrow` of the short value, `net` = gross - cost - borrow, which
      compounds. Costs are
      drawn from all holdings and cash alike: weights and turnover do not depend on them;
    - `settled`: how many positions met a move that nothing explains (`Quotes.moved`) before the
      next fill; `unbooked`: what these moves would have added to `gross`. Such a position is sold
      at its last price before the move, at the
      cost of a trade: neither gain nor loss is booked, be it an error, a corporate action or a real
          one.

    A stock without a price at the fill is not traded, and one at its price limit is not bought, or
    not sold: cash meant for it stays cash, holdings of it are kept (at its last known price), and
    the others are scaled down where the gross exposure would pass 1. After `PATIENCE` sessions
    without a price it is settled at that price, at the cost of a trade. As this does not look
    ahead, it misses what a stock that resumes later has lost or gained, and flatters the holder of
    a bankrupt one.

    Raises ValueError where `as_of` are no increasing sessions of the quotes, DtmlError where all
    equity is lost.
    """
    first, wanted = _by_session(weights, as_of, quotes, strategy.fill)
    keeping = np.zeros(weights.shape) if kept is None else kept.astype(float)
    _, keeping = _by_session(keeping, as_of, quotes, strategy.fill)
    rows = slice(first, first + len(wanted))
    tradable, settled = _tradable(quotes.fills(strategy.fill))
    mark, broken, limit = (
        quotes.marks(strategy.fill),
        quotes.breaks[rows],
        quotes.limits(strategy.fill)[rows],
    )
    returns = _returns(mark, quotes.exits(strategy.fill))
    earned = returns[rows]
    held, sold, turnover, gross = np.empty_like(wanted), *(np.empty(len(wanted)) for _ in range(3))
    before = np.zeros(wanted.shape[1]) if held_before is None else held_before
    drifted = before * (1 + returns[first - 1]) / (1 + before @ returns[first - 1])
    for day in range(len(wanted)):
        left = np.where(broken[day], 0.0, drifted)
        stays = ~tradable[rows][day] | ((keeping[day] == 1) & (left != 0))
        held[day] = _trade(left, wanted[day], stays, settled[rows][day], limit[day])
        turnover[day] = np.abs(drifted - left).sum() + np.abs(held[day] - left).sum()
        sold[day] = np.maximum(drifted - left, 0).sum() + np.maximum(left - held[day], 0).sum()
        gross[day] = held[day] @ earned[day]
        if gross[day] <= -1:
            raise DtmlError(
                f"{strategy.name}: the fill of {quotes.sessions[first + day].date()} loses "
                "all equity"
            )
        drifted = held[day] * (1 + earned[day]) / (1 + gross[day])
    ended = (held != 0) & np.vstack([quotes.breaks[1:], np.zeros_like(quotes.breaks[:1])])[rows]
    unbooked = np.where(ended, held * (_returns(mark, mark)[rows] - earned), 0.0)
    moves, days = (ended.sum(axis=1), unbooked.sum(axis=1)), (turnover, sold, gross)
    track = _track(quotes.sessions[rows], held, days, strategy.costs, moves)
    return Followed(track[: max(0, _sold_again(quotes, strategy.fill) - first)], held)


def index_track(index: Quotes, as_of: pd.DatetimeIndex, fill: Fill) -> pd.DataFrame:
    """Return what holding the index earned, in the columns of `follow`, without
    costs; `index` quotes one symbol.
    """
    if len(index.symbols) != 1:
        raise ValueError(f"quotes of the index alone expected, got {len(index.symbols)} symbols")
    return follow(np.ones((len(as_of), 1)), as_of, index, Strategy("long", fill, costs=FREE))


def equal_weight_track(
    probability: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, fill: Fill
) -> pd.DataFrame:
    """Return what equal parts of every stock predicted that day earned, in the
    columns of `follow`, without costs.
    """
    everything = Strategy("long", fill, top=probability.shape[1], max_weight=1.0, costs=FREE)
    return follow(positions(probability, everything), as_of, quotes, everything)


def _by_session(
    weights: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, fill: Fill
) -> tuple[int, PerRow]:
    """Return the row of the first fill, and the weights of every session from
    it to the last fill that has prices.
    """
    place = quotes.sessions.get_indexer(as_of)
    if not len(as_of) or (place < 0).any() or (np.diff(place) < 1).any():
        raise ValueError(
            "as_of must be one or more increasing sessions of the quotes, got "
            f"{list(as_of[:3])} ..."
        )
    place = place + (fill == "next_open")
    stop, first = min(int(place[-1]), _sold_again(quotes, fill)) + 1, int(place[0])
    wanted = np.full((max(stop - first, 0), weights.shape[1]), np.nan)
    wanted[place[place < stop] - first] = weights[place < stop]
    return first, wanted


def _sold_again(quotes: Quotes, fill: Fill) -> int:
    """Return the row of the last fill that has prices, which is where the one
    before is sold again; -1 without any.
    """
    priced = np.flatnonzero(np.isfinite(quotes.fills(fill)).any(axis=1))
    return int(priced[-1]) if len(priced) else -1


def _tradable(price: PerSession) -> tuple[Flags, Flags]:
    """Return whether a stock can be traded at each fill, and whether it could
    not for over `PATIENCE` sessions.
    """
    tradable = np.isfinite(price)
    session = np.arange(len(price))[:, None]
    last = np.maximum.accumulate(np.where(tradable, session, -1), axis=0)
    return tradable, session - last > PATIENCE


def _returns(mark: PerSession, exit_: PerSession) -> PerSession:
    """Return the return from each fill to the next; 0 where a stock had no
    price yet, so that nobody holds it.
    """
    following = np.zeros_like(mark)
    following[:-1] = np.where(np.isfinite(mark[:-1]), exit_[1:] / mark[:-1] - 1, 0.0)
    return following


def _last_before(price: PerSession) -> PerSession:
    """Return the last price of an earlier session; NaN where there is none."""
    return pd.DataFrame(price).ffill().shift().to_numpy()


def _first_after(gone: Flags, price: PerSession) -> Flags:
    """Return which prices are the first after a session in `gone`, which has
    none; false for a stock's first price.
    """
    passed = gone.cumsum(axis=0)
    before = _last_before(np.where(np.isfinite(price), passed, np.nan))
    return np.asarray((passed > before) & np.isfinite(price))


def _unreflected(close: PerSession, split: PerSession, max_return: float) -> PerSession:
    """Return the product of the splits so far without which a price has moved
    by more than `max_return`.
    """
    change = close / _last_before(close)
    explains = (np.abs(change - 1) > max_return) & (np.abs(change * split - 1) <= max_return)
    return np.where(explains, split, 1.0).cumprod(axis=0)


def _at_limit(opened: PerSession, closed: PerSession, limit: Rows) -> PerSession:
    """Return 1 where an open lies at the upper price limit from the close
    before, -1 at the lower one, else 0.
    """
    change = opened / _last_before(closed) - 1
    reached = np.abs(change) >= limit[:, None] - ROUNDING
    return np.where(reached, np.sign(change), 0.0)


def _trade(
    drifted: Weights, wanted: Weights, stays: Stocks, settled: Stocks, limit: Weights
) -> Weights:
    """Return what is held after trading from `drifted` to `wanted`, as far as
    each stock can be traded.
    """
    if np.isnan(wanted).all():
        return np.where(settled, 0.0, drifted)
    stays = stays | (limit * (wanted - drifted) > 0)
    stuck = np.where(stays & ~settled, drifted, 0.0)
    traded = np.where(stays, 0.0, wanted)
    room, asked = max(0.0, 1 - np.abs(stuck).sum()), np.abs(traded).sum()
    return np.asarray(stuck + traded * (room / asked if asked > room else 1.0))


def _track(
    sessions: pd.DatetimeIndex,
    held: PerRow,
    days: tuple[Rows, Rows, Rows],
    costs: Costs,
    moves: tuple[ndarray, Rows],
) -> pd.DataFrame:
    """Return the columns of `follow_on`: `days` are turnover, value sold and
    gross, `moves` settled and unbooked.
    """
    turnover, sold, gross = days
    long, short = np.maximum(held, 0).sum(axis=1), np.maximum(-held, 0).sum(axis=1)
    of_purchases, of_sales = costs.of_trades(sessions)
    cost, borrow = (
        turnover * of_purchases + sold * (of_sales - of_purchases),
        short * costs.of_shorts(sessions),
    )
    values = (sessions, gross, turnover, cost, borrow, gross - cost - borrow, long, short, *moves)
    return pd.DataFrame(dict(zip(COLUMNS, values, strict=True)))
