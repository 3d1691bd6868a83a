"""Open what a night works with: a market, where its prices come from, the
store, and the experiment it trains.
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
    require_session,
    sessions_between,
    sessions_up_to,
)
from dtml.sources import Fetched, Source, open_source
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
    named = request.source or ("files" if request.prices else market.source)
    source = open_source(named, market, prices=request.prices, index=request.index)
    context = _context(request, market, source, open_store())
    return (
        replace(context, notice=source.remark()) if isinstance(source, SimulatedSource) else context
    )


def open_stored_context(request: RunRequest) -> MarketContext:
    """Open a market context that works with what the store holds and asks no source."""
    market = read_market(request.market, request.market_file)
    engine = open_store()
    return _context(
        replace(request, universe="source"), market, StoredSource(engine, market), engine
    )


def experiment_for(market: Market) -> Experiment:
    """Return the experiment that a market's nights train, as its file says."""
    return nightly_of(
        market.model,
        z_close=market.z_close,
        returns=market.returns,
        max_return=market.checks.max_return,
    )


def experiment_of(run: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a run, from its row; raise DtmlError for
    settings that this version lacks.
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
            f"the settings of {run['id']}, trained by code {code}, are not of this version"
        ) from error


def read_bars(
    context: MarketContext, first: date, last: date, known_at: datetime | None = None
) -> pd.DataFrame:
    """Read the bars of first .. last as known at a moment (None: now), each with the moment it is
    known since.

    Raises DtmlError when there is none.
    """
    with reading(context.engine) as conn:
        bars = stored_prices.prices(conn, context.name, first, last, known_at=known_at)
    if not bars.empty:
        return bars
    if known_at is not None:
        raise DtmlError(
            f"no bar of {context.name} from {first} to {last} was known at "
            f"{known_at:%Y-%m-%d %H:%M} UTC"
        )
    raise DtmlError(
        f"the store holds no bars of {context.name} from {first} to {last}: name the files with "
        "--prices, or fetch them"
    )


def stored_bars(
    context: MarketContext, first: date, last: date, known_at: datetime | None = None
) -> tuple[pd.DataFrame, datetime]:
    """Read the bars of `read_bars` alone, and their watermark: when the newest
    of them was fetched.
    """
    bars = read_bars(context, first, last, known_at)
    return bars.drop(columns="known_at"), bars["known_at"].max().to_pydatetime()


def _moved(rejected: pd.DataFrame) -> pd.DataFrame:
    """Return the bars rejected for a return that stayed: where the price came
    back, nothing had moved.
    """
    key = ["symbol", "session"]
    came_back = pd.MultiIndex.from_frame(rejected.loc[rejected["reason"].isin(HINDSIGHT), key])
    leapt = rejected[rejected["reason"] == "unexplained_return"]
    return leapt[~pd.MultiIndex.from_frame(leapt[key]).isin(came_back)]


def quotes_of(context: MarketContext, bars: pd.DataFrame, symbols: tuple[str, ...]) -> Quotes:
    """Return what stocks, or the index, could be traded at on the sessions of
    the bars, as the market's file says.
    """
    with reading(context.engine) as conn:
        return quotes_on(conn, context.market, bars, symbols)


def quotes_on(
    conn: Connection, market: Market, bars: pd.DataFrame, symbols: tuple[str, ...]
) -> Quotes:
    """Return the quotes of `quotes_of` by an open connection."""
    sessions = sessions_between(
        market.calendar, bars["session"].min().date(), bars["session"].max().date()
    )
    rejected = stored_prices.rejected_bars(
        conn, market.name, sessions[0].date(), sessions[-1].date()
    )
    refused = _moved(rejected)
    bound, limit = market.checks.max_return, market.trading.price_limit
    return Quotes.of(
        bars,
        sessions,
        symbols,
        market.returns,
        max_return=bound,
        refused=refused,
        price_limit=limit,
    )


def _context(request: RunRequest, market: Market, source: Source, engine: Engine) -> MarketContext:
    universe, notice = _universe(market, source, request.universe)
    ordered = universe.with_symbols(
        sorted(universe.symbols)
    )  # the same order, whatever named the stocks
    return MarketContext(
        ordered,
        source,
        engine,
        vary(experiment_for(market), request.overrides or {}),
        request.device,
        notice,
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
            stored = markets.memberships(conn, self.market.name)
        if stored.empty:
            raise UsageError(
                f"nothing of {self.market.name} is stored: run `dtml fetch "
                f"{self.market.name}` first"
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
    """Return the market's own list, or the stocks of the source where the list
    is missing or outdated.
    """
    held = source.symbols()
    if held is None or universe == "list":
        if market.constituents:
            return market, None
        raise UsageError(
            f"market {market.name} lists no constituents: take them from a file with --source "
            "files --prices FILE, "
            "or list them in a market file"
        )
    if not market.constituents or universe == "source":
        return market.with_symbols(held), None
    found = len(set(held) & set(market.symbols))
    if found >= (1 - market.checks.max_missing) * len(market.symbols):
        return market, None
    notice = (
        f"{found} of the {len(market.symbols)} constituents of {market.name} are in the prices: "
        f"the {len(held)} stocks of the prices are used instead (--universe list keeps the list)"
    )
    return market.with_symbols(held), notice


def choose_as_of(context: MarketContext, asked: date | None, now: datetime | None = None) -> date:
    """Return the session a night stands on: the one asked for, else the last
    closed one that the source can know.
    """
    closed = last_closed_session(context.market.calendar, now or datetime.now(UTC))
    is_far = asked is not None and asked > closed + timedelta(days=7)
    if (
        asked is not None
        and asked > closed
        and (is_far or is_session(context.market.calendar, asked))
    ):
        raise UsageError(
            f"--as-of {asked} has not closed yet: the last closed session of {context.name} is "
            f"{closed}"
        )
    if asked is not None:
        return require_session(context.market.calendar, asked)
    known = context.source.last_session()
    return (
        closed
        if known is None
        else sessions_up_to(context.market.calendar, min(closed, known), 1)[0].date()
    )
