"""Fetch what is missing, check it, and keep it: the first half of a night."""

import logging
from dataclasses import dataclass
from datetime import UTC, date, datetime

import pandas as pd
from sqlalchemy import Connection

from db import queries, repositories
from db.engine import reading, transaction
from dtml.bars import Checked, check
from dtml.sessions import next_session, sessions_between, sessions_up_to
from dtml.sources import OUTCOME_COLUMNS, Fetched
from dtml.sources.yahoo import restated_symbols
from flows.desk import Desk

log = logging.getLogger(__name__)

OVERLAP = 10  # stored sessions asked for again: they show restatements, and are what a new bar's move is held against


@dataclass(frozen=True)
class Catch:
    """What a fetch brought: counts of bars, and one row a symbol of how the source answered.

    `unadjusted` are the stocks that came without any adjusted close where the market's moves are those of that price:
    theirs are the close's.
    """

    asked: int
    fetched: int
    stored: int
    refused: pd.DataFrame
    outcomes: pd.DataFrame
    restated: list[str]
    unadjusted: list[str]

    @property
    def failures(self) -> pd.DataFrame:
        """Symbols that the source could not answer for."""
        return self.outcomes[self.outcomes["status"] != "ok"]


def nothing_fetched() -> Catch:
    """The catch of a night that did not ask its source."""
    refused = pd.DataFrame(columns=["symbol", "session", "reason", "value"])
    return Catch(0, 0, 0, refused, pd.DataFrame(columns=list(OUTCOME_COLUMNS)), [], [])


def fetch_bars(desk: Desk, as_of: date, known_at: datetime | None = None) -> Catch:
    """Bring the store up to `as_of`, asking only for what it lacks, and record what was refused.

    A symbol whose adjusted prices were restated, as after a split or a dividend, is fetched anew from its start.
    """
    known_at = known_at or datetime.now(UTC)
    with transaction(desk.engine) as conn:
        save_universe(conn, desk)
    first = _wanted(desk, as_of)
    if not first:
        return nothing_fetched()
    brought = desk.source.fetch(first, as_of)
    brought, restated = _with_restated_histories(desk, brought, as_of)
    checked = _check(desk, brought.bars, as_of)
    with transaction(desk.engine) as conn:
        stored = repositories.append_prices(
            conn, desk.name, checked.accepted, source=desk.source.name, known_at=known_at
        )
        repositories.record_refused(conn, desk.name, checked.refused, source=desk.source.name, known_at=known_at)
    log.info("%s: %d bars fetched, %d new, %d refused", desk.name, len(brought.bars), stored, len(checked.refused))
    unadjusted = _unadjusted(desk, checked.accepted)
    return Catch(len(first), len(brought.bars), stored, checked.refused, brought.outcomes, restated, unadjusted)


def _unadjusted(desk: Desk, bars: pd.DataFrame) -> list[str]:
    if desk.market.returns == "close":
        return []
    adjusted = bars["adj_close"].notna().groupby(bars["symbol"]).any()
    return sorted(adjusted.index[~adjusted])


def history_start(desk: Desk, as_of: date) -> date:
    """The first session that a training at `as_of` may read."""
    return sessions_up_to(desk.market.calendar, as_of, desk.experiment.history)[0].date()


def save_universe(conn: Connection, desk: Desk) -> None:
    """Record the market's index and stocks, and when each was a member."""
    market = desk.market
    columns = ["symbol", "source_symbol", "name", "sector", "valid_from", "valid_to"]
    stocks = pd.DataFrame(
        [(c.symbol, c.source_symbol, c.name, c.sector, c.since, c.until) for c in market.constituents], columns=columns
    )
    index = pd.DataFrame([(market.index.symbol, market.index.source_symbol, market.index.name)], columns=columns[:3])
    named = pd.concat([stocks.assign(kind="stock"), index.assign(kind="index", sector=None)], ignore_index=True)
    repositories.save_instruments(conn, market.name, named)
    listed = market.facts[0] if market.facts else f"the file of market {market.name}"
    stays = stocks.assign(source=listed).astype({"valid_from": "datetime64[ns]", "valid_to": "datetime64[ns]"})
    repositories.save_memberships(conn, market.name, stays)


def _wanted(desk: Desk, as_of: date) -> dict[str, date]:
    """The first session to ask for, of each symbol that the store does not hold up to `as_of`."""
    with reading(desk.engine) as conn:
        stored = queries.last_sessions(conn, desk.name)
    start = history_start(desk, as_of)
    wanted = {}
    for symbol in (desk.market.index.symbol, *desk.market.symbols):
        last = stored.get(symbol)
        if last is None:
            wanted[symbol] = start
        elif last.date() < as_of:
            wanted[symbol] = max(start, sessions_up_to(desk.market.calendar, last.date(), OVERLAP)[0].date())
    return wanted


def _with_restated_histories(desk: Desk, brought: Fetched, as_of: date) -> tuple[Fetched, list[str]]:
    if brought.bars.empty:
        return brought, []
    first = brought.bars["session"].min().date()
    with reading(desk.engine) as conn:
        stored = queries.prices(conn, desk.name, first, as_of)
    restated = restated_symbols(stored, brought.bars)
    if not restated:
        return brought, []
    start = history_start(desk, as_of)
    again = desk.source.fetch(dict.fromkeys(restated, start), as_of)
    whole = again.outcomes.loc[again.outcomes["status"] == "ok", "symbol"]
    kept = brought.bars[~brought.bars["symbol"].isin(whole)]
    replaced = again.bars[again.bars["symbol"].isin(whole)]
    return Fetched(pd.concat([kept, replaced], ignore_index=True), brought.outcomes), restated


def _check(desk: Desk, bars: pd.DataFrame, as_of: date) -> Checked:
    first = as_of if bars.empty else bars["session"].min().date()
    return check(
        bars,
        sessions=sessions_between(desk.market.calendar, first, next_session(desk.market.calendar, as_of)),
        closed_until=as_of,
        checks=desk.market.checks,
        index_symbol=desk.market.index.symbol,
        returns=desk.market.returns,
        market_size=len(desk.market.symbols),
    )
