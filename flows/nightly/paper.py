"""Follow the ranking of each night in a paper account, which holds stocks without real money.

A ranking decides the shares of the equity to hold, its targets. They are filled at the next open,
at the market's costs; the return up to the open after it is then booked.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.engine import reading, transaction
from db.read import read, read_value
from db.rows import paper_account, prices
from db.save import save
from dtml.backtest.lots import trades, whole_lots
from dtml.backtest.portfolio import (
    FILLED_AGAIN,
    equal_weight_track,
    follow_on,
    index_track,
)
from dtml.backtest.quotes import Quotes
from dtml.backtest.turnover import strategy_of, target_of_night
from dtml.errors import DtmlError
from dtml.markets import Market
from dtml.pages.figures import counted
from dtml.prices.returns import on_grid
from dtml.prices.sessions import (
    next_known_session,
    previous_session,
    sessions_between,
    sessions_up_to,
)
from flows.nightly.context import MarketContext, Tonight, quotes_of, quotes_on

log = logging.getLogger(__name__)

BOOKED = ("session", "gross", "turnover", "cost", "net")  # the columns of a track that are stored
# A stock that the user holds and that is kept is not traded while its share of the equity is within
# these multiples of the share wanted.
KEPT_MULTIPLES = (0.5, 2.0)
# The names of the paper account and its yardsticks in the store.
ACCOUNT = "account"
FREE_ACCOUNT = "account, no costs"
EQUAL = "equal parts"
INDEX = "index"


def follow_rankings(tonight: Tonight) -> None:
    """Store the targets of each ranking up to the night, then fill those whose open has passed.

    What is stored never changes. An error is a warning: the next night goes on from what is stored.
    """
    context = tonight.context
    try:
        targets = pd.DataFrame(list(_new_targets(context, tonight.as_of)))
        if len(targets):
            with transaction(context.engine) as conn:
                save(
                    conn,
                    "target_position",
                    targets,
                    market=context.name,
                    decided_at=datetime.now(UTC),
                )
        booked = _new_bookings(tonight)
        if booked is not None:
            with transaction(context.engine) as conn:
                paper_account.save_paper_account(
                    conn, context.name, booked.returns, booked.positions
                )
    except DtmlError as error:
        log.warning("the paper account of %s is not updated: %s", context.name, error)


def _new_targets(context: MarketContext, as_of: date) -> Iterator[dict[str, object]]:
    """Yield `target, symbol, weight, kept` for each ranking after the last with targets, oldest
    first.

    `weight` is the share of the equity; `kept`: it was a target before, and is not traded.
    """
    trading = context.market.trading
    calendar = context.market.calendar
    symbols = context.market.symbols
    with reading(context.engine) as conn:
        last = read_value(conn, "target_position", "target", market=context.name, order="-target")
        if last is None:
            first = date.min
            last_targets = pd.DataFrame({"symbol": []})
        else:
            # Targets come from the mean rank of the last `smooth` nights.
            first = sessions_up_to(calendar, last, trading.smooth)[0].date()
            last_targets = read(conn, "target_position", market=context.name, target=last)
        last_ranked = next_known_session(calendar, as_of) or as_of
        rankings = read(
            conn,
            "stock_rank",
            market=context.name,
            target=where.between(first, last_ranked),
            order="target, made_at, predictor, place",
        )
    # Only the rankings that nights show count. Of a session that several rankers have ranked, each
    # stock counts in the newest ranking that has it.
    rankings = rankings[rankings["chosen"].astype(bool)].sort_values("made_at")
    rankings = rankings.drop_duplicates(["target", "symbol"], keep="last")
    if rankings.empty:
        return
    ranked = rankings["target"]
    sessions = sessions_between(calendar, ranked.min().date(), ranked.max().date())
    by_session = rankings.rename(columns={"target": "session"})
    scores = on_grid(by_session, "score", sessions, symbols)  # [sessions stocks]
    # [stocks], the targets of the night before; each night that is ranked below sets it anew.
    is_target = np.isin(list(symbols), last_targets["symbol"])
    for number, session in enumerate(sessions):
        is_decided = last is not None and session.date() <= last
        has_ranking = np.isfinite(scores[number]).any()
        if is_decided or not has_ranking:
            continue
        first_night = max(0, number + 1 - trading.smooth)
        nights = scores[first_night : number + 1]
        weights, kept = target_of_night(nights, trading, is_target)
        is_target = weights > 0
        for stock in np.flatnonzero(is_target):
            yield {
                "target": session,
                "symbol": symbols[stock],
                "weight": weights[stock],
                "kept": bool(kept[stock]),
            }


@dataclass(frozen=True)
class _Booked:
    """The new returns of the account and its yardsticks, and what it held after each new fill."""

    returns: pd.DataFrame
    positions: pd.DataFrame


def _new_bookings(tonight: Tonight) -> _Booked | None:
    """Return the results of the fills up to the night whose return is not booked; None without any.

    They begin with the first targets, out of cash, or from the holdings after the last fill booked.
    A fill's return is known only at the next open: the next night makes the last fill again to book
    it.
    """
    context = tonight.context
    as_of = tonight.as_of
    market = context.market
    calendar = market.calendar
    with reading(context.engine) as conn:
        # The last session booked and the equity after it, of each portfolio.
        last_booked = paper_account.last_booked(conn, context.name)
        # The account and its yardsticks are stored together: if any is there, the account is.
        last_day = last_booked[ACCOUNT][0] if last_booked else None
        first_unbooked = next_known_session(calendar, last_day) if last_day else None
        if last_day and first_unbooked is None:
            return None  # the calendar ends there
        # Without a booked return, all targets up to the night and all positions are read.
        targets = read(
            conn,
            "target_position",
            market=context.name,
            target=where.between(first_unbooked, as_of),
        )
        last_positions = read(
            conn, "paper_position", market=context.name, session=where.between(last_day, last_day)
        )
    # After its first fill, the account is filled on every session, also without new targets: what
    # it holds earns a return.
    first = first_unbooked
    if first is None and len(targets):  # no return is booked yet: begin with the first targets
        first = targets["target"].min().date()
    if first is None or first > as_of:
        return None
    fills = sessions_between(calendar, first, as_of)
    symbols = tuple(sorted({*market.symbols, *last_positions["symbol"], *targets["symbol"]}))
    # `FILLED_AGAIN` sessions before a fill decide how it is traded.
    begin = sessions_up_to(calendar, first, FILLED_AGAIN)[0].date()
    bars = tonight.newest_or_error(begin)
    quotes = quotes_of(context, bars, symbols)
    # `follow_on` is given the session before each fill, after whose close it was decided.
    decided = quotes.sessions[quotes.sessions.get_indexer(fills) - 1]
    # A fill without targets has only NaN: nothing is traded. Elsewhere a stock without one has 0.
    rows = targets.rename(columns={"target": "session"})
    rows = rows.assign(kept=targets["kept"].astype(float))
    weights = on_grid(rows, "weight", fills, symbols)
    kept = on_grid(rows, "kept", fills, symbols)
    is_decided = np.isfinite(weights).any(axis=1, keepdims=True)
    weights = np.where(is_decided, np.nan_to_num(weights), np.nan)
    held_before = None  # cash alone
    if last_day:
        last_weights = last_positions.set_index("symbol")["weight"]
        held_before = last_weights.reindex(list(symbols)).fillna(0.0).to_numpy()
    account = follow_on(
        weights,
        decided,
        quotes,
        strategy_of(market.trading),
        kept=kept == 1,
        held_before=held_before,
    )
    tracks = {
        ACCOUNT: account.track,
        FREE_ACCOUNT: account.track.assign(cost=0.0, net=account.track["gross"]),
        **_yardstick_tracks(context, bars, quotes, fills),
    }
    equities = {name: equity for name, (_, equity) in last_booked.items()}
    returns = []
    for name, track in tracks.items():
        growth = [equities.get(name, 1.0), *(1 + track["net"])]
        equity = np.multiply.accumulate(growth)[1:]  # without the equity before
        returns.append(track[list(BOOKED)].assign(portfolio=name, equity=equity))
    fill_places, stock_places = np.nonzero(account.held)
    return _Booked(
        pd.concat(returns, ignore_index=True),
        pd.DataFrame(
            {
                "session": fills[fill_places],
                "symbol": np.array(symbols)[stock_places],
                "weight": account.held[fill_places, stock_places],
            }
        ),
    )


def _yardstick_tracks(
    context: MarketContext, bars: pd.DataFrame, quotes: Quotes, fills: pd.DatetimeIndex
) -> dict[str, pd.DataFrame]:
    """Return the tracks, without costs, of equal parts of the constituents and of the index.

    A constituent without an open at a fill gets no part.
    """
    market = context.market
    index_quotes = quotes_of(context, bars, (market.index.symbol,))
    place = quotes.sessions.get_indexer(fills)
    decided = quotes.sessions[place - 1]
    has_open = np.isfinite(quotes.open[place])
    is_held = market.is_constituent(fills, quotes.symbols) & has_open
    # Any probability stands for a stock that is held: all of them get the same weight.
    probability = np.where(is_held, 0.5, np.nan)
    equal_parts = equal_weight_track(probability, decided, quotes, "next_open")
    return {
        EQUAL: equal_parts.assign(turnover=0.0),
        INDEX: index_track(index_quotes, decided, "next_open").assign(turnover=0.0),
    }


@dataclass(frozen=True)
class Orders:
    """What to trade at the open of `target`, the cash left, and why there is nothing."""

    target: date
    rows: pd.DataFrame
    cash: float
    reason: str = ""


def next_orders(
    conn: Connection, market: Market, capital: float, holdings: "pd.Series[float] | None" = None
) -> Orders | None:
    """Return the orders that turn holdings into the newest night's targets; None without targets.

    Columns: symbol, side ("buy", "sell"), shares, price (the last close), value, cost (as
    expected), weight (share of `capital`). `holdings` are shares by symbol, by default the paper
    account's, worth `capital` at the last close. A `kept` target is not traded; with given
    holdings, only within KEPT_MULTIPLES of its weight. Raises DtmlError for a stock without a
    close, and for an account not filled up to the last open.
    """
    target = read_value(conn, "target_position", "target", market=market.name, order="-target")
    if target is None:
        return None
    trading = market.trading
    last = previous_session(market.calendar, target)
    targets = read(conn, "target_position", market=market.name, target=target).set_index("symbol")
    # As many sessions as a fill of the account reads: a suspended stock has no newer close.
    first = sessions_up_to(market.calendar, last, FILLED_AGAIN)[0].date()
    bars = prices.prices(conn, market.name, first, last)
    close = bars.groupby("symbol")["close"].last()
    held = _account_shares(conn, market, last, capital, bars) if holdings is None else holdings
    symbols = sorted({*targets.index, *held.index})
    missing = sorted(set(symbols) - set(close.index))
    if missing:
        without = f"the store has no close of {', '.join(missing)} from {first} to {last}"
        raise _no_close_error(without, market, of_account=holdings is None)
    price = close.reindex(symbols)
    held_symbols = held.index
    held = held.reindex(symbols).fillna(0.0)
    weight = targets["weight"].reindex(symbols).fillna(0.0)
    kept = targets["kept"].reindex(symbols).fillna(value=False).astype(bool)
    if holdings is None:
        # Only a stock that is held is kept. One that could not be bought when it was first wanted
        # is bought now, as in the fill of the account itself.
        kept &= kept.index.isin(held_symbols)
    else:
        share_of_capital = held * price / capital
        kept &= share_of_capital.div(weight).between(*KEPT_MULTIPLES)
    costs_on_target = trading.costs.of_trades(pd.DatetimeIndex([target]))
    purchase_rate, sale_rate = (float(rate[0]) for rate in costs_on_target)
    change = trades(
        held.to_numpy(dtype=float),
        weight.to_numpy(dtype=float),
        price.to_numpy(dtype=float),
        capital=capital,
        lot=trading.lot,
        kept=kept.to_numpy(),
        rates=(purchase_rate, sale_rate),
    )
    value = np.abs(change) * price
    cost = value * np.where(change > 0, purchase_rate, sale_rate)
    value_held_after = ((held + change) * price).sum()
    cash = capital - float(value_held_after) - float(cost.sum())
    rows = pd.DataFrame(
        {
            "side": np.where(change > 0, "buy", "sell"),
            "shares": np.abs(change),
            "price": price,
            "value": value,
            "cost": cost,
            "weight": weight,
        }
    )
    rows = rows.rename_axis("symbol").reset_index()
    rows = rows[rows["shares"] > 0].sort_values(["side", "symbol"], ignore_index=True)
    reason = "" if len(rows) else _why_none(price, held, weight, capital, trading.lot)
    return Orders(target=target, rows=rows, cash=cash, reason=reason)


def _why_none(
    price: "pd.Series[float]",
    held: "pd.Series[float]",
    weight: "pd.Series[float]",
    capital: float,
    lot: int,
) -> str:
    """Say why there is no order: too little capital for a lot, or what is held suffices."""
    parts = weight[weight > 0] * capital
    lot_costs = lot * price[parts.index]
    if (held > 0).any():
        return (
            "What is held is less than a lot from what the newest ranking wants and the cash "
            "allows, or is kept."
        )
    if (parts >= lot_costs).any():
        return f"A capital of {capital:,.2f} does not pay for a lot with its costs."
    nearest = str((parts / lot_costs).idxmax())
    return (
        f"A capital of {capital:,.2f} is too little for a lot of any of the "
        f"{counted(len(parts), 'stock')} to hold: of {nearest}, {counted(lot, 'share')} "
        f"{'costs' if lot == 1 else 'cost'} {lot_costs[nearest]:,.2f}, and its part of the capital "
        f"is {parts[nearest]:,.2f}."
    )


def _no_close_error(without: str, market: Market, *, of_account: bool) -> DtmlError:
    """Return the error of stocks `without` a close, held by the account or listed in a file."""
    if of_account:
        return DtmlError(
            f"{without}, so the holdings of the paper account have no value: run `dtml fetch "
            f"{market.name}`, with --prices FILE if the prices come from files, or give your own "
            "holdings with --positions"
        )
    return DtmlError(
        f"{without}: leave these stocks out of the file of --positions or, if they are stocks of "
        f"{market.name}, run `dtml fetch {market.name}`, with --prices FILE if its prices come "
        "from files"
    )


def _is_filled(conn: Connection, market: Market, last: date) -> bool:
    """Return whether the paper account is known to have been filled at the open of `last`.

    A fill books the return after the one before: it is known from the second on.
    """
    booked = paper_account.last_booked(conn, market.name)
    return ACCOUNT in booked and booked[ACCOUNT][0] >= previous_session(market.calendar, last)


def _account_shares(
    conn: Connection, market: Market, last: date, capital: float, bars: pd.DataFrame
) -> "pd.Series[float]":
    """Return the paper account's whole lots at the close of `last`, if it is worth `capital` then.

    Empty where it holds only cash. Raises DtmlError where targets have not been filled at their
    open.
    """
    positions = read(conn, "paper_position", market=market.name, session=last)
    weight = positions.set_index("symbol")["weight"].astype(float)
    has_targets = (
        len(read(conn, "target_position", market=market.name, target=where.until(last))) > 0
    )
    if weight.empty and has_targets and not _is_filled(conn, market, last):
        raise DtmlError(
            f"the paper account of {market.name} has not traded at the open of {last} yet: "
            f"`dtml nightly {market.name}` makes up for it, at the latest in its next night; until "
            "then, give your holdings with --positions"
        )
    if weight.empty:
        return weight
    symbols = tuple(weight.index)
    quotes = quotes_on(conn, market, bars, symbols)
    # Weights are shares of the equity at the open of `last`; values are in units of that equity.
    growth_to_close = quotes.marks("close")[-1] / quotes.marks("next_open")[-1]
    value = weight * growth_to_close
    equity = value.sum() + 1 - weight.sum()  # what is not in stocks is cash
    close = bars.groupby("symbol")["close"].last().reindex(symbols)
    shares = value / equity * capital / close
    return pd.Series(whole_lots(shares.to_numpy(), market.trading.lot), index=weight.index)
