"""Open what a night works with: a market, its source of prices, the store, and its experiment.

The experiment is the model that the market's nights train, with its settings.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import Connection, Engine

from db.engine import open_store, reading
from db.rows import fetches, markets
from db.rows import prices as stored_prices
from dtml.backtest.portfolio import Quotes
from dtml.errors import DtmlError, UsageError
from dtml.experiments import Experiment, nightly_of, vary
from dtml.markets import Market
from dtml.markets.definition import Universe
from dtml.model import ModelConfig
from dtml.own.process import warm
from dtml.prices.bars import BAR_COLUMNS, HINDSIGHT
from dtml.prices.sessions import (
    is_session,
    last_closed_session,
    last_known_day,
    require_session,
    sessions_between,
    sessions_up_to,
)
from dtml.sources import Fetched, Source, open_source
from dtml.sources.files import FileSource
from dtml.sources.own_feed.admission import admit
from dtml.sources.own_feed.source import OwnFeed, unanswered
from dtml.sources.simulated import SimulatedSource
from dtml.training.recipe import TrainingConfig
from dtml.windows import WindowConfig
from flows.market_files import read_market

log = logging.getLogger(__name__)


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
class MarketContext:
    """Hold a run request with everything that it names, opened."""

    market: Market
    source: Source
    engine: Engine
    experiment: Experiment
    device: str
    notice: str | None  # for the user, about the universe or the source

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


def open_context(request: RunRequest) -> MarketContext:
    """Open everything that a run request names; an empty database gets its tables."""
    market = read_market(request.market, request.market_file)
    if market.code is not None:
        # The process for own code imports its packages while Prefect starts and prices come.
        warm()
    source_name = request.source or ("files" if request.prices else market.source)
    source = open_source(source_name, market, prices=request.prices, index=request.index)
    engine = open_store()
    if isinstance(source, OwnFeed):
        source = CheckedFeed(source, engine)
    context = _context(request, market, source, engine)
    if isinstance(source, SimulatedSource | FileSource):  # the sources that have a remark
        notices = [notice for notice in (context.notice, source.remark()) if notice]
        return replace(context, notice="; ".join(notices) or None)
    return context


def open_stored_context(request: RunRequest) -> MarketContext:
    """Open a market context that works with what the store holds and asks no source."""
    market = read_market(request.market, request.market_file)
    engine = open_store()
    from_store = replace(request, universe="source")
    return _context(from_store, market, StoredSource(engine, market), engine)


def experiment_for(market: Market) -> Experiment:
    """Return the experiment that a market's nights train, as its file says."""
    return nightly_of(
        market.model,
        z_close=market.z_close,
        returns=market.returns,
        max_return=market.checks.max_return,
    )


def experiment_of(run: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a run, from its row.

    Raises DtmlError for settings that this version lacks.
    """
    config = dict(run["config"])
    # Runs whose model has a gain per stock list its stocks too: they are no setting.
    config.pop("stocks", None)
    try:
        return Experiment(
            windows=WindowConfig(**config.pop("windows")),
            model=ModelConfig(**config.pop("model")),
            training=TrainingConfig(**config.pop("training")),
            **config,
        )
    except (KeyError, TypeError) as error:
        code = run["code_version"]
        raise DtmlError(
            f"this version cannot read the settings of {run['id']}: use dtml {code}, which "
            "trained it"
        ) from error


def read_bars(
    context: MarketContext, first: date, last: date, known_at: datetime | None = None
) -> pd.DataFrame:
    """Read the bars of first..last as known at a moment (None: now).

    `known_at` of each row is the moment since which it is known. Raises DtmlError when there is no
    bar.
    """
    with reading(context.engine) as conn:
        bars = stored_prices.prices(conn, context.name, first, last, known_at=known_at)
    if bars.empty:
        raise no_bars_error(context.name, first, last, known_at)
    return bars


def no_bars_error(market: str, first: date, last: date, known_at: datetime | None) -> DtmlError:
    """Return the error that says that a market had no bars at a moment (None: now)."""
    if known_at is None:
        return DtmlError(
            f"the store has no bars of {market} from {first} to {last}: "
            "give the files with --prices, or fetch them"
        )
    moment = f"{known_at:%Y-%m-%d %H:%M} UTC"
    return DtmlError(f"no bar of {market} from {first} to {last} was known at {moment}")


def stored_bars(
    context: MarketContext, first: date, last: date, known_at: datetime | None = None
) -> tuple[pd.DataFrame, datetime]:
    """Read the bars of `read_bars` without their column `known_at`, and return its newest moment.

    This moment is the watermark of the bars.
    """
    return with_watermark(read_bars(context, first, last, known_at))


def with_watermark(bars: pd.DataFrame) -> tuple[pd.DataFrame, datetime]:
    """Return bars without their column `known_at`, and its newest moment."""
    watermark = bars["known_at"].max().to_pydatetime()
    return bars.drop(columns="known_at"), watermark


def _lasting_leaps(rejected: pd.DataFrame) -> pd.DataFrame:
    """Return the bars that were rejected for an unexplained return after which the price stayed.

    A bar that was also rejected for a reason of `HINDSIGHT` is left out: a later bar showed that
    the price came back.
    """
    key = ["symbol", "session"]
    came_back = pd.MultiIndex.from_frame(rejected.loc[rejected["reason"].isin(HINDSIGHT), key])
    leapt = rejected[rejected["reason"] == "unexplained_return"]
    return leapt[~pd.MultiIndex.from_frame(leapt[key]).isin(came_back)]


def quotes_of(context: MarketContext, bars: pd.DataFrame, symbols: tuple[str, ...]) -> Quotes:
    """Return the prices at which these symbols could be traded, from the first bar to the last.

    `symbols` are stocks, or the index alone. Limits on prices are those of the market's file. A
    warning is logged where no stock has an open of its own.
    """
    with reading(context.engine) as conn:
        quotes = quotes_on(conn, context.market, bars, symbols)
    is_index = symbols == (context.market.index.symbol,)
    if not is_index and _are_closes_alone(bars[bars["symbol"].isin(symbols)]):
        log.warning(
            "the prices of %s are closes alone: trades at the next open are made at the next close",
            context.name,
        )
    return quotes


def _are_closes_alone(bars: pd.DataFrame) -> bool:
    """Say whether every open is its session's close; false without a bar."""
    return len(bars) > 0 and bool((bars["open"] == bars["close"]).all())


def quotes_on(
    conn: Connection, market: Market, bars: pd.DataFrame, symbols: tuple[str, ...]
) -> Quotes:
    """Return what `quotes_of` does, but read with an open connection.

    A bar that was rejected for a leap after which the price stayed is not among `bars`. The quotes
    are told of it, so that they compare no price before the leap with one after it.
    """
    days = bars["session"]
    sessions = sessions_between(market.calendar, days.min().date(), days.max().date())
    first = sessions[0].date()
    last = sessions[-1].date()
    rejected = stored_prices.rejected_bars(conn, market.name, first, last)
    return Quotes.of(
        bars,
        sessions,
        symbols,
        market.returns,
        max_return=market.checks.max_return,
        refused=_lasting_leaps(rejected),
        price_limit=market.trading.price_limit,
    )


def _context(request: RunRequest, market: Market, source: Source, engine: Engine) -> MarketContext:
    """Choose the stocks of a market and the experiment that a request asks for."""
    universe, notice = _universe(market, source, request.universe)
    # The stocks of a model are in the same order, whatever lists them.
    ordered = universe.with_symbols(sorted(universe.symbols))
    return MarketContext(
        market=ordered,
        source=source,
        engine=engine,
        experiment=vary(experiment_for(market), request.overrides or {}),
        device=request.device,
        notice=notice,
    )


@dataclass
class CheckedFeed(Source):
    """A feed of the user's own that answers once it is admitted.

    It is if a fetch with the same code is stored last, or else by the check of `admit`.
    """

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
        """Return the answer of the feed, with no bar and one status where it cannot be checked yet.

        Raises FeedError where the check refuses it.
        """
        if not self.is_admitted:
            with reading(self.engine) as conn:
                stored_code = fetches.newest_code(conn, self.feed.market.name, self.name)
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
        """Return the stocks of the market's last night or fetch."""
        with reading(self.engine) as conn:
            stored = markets.constituents(conn, self.market.name)
        if stored.empty:
            raise UsageError(
                f"nothing is stored for {self.market.name}: "
                f"run `dtml fetch {self.market.name}` first"
            )
        return [str(symbol) for symbol in stored["symbol"].unique()]

    def last_session(self) -> date | None:
        """Return the last session with a bar of the index."""
        with reading(self.engine) as conn:
            stored = stored_prices.last_sessions(conn, self.market.name)
        index = self.market.index.symbol
        if index not in stored.index:
            raise UsageError(
                f"no bar of the index {index} is stored: run `dtml fetch {self.market.name}` first"
            )
        return stored[index].date()

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:  # noqa: ARG002 - a source has both
        """Return nothing, for any symbol."""
        outcomes = pd.DataFrame(
            {"symbol": list(first), "status": "not_asked", "rows": 0, "detail": "only the store"}
        )
        return Fetched(pd.DataFrame(columns=list(BAR_COLUMNS)), outcomes)


def _universe(
    market: Market, source: Source, universe: Universe | None
) -> tuple[Market, str | None]:
    """Return the market with the stocks of its own list or of the source, and a notice.

    The source's stocks are taken if the user asks for them, if the market has no list, and if the
    source lacks more of the list than the market's checks allow. In the last case the notice tells
    the user; otherwise it is None. If the source cannot list its stocks, the market's list is taken
    even where the user asks for the source's. Raises UsageError if the market has no list, and the
    source has none either or the user asks for the market's.
    """
    source_symbols = source.symbols()
    if market.members is not None:
        return market, _unpriced_members(market, source_symbols)
    if source_symbols is None or universe == "list":
        if market.constituents:
            return market, None
        raise UsageError(
            f"market {market.name} lists no constituents: "
            "take them from a file with --source files --prices FILE, "
            "or list them in a market file"
        )
    if not market.constituents or universe == "source":
        return market.with_symbols(source_symbols), None
    listed = len(set(source_symbols) & set(market.symbols))
    if listed >= (1 - market.checks.max_missing) * len(market.symbols):
        return market, None
    notice = (
        f"only {listed} of the {len(market.symbols)} constituents of {market.name} have prices, "
        f"so the {len(source_symbols)} stocks in the prices are used instead "
        "(--universe list keeps the list)"
    )
    return market.with_symbols(source_symbols), notice


def _unpriced_members(market: Market, source_symbols: Sequence[str] | None) -> str | None:
    """Say how many stocks of a table of members the source lacks; None where it lacks none.

    None too where the source cannot list its stocks.
    """
    if source_symbols is None:
        return None
    lacking = set(market.symbols) - set(source_symbols)
    if not lacking:
        return None
    return (
        f"{len(lacking)} of the {len(market.symbols)} stocks in the table of members have no "
        "prices: pages say on how many days they were members"
    )


def save_universe(conn: Connection, context: MarketContext) -> None:
    """Record the market's index and stocks, when each was a constituent, and the market's file."""
    market = context.market
    if market.file is not None:
        path, text = market.file
        markets.save_file(conn, market.name, str(path), text, saved_at=datetime.now(UTC))
    stays = pd.DataFrame(
        [
            (stay.symbol, stay.source_symbol, stay.name, stay.sector, stay.since, stay.until)
            for stay in market.constituents
        ],
        columns=["symbol", "source_symbol", "name", "sector", "valid_from", "valid_to"],
    )
    # A stock that left the index and came back has several stays.
    stocks = stays[["symbol", "source_symbol", "name", "sector"]].drop_duplicates("symbol")
    index = pd.DataFrame(
        [(market.index.symbol, market.index.source_symbol, market.index.name)],
        columns=["symbol", "source_symbol", "name"],
    )
    instruments = pd.concat(
        [stocks.assign(kind="stock"), index.assign(kind="index", sector=None)], ignore_index=True
    )
    markets.save_instruments(conn, market.name, instruments)
    # The first of a market's facts says where its list of constituents comes from.
    source = market.facts[0] if market.facts else f"the file of market {market.name}"
    stays = stays.assign(source=source)
    # So that an open end, None until here, is NaT, as `save_constituents` takes it.
    stays = stays.astype({"valid_from": "datetime64[ns]", "valid_to": "datetime64[ns]"})
    markets.save_constituents(conn, market.name, stays)


def choose_as_of(context: MarketContext, asked: date | None, now: datetime | None = None) -> date:
    """Return the session `as_of` of a night: the last one whose bars it knows.

    It is the session asked for, or else the last closed one that the source has. Raises UsageError
    for a day that is no session, or whose session has not closed yet.
    """
    calendar = context.market.calendar
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
                f"--as-of {asked} names a session that has not closed yet: "
                f"the last closed session of {context.name} is {closed}"
            )
        return require_session(calendar, asked)
    known = context.source.last_session()
    if known is None:
        return closed
    return sessions_up_to(calendar, min(closed, known), 1)[0].date()
