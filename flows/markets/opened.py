"""Open a market: its source of prices and the store.

Nothing that computes is imported, so that commands that show what is stored start quickly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import Engine

from db import where
from db.engine import open_reader, open_store, reading
from db.read import read, read_value
from db.rows import prices as stored_prices
from dtml.errors import UsageError
from dtml.markets import Market
from dtml.markets.definition import Universe
from dtml.own.process import SANDBOX
from dtml.prices.bars import no_bars
from dtml.prices.sessions import (
    is_session,
    last_closed_session,
    last_known_day,
    require_session,
    sessions_up_to,
)
from dtml.sources import Fetched, Source, open_source
from dtml.sources.files import FileSource
from dtml.sources.own_feed.admission import admit
from dtml.sources.own_feed.source import OwnFeed, unanswered
from dtml.sources.simulated import SimulatedSource
from flows.markets.files import named_in_command, read_market


@dataclass(frozen=True)
class RunRequest:
    """Hold what the user asked for, in plain values, so that it can be a flow's parameters."""

    market: str
    market_file: Path | None = None
    source: str | None = None  # None: the market's own
    prices: Path | None = None  # the file of prices, and that of the index, of the source "files"
    index: Path | None = None
    universe: Universe | None = None  # None: the list, unless the source has too little of it
    overrides: Mapping[str, Any] | None = None  # of the experiment, by name
    device: str = "auto"
    attended: bool = False  # started by a command: a signal ends it at once


@dataclass(frozen=True)
class OpenedMarket:
    """Hold a market with its stocks, its source and the store."""

    market: Market
    source: Source
    engine: Engine
    # For the user, about the universe or the source.
    notice: str | None = field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        """Return the market's name."""
        return self.market.name

    @property
    def feed_code(self) -> str | None:
        """Return the text of the user's own feed, once it is admitted; None for other sources."""
        if isinstance(self.source, CheckedFeed) and self.source.is_admitted:
            return self.source.feed.code
        return None

    def constituents(self, as_of: date) -> tuple[str, ...]:
        """Return the stocks that a night predicts: the constituents of the market on that day."""
        return tuple(constituent.symbol for constituent in self.market.constituents_on(as_of))


def open_market(request: RunRequest) -> OpenedMarket:
    """Open the market, source and store of a request; an empty database gets its tables.

    The source is by default `files` with prices, else the market's. The process of own code is
    started.
    """
    market = read_market(request.market, request.market_file)
    if market.code is not None:
        # The process for own code imports its packages while Prefect starts and prices come.
        SANDBOX.warm()
    source_name = request.source or ("files" if request.prices else market.source)
    source = open_source(source_name, market, prices=request.prices, index=request.index)
    engine = open_store()
    if isinstance(source, OwnFeed):
        source = CheckedFeed(source, engine)
    opened = _with_stocks(market, source, engine, request.universe)
    if isinstance(source, SimulatedSource | FileSource):  # the sources that have a remark
        notices = [notice for notice in (opened.notice, source.remark()) if notice]
        return replace(opened, notice="; ".join(notices) or None)
    return opened


def open_stored_market(request: RunRequest, *, read_only: bool = False) -> OpenedMarket:
    """Open a market that works with what the store holds and asks no source."""
    market = read_market(request.market, request.market_file)
    engine = open_reader(unlimited=True) if read_only else open_store()
    return _with_stocks(market, StoredSource(engine, market), engine, "source")


def choose_as_of(opened: OpenedMarket, asked: date | None, now: datetime | None = None) -> date:
    """Return the session of a night: the one asked for, or the last closed one that the source has.

    Raises UsageError for a day that is no session or not closed, DtmlError after the calendar's
    end.
    """
    calendar = opened.market.calendar
    now = now or datetime.now(UTC)
    last_known = last_known_day(calendar)
    if asked is not None and asked <= last_known < now.date():
        # All sessions of the calendar have closed. `last_closed_session` would raise an error for
        # a calendar that ends before now.
        return require_session(calendar, asked)
    closed = last_closed_session(calendar, now)
    if asked is not None:
        # The calendar may not reach a day that is far ahead: it is not asked about such a day.
        is_far = asked > closed + timedelta(days=7)
        if asked > closed and (is_far or is_session(calendar, asked)):
            raise UsageError(
                f"{asked} is after {closed}, the last session of {opened.name} that closed at "
                f"least 30 minutes ago: choose {closed} or an earlier session"
            )
        return require_session(calendar, asked)
    known = opened.source.last_session()
    if known is None:
        return closed
    return sessions_up_to(calendar, min(closed, known), 1)[0].date()


def _with_stocks(
    market: Market, source: Source, engine: Engine, universe: Universe | None
) -> OpenedMarket:
    """Return the opened market with the stocks that `_choose_stocks` chooses, sorted by symbol."""
    chosen, notice = _choose_stocks(market, source, universe)
    # The stocks of a model are in the same order, whatever lists them.
    ordered = chosen.with_symbols(sorted(chosen.symbols))
    return OpenedMarket(market=ordered, source=source, engine=engine, notice=notice)


@dataclass
class CheckedFeed(Source):
    """A feed of the user's own, admitted by the code of its last stored fetch, else by `admit`."""

    feed: OwnFeed
    engine: Engine
    is_admitted: bool = False

    @property
    def name(self) -> str:
        """Return the name of the feed's file or entry point."""
        return self.feed.name

    def symbols(self) -> list[str] | None:
        """Return the stocks that the feed lists; None where it lists none."""
        return self.feed.symbols()

    def last_session(self) -> date | None:
        """Return the last session that the feed holds whole; None when it does not say."""
        return self.feed.last_session()

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the answer of the feed, which the first call may have to check.

        Where that cannot be done yet, no bar and one status. Raises FeedError for a refused feed.
        """
        if not self.is_admitted:
            with reading(self.engine) as conn:
                stored_code = read_value(
                    conn,
                    "price_fetch",
                    "code",
                    market=self.feed.market.name,
                    source=self.name,
                    code=where.stored,
                    order="-known_at",
                )
            reason = None if stored_code == self.feed.code else admit(self.feed, first, last)
            if reason is not None:
                return unanswered(first, reason.status, reason.detail)
            self.is_admitted = True
        return self.feed.fetch(first, last)


@dataclass(frozen=True)
class StoredSource:
    """Serve what the store holds, as a source that never has anything new."""

    engine: Engine
    market: Market
    name: str = "store"

    def symbols(self) -> list[str]:
        """Return the stocks of the market's last night or fetch; raise UsageError without one."""
        with reading(self.engine) as conn:
            stored = read(conn, "constituent", market=self.market.name)
        if stored.empty:
            raise UsageError(
                f"nothing is stored for {self.market.name}: run "
                f"`dtml fetch {named_in_command(self.market)}` first, with --prices FILE if its "
                "prices come from files"
            )
        return [str(symbol) for symbol in stored["symbol"].unique()]

    def last_session(self) -> date | None:
        """Return the last session with a bar of the index; raise UsageError if none has one."""
        with reading(self.engine) as conn:
            stored = stored_prices.last_sessions(conn, self.market.name)
        index = self.market.index.symbol
        if index not in stored.index:
            raise UsageError(
                f"no bar of the index {index} is stored: run `dtml fetch {self.market.name}` "
                "first, with --prices FILE if the prices come from files, and with --index FILE if "
                "the index has its own file"
            )
        return stored[index].date()

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:  # noqa: ARG002 - a source has both
        """Return nothing, for any symbol."""
        outcomes = pd.DataFrame(
            {"symbol": list(first), "status": "not_asked", "rows": 0, "detail": "only the store"}
        )
        return Fetched(no_bars(), outcomes)


def _choose_stocks(
    market: Market, source: Source, universe: Universe | None
) -> tuple[Market, str | None]:
    """Return the market with the stocks to predict, and a notice for the user, if there is one.

    A table of members is kept. Else `universe` asks for the "list" or the stocks of the "source",
    by default the list, but the source's stocks without a list, and, with a notice, where the
    source lacks more of it than the market's checks allow. Raises UsageError where the list is to
    be taken and there is none.
    """
    source_symbols = source.symbols()
    if market.members is not None:
        return market, _unpriced_members(market, source_symbols)
    if source_symbols is None or universe == "list":
        if market.constituents:
            return market, None
        if source_symbols is not None:
            raise UsageError(
                f"market {market.name} lists no constituents: leave out --universe list, so that "
                "the stocks of the source are used"
            )
        raise UsageError(
            f"market {market.name} lists no constituents, and its source, {source.name}, cannot "
            "list its stocks: take them from a file with --source files --prices FILE, list them "
            "in a market file of your own (constituents.symbols), or, in a feed of your own, "
            "define symbols()"
        )
    if not market.constituents or universe == "source":
        return _with_stocks_of_prices(market, source_symbols), None
    priced = len(set(source_symbols) & set(market.symbols))
    if priced >= (1 - market.checks.max_missing) * len(market.symbols):
        return market, None
    notice = (
        f"only {priced} of the {len(market.symbols)} constituents of {market.name} have prices, "
        f"so the {len(source_symbols)} stocks in the prices are used instead "
        "(--universe list keeps the list)"
    )
    return _with_stocks_of_prices(market, source_symbols), notice


def _with_stocks_of_prices(market: Market, symbols: Sequence[str]) -> Market:
    """Return the market with the stocks of its prices, which may be those of its list."""
    chosen = market.with_symbols(symbols)
    return replace(chosen, of_prices=set(chosen.symbols) != set(market.symbols))


def _unpriced_members(market: Market, source_symbols: Sequence[str] | None) -> str | None:
    """Say how many stocks of a table of members the source lacks; None where none, or not known."""
    if source_symbols is None:
        return None
    lacking = set(market.symbols) - set(source_symbols)
    if not lacking:
        return None
    return (
        f"{len(lacking)} of the {len(market.symbols)} stocks in the table of members have no "
        "prices: pages say on how many days they were members"
    )
