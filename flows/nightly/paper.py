"""Follow the order of each night on paper: what to hold next, filled at the
real next open, at the market's costs.
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
from dtml.backtest.portfolio import FILLED_AGAIN, equal_weight_track, follow_on, index_track
from dtml.backtest.turnover import strategy_of, target_of_night
from dtml.errors import DtmlError
from dtml.markets import Market
from dtml.prices.returns import on_grid
from dtml.prices.sessions import next_session, previous_session, sessions_between, sessions_up_to
from flows.nightly.context import MarketContext, quotes_of, quotes_on, read_bars

log = logging.getLogger(__name__)

BOOKED = ("session", "gross", "turnover", "cost", "net")
NEAR = (
    0.5,
    2.0,
)  # of the wanted share: within it a stock of the user's own that is kept is not traded
ACCOUNT, FREE_ACCOUNT, EQUAL, INDEX = "account", "account, no costs", "equal parts", "index"


def follow_orders(context: MarketContext, as_of: date) -> None:
    """Decide what every order up to the night of `as_of` makes the account hold, and fill what was
    decided before.

    What was decided or booked once stands, so this may run at any time and again; each of the two
    is stored whole or
    not at all. What the account cannot do is a warning: it costs no night its page, and the next
    night goes on.
    """
    try:
        if len(aims := pd.DataFrame(list(_aims(context, as_of)))):
            with transaction(context.engine) as conn:
                stored.save_targets(conn, context.name, aims, decided_at=datetime.now(UTC))
        if (booked := _booked(context, as_of)) is not None:
            with transaction(context.engine) as conn:
                stored.save_paper(conn, context.name, *booked)
    except DtmlError as error:
        log.warning("the paper account of %s waits: %s", context.name, error)


def _aims(context: MarketContext, as_of: date) -> Iterator[dict[str, object]]:
    """Yield what to hold after each order that nothing was decided from yet, the oldest first."""
    trading, calendar, symbols = (
        context.market.trading,
        context.market.calendar,
        list(context.market.symbols),
    )
    with reading(context.engine) as conn:
        last = stored.last_target(conn, context.name)
        first = (
            date.min if last is None else sessions_up_to(calendar, last, trading.smooth)[0].date()
        )
        said = stored.orders(conn, context.name, first=first, last=next_session(calendar, as_of))
        before = (
            stored.targets(conn, context.name, last, last) if last else pd.DataFrame({"symbol": []})
        )
    said = (
        said[said["speaks"].astype(bool)]
        .sort_values("made_at")
        .drop_duplicates(["target", "symbol"], keep="last")
    )
    if said.empty:
        return
    sessions = sessions_between(calendar, said["target"].min().date(), said["target"].max().date())
    scores = on_grid(said.rename(columns={"target": "session"}), "score", sessions, tuple(symbols))
    aimed = np.isin(symbols, before["symbol"])
    for number, session in enumerate(sessions):
        if (last is None or session.date() > last) and np.isfinite(scores[number]).any():
            nights = scores[max(0, number + 1 - trading.smooth) : number + 1]
            weights, kept = target_of_night(nights, trading, aimed)
            aimed = weights > 0
            for stock in np.flatnonzero(aimed):
                cells = {
                    "symbol": symbols[stock],
                    "weight": weights[stock],
                    "kept": bool(kept[stock]),
                }
                yield {"target": session} | cells


def _booked(context: MarketContext, as_of: date) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return what the account and its yardsticks earned since the last return booked, and what it
    held, up to `as_of`.

    None where nothing is to be filled.
    """
    market, calendar = context.market, context.market.calendar
    with reading(context.engine) as conn:
        last = stored.last_paper(conn, context.name)
        day = last[ACCOUNT][0] if last else None
        aims = stored.targets(
            conn, context.name, next_session(calendar, day) if day else None, as_of
        )
        before = stored.paper_positions(conn, context.name, day, day)
    first = (
        next_session(calendar, day) if day else aims["target"].min().date() if len(aims) else None
    )
    if first is None or first > as_of:
        return None
    fills = sessions_between(calendar, first, as_of)
    symbols = tuple(sorted({*market.symbols, *before["symbol"], *aims["symbol"]}))
    begin = sessions_up_to(calendar, first, FILLED_AGAIN)[0].date()
    bars = read_bars(context, begin, as_of).drop(columns="known_at")
    quotes, index = (quotes_of(context, bars, each) for each in (symbols, (market.index.symbol,)))
    place = quotes.sessions.get_indexer(fills)
    decided, trading = quotes.sessions[place - 1], strategy_of(market.trading)
    weights, kept = _grids(aims, fills, symbols)
    held = (
        before.set_index("symbol")["weight"].reindex(list(symbols)).fillna(0.0).to_numpy()
        if day
        else None
    )
    made = follow_on(weights, decided, quotes, trading, kept=kept, held_before=held)
    there = market.membership(fills, symbols) & np.isfinite(quotes.open[place])
    tracks = {
        ACCOUNT: made.track,
        FREE_ACCOUNT: made.track.assign(cost=0.0, net=made.track["gross"]),
        EQUAL: equal_weight_track(
            np.where(there, 0.5, np.nan), decided, quotes, "next_open"
        ).assign(turnover=0.0),
        INDEX: index_track(index, decided, "next_open").assign(turnover=0.0),
    }
    rows = []
    for name, track in tracks.items():
        equity = np.multiply.accumulate(
            [last[name][1] if name in last else 1.0, *(1 + track["net"])]
        )[1:]
        rows.append(track[list(BOOKED)].assign(portfolio=name, equity=equity))
    on, stock = np.nonzero(made.held)
    positions = {
        "session": fills[on],
        "symbol": np.array(symbols)[stock],
        "weight": made.held[on, stock],
    }
    return pd.concat(rows, ignore_index=True), pd.DataFrame(positions)


def _grids(
    aims: pd.DataFrame, fills: pd.DatetimeIndex, symbols: tuple[str, ...]
) -> tuple[Float[ndarray, "fills stocks"], Bool[ndarray, "fills stocks"]]:
    """Return the shares to hold and which stocks are kept, by fill; NaN
    throughout where nothing was decided.
    """
    rows = aims.rename(columns={"target": "session"}).assign(kept=aims["kept"].astype(float))
    weights, kept = (on_grid(rows, name, fills, symbols) for name in ("weight", "kept"))
    return np.where(
        np.isfinite(weights).any(axis=1, keepdims=True), np.nan_to_num(weights), np.nan
    ), kept == 1


@dataclass(frozen=True)
class Orders:
    """What to trade at the open of `target`: a row a stock, and the cash that
    is left of the capital after it.
    """

    target: date
    rows: pd.DataFrame
    cash: float


def next_orders(
    conn: Connection, market: Market, capital: float, holdings: "pd.Series[float] | None" = None
) -> Orders | None:
    """Return the orders that turn what was held yesterday into what the newest night wants; None
    without a night.

    `holdings` are shares by symbol, by default those of the paper account, of so much `capital` at
    the last close. Columns: symbol, side, shares (in whole lots), price (the last close), value,
    cost (as expected), weight. Raises DtmlError for a stock without a close, and where the paper
    account stopped before the last open.
    """
    target = stored.last_target(conn, market.name)
    if target is None:
        return None
    last, trading = previous_session(market.calendar, target), market.trading
    aims = stored.targets(conn, market.name, target, target).set_index("symbol")
    first = sessions_up_to(market.calendar, last, FILLED_AGAIN)[0].date()
    bars = prices.prices(conn, market.name, first, last)
    close = bars.groupby("symbol")["close"].last()
    held = _account_shares(conn, market, last, capital, bars) if holdings is None else holdings
    symbols = sorted({*aims.index, *held.index})
    if missing := sorted(set(symbols) - set(close.index)):
        raise DtmlError(
            f"{market.name} has no close of {', '.join(missing[:5])} up to {last}: leave it out"
        )
    price, held = close.reindex(symbols), held.reindex(symbols).fillna(0.0)
    weight = aims["weight"].reindex(symbols).fillna(0.0)
    kept = aims["kept"].reindex(symbols).fillna(value=False).astype(bool)
    if holdings is not None:
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
    left = capital - float(((held + change) * price).sum()) - float(cost.sum())
    return Orders(target, rows, left)


def _account_shares(
    conn: Connection, market: Market, last: date, capital: float, bars: pd.DataFrame
) -> "pd.Series[float]":
    """Return the whole lots that the paper account holds at the close of `last`, by symbol, if it
    is worth `capital`.

    Rounded down, as what is wanted is: together they are worth no more than the capital.
    """
    weight = (
        stored.paper_positions(conn, market.name, last, last)
        .set_index("symbol")["weight"]
        .astype(float)
    )
    if weight.empty and len(stored.targets(conn, market.name, None, last)):
        raise DtmlError(
            f"the paper account of {market.name} was not filled at the open of {last}: "
            f"run `dtml nightly {market.name}` again, or name what you hold with --positions"
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
