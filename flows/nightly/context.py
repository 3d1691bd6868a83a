"""Add to an opened market the experiment that its nights train, and read its bars.

The experiment is the model of a market with its settings.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db.engine import reading
from db.rows import fetches, markets
from db.rows import prices as stored_prices
from dtml.backtest.quotes import Quotes
from dtml.errors import DtmlError
from dtml.experiments import Experiment, nightly_of, vary
from dtml.markets import Market
from dtml.model import ModelConfig
from dtml.prices.bars import HINDSIGHT
from dtml.prices.sessions import sessions_a_year, sessions_between
from dtml.training.recipe import TrainingConfig
from dtml.windows import WindowConfig
from flows.markets.opened import OpenedMarket, RunRequest, open_market, open_stored_market

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MarketContext(OpenedMarket):
    """Hold an opened market, the experiment that its nights train, and where they compute."""

    experiment: Experiment
    device: str


def open_context(request: RunRequest) -> MarketContext:
    """Open everything that a run request names; an empty database gets its tables."""
    return with_experiment(open_market(request), request)


def open_stored_context(request: RunRequest, *, read_only: bool = False) -> MarketContext:
    """Open a market context that works with what the store holds and asks no source."""
    return with_experiment(open_stored_market(request, read_only=read_only), request)


def with_experiment(opened: OpenedMarket, request: RunRequest) -> MarketContext:
    """Return an opened market with the experiment and the device that a request asks for."""
    return MarketContext(
        market=opened.market,
        source=opened.source,
        engine=opened.engine,
        notice=opened.notice,
        experiment=vary(experiment_for(opened.market), request.overrides or {}),
        device=request.device,
    )


def newest_source(context: OpenedMarket) -> str | None:
    """Return the name of the source that the stored bars were last fetched from, None if unknown.

    The source of a context may be the store itself, which does not say where its bars came from.
    """
    with reading(context.engine) as conn:
        return fetches.newest_source(conn, context.name)


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
            f"the store has no bars of {market} from {first} to {last}: run `dtml fetch {market} "
            "--as-of DAY` with a session of that span as DAY, and with --prices FILE if the prices "
            "are files"
        )
    moment = f"{known_at:%Y-%m-%d %H:%M} UTC"
    return DtmlError(
        f"no bar of {market} from {first} to {last} was known at {moment}: if you gave "
        "--known-at, give a later moment; otherwise the store has lost these bars: restore a backup"
    )


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
            "every open in the prices of %s equals its close, so trades at the next open are made "
            "at the next close; to trade at the open, give prices with opens",
            context.name,
        )
    return quotes


def _are_closes_alone(bars: pd.DataFrame) -> bool:
    """Say whether every open is its session's close; false without a bar."""
    return len(bars) > 0 and bool((bars["open"] == bars["close"]).all())


def quotes_on(
    conn: Connection, market: Market, bars: pd.DataFrame, symbols: tuple[str, ...]
) -> Quotes:
    """Return the quotes of `quotes_of`, without its warning, over an open connection.

    A bar that was rejected for a leap after which the price stayed is not among `bars`. The quotes
    are told of it, so that they compare no price before the leap with one after it.
    """
    days = bars["session"]
    sessions = sessions_between(market.calendar, days.min().date(), days.max().date())
    first = sessions[0].date()
    last = sessions[-1].date()
    rejected = stored_prices.rejected_bars(conn, market.name, first, last)
    is_index = bars["symbol"] == market.index.symbol
    # A bar rejected by another fetch for a reason of HINDSIGHT is left out: its price came back.
    key = ["symbol", "session"]
    came_back = pd.MultiIndex.from_frame(rejected.loc[rejected["reason"].isin(HINDSIGHT), key])
    leapt = rejected[rejected["reason"] == "unexplained_return"]
    return Quotes.of(
        bars.assign(volume=bars["volume"].mask(is_index)),
        sessions,
        symbols,
        market.returns,
        max_return=market.checks.max_return,
        refused=leapt[~pd.MultiIndex.from_frame(leapt[key]).isin(came_back)],
        price_limit=market.trading.price_limit,
        year=sessions_a_year(market.calendar),
    )


def save_universe(conn: Connection, context: MarketContext) -> None:
    """Record the market's index and stocks, and when each was a constituent.

    The text of the file that defines the market is recorded too, if the market has one.
    """
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
    # This turns an open end, None until here, into NaT, which `save_constituents` needs.
    stays = stays.astype({"valid_from": "datetime64[ns]", "valid_to": "datetime64[ns]"})
    markets.save_constituents(conn, market.name, stays)
