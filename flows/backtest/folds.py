"""Walk forward through history as the nights would have.

A backtest is divided into folds: each trains one model and predicts the sessions after its
training. A job runs one fold and writes its results to files, nothing to the store. So jobs can run
in this process, in other processes or on other machines. One process stores the results of all
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
from dtml.backtest.portfolio import Form, Strategy
from dtml.backtest.quotes import Fill
from dtml.errors import DtmlError, UsageError
from dtml.evaluation.splits import walk_forward
from dtml.inference import choose_device
from dtml.machine import torch_build
from dtml.markets.definition import FREE, Costs
from dtml.prices.sessions import (
    next_session,
    previous_session,
    session_open,
    sessions_between,
    sessions_up_to,
)
from dtml.windows import days_with_history
from flows.backtest.bars_digest import digest_of, digest_of_rejected
from flows.markets.files import settings_place
from flows.markets.opened import RunRequest
from flows.nightly.context import MarketContext, open_stored_context, read_bars
from flows.nightly.fetch import history_start
from flows.nightly.predict import first_needed, predict_night, shortage, too_few
from flows.nightly.train import Model, fit_model, fit_seed, load_run
from flows.settings import data_folder
from translation.atomic_files import write_whole

# Columns of a run that JSON keeps as text.
MOMENTS = ("data_watermark", "created_at")
DAYS = ("train_first", "train_last")
# Whether nights see every bar as known now, or as known before the session that they predict.
PricesKnown = Literal["now", "then"]


@dataclass(frozen=True)
class Fold:
    """Hold the span of one model.

    It is trained on bars up to the close of `as_of`, and predicts the sessions first .. last, both
    included.
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
    retrain_every: int  # sessions that each fold predicts
    top: int = 10  # stocks a portfolio is long, and short
    max_weight: float = 0.1
    costs: Costs = field(default_factory=Costs)
    prices_known: PricesKnown = "now"

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise UsageError(
                f"--from {self.first} is after --to {self.last}: give --from the earlier day"
            )
        # Builds the strategies only because each raises UsageError for a wrong `top` or weight.
        assert self.strategies

    @property
    def strategies(self) -> list[Strategy]:
        """Return the strategies that are traded: every form of portfolio in two versions.

        One is filled at the next open, with the costs of the plan. The other is filled at the close
        without any costs, as in published papers.
        """
        costs: dict[Fill, Costs] = {"next_open": self.costs, "close": FREE}
        strategies: list[Strategy] = []
        for fill, costs_of_fill in costs.items():
            strategies += [
                Strategy(
                    form=form,
                    fill=fill,
                    top=self.top,
                    max_weight=self.max_weight,
                    costs=costs_of_fill,
                )
                for form in get_args(Form)
            ]
        return strategies


@dataclass(frozen=True)
class Backtest:
    """Hold a plan with its market opened and its folds laid out.

    Bars are read as known at `known_at`, the watermark of the bars when the backtest was opened. If
    the plan's `prices_known` is "then", trainings and predictions read bars as known at earlier
    moments (`known_before`), and outcomes alone come from the bars as known at `known_at`.
    """

    context: MarketContext
    request: RunRequest
    plan: Plan
    folds: tuple[Fold, ...]
    known_at: datetime
    bars_digest: str  # of the bars as known at `known_at`, and of those that were rejected

    @cached_property
    def id(self) -> str:
        """Return the name of the backtest: its market, its first session, and a digest.

        The digest is of all that decides the figures: the settings, the versions and the device
        that made them, and the bars. Earlier versions of bars are not in it, though prices known
        "then" read them: a store never changes them.
        """
        made_by = [
            version("dtml-nightshift"),
            torch_build(),
            choose_device(self.context.device).type,
            self.bars_digest,
        ]
        settings = [
            asdict(self.plan),
            asdict(self.context.experiment),
            self.context.market.settings,
            made_by,
        ]
        digest = hashlib.sha256(json.dumps(settings, default=str).encode())
        return f"{self.context.name}-{self.plan.first}-{digest.hexdigest()[:8]}"

    @property
    def folder(self) -> Path:
        """Return the folder in which the folds leave their results."""
        return data_folder() / "backtests" / self.id

    @property
    def config(self) -> dict[str, Any]:
        """Return every setting, for the column `config`."""
        return {"experiment": asdict(self.context.experiment), "plan": asdict(self.plan)}


@dataclass(frozen=True)
class Job:
    """Describe one fold in plain values, which can be sent to another process.

    A field that has the name of a field of `Backtest` or `Plan` has the same value.
    """

    request: RunRequest
    fold: Fold
    known_at: datetime
    folder: Path  # into which the results are written
    store: str  # where the store is, without its password
    prices_known: PricesKnown
    # The card of the fold before, for a warm start; None: the training begins with random weights.
    previous: Path | None = None
    threads: int | None = None  # of torch; None: as torch chooses

    @property
    def card(self) -> Path:
        """Return the file of the fold's result, which exists once the fold is done."""
        return self.folder / f"fold-{self.fold.number:04d}.json"


# Runs jobs, and returns the card of each in the order of the jobs.
Runner = Callable[[Sequence[Job]], Iterable[Path]]


def open_backtest(request: RunRequest, plan: Plan) -> Backtest:
    """Open the stored prices of a market, and lay out the folds.

    Raises UsageError where the store lacks prices of the last sessions of the plan, where the plan
    has no session, where its first training has too short a history, and where `retrain_every` is
    below 1. For a plan with prices known "then", it is
    also raised where too few bars of the first training's last session were known when the next
    session opened.
    """
    context = open_stored_context(request)
    calendar = context.market.calendar
    last = context.source.last_session()
    if last is None or plan.last > last:
        raise UsageError(
            f"the store has the index of {context.name} up to {last}, but a backtest to "
            f"{plan.last} needs prices up to that day: choose an earlier --to, or fetch later "
            f"prices with `dtml fetch {context.name}`, with --prices FILE if they come from files"
        )
    # From the session before the plan's first one on: the first model is trained as of that day.
    sessions = sessions_between(calendar, previous_session(calendar, plan.first), plan.last)
    laid_out = folds(sessions, plan.first, plan.last, plan.retrain_every)
    first_training = laid_out[0].as_of
    start = history_start(context, first_training)
    with reading(context.engine) as conn:
        bars = prices.prices(conn, context.name, start, plan.last)
    # Those before the training, as the last outcome that it knows is that of its own day.
    days_before = _days_with_history(context, bars).searchsorted(pd.Timestamp(first_training))
    if days_before < context.experiment.needed_days:
        raise _error_before_history(context, plan.first, last)
    if plan.prices_known == "then":
        # Later days need no check: a night of which too few bars were known is refused by itself.
        calendar = context.market.calendar
        moment = session_open(calendar, next_session(calendar, first_training))
        with reading(context.engine) as conn:
            known_bars = prices.prices(
                conn, context.name, first_training, first_training, known_at=moment
            )
        lacking = shortage(context, first_training, set(known_bars["symbol"]))
        if lacking is not None:
            raise UsageError(
                f"--prices-known then: at {moment:%Y-%m-%d %H:%M} UTC, when the next session "
                f"opened, the store did not know enough bars of {context.name}: {lacking.what}. "
                "Choose a later --from, before whose opening a night or a fetch had stored them "
                "(the view fetch_log has the times), or leave out --prices-known"
            )
    return Backtest(
        context=context,
        request=request,
        plan=plan,
        folds=tuple(laid_out),
        known_at=bars["known_at"].max().to_pydatetime(),
        bars_digest=f"{digest_of(bars)} {digest_of_rejected(context, bars)}",
    )


def _days_with_history(context: MarketContext, bars: pd.DataFrame) -> pd.DatetimeIndex:
    """Return the days of some bars, at most, on which a model may look back over a window."""
    if bars.empty:
        return pd.DatetimeIndex([])
    market = context.market
    days = bars["session"]
    return days_with_history(
        bars,
        sessions=sessions_between(market.calendar, days.min().date(), days.max().date()),
        symbols=market.symbols,
        index_symbol=market.index.symbol,
        config=context.experiment.windows,
    )


def _error_before_history(context: MarketContext, first: date, last: date) -> UsageError:
    """Return the error that names the first day that a backtest of the stored bars can predict."""
    beginning = sessions_up_to(context.market.calendar, last)[0].date()
    bars = read_bars(context, beginning, last)
    days = _days_with_history(context, bars)
    needed = context.experiment.needed_days
    stored = f"the store has prices of {context.name} from {bars['session'].min().date()}"
    fetch = (
        f"fetch earlier prices with `dtml fetch {context.name} --as-of DAY`, with --prices FILE if "
        "they come from files"
    )
    if len(days) < needed + 2:  # a day to train on after them, and one to predict
        return UsageError(
            f"{stored} to {last}, which is too short for any backtest: its first model would need "
            f"{needed} days with a whole window, and {len(days)} have one; {fetch}"
        )
    possible = next_session(context.market.calendar, days[needed].date())
    return UsageError(
        f"{stored}, too late for a backtest from {first}: the first model needs {needed} days with "
        f"a whole window; choose --from {possible} or later, or {fetch}"
    )


def known_before(
    context: MarketContext, as_of: date, known_at: datetime, prices_known: PricesKnown
) -> datetime:
    """Return the moment for which the training or the night of `as_of` reads its bars.

    It reads the versions of the bars that were known at that moment. If `prices_known` is "now",
    the moment is `known_at`. If it is "then", it is the open of the session after `as_of`, as for
    a missed night that is run later (`flows.nightly.catch_up`), but never after `known_at`.
    """
    if prices_known == "now":
        return known_at
    calendar = context.market.calendar
    return min(known_at, session_open(calendar, next_session(calendar, as_of)))


def jobs_of(backtest: Backtest) -> list[Job]:
    """Return a job for each fold, in order; a job whose card exists is done.

    For a warm start, each job except the first names the card of the job before it.
    """
    jobs = [
        Job(
            request=backtest.request,
            fold=fold,
            known_at=backtest.known_at,
            folder=backtest.folder,
            store=location(backtest.context.engine),
            prices_known=backtest.plan.prices_known,
        )
        for fold in backtest.folds
    ]
    if not backtest.context.experiment.warm_start:
        return jobs
    warm_jobs = [replace(job, previous=before.card) for before, job in pairwise(jobs)]
    return [*jobs[:1], *warm_jobs]


def one_by_one(jobs: Sequence[Job]) -> Iterator[Path]:
    """Run the jobs here, in order."""
    return map(run_fold, jobs)


def run_fold(job: Job) -> Path:
    """Train as of the fold's day, predict each of its sessions, and write the results to files.

    Each session is predicted as its night would have. Returns the path of the card (`read_card`),
    which is written last: if it exists, the fold is done and is not run again. If a job is killed,
    its training resumes when the job is run again.
    """
    if job.card.exists():
        return job.card
    start = time.perf_counter()
    context, nights, known_at = _open_job(job)
    previous = None
    if job.previous is not None:
        previous_run = read_card(job.previous)["run"]
        previous = load_run(context, previous_run)
    model, run = fit_model(
        context,
        job.fold.as_of,
        kind="backtest",
        known_at=known_at,
        previous=previous,
        # A part of the run's id: equal weights that predict from other bars are another run.
        serves=nights.digest,
    )
    predictions, refused = nights.predict(model)
    predictions_file = job.card.with_suffix(".parquet")
    write_whole(predictions_file, lambda file: predictions.to_parquet(file, index=False))
    bands = [] if model.calibration is None else model.calibration.bands.to_dict("records")
    card = {
        "fold": asdict(job.fold),
        "run": dict(run),
        "bands": bands,
        "refused": refused,
        "seconds": time.perf_counter() - start,
    }
    # `str` is applied to days and moments, which `read_card` converts back.
    write_whole(job.card, lambda file: file.write_text(json.dumps(card, default=str)))
    return job.card


def run_seed(job: Job, seed: int) -> None:
    """Train one seed of a fold from random weights, and leave its state for `run_fold`.

    The training has the same arguments as in `run_fold`, so that both have the same state folder.
    """
    context, nights, known_at = _open_job(job)
    fit_seed(
        context, job.fold.as_of, seed, kind="backtest", known_at=known_at, serves=nights.digest
    )


def _open_job(job: Job) -> tuple[MarketContext, "Nights", datetime]:
    """Return the market, the nights to predict, and the moment for which the training reads bars.

    If the job says so, torch then uses that number of threads. Raises UsageError where this process
    has another store than the backtest.
    """
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    context = open_stored_context(job.request)
    if location(context.engine) != job.store:
        raise UsageError(
            f"this worker's store is {location(context.engine)}, but the backtest's is "
            f"{job.store}: give the workers and the command the same DTML_DATABASE_URL and "
            "DTML_DATA"
        )
    nights = Nights(context, job.fold, job.known_at, job.prices_known)
    return context, nights, known_before(context, job.fold.as_of, job.known_at, job.prices_known)


def read_card(card: Path) -> dict[str, Any]:
    """Read the card that `run_fold` wrote, with days and moments converted from text.

    It has `fold`, the row of its `run`, the abstention `bands` of its calibration, `refused` (the
    reason for each refused night, by the night's `as_of` as text), and `seconds`, the time that the
    fold took. The predictions are in a Parquet file beside the card, in the columns of
    `flows.nightly.predict.predict_windows` and `known_at`, the watermark of the night's bars.
    """
    content: dict[str, Any] = json.loads(card.read_text())
    run = content["run"]
    for name in MOMENTS:
        run[name] = datetime.fromisoformat(str(run[name]))
    for name in DAYS:
        run[name] = date.fromisoformat(str(run[name]))
    fold = content["fold"]
    for name in ("as_of", "first", "last"):
        fold[name] = date.fromisoformat(fold[name])
    return content


class Nights:
    """Predict the nights of a fold.

    The bars of all nights, as known at `known_at`, are read once, at the beginning. If
    `prices_known` is "now", each night predicts from its part of them. If it is "then", they serve
    only for the `digest`, and each night reads the versions that were known before the session that
    it predicts.
    """

    def __init__(
        self,
        context: MarketContext,
        fold: Fold,
        known_at: datetime,
        prices_known: PricesKnown = "now",
    ) -> None:
        self.context = context
        self.fold = fold
        self.known_at = known_at
        self.prices_known = prices_known
        first = first_needed(context, context.experiment.windows, fold.as_of)
        last = previous_session(context.market.calendar, fold.last)
        bars = read_bars(context, first, last, known_at)
        # The order is by session, in which `bars_of` searches for the first and last of a night.
        self.bars = bars.sort_values(["session", "symbol"], ignore_index=True)

    @property
    def digest(self) -> str:
        """Return a text that differs where equal models could predict or refuse differently.

        It is made of a digest of the bars as known at `known_at`, the fold, the checks of the
        market and, if `prices_known` is "then", a digest of the bars of each night.
        """
        digests_of_nights = ""
        if self.prices_known == "then":
            digests_of_nights = " ".join(digest_of(self.bars_of(day)) for day in self._days())
        checks = self.context.market.checks
        return f"{digest_of(self.bars)} {self.fold} {checks} {digests_of_nights}"

    def predict(self, model: Model) -> tuple[pd.DataFrame, dict[str, str]]:
        """Return the predictions of every night, and the reason of each refused one.

        They are what the nightly job would have predicted and refused. The frame has the columns of
        `predict_windows` and `known_at`, but none if every night was refused. The reasons are by
        `as_of` as text, as JSON holds keys.
        """
        predictions = [pd.DataFrame()]  # `concat` needs a frame even if every night is refused
        refused: dict[str, str] = {}
        for as_of in self._days():
            try:
                predictions.append(self._predictions_of(model, as_of))
            except DtmlError as error:
                refused[str(as_of)] = str(error)
        return pd.concat(predictions, ignore_index=True), refused

    def _days(self) -> list[date]:
        """Return the `as_of` of each night: the session before each one that the fold predicts."""
        calendar = self.context.market.calendar
        last = previous_session(calendar, self.fold.last)
        return [day.date() for day in sessions_between(calendar, self.fold.as_of, last)]

    def bars_of(self, as_of: date) -> pd.DataFrame:
        """Return the bars that the night of `as_of` reads, up to its own session."""
        first = first_needed(self.context, self.context.experiment.windows, as_of)
        if self.prices_known == "then":
            moment = known_before(self.context, as_of, self.known_at, "then")
            with reading(self.context.engine) as conn:
                return prices.prices(conn, self.context.name, first, as_of, known_at=moment)
        begin = self.bars["session"].searchsorted(pd.Timestamp(first))
        end = self.bars["session"].searchsorted(pd.Timestamp(as_of), side="right")
        return self.bars.iloc[begin:end]

    def _predictions_of(self, model: Model, as_of: date) -> pd.DataFrame:
        """Return the predictions of one night; raise DtmlError for one that is refused.

        Their `known_at` is the watermark of the bars that the night reads.
        """
        bars = self.bars_of(as_of)
        symbols_today = bars.loc[bars["session"] == pd.Timestamp(as_of), "symbol"]
        bars_lacking = shortage(self.context, as_of, set(symbols_today))
        if bars_lacking is not None:
            raise DtmlError(bars_lacking.what)
        predictions = predict_night(self.context, model, as_of, bars)
        if too_few(self.context, as_of, predictions):
            constituents = len(self.context.constituents(as_of))
            allowed = self.context.market.checks.max_missing
            raise DtmlError(
                f"{constituents - len(predictions)} of {constituents} constituents cannot be "
                "predicted, mostly for want of their earlier sessions or because the model was "
                f"trained without them; max_missing under [checks] in "
                f"{settings_place(self.context.market)} allows a share of {allowed:g}"
            )
        return predictions.assign(known_at=bars["known_at"].max())


def folds(sessions: pd.DatetimeIndex, first: date, last: date, retrain_every: int) -> list[Fold]:
    """Return the folds that predict every session of first .. last, `retrain_every` sessions each.

    `sessions` are those of the exchange, with at least one before `first`. The last fold may be
    shorter. Raises UsageError for a span without a session, and for a `retrain_every` below 1.
    """
    if retrain_every < 1:
        raise UsageError(f"--retrain-every must be 1 session or more, got {retrain_every}")
    start = int(sessions.searchsorted(pd.Timestamp(first), side="left"))
    stop = int(sessions.searchsorted(pd.Timestamp(last), side="right"))
    if start >= stop:
        raise UsageError(
            f"there is no session from {first} to {last}: choose another --from or --to"
        )
    # A model is trained as of the session before the first one that it predicts. No gap is left
    # here: the experiment itself leaves out what the training must not see.
    splits = walk_forward(start, stop, retrain_every=retrain_every, horizon=1, gap=0)
    days = sessions.date
    return [
        Fold(
            number=number,
            as_of=days[split.trained.stop - 1],
            first=days[split.scored.start],
            last=days[split.scored.stop - 1],
        )
        for number, split in enumerate(splits, start=1)
    ]
