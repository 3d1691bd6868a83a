"""Add to an opened market the experiment that its nights train, and read its bars."""

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from sqlalchemy import Connection, Engine

from db.engine import reading
from db.read import read_value
from db.rows import markets, nights, prices, runs
from db.rows import prices as stored_prices
from db.rows.prices import KnownBars
from db.save import save
from dtml import features
from dtml.attention import Attention
from dtml.backtest.quotes import Quotes
from dtml.devices import Load, choose_device
from dtml.errors import DtmlError
from dtml.evaluation import drift
from dtml.experiments import Experiment, nightly_of, vary
from dtml.markets import Market
from dtml.model import ModelConfig
from dtml.prices.bars import HINDSIGHT
from dtml.prices.changes import MAX_GAP
from dtml.prices.sessions import sessions_a_year, sessions_between, sessions_up_to
from dtml.ranking import features as ranking_features
from dtml.ranking.relative import RelativeConfig
from dtml.training import TrainingConfig
from dtml.windows import WindowConfig
from flows.markets.opened import OpenedMarket, RunRequest, open_market, open_stored_market

if TYPE_CHECKING:  # these modules import this one
    from flows.nightly.fetch import FetchResult
    from flows.nightly.predict import Forecast
    from flows.nightly.ranking import Trained
    from flows.nightly.score import Scored
    from flows.nightly.train import Model

log = logging.getLogger(__name__)

# Of a market whose file limits none, for the choice of a device: four years.
USUAL_TRAIN_SESSIONS = 1000


@dataclass(frozen=True)
class MarketContext(OpenedMarket):
    """Hold an opened market, the experiment that its nights train, and where they compute."""

    experiment: Experiment
    device: str

    @property
    def place(self) -> torch.device:
        """Return the device that computes, which "auto" chooses by a training of the nights."""
        return choose_device(self.device, [self.load])

    @property
    def load(self) -> Load:
        """Return the load of a training of the nights."""
        experiment = self.experiment
        return Load.of(
            experiment.model,
            experiment.training,
            seeds=experiment.seeds,
            days=experiment.train_sessions or USUAL_TRAIN_SESSIONS,
            stocks=len(self.market.symbols),
            window=experiment.windows.window,
        )


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
    """Return the source that the stored bars were last fetched from, None if unknown."""
    with reading(context.engine) as conn:
        name: str | None = read_value(
            conn, "price_fetch", "source", market=context.name, order="-known_at"
        )
    return name


def experiment_for(market: Market) -> Experiment:
    """Return the experiment that a market's nights train, as its file says."""
    return nightly_of(
        market.model,
        z_close=market.z_close,
        returns=market.returns,
        max_return=market.checks.max_return,
    )


def experiment_of(run: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a run's row; raises DtmlError for unknown settings."""
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
    """Read the bars of first..last as known at a moment (None: now), with each one's `known_at`.

    Raises DtmlError when there is none.
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
    """Read bars as `read_bars`, without `known_at`, and its newest moment, their watermark."""
    return with_watermark(read_bars(context, first, last, known_at))


def with_watermark(bars: pd.DataFrame) -> tuple[pd.DataFrame, datetime]:
    """Return bars without their column `known_at`, and its newest moment."""
    watermark = bars["known_at"].max().to_pydatetime()
    return bars.drop(columns="known_at"), watermark


def quotes_of(context: MarketContext, bars: pd.DataFrame, symbols: tuple[str, ...]) -> Quotes:
    """Return the prices at which these stocks, or the index alone, could be traded on all sessions.

    A warning is logged where no stock has an open of its own.
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
    return len(bars) > 0 and bool((bars["open"] == bars["close"]).all())


def quotes_on(
    conn: Connection, market: Market, bars: pd.DataFrame, symbols: tuple[str, ...]
) -> Quotes:
    """Return the quotes of `quotes_of`, without its warning.

    They are told of bars rejected for a leap after which the price stayed, so that they compare no
    price across it.
    """
    days = bars["session"]
    sessions = sessions_between(market.calendar, days.min().date(), days.max().date())
    first = sessions[0].date()
    last = sessions[-1].date()
    rejected = stored_prices.rejected_bars(conn, market.name, first, last)
    is_index = bars["symbol"] == market.index.symbol
    key = ["symbol", "session"]
    # Another fetch rejected the same bar for a reason of HINDSIGHT: its price came back.
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
    """Record the market's index, stocks and constituents, and its defining file, if any."""
    market = context.market
    if market.file is not None:
        path, text = market.file
        save(
            conn,
            "market_file",
            {"market": market.name, "path": str(path), "text": text, "saved_at": datetime.now(UTC)},
        )
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
    save(conn, "instrument", instruments, market=market.name)
    # The first of a market's facts says where its list of constituents comes from.
    source = market.facts[0] if market.facts else f"the file of market {market.name}"
    stays = stays.assign(source=source)
    # This turns an open end, None until here, into NaT, which `save_constituents` needs.
    stays = stays.astype({"valid_from": "datetime64[ns]", "valid_to": "datetime64[ns]"})
    markets.save_constituents(conn, market.name, stays)


# Sessions that are read beyond those that a feature counts. Up to MAX_GAP sessions may be missing
# between the bars of a feature (`dtml.prices.changes.reads_enough`). As many again are a reserve: a
# session may be missing for the whole market, and a return reaches back to the bar before.
SESSIONS_FOR_GAPS = 2 * MAX_GAP
# Sessions that rankers read to score a night. A network among them looks at a window that ends with
# the night's session, and the features of the window's first session read HISTORY sessions.
RANKER_SESSIONS = ranking_features.HISTORY + RelativeConfig().window - 1
# Sessions that a usual night reads, for its rankers and for what `flows.nightly.drift` watches. A
# stage that asks for earlier ones makes the night read all its bars a second time. So this must be
# no less than what `flows.nightly.ranking.rank_night` and `flows.nightly.drift` ask for; only a
# user's own code, whose HISTORY may be longer, asks for more.
USUAL_SESSIONS = SESSIONS_FOR_GAPS + max(RANKER_SESSIONS, features.HISTORY + drift.RECENT)


@dataclass
class HeldBars:
    """The bars of first..last of all symbols, as known at a moment (None: now); None until read."""

    engine: Engine
    market: str
    usual_first: date  # the first read begins here, or earlier if it is asked to
    last: date
    known_at: datetime | None
    first: date | None = field(default=None, init=False)
    bars: KnownBars | None = field(default=None, init=False)

    def between(
        self, first: date, last: date, symbols: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the bars of first..last, with `known_at`, of all symbols or of these alone.

        They are cut from the bars held, from the earliest session ever asked for. What lies after
        `self.last`, or earlier of some `symbols` alone, is read for this call.
        """
        held_from = self.first or self.usual_first
        if last > self.last or (symbols is not None and first < held_from):
            with reading(self.engine) as conn:
                return prices.prices(
                    conn, self.market, first, last, known_at=self.known_at, symbols=symbols
                )
        if self.bars is None or first < held_from:
            self.first = min(first, held_from)
            with reading(self.engine) as conn:
                self.bars = prices.known_bars(
                    conn, self.market, self.first, self.last, known_at=self.known_at
                )
        return self.bars.between(first, last, symbols)


@dataclass
class Tonight:
    """One night of one market, filled by its steps from left to right (`flows.nightly.night`).

    It predicts from the session `as_of` and bars as known at `known_at` (None: now), read when
    first asked for.
    """

    context: MarketContext
    as_of: date
    known_at: datetime | None = None
    fetched: "FetchResult" = field(init=False, repr=False)
    model: "Model" = field(init=False, repr=False)
    rankers: "Trained | None" = field(init=False, repr=False)  # None: no stocks are ranked
    forecast: "Forecast" = field(init=False, repr=False)
    attention: Attention | None = field(default=None, init=False, repr=False)
    ranking: pd.DataFrame = field(init=False, repr=False)
    scored: "Scored | None" = field(default=None, init=False, repr=False)
    # The newest `known_at` of all bars that the steps have read as known: a replay reads up to it.
    watermark: datetime = field(default=datetime.min.replace(tzinfo=UTC), init=False, repr=False)

    def __post_init__(self) -> None:
        engine, name = self.context.engine, self.context.name
        calendar = self.context.market.calendar
        first = sessions_up_to(calendar, self.as_of, USUAL_SESSIONS)[0].date()
        # Earlier nights are scored by the newest versions of the bars.
        self._newest = HeldBars(engine, name, first, self.as_of, None)
        self._known = self._newest
        if self.known_at is not None:
            self._known = HeldBars(engine, name, first, self.as_of, self.known_at)

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """Return the row of the night in the view night_log, once it has one."""
        with reading(self.context.engine) as conn:
            row = nights.night(conn, self.context.name, self.as_of)
        assert row is not None
        return row

    @cached_property
    def run(self) -> Mapping[str, Any]:
        """Return the row of the model that predicted the night."""
        with reading(self.context.engine) as conn:
            return runs.run(conn, self.row["run_id"])

    def known(self, first: date) -> tuple[pd.DataFrame, datetime]:
        """Return the bars from `first` on as the night knew them, without `known_at`, and its
        newest moment.

        Raises DtmlError when there are none.
        """
        bars = self._known.between(first, self.as_of)
        if bars.empty:
            raise no_bars_error(self.context.name, first, self.as_of, self.known_at)
        bars, watermark = with_watermark(bars)
        self.watermark = max(self.watermark, watermark)
        return bars, watermark

    def newest_or_error(self, first: date) -> pd.DataFrame:
        """Return the newest bars from `first` on, without `known_at`; DtmlError without any."""
        bars = self.newest(first)
        if bars.empty:
            raise no_bars_error(self.context.name, first, self.as_of, None)
        return bars.drop(columns="known_at")

    def symbols_of_the_session(self) -> set[str]:
        """Return the symbols with a bar of the session `as_of`, as the night knew."""
        return set(self._known.between(self.as_of, self.as_of)["symbol"])

    def newest(
        self, first: date, last: date | None = None, symbols: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the newest bars of first..last, by default `as_of`, with `known_at`, if any."""
        return self._newest.between(first, last or self.as_of, symbols)


def digest_of(bars: pd.DataFrame) -> str:
    """Return a digest of bars, whenever they were fetched."""
    return _digest(bars.drop(columns="known_at"))


def digest_of_rejected(context: MarketContext, bars: pd.DataFrame) -> str:
    """Return a digest of the bars rejected on these sessions: leaps decide figures too."""
    days = bars["session"]
    first = days.min().date()
    last = days.max().date()
    with reading(context.engine) as conn:
        rejected = prices.rejected_bars(conn, context.name, first, last)
    return _digest(rejected[["symbol", "session", "reason"]].astype(str))


def _digest(rows: pd.DataFrame) -> str:
    row_hashes = pd.util.hash_pandas_object(rows, index=False)
    return hashlib.sha256(row_hashes.to_numpy().tobytes()).hexdigest()
