"""Walk forward through history as the nights would have: the plan of a backtest, and its folds, a
job each.

A job trains and predicts, and writes its results to files, nothing to the store. So jobs can run
here, in other processes or on other machines, and one process stores their results
(`flows.backtest.results`).
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
import torch

from db.engine import location, reading
from db.rows import prices
from dtml.backtest.portfolio import Fill, Form, Strategy
from dtml.errors import DtmlError, UsageError
from dtml.inference import choose_device
from dtml.markets.definition import FREE, Costs
from dtml.prices.sessions import next_session, previous_session, session_open, sessions_between
from flows.nightly.context import MarketContext, RunRequest, open_stored_context, read_bars
from flows.nightly.fetch import history_start
from flows.nightly.predict import first_needed, predict_night, shortage, too_few
from flows.nightly.train import Model, fit_model, fit_seed, load_run
from flows.settings import data_folder
from translation.atomic_files import write_whole

MOMENTS = ("data_watermark", "created_at")
DAYS = ("train_first", "train_last")
PricesKnown = Literal[
    "now", "then"
]  # every bar as known now, or as known before the session it helps to predict


@dataclass(frozen=True)
class Fold:
    """A model trained on what was known at the close of `as_of`, for the
    sessions first .. last, both included.
    """

    number: int  # from 1
    as_of: date
    first: date
    last: date


@dataclass(frozen=True)
class Plan:
    """Describe the backtest that a user asks for, besides the market."""

    first: date  # sessions predicted, first .. last
    last: date
    retrain_every: int
    top: int = 10  # stocks a portfolio is long, and short
    max_weight: float = 0.1
    costs: Costs = field(default_factory=Costs)
    prices_known: PricesKnown = "now"

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise UsageError(f"--from {self.first} lies after --to {self.last}")
        assert self.strategies  # a strategy checks its own values

    @property
    def strategies(self) -> list[Strategy]:
        """Return every form, filled at the next open with costs, and, as papers
        do it, at the close without any.
        """
        costs: dict[Fill, Costs] = {"next_open": self.costs, "close": FREE}
        return [
            Strategy(form, fill, self.top, self.max_weight, costs[fill])
            for fill in costs
            for form in get_args(Form)
        ]


@dataclass(frozen=True)
class Backtest:
    """Hold a plan with everything opened: its folds, and the moment as known at which bars are
    read.

    Where prices are those known then, only outcomes are read as known at that moment.
    """

    context: MarketContext
    request: RunRequest
    plan: Plan
    folds: tuple[Fold, ...]
    known_at: datetime
    digest: str  # of the bars it reads

    @cached_property
    def id(self) -> str:
        """Return a name of market, first session and a digest of all that decides the figures."""
        made_by = [
            version("dtml-nightshift"),
            version("torch"),
            choose_device(self.context.device).type,
            self.digest,
        ]
        said = [
            asdict(self.plan),
            asdict(self.context.experiment),
            self.context.market.settings,
            made_by,
        ]
        digest = hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:8]
        return f"{self.context.name}-{self.plan.first}-{digest}"

    @property
    def folder(self) -> Path:
        """Return where the folds leave what they found."""
        return data_folder() / "backtests" / self.id

    @property
    def config(self) -> dict[str, Any]:
        """Return the settings as JSON gives them back."""
        settings = {"experiment": asdict(self.context.experiment), "plan": asdict(self.plan)}
        return dict(json.loads(json.dumps(settings, default=str)))


@dataclass(frozen=True)
class Job:
    """Describe one fold in plain values, for whichever process runs it."""

    request: RunRequest
    fold: Fold
    known_at: datetime
    folder: Path
    store: str  # where the store is, without its password
    prices_known: PricesKnown
    previous: Path | None = None  # what the fold before left, for a warm start
    threads: int | None = None

    @property
    def card(self) -> Path:
        """Return the file that says that the fold is done, and what it found."""
        return self.folder / f"fold-{self.fold.number:04d}.json"


Runner = Callable[[Sequence[Job]], Iterable[Path]]


def open_backtest(request: RunRequest, plan: Plan) -> Backtest:
    """Open what is stored of a market and lay out the folds; every session
    predicted must have happened.
    """
    context = open_stored_context(request)
    calendar, last = context.market.calendar, context.source.last_session()
    if last is None or plan.last > last:
        held = f"the store holds {context.name} up to {last}"
        raise UsageError(f"{held}; a backtest to {plan.last} needs what came of it")
    sessions = sessions_between(calendar, previous_session(calendar, plan.first), plan.last)
    laid = folds(sessions, plan.first, plan.last, plan.retrain_every)
    bars = read_bars(context, history_start(context, laid[0].as_of), plan.last)
    if plan.prices_known == "then":
        _require_known(context, laid[0].as_of)
    return Backtest(
        context, request, plan, tuple(laid), bars["known_at"].max().to_pydatetime(), digest_of(bars)
    )


def known_before(
    context: MarketContext, as_of: date, known_at: datetime, prices_known: PricesKnown
) -> datetime:
    """Return the moment as known at which a training or a night of `as_of` reads its bars,
    `known_at` at the latest.

    As known then, it is the open of the session that follows, as in a night that is caught up.
    """
    if prices_known == "now":
        return known_at
    return min(
        known_at,
        session_open(context.market.calendar, next_session(context.market.calendar, as_of)),
    )


def _require_known(context: MarketContext, as_of: date) -> None:
    """Raise UsageError where the store knew too few bars of a session before
    the next one opened.
    """
    moment = session_open(context.market.calendar, next_session(context.market.calendar, as_of))
    with reading(context.engine) as conn:
        known = set(prices.prices(conn, context.name, as_of, as_of, known_at=moment)["symbol"])
    if shortage(context, as_of, known) is not None:
        raise UsageError(
            f"--prices-known then: at {moment:%Y-%m-%d %H:%M} UTC the store knew {len(known)} bars "
            f"of {context.name} "
            f"on {as_of}; it was filled later: begin where nights had fetched by then, or leave "
            "the option out"
        )


def digest_of(bars: pd.DataFrame) -> str:
    """Return a digest of what bars say, whenever they were fetched."""
    rows = pd.util.hash_pandas_object(bars.drop(columns="known_at"), index=False)
    return hashlib.sha256(rows.to_numpy().tobytes()).hexdigest()


def jobs_of(backtest: Backtest) -> list[Job]:
    """Return a job for each fold; a job whose card exists has nothing left to do."""
    store = location(backtest.context.engine)
    told = (backtest.known_at, backtest.folder, store, backtest.plan.prices_known)
    jobs = [Job(backtest.request, fold, *told) for fold in backtest.folds]
    if backtest.context.experiment.warm_start:
        jobs = jobs[:1] + [replace(job, previous=before.card) for before, job in pairwise(jobs)]
    return jobs


def one_by_one(jobs: Sequence[Job]) -> Iterator[Path]:
    """Run the jobs here, in order."""
    return map(run_fold, jobs)


def run_fold(job: Job) -> Path:
    """Train as of the fold's day, predict each of its sessions as its night would have, and leave
    files.

    Returns the card's path. The training of a killed job resumes where it was.
    """
    if job.card.exists():
        return job.card
    begun = time.perf_counter()
    context, nights, known_at = _opened(job)
    previous = None if job.previous is None else load_run(context, read_card(job.previous)["run"])
    model, run = fit_model(
        context,
        job.fold.as_of,
        kind="backtest",
        known_at=known_at,
        previous=previous,
        serves=nights.digest,
    )
    made, refused = nights.predict(model)
    write_whole(job.card.with_suffix(".parquet"), lambda file: made.to_parquet(file, index=False))
    bands = [] if model.calibration is None else model.calibration.bands.to_dict("records")
    card: dict[str, Any] = {
        "fold": asdict(job.fold),
        "run": dict(run),
        "bands": bands,
        "refused": refused,
    }
    card |= {"seconds": time.perf_counter() - begun}
    write_whole(job.card, lambda file: file.write_text(json.dumps(card, default=str)))
    return job.card


def run_seed(job: Job, seed: int) -> None:
    """Train one seed of a fold that begins with fresh weights, and leave its state for
    `run_fold`.
    """
    context, nights, known_at = _opened(job)
    fit_seed(
        context, job.fold.as_of, seed, kind="backtest", known_at=known_at, serves=nights.digest
    )


def _opened(job: Job) -> tuple[MarketContext, "Nights", datetime]:
    """Return the market, the nights to be predicted, and the moment as known at
    which the training reads its bars.
    """
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    context = open_stored_context(job.request)
    if location(context.engine) != job.store:
        raise UsageError(
            f"this worker's store is {location(context.engine)}, the backtest's is {job.store}: "
            "set DTML_DATABASE_URL and DTML_DATA for the workers as for the command"
        )
    nights = Nights(context, job.fold, job.known_at, job.prices_known)
    return context, nights, known_before(context, job.fold.as_of, job.known_at, job.prices_known)


def read_card(card: Path) -> dict[str, Any]:
    """Read what a fold left: `fold`, the row of its `run`, `bands`, the nights `refused` and why,
    `seconds`.

    Its predictions lie beside the card as parquet: as_of, target, symbol, probability,
    probability_std, known_at.
    """
    found: dict[str, Any] = json.loads(card.read_text())
    run, fold = found["run"], found["fold"]
    run |= {name: datetime.fromisoformat(str(run[name])) for name in MOMENTS}
    run |= {name: date.fromisoformat(str(run[name])) for name in DAYS}
    fold |= {name: date.fromisoformat(fold[name]) for name in ("as_of", "first", "last")}
    return found


class Nights:
    """Predict the nights of a fold, from bars that are read once, or for each
    night where they are those known then.
    """

    def __init__(
        self,
        context: MarketContext,
        fold: Fold,
        known_at: datetime,
        prices_known: PricesKnown = "now",
    ) -> None:
        self.context, self.fold, self.known_at, self.prices_known = (
            context,
            fold,
            known_at,
            prices_known,
        )
        before = previous_session(context.market.calendar, fold.last)
        bars = read_bars(
            context, first_needed(context, context.experiment.windows, fold.as_of), before, known_at
        )
        self.bars = bars.sort_values(["session", "symbol"], ignore_index=True)

    @property
    def digest(self) -> str:
        """Return a digest of all that decides what a model predicts in these
        nights, and which are refused.
        """
        known = (
            ""
            if self.prices_known == "now"
            else " ".join(map(digest_of, map(self.bars_of, self._days())))
        )
        return f"{digest_of(self.bars)} {self.fold} {self.context.market.checks} {known}"

    def predict(self, model: Model) -> tuple[pd.DataFrame, dict[str, str]]:
        """Return the predictions of every night, and why nights are refused, as
        the nightly job would have.
        """
        made, refused = [pd.DataFrame()], {}
        for as_of in self._days():
            try:
                made.append(self._night(model, as_of))
            except DtmlError as error:
                refused[str(as_of)] = str(error)
        return pd.concat(made, ignore_index=True), refused

    def _days(self) -> list[date]:
        calendar = self.context.market.calendar
        days = sessions_between(
            calendar, self.fold.as_of, previous_session(calendar, self.fold.last)
        )
        return [day.date() for day in days]

    def bars_of(self, as_of: date) -> pd.DataFrame:
        """Return the bars that one night reads."""
        first = first_needed(self.context, self.context.experiment.windows, as_of)
        if self.prices_known == "then":
            moment = known_before(self.context, as_of, self.known_at, "then")
            with reading(self.context.engine) as conn:
                return prices.prices(conn, self.context.name, first, as_of, known_at=moment)
        begin = self.bars["session"].searchsorted(pd.Timestamp(first))
        end = self.bars["session"].searchsorted(pd.Timestamp(as_of), side="right")
        return self.bars.iloc[begin:end]

    def _night(self, model: Model, as_of: date) -> pd.DataFrame:
        bars = self.bars_of(as_of)
        short = shortage(
            self.context, as_of, set(bars.loc[bars["session"] == pd.Timestamp(as_of), "symbol"])
        )
        if short is not None:
            raise DtmlError(short.what)
        made = predict_night(self.context, model, as_of, bars)
        if too_few(self.context, as_of, made):
            raise DtmlError(
                f"{len(made)} of {len(self.context.constituents(as_of))} constituents can be "
                "predicted"
            )
        return made.assign(known_at=bars["known_at"].max())


def folds(sessions: pd.DatetimeIndex, first: date, last: date, retrain_every: int) -> list[Fold]:
    """Return the folds that predict every session of first .. last, `retrain_every` sessions each.

    `sessions` are those of the exchange, one before `first` among them. Raises UsageError for a
    span without a session.
    """
    if retrain_every < 1:
        raise UsageError(f"a backtest trains anew every 1 session or more, got {retrain_every}")
    start = int(sessions.searchsorted(pd.Timestamp(first), side="left"))
    stop = int(sessions.searchsorted(pd.Timestamp(last), side="right"))
    if start >= stop:
        raise UsageError(f"no session lies in {first} .. {last}")
    begins = range(start, stop, retrain_every)
    spans = [sessions[begin - 1 : min(begin + retrain_every, stop)].date for begin in begins]
    return [Fold(number, days[0], days[1], days[-1]) for number, days in enumerate(spans, start=1)]
