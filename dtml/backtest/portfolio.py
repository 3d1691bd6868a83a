"""The portfolios that follow the predictions: their positions, fills, costs and returns.

A prediction is made after the close of `as_of`. Filled at the next open, it is held to the open
after that; filled at the close, as in the paper, it is traded at the very close it was made from,
which is impossible. Returns are shares of the equity at the fill.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from dtml.backtest.quotes import Fill, PerSession, Quotes
from dtml.errors import DtmlError
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

    "long" holds the `top` most probable stocks in equal parts; "long_short" half in these, minus
    half in the `top` least; "weighted" in proportion to probability - 1/2. The last two have a
    gross exposure of 1. No stock gets more than `max_weight` of the equity, in (0, 1]; the rest
    stays in cash.
    """

    form: Form
    fill: Fill = "next_open"
    top: int = 10
    max_weight: float = 0.1
    costs: Costs = STANDARD

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
    """Return the share of equity to hold in each stock; below 0 if short, 0 without a prediction.

    `probability` is in [0, 1], NaN without one; `dtml.ranking.panel.places` decides ties. With
    fewer than `top` stocks (in long-short: twice `top`) all are held, except an odd one in the
    middle. A day without any prediction is all NaN: `follow` keeps its holdings.
    """
    predicted = np.isfinite(probability)
    count = predicted.sum(axis=1, keepdims=True)  # [days 1]
    if strategy.form == "weighted":
        weights = np.where(predicted, probability - 0.5, 0.0)
        size = np.abs(weights).sum(axis=1, keepdims=True)
    elif strategy.form == "long":
        size = np.minimum(strategy.top, count)
        weights = places(probability) <= size  # false where the place is NaN
    else:
        place = places(probability)
        side_size = np.minimum(strategy.top, count // 2)
        weights = (place <= side_size) * 1.0 - (place > count - side_size)
        size = 2 * side_size
    shares = weights / np.where(size > 0, size, 1)
    capped = np.clip(shares, -strategy.max_weight, strategy.max_weight)
    return np.where(count > 0, capped, np.nan)


@dataclass(frozen=True)
class Followed:
    """The returns of a portfolio that follows some weights, and its holdings after each fill.

    `held` are shares of equity, a row for each row of `track`, and one more where the last fill is
    not yet sold again. The columns of `track`, shares of the equity at the fill of `session`:

    - `long`, `short`: values held after trading, both 0 or more; `gross`: their return until the
      next fill;
    - `turnover`: value bought and sold; the first row buys everything from cash, none sells
      everything;
    - `cost` of that turnover, `borrow` of the short value, `net` = gross - cost - borrow, which
      compounds; drawn from all holdings and cash alike;
    - `settled`: positions that met an unexplained move (`Quotes.moved`) before the next fill, sold
      at their last price before it, at the cost of a trade; `unbooked`: what the moves would have
      added to `gross`.
    """

    track: pd.DataFrame
    held: PerRow


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

    A row (`Followed`) for each session of a fill, as far as the prices of the next fill are known.
    In a session without weights, or NaN alone, nothing is traded but what met an unexplained move
    or is overdue. A stock that is `kept` is not traded while held. `held_before` are the holdings
    before the first fill; None is cash.

    A stock without a price at the fill is not traded, and one at its price limit not bought, or not
    sold: cash meant for it stays cash, holdings are kept at their last price, and others scaled
    down where the gross exposure would pass 1. After `PATIENCE` sessions without a price it is sold
    at that price, which flatters the holder of a bankrupt one. Raises DtmlError where all equity is
    lost.
    """
    fill = strategy.fill
    price = quotes.fills(fill)
    tradable = np.isfinite(price)
    session = np.arange(len(price))[:, None]
    last_traded = np.maximum.accumulate(np.where(tradable, session, -1), axis=0)
    overdue = session - last_traded > PATIENCE
    mark = quotes.marks(fill)
    # To the next fill, or to the last price before an unexplained move; and whatever lies between.
    returns = _returns_to_next_fill(mark, quotes.exits(fill))
    returns_with_moves = _returns_to_next_fill(mark, mark)
    broken = quotes.breaks
    limit = quotes.limits(fill)

    place = quotes.sessions.get_indexer(as_of) + (fill == "next_open")  # the row of each fill
    first = int(place[0])
    # At the last fill with prices the one before is sold.
    last_priced = int(np.flatnonzero(tradable.any(axis=1)).max(initial=-1))
    rows = slice(first, max(min(int(place[-1]), last_priced) + 1, first))
    is_priced = place < rows.stop
    # NaN in a session without weights.
    targets = np.full((rows.stop - first, weights.shape[1]), np.nan)
    targets[place[is_priced] - first] = weights[is_priced]
    is_kept = np.zeros(targets.shape, dtype=bool)
    if kept is not None:
        is_kept[place[is_priced] - first] = kept[is_priced]

    holdings = np.empty_like(targets)
    turnover, sold, gross = np.empty((3, len(targets)))
    before = np.zeros(targets.shape[1]) if held_before is None else held_before
    # The returns from the fill before; at the first session of all any row, as nothing is held yet.
    drifted = before * (1 + returns[first - 1]) / (1 + before @ returns[first - 1])
    for day in range(len(targets)):
        row = first + day
        # A position that met an unexplained move was sold before it.
        unbroken = np.where(broken[row], 0.0, drifted)
        stays = ~tradable[row] | (is_kept[day] & (unbroken != 0))
        holdings[day] = _trade(unbroken, targets[day], stays, overdue[row], limit[row])
        of_broken = drifted - unbroken
        turnover[day] = np.abs(of_broken).sum() + np.abs(holdings[day] - unbroken).sum()
        sold[day] = np.maximum(of_broken, 0).sum() + np.maximum(unbroken - holdings[day], 0).sum()
        gross[day] = holdings[day] @ returns[row]
        if gross[day] <= -1:
            worst = quotes.symbols[int((holdings[day] * returns[row]).argmin())]
            raise DtmlError(
                f"{strategy.name}: the portfolio loses all its equity between the fills on "
                f"{quotes.sessions[row].date()} and {quotes.sessions[row + 1].date()}, and {worst} "
                f"loses the most: check the prices of {worst} on these two sessions and, if they "
                "are right, hold less of each stock (--max-weight)"
            )
        drifted = holdings[day] * (1 + returns[row]) / (1 + gross[day])

    # `broken` is true at the first fill after an unexplained move: a position meets the move on the
    # row before. It earns the return up to the last price before the move.
    breaks_next = np.vstack([broken[1:], np.zeros_like(broken[:1])])[rows]
    meets_move = (holdings != 0) & breaks_next
    return_of_move = returns_with_moves[rows] - returns[rows]
    sessions = quotes.sessions[rows]
    purchase_rate, sale_rate = strategy.costs.of_trades(sessions)
    # The turnover contains the sales, so they are charged the difference of the rates only.
    cost = turnover * purchase_rate + sold * (sale_rate - purchase_rate)
    short = np.maximum(-holdings, 0).sum(axis=1)
    borrow = short * strategy.costs.of_shorts(sessions, quotes.year)
    track = pd.DataFrame(
        {
            "session": sessions,
            "gross": gross,
            "turnover": turnover,
            "cost": cost,
            "borrow": borrow,
            "net": gross - cost - borrow,
            "long": np.maximum(holdings, 0).sum(axis=1),
            "short": short,
            "settled": meets_move.sum(axis=1),
            "unbooked": np.where(meets_move, holdings * return_of_move, 0.0).sum(axis=1),
        }
    )
    return Followed(track[: max(0, last_priced - first)], holdings)


def equal_weight_track(
    scores: PerDay, as_of: pd.DatetimeIndex, quotes: Quotes, fill: Fill
) -> pd.DataFrame:
    """Return what equal parts of the stocks with a score earned, as `follow` without costs."""
    everything = Strategy("long", fill, top=scores.shape[1], max_weight=1.0, costs=FREE)
    return follow(positions(scores, everything), as_of, quotes, everything)


def index_track(index: Quotes, as_of: pd.DatetimeIndex, fill: Fill) -> pd.DataFrame:
    """Return what holding the index, the only symbol quoted, earned, as `follow` without costs."""
    return equal_weight_track(np.ones((len(as_of), 1)), as_of, index, fill)


def _returns_to_next_fill(mark: PerSession, exit_: PerSession) -> PerSession:
    """Return the return to the next fill, 0 before a stock's first price and at the last fill."""
    returns = np.zeros_like(mark)
    priced_returns = exit_[1:] / mark[:-1] - 1
    returns[:-1] = np.where(np.isfinite(mark[:-1]), priced_returns, 0.0)
    return returns


def _trade(
    drifted: Weights, target: Weights, stays: Stocks, overdue: Stocks, limit: Weights
) -> Weights:
    """Return the holdings after trading to `target`, but what `stays` and is not `overdue`."""
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
