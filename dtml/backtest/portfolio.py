"""The portfolios that follow the predictions: their positions, fills, costs and returns.

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

PATIENCE = 20  # sessions without a price after which a position is sold at its last one
FILLED_AGAIN = 3 * PATIENCE  # sessions before a fill that decide how it is traded
ROUNDING = 0.005  # a price limit is rounded to a tick, which is up to this share of the price


@dataclass(frozen=True)
class Strategy:
    """The rule by which predictions become positions.

    "long" holds the `top` stocks of highest probability in equal parts. "long_short" has a gross
    exposure of 1: half in these, minus half in the `top` of lowest. "weighted" has a gross exposure
    of 1 too, in proportion to probability - 1/2. No stock gets more than `max_weight` of the
    equity, a share in (0, 1]; the rest stays in cash.
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
            raise UsageError(f"--max-weight must be above 0 and at most 1, got {self.max_weight}")

    @property
    def name(self) -> str:
        """Return the form, the fill and whether trading is free, in words."""
        form = self.form.replace("_", "-")
        fill = self.fill.replace("_", " ")
        if self.costs != FREE:
            return f"{form}, {fill}"
        if self.fill == "close":
            return f"{form}, {fill}, no costs (the paper's)"
        return f"{form}, {fill}, no costs"


@dataclass(frozen=True)
class Quotes:
    """Adjusted prices on all sessions of the exchange; NaN where a stock cannot be traded.

    `moved` says whether an unexplained move lies between a session's prices and those before, so
    that they cannot be compared. None: no such move. `limit` is 1 where a stock opens at its
    upper price limit and cannot be bought, -1 where it opens at its lower one and cannot be sold,
    else 0. None: no limits.
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
        """Return the quotes in a bars frame `symbol, session, open, close, adj_close, split`.

        Sessions of the bars that are not among `sessions` are left out. `returns` names the price
        that returns are taken from (`dtml.prices.returns.adjusted_price`); opens are adjusted by
        the factor of their session's close. Where a recorded split explains a move of more than
        `max_return`, all prices from then on are multiplied by it. Other moves of that size are
        unexplained, and their bars get no price. The bars that the checks refused for their return
        (`refused`: `symbol, session`) count as such moves, in place of the price after each. If the
        open alone is more than `max_return` away from the close before it, it gets no price.
        `price_limit` is the largest move of an open from the last close, a ratio; None is no limit.
        """
        price = adjusted_price(bars, returns)
        adjusted = bars.assign(open=bars["open"] * price / bars["close"], close=price)
        split = on_grid(adjusted, "split", sessions, symbols)
        unsplit_close = on_grid(adjusted, "close", sessions, symbols)
        factor = _unreflected_splits(unsplit_close, split, max_return)
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

        limit = None
        if price_limit is not None:
            limit = _at_limit(opened, closed, rate_on(price_limit, sessions))
        return cls(
            sessions=sessions,
            open=opened,
            close=closed,
            symbols=tuple(symbols),
            moved=moved,
            limit=limit,
        )

    def fills(self, fill: Fill) -> PerSession:
        """Return the price at which positions are opened in each session."""
        return self.open if fill == "next_open" else self.close

    def marks(self, fill: Fill) -> PerSession:
        """Return the value of a stock at each fill: its price, or else its last price known then.

        That last price may be an open or a close.
        """
        if fill == "close":
            return pd.DataFrame(self._known).ffill().to_numpy()
        return np.where(np.isfinite(self.open), self.open, _last_before(self._known))

    def exits(self, fill: Fill) -> PerSession:
        """Return what a holder gets at each fill: the value, or the last price before a move."""
        return np.where(self.breaks, _last_before(self._known), self.marks(fill))

    @property
    def breaks(self) -> Flags:
        """Return `moved`, all false where there is none."""
        if self.moved is None:
            return np.zeros(self.open.shape, dtype=bool)
        return self.moved

    def limits(self, fill: Fill) -> PerSession:
        """Return `limit` where positions are opened at the open; 0 where there is none."""
        if self.limit is None or fill == "close":
            return np.zeros(self.open.shape)
        return self.limit

    @property
    def _known(self) -> PerSession:
        """Return the last price of each session: its close, or else its open."""
        return np.where(np.isfinite(self.close), self.close, self.open)


def positions(probability: PerDay, strategy: Strategy) -> PerDay:
    """Return the share of equity to hold in each stock by the strategy's form; below 0 if short.

    A stock without a prediction has 0. `probability` of a rise is in [0, 1], NaN where there is
    none; `dtml.ranking.panel.places` decides which ranks higher. With fewer than `top` stocks (in
    long-short: twice `top`) all are held, except an odd one in the middle. No weight exceeds
    `max_weight`. A day without any prediction is all NaN, and `follow` then keeps its holdings.
    """
    predicted = np.isfinite(probability)
    count = predicted.sum(axis=1, keepdims=True)  # [days 1]
    if strategy.form == "weighted":
        tilt = np.where(predicted, probability - 0.5, 0.0)
        size = np.abs(tilt).sum(axis=1, keepdims=True)
        weights = tilt / np.where(size > 0, size, 1.0)
    elif strategy.form == "long":
        place = places(probability)
        side_size = np.minimum(strategy.top, count)
        weights = (place <= side_size) / np.maximum(side_size, 1)
    else:
        place = places(probability)
        side_size = np.minimum(strategy.top, count // 2)
        is_long = place <= side_size  # false where the place is NaN
        is_short = place > count - side_size
        weights = (is_long * 1.0 - is_short) / np.maximum(2 * side_size, 1)
    capped = np.clip(weights, -strategy.max_weight, strategy.max_weight)
    return np.where(count > 0, capped, np.nan)


@dataclass(frozen=True)
class Followed:
    """The returns of a portfolio that follows some weights, and its holdings after each fill.

    `held` are shares of equity, a row for each row of `track`, and one more where the last fill is
    not yet sold again. The columns of `track`, all but `session` (that of the fill) shares of the
    equity at the fill:

    - `long`, `short`: values held after trading, both 0 or more; `gross`: their return until the
      next fill;
    - `turnover`: value bought and sold, from the holdings after the last fill as prices have moved
      them. From cash, the first row buys everything; no row sells everything at the end;
    - `cost` of that turnover, `borrow` of the short value, `net` = gross - cost - borrow, which
      compounds. Costs are drawn from all holdings and cash alike: weights and turnover do not
      depend on them;
    - `settled`: how many positions met an unexplained move (`Quotes.moved`) before the next fill;
      `unbooked`: what these moves would have added to `gross`. Such a position is sold at its last
      price before the move, at the cost of a trade, whether the move is an error or real.
    """

    track: pd.DataFrame
    held: PerRow


@dataclass(frozen=True)
class _Fills:
    """Which stocks can be traded at each fill, and what a holding earns until the next one."""

    sessions: pd.DatetimeIndex
    tradable: Flags
    overdue: Flags  # without a price for more than `PATIENCE` sessions
    broken: Flags  # after an unexplained move
    limit: PerSession
    returns: PerSession  # to the next fill, or to the last price before an unexplained move
    returns_with_moves: PerSession  # to the next fill, whatever lies between

    @classmethod
    def of(cls, quotes: Quotes, fill: Fill) -> "_Fills":
        tradable, overdue = _tradable_and_overdue(quotes.fills(fill))
        mark = quotes.marks(fill)
        return cls(
            sessions=quotes.sessions,
            tradable=tradable,
            overdue=overdue,
            broken=quotes.breaks,
            limit=quotes.limits(fill),
            returns=_returns_to_next_fill(mark, quotes.exits(fill)),
            returns_with_moves=_returns_to_next_fill(mark, mark),
        )


@dataclass(frozen=True)
class _Trades:
    """The holdings after each fill, the value traded and sold at it, and the return to the next."""

    held: PerRow
    turnover: Rows
    sold: Rows
    gross: Rows


def follow(
    weights: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, strategy: Strategy
) -> pd.DataFrame:
    """Return what holding `weights` earned, as `follow_on` does when it starts from cash."""
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
    """Return what holding `weights`, decided after the close of each `as_of`, earned.

    The track has a row for each session of a fill, in the columns that `Followed` describes, from
    the fill of the first `as_of` to that of the last without a gap, as far as the prices of the
    next fill are known: a prediction that is not yet sold has none. In a session without weights
    (or with NaN alone) nothing is traded but what met an unexplained move or is overdue. A stock
    that is `kept` is not traded while held. `held_before` are the holdings after the fill before
    the first; None is cash.

    A stock without a price at the fill is not traded, and one at its price limit is not bought, or
    not sold: cash meant for it stays cash, holdings of it are kept (at its last known price), and
    the others are scaled down where the gross exposure would pass 1. After `PATIENCE` sessions
    without a price it is overdue and sold at that price, at the cost of a trade. This misses what a
    stock that resumes later has lost or gained, and flatters the holder of a bankrupt one.

    Raises ValueError where `as_of` are no increasing sessions of the quotes, DtmlError where all
    equity is lost.
    """
    first, targets = _weights_by_session(weights, as_of, quotes, strategy.fill)
    # As numbers, to be spread over sessions like weights: 1 kept, 0 not, NaN without weights.
    kept_marks = np.zeros(weights.shape) if kept is None else kept.astype(float)
    _, kept_marks = _weights_by_session(kept_marks, as_of, quotes, strategy.fill)
    fills = _Fills.of(quotes, strategy.fill)
    before = np.zeros(targets.shape[1]) if held_before is None else held_before
    trades = _trades_at_fills(strategy.name, fills, first, before, targets, kept_marks == 1)
    track = _track(fills, first, trades, strategy.costs)
    fills_sold_again = max(0, _last_priced_row(quotes, strategy.fill) - first)
    return Followed(track[:fills_sold_again], trades.held)


def index_track(index: Quotes, as_of: pd.DatetimeIndex, fill: Fill) -> pd.DataFrame:
    """Return what holding the index earned, in the columns of `follow`, without costs.

    `index` quotes one symbol; raises ValueError for more.
    """
    if len(index.symbols) != 1:
        raise ValueError(f"got quotes of {len(index.symbols)} symbols: pass the index alone")
    everything = np.ones((len(as_of), 1))
    return follow(everything, as_of, index, Strategy("long", fill, costs=FREE))


def equal_weight_track(
    probability: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, fill: Fill
) -> pd.DataFrame:
    """Return what equal parts of each day's predicted stocks earned, as `follow` without costs."""
    everything = Strategy("long", fill, top=probability.shape[1], max_weight=1.0, costs=FREE)
    return follow(positions(probability, everything), as_of, quotes, everything)


def _weights_by_session(
    weights: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, fill: Fill
) -> tuple[int, PerRow]:
    """Return the row of the first fill in the quotes, and the weights of each session from it on.

    They are NaN in a session without weights, and end at the latest with the last priced fill.
    """
    place = quotes.sessions.get_indexer(as_of)
    if not len(as_of) or (place < 0).any() or (np.diff(place) < 1).any():
        raise ValueError(
            "as_of must be one or more increasing sessions of the quotes, got "
            f"{list(as_of[:3])} ..."
        )
    place = place + (fill == "next_open")  # one session later than `as_of`
    first = int(place[0])
    stop = min(int(place[-1]), _last_priced_row(quotes, fill)) + 1
    is_priced = place < stop
    targets = np.full((max(stop - first, 0), weights.shape[1]), np.nan)
    targets[place[is_priced] - first] = weights[is_priced]
    return first, targets


def _last_priced_row(quotes: Quotes, fill: Fill) -> int:
    """Return the row of the last fill with prices, at which the one before is sold; -1 for none."""
    has_price = np.isfinite(quotes.fills(fill)).any(axis=1)
    priced = np.flatnonzero(has_price)
    return int(priced[-1]) if len(priced) else -1


def _tradable_and_overdue(price: PerSession) -> tuple[Flags, Flags]:
    """Return which stocks have a price at a fill, and which had none for over `PATIENCE` fills."""
    tradable = np.isfinite(price)
    session = np.arange(len(price))[:, None]
    last_traded = np.maximum.accumulate(np.where(tradable, session, -1), axis=0)
    return tradable, session - last_traded > PATIENCE


def _returns_to_next_fill(mark: PerSession, exit_: PerSession) -> PerSession:
    """Return the return to the next fill, 0 before a stock's first price and at the last fill."""
    returns = np.zeros_like(mark)
    priced_returns = exit_[1:] / mark[:-1] - 1
    returns[:-1] = np.where(np.isfinite(mark[:-1]), priced_returns, 0.0)
    return returns


def _last_before(price: PerSession) -> PerSession:
    """Return the last price of an earlier session; NaN where there is none."""
    return pd.DataFrame(price).ffill().shift().to_numpy()


def _first_after(marked: Flags, price: PerSession) -> Flags:
    """Return which prices are the first after a `marked` session; false for a stock's first."""
    priced = np.isfinite(price)
    marked_so_far = marked.cumsum(axis=0)
    marked_by_last_price = _last_before(np.where(priced, marked_so_far, np.nan))
    return np.asarray((marked_so_far > marked_by_last_price) & priced)


def _unreflected_splits(close: PerSession, split: PerSession, max_return: float) -> PerSession:
    """Return the product of the splits so far that the prices have not been adjusted for.

    A recorded split counts where it explains a move of more than `max_return`.
    """
    change = close / _last_before(close)
    is_large = np.abs(change - 1) > max_return
    is_explained = np.abs(change * split - 1) <= max_return
    return np.where(is_large & is_explained, split, 1.0).cumprod(axis=0)


def _at_limit(opened: PerSession, closed: PerSession, limit: Rows) -> PerSession:
    """Return 1 where an open is at the upper limit from the last close, -1 at the lower, else 0."""
    change = opened / _last_before(closed) - 1
    reached = np.abs(change) >= limit[:, None] - ROUNDING
    return np.where(reached, np.sign(change), 0.0)


def _trades_at_fills(
    name: str, fills: _Fills, first: int, before: Weights, targets: PerRow, is_kept: Flags
) -> _Trades:
    """Return the holdings after each fill from row `first` on, what was traded, and the returns.

    `before` are the holdings after the fill before. `targets`, the weights to trade to, have a row
    a fill, and so has `is_kept`, which says what is not traded while it is held. Raises DtmlError,
    with the portfolio's `name`, where what is held after a fill loses all equity.
    """
    holdings = np.empty_like(targets)
    turnover = np.empty(len(targets))
    sold = np.empty(len(targets))
    gross = np.empty(len(targets))
    # The returns from the fill before; at the first session of all any row, as nothing is held yet.
    returns_before = fills.returns[first - 1]
    drifted = before * (1 + returns_before) / (1 + before @ returns_before)
    for day in range(len(targets)):
        row = first + day
        # A position that met an unexplained move was sold before it.
        unbroken = np.where(fills.broken[row], 0.0, drifted)
        stays = ~fills.tradable[row] | (is_kept[day] & (unbroken != 0))
        holdings[day] = _trade(unbroken, targets[day], stays, fills.overdue[row], fills.limit[row])
        broken = drifted - unbroken
        change = holdings[day] - unbroken
        turnover[day] = np.abs(broken).sum() + np.abs(change).sum()
        sold[day] = np.maximum(broken, 0).sum() + np.maximum(unbroken - holdings[day], 0).sum()
        gross[day] = holdings[day] @ fills.returns[row]
        if gross[day] <= -1:
            raise DtmlError(
                f"{name}: the portfolio loses all its equity between the fill on "
                f"{fills.sessions[row].date()} and the next one: check the prices of these sessions"
            )
        drifted = holdings[day] * (1 + fills.returns[row]) / (1 + gross[day])
    return _Trades(held=holdings, turnover=turnover, sold=sold, gross=gross)


def _trade(
    drifted: Weights, target: Weights, stays: Stocks, overdue: Stocks, limit: Weights
) -> Weights:
    """Return the holdings after trading to `target`, as far as each stock can be traded.

    A stock that `stays` is not traded, unless it is `overdue`: then it is sold at its last price.
    """
    if np.isnan(target).all():  # a session without weights: only what is `overdue` is traded
        return np.where(overdue, 0.0, drifted)
    # A stock at its upper limit (1) cannot be bought, one at its lower limit (-1) cannot be sold.
    stays = stays | (limit * (target - drifted) > 0)
    stuck = np.where(stays & ~overdue, drifted, 0.0)
    traded = np.where(stays, 0.0, target)
    room = max(0.0, 1 - np.abs(stuck).sum())
    exposure = np.abs(traded).sum()
    share = room / exposure if exposure > room else 1.0  # the gross exposure stays at most 1
    return np.asarray(stuck + traded * share)


def _track(fills: _Fills, first: int, trades: _Trades, costs: Costs) -> pd.DataFrame:
    """Return the track of `Followed`: a row for each of `trades`, the first at the fill `first`."""
    holdings = trades.held
    rows = slice(first, first + len(holdings))
    sessions = fills.sessions[rows]
    long = np.maximum(holdings, 0).sum(axis=1)
    short = np.maximum(-holdings, 0).sum(axis=1)

    # `broken` is true at the first fill after an unexplained move: a position meets the move on the
    # row before. It earns the return up to the last price before the move.
    no_break = np.zeros_like(fills.broken[:1])
    breaks_next = np.vstack([fills.broken[1:], no_break])[rows]
    meets_move = (holdings != 0) & breaks_next
    return_of_move = fills.returns_with_moves[rows] - fills.returns[rows]
    unbooked = np.where(meets_move, holdings * return_of_move, 0.0)

    purchase_rate, sale_rate = costs.of_trades(sessions)
    # The turnover contains the sales, so they are charged the difference of the rates only.
    cost = trades.turnover * purchase_rate + trades.sold * (sale_rate - purchase_rate)
    borrow = short * costs.of_shorts(sessions)
    return pd.DataFrame(
        {
            "session": sessions,
            "gross": trades.gross,
            "turnover": trades.turnover,
            "cost": cost,
            "borrow": borrow,
            "net": trades.gross - cost - borrow,
            "long": long,
            "short": short,
            "settled": meets_move.sum(axis=1),
            "unbooked": unbooked.sum(axis=1),
        }
    )
