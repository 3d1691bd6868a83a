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

from dtml.backtest.quotes import Fill, Flags, PerSession, Quotes, Rows
from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import FREE, STANDARD, Costs
from dtml.ranking.panel import places

Form = Literal["long", "long_short", "weighted"]

PerDay = Float[ndarray, "days stocks"]
PerRow = Float[ndarray, "rows stocks"]
Weights = Float[ndarray, " stocks"]
Stocks = Bool[ndarray, " stocks"]
KeptDays = Bool[ndarray, "days stocks"]

PATIENCE = 20  # sessions without a price after which a position is sold at its last one
FILLED_AGAIN = 3 * PATIENCE  # sessions before a fill that decide how it is traded


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
            raise UsageError(
                f"max_weight (--max-weight) must be above 0 and at most 1, got {self.max_weight}"
            )

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
    symbols: tuple[str, ...]
    tradable: Flags
    overdue: Flags  # without a price for more than `PATIENCE` sessions
    broken: Flags  # after an unexplained move
    limit: PerSession
    returns: PerSession  # to the next fill, or to the last price before an unexplained move
    returns_with_moves: PerSession  # to the next fill, whatever lies between
    year: int

    @classmethod
    def of(cls, quotes: Quotes, fill: Fill) -> "_Fills":
        tradable, overdue = _tradable_and_overdue(quotes.fills(fill))
        mark = quotes.marks(fill)
        return cls(
            sessions=quotes.sessions,
            symbols=quotes.symbols,
            tradable=tradable,
            overdue=overdue,
            broken=quotes.breaks,
            limit=quotes.limits(fill),
            returns=_returns_to_next_fill(mark, quotes.exits(fill)),
            returns_with_moves=_returns_to_next_fill(mark, mark),
            year=quotes.year,
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
    if not len(as_of):
        raise ValueError("as_of is empty: pass at least one session of the quotes")
    if (place < 0).any():
        unknown = int((place < 0).argmax())
        raise ValueError(
            f"as_of[{unknown}], {as_of[unknown]}, is not a session of the quotes: leave it out"
        )
    is_late = np.diff(place) < 1
    if is_late.any():
        late = int(is_late.argmax()) + 1
        raise ValueError(
            f"as_of[{late}], {as_of[late]:%Y-%m-%d}, is not later than as_of[{late - 1}], "
            f"{as_of[late - 1]:%Y-%m-%d}: pass each session once, the earliest first"
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
            worst = fills.symbols[int((holdings[day] * fills.returns[row]).argmin())]
            raise DtmlError(
                f"{name}: the portfolio loses all its equity between the fills on "
                f"{fills.sessions[row].date()} and {fills.sessions[row + 1].date()}, and {worst} "
                f"loses the most: check the prices of {worst} on these two sessions and, if they "
                "are right, hold less of each stock (--max-weight)"
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
    borrow = short * costs.of_shorts(sessions, fills.year)
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
