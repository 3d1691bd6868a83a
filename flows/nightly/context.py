"""Open what a night works with.

That is a market, where its prices come from, the store, and the experiment it trains.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import Connection, Engine

from db.engine import open_store, reading
from db.rows import markets
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
from dtml.sources.simulated import SimulatedSource
from dtml.training.recipe import TrainingConfig
from dtml.windows import WindowConfig
from flows.market_files import read_market


@dataclass(frozen=True)
class RunRequest:
    """Hold what the user asked for, in plain values, so that it can be a flow's parameters."""

    market: str
    market_file: Path | None = None
    source: str | None = None  # None: the market's own
    prices: Path | None = None
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

    def constituents(self, as_of: date) -> tuple[str, ...]:
        """Return the stocks that a night predicts: the constituents of the market on that day."""
        return tuple(constituent.symbol for constituent in self.market.constituents_on(as_of))


def open_context(request: RunRequest) -> MarketContext:
    """Open everything that a run request names; an empty database gets its tables."""
    market = read_market(request.market, request.market_file)
    if market.code is not None:
        warm()  # while Prefect starts and prices come
    source_name = request.source or ("files" if request.prices else market.source)
    source = open_source(source_name, market, prices=request.prices, index=request.index)
    context = _context(request, market, source, open_store())
    if isinstance(source, SimulatedSource | FileSource):
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
            f"this version cannot read the settings of {run['id']}, trained by code {code}"
        ) from error


def read_bars(
    context: MarketContext, first: date, last: date, known_at: datetime | None = None
) -> pd.DataFrame:
    """Read the bars of first .. last as known at a moment (None: now).

    Each has the moment it is known since. Raises DtmlError when there is none.
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
    """Read the bars of `read_bars` alone, and their watermark.

    That is when the newest of them was fetched.
    """
    return with_watermark(read_bars(context, first, last, known_at))


def with_watermark(bars: pd.DataFrame) -> tuple[pd.DataFrame, datetime]:
    """Return bars without their column `known_at`, and its newest moment."""
    watermark = bars["known_at"].max().to_pydatetime()
    return bars.drop(columns="known_at"), watermark


def _moved(rejected: pd.DataFrame) -> pd.DataFrame:
    """Return the bars rejected for a return that stayed.

    Where the price came back, nothing had moved.
    """
    key = ["symbol", "session"]
    came_back = pd.MultiIndex.from_frame(rejected.loc[rejected["reason"].isin(HINDSIGHT), key])
    leapt = rejected[rejected["reason"] == "unexplained_return"]
    return leapt[~pd.MultiIndex.from_frame(leapt[key]).isin(came_back)]


def quotes_of(context: MarketContext, bars: pd.DataFrame, symbols: tuple[str, ...]) -> Quotes:
    """Return what stocks, or the index, could be traded at on the sessions of the bars.

    Limits are those of the market's file.
    """
    with reading(context.engine) as conn:
        return quotes_on(conn, context.market, bars, symbols)


def quotes_on(
    conn: Connection, market: Market, bars: pd.DataFrame, symbols: tuple[str, ...]
) -> Quotes:
    """Return the quotes of `quotes_of` by an open connection."""
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
        refused=_moved(rejected),
        price_limit=market.trading.price_limit,
    )


def _context(request: RunRequest, market: Market, source: Source, engine: Engine) -> MarketContext:
    """Choose the stocks of a market and the experiment that a request asks for."""
    universe, notice = _universe(market, source, request.universe)
    # The same order, whatever named the stocks.
    ordered = universe.with_symbols(sorted(universe.symbols))
    return MarketContext(
        market=ordered,
        source=source,
        engine=engine,
        experiment=vary(experiment_for(market), request.overrides or {}),
        device=request.device,
        notice=notice,
    )


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
    """Return the market's own list, or the stocks of the source, and a notice for the user.

    The source's are taken where the list is missing or outdated.
    """
    source_symbols = source.symbols()
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


def choose_as_of(context: MarketContext, asked: date | None, now: datetime | None = None) -> date:
    """Return the session a night stands on.

    It is the one asked for, else the last closed one that the source can know. Raises UsageError
    for one that has not closed yet.
    """
    calendar = context.market.calendar
    now = now or datetime.now(UTC)
    last_known = last_known_day(calendar)
    if asked is not None and asked <= last_known < now.date():
        return require_session(calendar, asked)  # all sessions that the calendar knows have closed
    closed = last_closed_session(calendar, now)
    if asked is not None:
        # A calendar may end before a day that is far ahead.
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
