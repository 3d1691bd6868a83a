"""Follow the order of each night on paper: what to hold next, filled at the real next open, at the market's costs."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray
from sqlalchemy import Connection

from db.engine import reading, transaction
from db.rows import prices
from db.rows import rankings as stored
from dtml.backtest.portfolio import FILLED_AGAIN, equal_weight_track, follow_on, index_track
from dtml.backtest.turnover import strategy_of, target_of_night
from dtml.errors import DtmlError
from dtml.markets import Market
from dtml.prices.returns import on_grid
from dtml.prices.sessions import next_session, previous_session, sessions_between, sessions_up_to
from flows.nightly.context import MarketContext, quotes_of, read_bars

ORDER_COLUMNS = ("side", "shares", "price", "value", "cost", "weight")
NEAR = (0.5, 2.0)  # of the wanted share: within it a stock that is kept is left as it is held
ACCOUNT, FREE_ACCOUNT, EQUAL, INDEX = "account", "account, no costs", "equal parts", "index"


def follow_orders(context: MarketContext, as_of: date) -> None:
    """Decide what every order up to the night of `as_of` makes the account hold, and fill what was decided before.

    What was decided or booked once stands, so this may run at any time and again: one transaction, whole or not at all.
    """
    aims = pd.DataFrame(list(_aims(context, as_of)))
    with transaction(context.engine) as conn:
        if len(aims):
            stored.save_targets(conn, context.name, aims, decided_at=datetime.now(UTC))
    account = _Account(context, as_of)
    if len(account.fills):
        returns, held = account.booked()
        with transaction(context.engine) as conn:
            stored.save_paper(conn, context.name, returns, held)


def _aims(context: MarketContext, as_of: date) -> Iterator[dict[str, object]]:
    """Yield what to hold after each order that nothing was decided from yet, the oldest first."""
    trading, calendar, symbols = context.market.trading, context.market.calendar, list(context.market.symbols)
    with reading(context.engine) as conn:
        last = stored.last_target(conn, context.name)
        first = date.min if last is None else sessions_up_to(calendar, last, trading.smooth)[0].date()
        said = stored.orders(conn, context.name, first=first, last=next_session(calendar, as_of))
        before = stored.targets(conn, context.name, last, last) if last else pd.DataFrame({"symbol": []})
    said = said[said["speaks"].astype(bool)].sort_values("made_at").drop_duplicates(["target", "symbol"], keep="last")
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
                cells = {"symbol": symbols[stock], "weight": weights[stock], "kept": bool(kept[stock])}
                yield {"target": session} | cells


@dataclass(frozen=True)
class _Account:
    """The paper account up to the open of `as_of`: what is booked, and what is decided and not filled yet."""

    context: MarketContext
    as_of: date

    @cached_property
    def last(self) -> dict[str, tuple[date, float]]:
        """Return the last session booked of each portfolio, and its equity then; none before the first."""
        with reading(self.context.engine) as conn:
            return stored.last_paper(conn, self.context.name)

    @cached_property
    def targets(self) -> pd.DataFrame:
        """Return what was decided for the sessions after the last one booked."""
        after = next_session(self.calendar, self.last[ACCOUNT][0]) if self.last else None
        with reading(self.context.engine) as conn:
            return stored.targets(conn, self.context.name, after, self.as_of)

    @cached_property
    def fills(self) -> pd.DatetimeIndex:
        """Return the sessions at whose open the account trades: those since the last one booked, up to `as_of`."""
        if not self.last and self.targets.empty:
            return pd.DatetimeIndex([])
        begun = None if self.last else self.targets["target"].min().date()
        first = begun or next_session(self.calendar, self.last[ACCOUNT][0])
        return sessions_between(self.calendar, first, self.as_of) if first <= self.as_of else pd.DatetimeIndex([])

    @property
    def calendar(self) -> str:
        """Return the calendar of the market."""
        return self.context.market.calendar

    def booked(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return what the account and its yardsticks earned since the last return booked, and what it held."""
        market, before = self.context.market, self.held_before()
        symbols = tuple(sorted({*market.symbols, *before["symbol"], *self.targets["symbol"]}))
        first = sessions_up_to(self.calendar, self.fills[0].date(), FILLED_AGAIN)[0].date()
        bars = read_bars(self.context, first, self.as_of).drop(columns="known_at")
        quotes = quotes_of(self.context, bars, symbols)
        place = quotes.sessions.get_indexer(self.fills)
        decided = quotes.sessions[place - 1]
        weights, kept = self._grids(symbols)
        held = (
            before.set_index("symbol")["weight"].reindex(list(symbols)).fillna(0.0).to_numpy() if len(before) else None
        )
        made = follow_on(weights, decided, quotes, strategy_of(market.trading), kept=kept, held_before=held)
        there = self.context.membership(symbols, self.fills) & np.isfinite(quotes.open[place])
        tracks = {
            ACCOUNT: made.track,
            FREE_ACCOUNT: made.track.assign(cost=0.0, net=made.track["gross"]),
            EQUAL: equal_weight_track(np.where(there, 0.5, np.nan), decided, quotes, "next_open").assign(turnover=0.0),
            INDEX: index_track(quotes_of(self.context, bars, (market.index.symbol,)), decided, "next_open").assign(
                turnover=0.0
            ),
        }
        rows = [self._grown(track, name) for name, track in tracks.items() if len(track)]
        return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(), _held(made.held, self.fills, symbols)

    def held_before(self) -> pd.DataFrame:
        """Return what the account held after the last fill booked: symbol, weight; no rows before the first."""
        if not self.last:
            return pd.DataFrame({"symbol": [], "weight": []})
        day = self.last[ACCOUNT][0]
        with reading(self.context.engine) as conn:
            return stored.paper_positions(conn, self.context.name, day, day)

    def _grids(self, symbols: tuple[str, ...]) -> tuple[Float[ndarray, "fills stocks"], Bool[ndarray, "fills stocks"]]:
        """Return the shares to hold and which stocks are kept, by fill; NaN throughout where nothing was decided."""
        aims = self.targets.rename(columns={"target": "session"}).assign(kept=self.targets["kept"].astype(float))
        weights, kept = (on_grid(aims, name, self.fills, symbols) for name in ("weight", "kept"))
        decided = np.isfinite(weights).any(axis=1, keepdims=True)
        return np.where(decided, np.nan_to_num(weights), np.nan), kept == 1

    def _grown(self, track: pd.DataFrame, name: str) -> pd.DataFrame:
        """Return a track with its name, and the equity that goes on from what was booked."""
        found = track[["session", "gross", "turnover", "cost", "net"]].assign(portfolio=name)
        begun = self.last[name][1] if name in self.last else 1.0
        return found.assign(equity=np.multiply.accumulate([begun, *(1 + found["net"])])[1:])


def _held(held: Float[ndarray, "fills stocks"], fills: pd.DatetimeIndex, symbols: tuple[str, ...]) -> pd.DataFrame:
    """Return what was held after each fill: session, symbol, weight."""
    day, stock = np.nonzero(held)
    return pd.DataFrame({"session": fills[day], "symbol": np.array(symbols)[stock], "weight": held[day, stock]})


@dataclass(frozen=True)
class Orders:
    """What to trade at the open of `target`: a row a stock, and the cash that is left of the capital after it."""

    target: date
    rows: pd.DataFrame
    cash: float


def next_orders(
    conn: Connection, market: Market, capital: float, holdings: "pd.Series[float] | None" = None
) -> Orders | None:
    """Return the orders that turn what was held yesterday into what the newest night wants; None without a night.

    `holdings` are shares by symbol, by default those of the paper account, of so much `capital` at the last close.
    Columns: symbol, side, shares (in whole lots), price (the last close), value, cost (as expected), weight.
    """
    target = stored.last_target(conn, market.name)
    if target is None:
        return None
    last, trading = previous_session(market.calendar, target), market.trading
    aims = stored.targets(conn, market.name, target, target).set_index("symbol")
    known = prices.prices(conn, market.name, sessions_up_to(market.calendar, last, FILLED_AGAIN)[0].date(), last)
    bars = known.groupby("symbol").last()
    if holdings is None:
        weight = stored.paper_positions(conn, market.name, last, last).set_index("symbol")["weight"].astype(float)
        value = weight * bars["close"].reindex(weight.index) / bars["open"].reindex(weight.index)
        equity = value.sum() + 1 - weight.sum()
        shares = value / equity * capital / bars["close"].reindex(weight.index)
        holdings = (shares / trading.lot).round() * trading.lot
    symbols = sorted({*aims.index, *holdings.index})
    if missing := sorted(set(symbols) - set(bars.index)):
        raise DtmlError(f"{market.name} has no close of {', '.join(missing[:5])} up to {last}: leave it out")
    price, held = bars["close"].reindex(symbols), holdings.reindex(symbols).fillna(0.0)
    wanted = (aims["weight"].reindex(symbols).fillna(0.0) * capital / price // trading.lot) * trading.lot
    near = (held * price / capital).div(aims["weight"].reindex(symbols)).between(*NEAR)
    keeps = aims["kept"].reindex(symbols).fillna(value=False).astype(bool) & near
    change = np.trunc((wanted - held).where(~keeps, 0.0) / trading.lot) * trading.lot
    change = change.where(wanted > 0, -held)  # what is sold is sold whole, odd lots too
    bought, sold = (float(rate[0]) for rate in trading.costs.of_trades(pd.DatetimeIndex([target])))
    found = pd.DataFrame({"side": np.where(change > 0, "buy", "sell"), "shares": change.abs(), "price": price})
    found["value"] = found["shares"] * price
    found["cost"] = found["value"] * np.where(change > 0, bought, sold)
    found["weight"] = aims["weight"].reindex(symbols).fillna(0.0)
    found = found[found["shares"] > 0].rename_axis("symbol").reset_index().sort_values(["side", "symbol"])
    left = capital - float(((held + change) * price).sum()) - float(found["cost"].sum())
    return Orders(target, found[["symbol", *ORDER_COLUMNS]].reset_index(drop=True), left)
