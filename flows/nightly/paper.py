"""Follow the ranking of each night in a paper account.

It says what to hold next, filled at the real next open, at the market's costs.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray
from sqlalchemy import Connection

from db.engine import reading, transaction
from db.rows import prices
from db.rows import rankings as stored
from dtml.backtest.lots import trades, whole_lots
from dtml.backtest.portfolio import (
    FILLED_AGAIN,
    Quotes,
    equal_weight_track,
    follow_on,
    index_track,
)
from dtml.backtest.turnover import strategy_of, target_of_night
from dtml.errors import DtmlError
from dtml.markets import Market
from dtml.prices.returns import on_grid
from dtml.prices.sessions import (
    next_known_session,
    previous_session,
    sessions_between,
    sessions_up_to,
)
from flows.nightly.bars import NightBars
from flows.nightly.context import MarketContext, quotes_of, quotes_on

log = logging.getLogger(__name__)

BOOKED = ("session", "gross", "turnover", "cost", "net")
# Of the wanted share: within it a stock of the user's own that is kept is not traded.
NEAR = (0.5, 2.0)
ACCOUNT = "account"
FREE_ACCOUNT = "account, no costs"
EQUAL = "equal parts"
INDEX = "index"


def follow_rankings(context: MarketContext, night_bars: NightBars) -> None:
    """Decide what each ranking up to the night makes the account hold, and fill it.

    Filled is what was decided before. What was decided or booked once stands, so this may run at
    any time and again; each of the two is stored whole or not at all. What the account cannot do
    is a warning: it costs no night its page, and the next night goes on.
    """
    try:
        aims = pd.DataFrame(list(_aims(context, night_bars.as_of)))
        if len(aims):
            with transaction(context.engine) as conn:
                stored.save_targets(conn, context.name, aims, decided_at=datetime.now(UTC))
        booked = _booked(context, night_bars)
        if booked is not None:
            with transaction(context.engine) as conn:
                stored.save_paper_account(conn, context.name, booked.returns, booked.positions)
    except DtmlError as error:
        log.warning("the paper account of %s is not updated: %s", context.name, error)


def _aims(context: MarketContext, as_of: date) -> Iterator[dict[str, object]]:
    """Yield what to hold after each ranking that nothing was decided from yet, the oldest first."""
    trading = context.market.trading
    calendar = context.market.calendar
    symbols = context.market.symbols
    with reading(context.engine) as conn:
        last = stored.last_target(conn, context.name)
        if last is None:
            first = date.min
            before = pd.DataFrame({"symbol": []})
        else:
            first = sessions_up_to(calendar, last, trading.smooth)[0].date()
            before = stored.targets(conn, context.name, last, last)
        last_ranked = next_known_session(calendar, as_of) or as_of
        rankings = stored.night_rankings(conn, context.name, first=first, last=last_ranked)
    rankings = rankings[rankings["chosen"].astype(bool)].sort_values("made_at")
    rankings = rankings.drop_duplicates(["target", "symbol"], keep="last")
    if rankings.empty:
        return
    targets = rankings["target"]
    sessions = sessions_between(calendar, targets.min().date(), targets.max().date())
    scores = on_grid(rankings.rename(columns={"target": "session"}), "score", sessions, symbols)
    is_aimed = np.isin(list(symbols), before["symbol"])
    for number, session in enumerate(sessions):
        is_decided = last is not None and session.date() <= last
        if is_decided or not np.isfinite(scores[number]).any():
            continue
        nights = scores[max(0, number + 1 - trading.smooth) : number + 1]
        weights, kept = target_of_night(nights, trading, is_aimed)
        is_aimed = weights > 0
        for stock in np.flatnonzero(is_aimed):
            yield {
                "target": session,
                "symbol": symbols[stock],
                "weight": weights[stock],
                "kept": bool(kept[stock]),
            }


@dataclass(frozen=True)
class _Booked:
    """Hold the new returns of the account and its yardsticks, and what the account held."""

    returns: pd.DataFrame
    positions: pd.DataFrame


def _booked(context: MarketContext, night_bars: NightBars) -> _Booked | None:
    """Fill what was decided since the last return booked, up to the night.

    None where nothing is to be filled.
    """
    as_of = night_bars.as_of
    market = context.market
    calendar = market.calendar
    with reading(context.engine) as conn:
        last = stored.last_booked(conn, context.name)
        last_day = last[ACCOUNT][0] if last else None
        after = next_known_session(calendar, last_day) if last_day else None
        if last_day and after is None:
            return None  # the calendar ends there
        aims = stored.targets(conn, context.name, after, as_of)
        before = stored.paper_positions(conn, context.name, last_day, last_day)
    first = after
    if first is None and len(aims):
        first = aims["target"].min().date()
    if first is None or first > as_of:
        return None
    fills = sessions_between(calendar, first, as_of)
    symbols = tuple(sorted({*market.symbols, *before["symbol"], *aims["symbol"]}))
    begin = sessions_up_to(calendar, first, FILLED_AGAIN)[0].date()
    bars = night_bars.newest_or_error(begin)
    quotes = quotes_of(context, bars, symbols)
    decided = quotes.sessions[quotes.sessions.get_indexer(fills) - 1]
    weights, kept = _grids(aims, fills, symbols)
    held_before = None
    if last_day:
        weights_before = before.set_index("symbol")["weight"]
        held_before = weights_before.reindex(list(symbols)).fillna(0.0).to_numpy()
    account = follow_on(
        weights,
        decided,
        quotes,
        strategy_of(market.trading),
        kept=kept,
        held_before=held_before,
    )
    tracks = {
        ACCOUNT: account.track,
        FREE_ACCOUNT: account.track.assign(cost=0.0, net=account.track["gross"]),
        **_yardsticks(context, bars, quotes, fills),
    }
    equities = {name: equity for name, (_, equity) in last.items()}
    return _Booked(_returns(tracks, equities), _positions(account.held, fills, symbols))


def _yardsticks(
    context: MarketContext, bars: pd.DataFrame, quotes: Quotes, fills: pd.DatetimeIndex
) -> dict[str, pd.DataFrame]:
    """Return what equal parts of the constituents and the index earned at the same fills."""
    market = context.market
    index_quotes = quotes_of(context, bars, (market.index.symbol,))
    place = quotes.sessions.get_indexer(fills)
    decided = quotes.sessions[place - 1]
    is_priced = market.is_constituent(fills, quotes.symbols) & np.isfinite(quotes.open[place])
    equal_parts = equal_weight_track(np.where(is_priced, 0.5, np.nan), decided, quotes, "next_open")
    return {
        EQUAL: equal_parts.assign(turnover=0.0),
        INDEX: index_track(index_quotes, decided, "next_open").assign(turnover=0.0),
    }


def _returns(tracks: dict[str, pd.DataFrame], equities: dict[str, float]) -> pd.DataFrame:
    """Return the rows of new returns, each with the equity that it grows the last one to."""
    rows = []
    for name, track in tracks.items():
        growth = [equities.get(name, 1.0), *(1 + track["net"])]
        equity = np.multiply.accumulate(growth)[1:]
        rows.append(track[list(BOOKED)].assign(portfolio=name, equity=equity))
    return pd.concat(rows, ignore_index=True)


def _positions(
    held: Float[ndarray, "fills stocks"], fills: pd.DatetimeIndex, symbols: tuple[str, ...]
) -> pd.DataFrame:
    """Return a row for each share held."""
    fill, stock = np.nonzero(held)
    return pd.DataFrame(
        {
            "session": fills[fill],
            "symbol": np.array(symbols)[stock],
            "weight": held[fill, stock],
        }
    )


def _grids(
    aims: pd.DataFrame, fills: pd.DatetimeIndex, symbols: tuple[str, ...]
) -> tuple[Float[ndarray, "fills stocks"], Bool[ndarray, "fills stocks"]]:
    """Return the shares to hold and which stocks are kept, by fill.

    The shares are NaN throughout where nothing was decided.
    """
    rows = aims.rename(columns={"target": "session"}).assign(kept=aims["kept"].astype(float))
    weights = on_grid(rows, "weight", fills, symbols)
    kept = on_grid(rows, "kept", fills, symbols)
    is_decided = np.isfinite(weights).any(axis=1, keepdims=True)
    return np.where(is_decided, np.nan_to_num(weights), np.nan), kept == 1


@dataclass(frozen=True)
class Orders:
    """Hold what to trade at the open of `target`: a row a stock, and the cash left after it."""

    target: date
    rows: pd.DataFrame
    cash: float


def next_orders(
    conn: Connection, market: Market, capital: float, holdings: "pd.Series[float] | None" = None
) -> Orders | None:
    """Return the orders that turn what was held yesterday into what the newest night wants.

    None without a night. `holdings` are shares by symbol, by default those of the paper account, of
    so much `capital` at the last close. Columns: symbol, side, shares (in whole lots), price (the
    last close), value, cost (as expected), weight. Raises DtmlError for a stock without a close,
    and where the paper account stopped before the last open.
    """
    target = stored.last_target(conn, market.name)
    if target is None:
        return None
    trading = market.trading
    last = previous_session(market.calendar, target)
    aims = stored.targets(conn, market.name, target, target).set_index("symbol")
    first = sessions_up_to(market.calendar, last, FILLED_AGAIN)[0].date()
    bars = prices.prices(conn, market.name, first, last)
    close = bars.groupby("symbol")["close"].last()
    held = _account_shares(conn, market, last, capital, bars) if holdings is None else holdings
    symbols = sorted({*aims.index, *held.index})
    missing = sorted(set(symbols) - set(close.index))
    if missing:
        raise DtmlError(
            f"{market.name} has no close of {', '.join(missing[:5])} up to {last}: "
            "leave out these positions"
        )
    price = close.reindex(symbols)
    held_symbols = held.index
    held = held.reindex(symbols).fillna(0.0)
    weight = aims["weight"].reindex(symbols).fillna(0.0)
    kept = aims["kept"].reindex(symbols).fillna(value=False).astype(bool)
    if holdings is None:
        # What the account could not buy when it was wanted first is bought now, as its fill does.
        kept &= kept.index.isin(held_symbols)
    else:
        kept &= (held * price / capital).div(weight).between(*NEAR)
    bought, sold = (float(rate[0]) for rate in trading.costs.of_trades(pd.DatetimeIndex([target])))
    change = trades(
        held.to_numpy(dtype=float),
        weight.to_numpy(dtype=float),
        price.to_numpy(dtype=float),
        capital=capital,
        lot=trading.lot,
        kept=kept.to_numpy(),
        rates=(bought, sold),
    )
    value = np.abs(change) * price
    cost = value * np.where(change > 0, bought, sold)
    cash = capital - float(((held + change) * price).sum()) - float(cost.sum())
    return Orders(target=target, rows=_order_rows(change, price, value, cost, weight), cash=cash)


def _order_rows(
    change: np.ndarray,
    price: "pd.Series[float]",
    value: "pd.Series[float]",
    cost: "pd.Series[float]",
    weight: "pd.Series[float]",
) -> pd.DataFrame:
    """Return a row for each stock whose number of shares changes, purchases first."""
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
    return rows[rows["shares"] > 0].sort_values(["side", "symbol"], ignore_index=True)


def _account_shares(
    conn: Connection, market: Market, last: date, capital: float, bars: pd.DataFrame
) -> "pd.Series[float]":
    """Return the whole lots that the paper account holds at the close of `last`, by symbol.

    The account is taken to be worth `capital`. Rounded down, as what is wanted is: together they
    are worth no more than the capital.
    """
    positions = stored.paper_positions(conn, market.name, last, last)
    weight = positions.set_index("symbol")["weight"].astype(float)
    if weight.empty and len(stored.targets(conn, market.name, None, last)):
        raise DtmlError(
            f"the paper account of {market.name} has not traded at the open of {last} yet: "
            f"run `dtml nightly {market.name}` again, or give your holdings with --positions"
        )
    if weight.empty:
        return weight
    symbols = tuple(weight.index)
    quotes = quotes_on(conn, market, bars, symbols)
    grown = quotes.marks("close")[-1] / quotes.marks("next_open")[-1]
    value = weight * grown
    equity = value.sum() + 1 - weight.sum()
    close = bars.groupby("symbol")["close"].last().reindex(symbols)
    shares = value / equity * capital / close
    return pd.Series(whole_lots(shares.to_numpy(), market.trading.lot), index=weight.index)
