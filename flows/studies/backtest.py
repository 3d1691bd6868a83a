"""Walk forward through history as the nights would have, and score and publish what comes of it.

A backtest is divided into folds: each trains one model and predicts the sessions after its
training. A job runs one fold and writes its results to files, nothing to the store. So jobs can run
in this process, in other processes or on other machines. One process stores and scores the results
of all, and trades them in portfolios."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from sqlalchemy import Connection, Engine

from db.engine import location, reading, transaction
from db.read import query, read, read_row
from db.rows import backtests, prices, runs
from db.save import save
from dtml.backtest.performance import expected_best, performance, session_sharpe
from dtml.backtest.portfolio import (
    Form,
    Strategy,
    equal_weight_track,
    follow,
    index_track,
    positions,
)
from dtml.backtest.quotes import Fill
from dtml.baselines.naive_rules import MODEL, directions_on, rules_read_from
from dtml.errors import DtmlError, UsageError
from dtml.evaluation.breakdowns import (
    Directions,
    rank_ics_by_slice,
    rolling_mcc,
    rolling_rank_ic,
    slice_scores,
)
from dtml.evaluation.calibration import coverage, curve_with_intervals
from dtml.evaluation.splits import walk_forward
from dtml.evaluation.survivorship import Survivorship, survivorship_of
from dtml.inference import choose_device
from dtml.machine import torch_build
from dtml.markets.definition import FREE, Costs
from dtml.pages.backtest import backtest_page
from dtml.prices.returns import on_grid, returns_between
from dtml.prices.sessions import (
    next_session,
    previous_session,
    require_session,
    session_open,
    sessions_a_year,
    sessions_between,
    sessions_up_to,
)
from dtml.windows import days_with_history
from flows.markets.files import settings_place
from flows.markets.opened import RunRequest
from flows.nightly.context import (
    MarketContext,
    Tonight,
    digest_of,
    digest_of_rejected,
    newest_source,
    open_stored_context,
    quotes_of,
    read_bars,
)
from flows.nightly.fetch import history_start
from flows.nightly.predict import first_needed, look, predict_night, shortage, too_few
from flows.nightly.score import dated_directions, outcome_rows, record_outcomes, save_counts
from flows.nightly.train import Model, fit_model, fit_seed, load_run
from flows.progress import fold_progress
from flows.service.tasks import as_task
from flows.settings import page_of
from flows.studies.study import Study, study_id
from flows.workers import worker_pool
from translation.atomic_files import write_whole

# Whether nights see every bar as known now, or as known before the session that they predict.
PricesKnown = Literal["now", "then"]
PerDay = Float[ndarray, "days stocks"]


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
        return [
            Strategy(form, fill, self.top, self.max_weight, costs_of_fill)
            for fill, costs_of_fill in costs.items()
            for form in get_args(Form)
        ]


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

    @property
    def card(self) -> Path:
        """Return the file of the fold's result, which exists once the fold is done."""
        return self.folder / f"fold-{self.fold.number:04d}.json"


# Runs jobs, and returns the card of each in the order of the jobs.
Runner = Callable[[Sequence[Job]], Iterable[Path]]


def one_by_one(jobs: Sequence[Job]) -> Iterator[Path]:
    """Run the jobs here, in order."""
    for job in jobs:
        yield as_task(f"fold {job.fold.number}", partial(run_fold, job))


def beside(workers: int, jobs: Sequence[Job]) -> Iterator[Path]:
    """Run them in processes beside this one, which share the threads that torch would use here."""
    threads = max(1, torch.get_num_threads() // workers)
    with worker_pool(workers, torch.set_num_threads, threads) as pool:
        futures = [pool.submit(run_fold, job) for job in jobs]
        for job, future in zip(jobs, futures, strict=True):
            yield as_task(f"fold {job.fold.number}", future.result)


def on_cluster(address: str, seeds: int, jobs: Sequence[Job]) -> Iterator[Path]:
    """Run them on a Dask cluster; tasks before that of a fold train so many `seeds` of it."""
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "Dask, which --cluster uses, is not installed: run pip install 'dtml-nightshift[dask]'"
        ) from error
    with cast(Any, Client)(address) as client:
        futures = []
        for job in jobs:
            numbers = [] if job.card.exists() else range(seeds)
            trained = [client.submit(_try_seed, job, number, pure=False) for number in numbers]
            futures.append(client.submit(run_fold, job, trained, pure=False))
        for job, future in zip(jobs, futures, strict=True):
            yield as_task(f"fold {job.fold.number}", future.result)


def _try_seed(job: Job, seed: int) -> None:
    """Train a seed; if that fails, the fold trains it again, and raises the error."""
    with suppress(Exception):
        run_seed(job, seed)


@dataclass(frozen=True)
class Result:
    """Hold a backtest as it is stored, and the path of its page.

    `row` is its row of the table `backtest`. The frames are those of `backtest_fold` (with the
    column `validation_acc` too), `backtest_score` and `backtest_portfolio`.
    """

    row: dict[str, Any]
    folds: pd.DataFrame
    scores: pd.DataFrame
    portfolios: pd.DataFrame
    page: Path


@dataclass(frozen=True)
class Backtest(Study[Result]):
    """Hold a plan with its market opened and its folds laid out.

    Bars are read as known at `known_at`, the watermark of the bars when the backtest was opened. If
    the plan's `prices_known` is "then", trainings and predictions read bars as known at earlier
    moments (`known_before`), and outcomes alone come from the bars as known at `known_at`.
    """

    context: MarketContext
    request: RunRequest
    plan: Plan
    folds: tuple[Fold, ...]
    bars: pd.DataFrame = field(repr=False)  # as known at `known_at`
    runner: Runner = one_by_one

    table = "backtest"
    read_at = "finished_at"

    @property
    def engine(self) -> Engine:
        """Return the store."""
        return self.context.engine

    @property
    def known_at(self) -> datetime:
        """Return the watermark of the bars."""
        moment: datetime = self.bars["known_at"].max().to_pydatetime()
        return moment

    @cached_property
    def id(self) -> str:
        """Return the name of the backtest.

        Earlier versions of bars are not in its digest, though prices known "then" read them: a
        store never changes them.
        """
        settings = [
            asdict(self.plan),
            asdict(self.context.experiment),
            self.context.market.settings,
            torch_build(),
            choose_device(self.context.device).type,
            digest_of_rejected(self.context, self.bars),
        ]
        bars = self.bars.drop(columns="known_at")
        return study_id(self.context.name, self.plan.first, settings, bars)

    @property
    def jobs(self) -> list[Job]:
        """Return a job for each fold, in order; a job whose card exists is done.

        For a warm start, each job except the first names the card of the job before it.
        """
        jobs: list[Job] = []
        for fold in self.folds:
            is_warm = jobs and self.context.experiment.warm_start
            jobs.append(
                Job(
                    request=self.request,
                    fold=fold,
                    known_at=self.known_at,
                    folder=self.folder,
                    store=location(self.engine),
                    prices_known=self.plan.prices_known,
                    previous=jobs[-1].card if is_warm else None,
                )
            )
        return jobs

    @cached_property
    def scored_bars(self) -> pd.DataFrame:
        """Read the bars of the predicted sessions, and those before them that the rules need."""
        first = rules_read_from(self.context.market.calendar, self.plan.first)
        return read_bars(self.context, first, self.plan.last, self.known_at)

    def survivorship(self, bars: pd.DataFrame) -> Survivorship:
        """Count the constituents on the sessions of the plan, and those without a bar."""
        market = self.context.market
        days = sessions_between(market.calendar, self.plan.first, self.plan.last)
        return survivorship_of(market, days, bars)

    def read(self, conn: Connection) -> Result | None:
        """Return the backtest from the store; None if it is not stored or not finished."""
        row = read_row(conn, "backtest", id=self.id)
        if row is None or row["finished_at"] is None:
            return None
        folds, scores, portfolios = (
            read(conn, f"backtest_{part}", columns="-backtest_id", backtest_id=self.id)
            for part in ("fold", "score", "portfolio")
        )
        accuracies = [_validation_acc(runs.run(conn, run_id)) for run_id in folds["run_id"]]
        return Result(
            row=row,
            folds=folds.assign(validation_acc=accuracies),
            scores=scores,
            portfolios=portfolios,
            page=page_of("backtest", row),
        )

    def make(self) -> None:
        """Train and predict fold by fold, then score.

        Raises DtmlError when a fold cannot be trained, when every night was refused, and when a
        portfolio has lost all its equity.
        """
        with transaction(self.engine) as conn:
            save(conn, "backtest", self._row())
        start = time.perf_counter()
        jobs = self.jobs
        # The time that an earlier process spent is not known.
        done = sum(job.card.exists() for job in jobs)
        with fold_progress(done, len(jobs)) as on_fold:
            for number, card in enumerate(self.runner(jobs), start=1):
                _store_fold(self, card)
                on_fold(number)
        _score_and_store(self, None if done else time.perf_counter() - start)

    def page(self, stored: Result) -> str:
        """Render the page, with figures of the predictions beside those stored."""
        record = read_record(self, self.scored_bars)
        with reading(self.engine) as conn:
            returns = read(conn, "backtest_return", backtest_id=self.id)
            band_counts = query(conn, "fold_counts", backtest=self.id)
            bins = read(conn, "calibration_bin", run_id=stored.folds["run_id"].to_list())
        rolling = rolling_mcc(record.directions(), record.movement, record.target)
        rolling_ranks = rolling_rank_ic(record.probability, record.movement, record.target)
        return backtest_page(
            backtest=stored.row,
            folds=stored.folds,
            scores=stored.scores,
            tracks=returns,
            performances=stored.portfolios,
            rolling=rolling.merge(rolling_ranks, how="left", on=["session", "predictor"]),
            curve=curve_with_intervals(bins),
            coverage=coverage(band_counts),
        )

    def _row(self) -> dict[str, Any]:
        """Return the row of the table `backtest` for one that has begun and is not finished."""
        market = self.context.market
        return {
            "id": self.id,
            "market": self.context.name,
            "first": self.plan.first,
            "last": self.plan.last,
            "retrain_every": self.plan.retrain_every,
            "config": {
                "experiment": asdict(self.context.experiment),
                "plan": asdict(self.plan),
                "list": self.survivorship(self.scored_bars).stored,
                "source": newest_source(self.context),
                "sessions_a_year": sessions_a_year(market.calendar),
            },
            "seeds": list(range(self.context.experiment.seeds)),
            "code_version": version("dtml-nightshift"),
            "data_watermark": self.known_at,
            "created_at": datetime.now(UTC),
            "list_is_snapshot": market.is_snapshot,
            "list_as_of": None if market.of_prices else market.constituents_as_of,
            "device": choose_device(self.context.device).type,
        }


def _validation_acc(run: Mapping[str, Any]) -> float:
    """Return the validation accuracy in the chosen epoch of each seed, as a mean over the seeds."""
    # Epochs are numbered from 1.
    chosen_epochs = [seed["epochs"][seed["best_epoch"] - 1] for seed in run["losses"]]
    return float(np.mean([epoch["validation_acc"] for epoch in chosen_epochs]))


def open_backtest(
    request: RunRequest, plan: Plan, *, workers: int = 1, cluster: str | None = None
) -> Backtest:
    """Open the stored prices of a market, and lay out the folds.

    They run on the Dask cluster at the address `cluster` or, without one, here or in several
    `workers`. On a cluster, each seed of a fold is trained by a task of its own before the fold's
    task, if the experiment has several seeds and makes no warm start.

    Raises UsageError where the store lacks prices of the last sessions of the plan, where the plan
    has no session or too short a history before it, and where `retrain_every` is below 1. For a
    plan with prices known "then", it is also raised where too few bars of the first training's last
    session were known when the next session opened.
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
    # Without the day of the training, whose outcome it does not know.
    days_before = _days_with_history(context, bars).searchsorted(pd.Timestamp(first_training))
    begins_late = bars.empty or bars["session"].min() > pd.Timestamp(start)
    if begins_late and days_before < context.experiment.needed_days:
        raise _error_before_history(context, plan.first, last)
    if plan.prices_known == "then":
        # Later days need no check: a night of which too few bars were known is refused by itself.
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
    runner: Runner = one_by_one
    if cluster is not None:
        # With a warm start, a seed begins with the weights of the fold before. That fold would have
        # to be done first, and `run_seed` trains from random weights.
        seeds = context.experiment.seeds
        are_apart = seeds > 1 and not context.experiment.warm_start
        runner = partial(on_cluster, cluster, seeds if are_apart else 0)
    elif workers > 1:
        runner = partial(beside, workers)
    return Backtest(context, request, plan, tuple(laid_out), bars, runner)


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


def known_before(
    context: MarketContext, as_of: date, known_at: datetime, prices_known: PricesKnown
) -> datetime:
    """Return the moment for which the training or the night of `as_of` reads its bars.

    If `prices_known` is "now", it is `known_at`. If it is "then", it is the open of the session
    after `as_of`, as for a missed night that is run later (`flows.nightly.night`), but never after
    `known_at`.
    """
    if prices_known == "now":
        return known_at
    calendar = context.market.calendar
    return min(known_at, session_open(calendar, next_session(calendar, as_of)))


def run_fold(job: Job, _trained: Sequence[Any] = ()) -> Path:
    """Train as of the fold's day, predict each of its sessions, and write the results to files.

    Each session is predicted as its night would have. Returns the path of the card (`read_card`),
    which is written last: if it exists, the fold is done and is not run again. If a job is killed,
    its training resumes when the job is run again. What was `_trained` before is only waited for.
    """
    if job.card.exists():
        return job.card
    start = time.perf_counter()
    tonight, nights = _open_job(job)
    previous = None
    if job.previous is not None:
        previous = load_run(tonight.context, read_card(job.previous)["run"])
    model = fit_model(
        tonight,
        kind="backtest",
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
        "run": dict(model.row),
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
    tonight, nights = _open_job(job)
    fit_seed(tonight, seed, kind="backtest", serves=nights.digest)


def _open_job(job: Job) -> tuple[Tonight, "Nights"]:
    """Return the night of the training, with bars as it knows them, and the nights to predict.

    Raises UsageError where this process has another store than the backtest.
    """
    context = open_stored_context(job.request)
    if location(context.engine) != job.store:
        raise UsageError(
            f"this worker's store is {location(context.engine)}, but the backtest's is "
            f"{job.store}: give the workers and the command the same DTML_DATABASE_URL and "
            "DTML_DATA"
        )
    nights = Nights(context, job.fold, job.known_at, job.prices_known)
    known_at = known_before(context, job.fold.as_of, job.known_at, job.prices_known)
    return Tonight(context, job.fold.as_of, known_at), nights


def read_card(card: Path) -> dict[str, Any]:
    """Read the card that `run_fold` wrote, with days and moments converted from text.

    It has `fold`, the row of its `run`, the abstention `bands` of its calibration, `refused` (the
    reason for each refused night, by the night's `as_of` as text), and `seconds`, the time that the
    fold took. The predictions are in a Parquet file beside the card, in the columns of
    `flows.nightly.predict.predict_windows` and `known_at`, the watermark of the night's bars.
    """
    content: dict[str, Any] = json.loads(card.read_text())
    run, fold = content["run"], content["fold"]
    run |= {name: datetime.fromisoformat(run[name]) for name in ("data_watermark", "created_at")}
    run |= {name: date.fromisoformat(run[name]) for name in ("train_first", "train_last")}
    fold |= {name: date.fromisoformat(fold[name]) for name in ("as_of", "first", "last")}
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
        prices_known: PricesKnown,
    ) -> None:
        self.context = context
        self.fold = fold
        self.known_at = known_at
        self.prices_known = prices_known
        last = previous_session(context.market.calendar, fold.last)
        # The `as_of` of each night: the session before each one that the fold predicts.
        nights = sessions_between(context.market.calendar, fold.as_of, last)
        self.days: list[date] = [day.date() for day in nights]
        first = first_needed(context, context.experiment.windows, fold.as_of)
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
            digests_of_nights = " ".join(digest_of(self.bars_of(day)) for day in self.days)
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
        for as_of in self.days:
            try:
                predictions.append(self._predictions_of(model, as_of))
            except DtmlError as error:
                refused[str(as_of)] = str(error)
        return pd.concat(predictions, ignore_index=True), refused

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


def _store_fold(backtest: Backtest, file: Path) -> None:
    card = read_card(file)
    predicted = pd.read_parquet(file.with_suffix(".parquet"))
    run = card["run"]
    market = backtest.context.market
    fold = card["fold"] | {
        "run_id": run["id"],
        "predictions": len(predicted),
        "refused": card["refused"],
        "seconds": card["seconds"],
    }
    now = datetime.now(UTC)
    with transaction(backtest.engine) as conn:
        save(conn, "run", run)
        if card["bands"]:
            bands = pd.DataFrame(card["bands"])
            bands = bands.assign(is_default=bands["level"] == market.level)
            save(conn, "abstention_band", bands, run_id=run["id"])
        # Those of a single watermark are saved together. Without predictions there are no columns.
        for known_at, rows in predicted.groupby("known_at") if len(predicted) else ():
            moment = cast(pd.Timestamp, known_at).to_pydatetime()
            owner = {"market": market.name, "known_at": moment, "made_at": now}
            save(conn, "prediction", rows.assign(run_id=run["id"]), **owner)
        save(conn, "backtest_fold", fold, backtest_id=backtest.id)


@dataclass(frozen=True)
class TrackRecord:
    """Hold the predictions and the outcomes of all predicted sessions.

    A day has the session `as_of`, from whose bars it was predicted, and the session `target` that
    follows. `probability` is that of a rise, NaN where nothing was predicted. `movement` is the
    return from `as_of` to `target`, a ratio minus 1, NaN where it is unknown or beyond the market's
    `max_return`. `losers` is minus the return to `as_of`: a rule that ranks the losers first.
    """

    probability: PerDay
    movement: PerDay
    as_of: pd.DatetimeIndex
    target: pd.DatetimeIndex
    fold: Int[ndarray, " days"]  # the number of each day's fold
    symbols: tuple[str, ...]
    rules: pd.DataFrame  # a row a day, a column a rule: 1 for a rise, 0 for a fall, or NaN
    losers: PerDay

    def directions(self) -> Directions:
        """Return the directions that the model and each rule predicted, [days stocks].

        They are 1 for a rise, 0 for a fall and NaN for none. A rule says the same of all stocks.
        """
        model = np.where(np.isfinite(self.probability), self.probability > 0.5, np.nan)
        all_stocks = np.ones_like(model)
        rules = {
            str(rule): all_stocks * of_day.to_numpy()[:, None]
            for rule, of_day in self.rules.items()
        }
        return {MODEL: model, **rules}


def read_record(backtest: Backtest, bars: pd.DataFrame) -> TrackRecord:
    """Read the predictions of all folds, and compute their outcomes from `bars`.

    Raises DtmlError if no night has a prediction.
    """
    market = backtest.context.market
    with reading(backtest.engine) as conn:
        predicted = query(conn, "backtest_predictions", backtest=backtest.id)
        folds = read(conn, "backtest_fold", backtest_id=backtest.id)
    if predicted.empty:
        refused = [refusal for of_fold in folds["refused"] for refusal in of_fold.items()]
        raise DtmlError(
            f"all {len(refused)} nights were refused, the first ({refused[0][0]}) for this reason: "
            f"{refused[0][1]}; choose another --from and --to, leave out --prices-known if given, "
            f"or fetch the missing prices with `dtml fetch {market.name} --again` (and --prices "
            "FILE for files)"
        )
    days = predicted[["as_of", "target"]].drop_duplicates()
    days = days.sort_values("target", ignore_index=True)  # portfolios are traded in this order
    as_of = pd.DatetimeIndex(days["as_of"])
    target = pd.DatetimeIndex(days["target"])
    # A day belongs to the last fold that begins on it or before it.
    fold_of_day = folds["first"].searchsorted(days["target"], side="right") - 1
    day_before = pd.DatetimeIndex([previous_session(market.calendar, day.date()) for day in as_of])
    by_session = predicted.rename(columns={"target": "session"})  # the column that `on_grid` reads
    stocks = (market.symbols, market.returns)
    return TrackRecord(
        probability=on_grid(by_session, "probability", target, market.symbols),
        movement=returns_between(bars, as_of, target, *stocks, market.checks.max_return),
        as_of=as_of,
        target=target,
        fold=folds["number"].to_numpy()[fold_of_day],
        symbols=market.symbols,
        rules=directions_on(as_of, bars, market.index.symbol),
        losers=-returns_between(bars, day_before, as_of, *stocks),
    )


def _score_and_store(backtest: Backtest, seconds: float | None) -> None:
    context = backtest.context
    bars = backtest.scored_bars
    record = read_record(backtest, bars)
    scores = slice_scores(
        record.directions(), record.movement, record.target, record.fold, record.symbols
    )
    ranks = rank_ics_by_slice(
        record.probability, record.losers, record.movement, record.target, record.fold
    )
    # Only these rows have figures of ranks, and none is of a single stock.
    ranks = ranks.assign(predictor=MODEL, protocol="all")
    scores = scores.merge(ranks, how="left", on=["slice", "value", "protocol", "predictor"])
    traded = list(_traded(backtest, record, bars))
    year = sessions_a_year(context.market.calendar)
    # Earlier backtests count too: the best of many strategies looks good by chance.
    with reading(backtest.engine) as conn:
        earlier = query(conn, "sharpe_ratios", market=context.name, other_than=backtest.id)
    trials = list(earlier["sharpe"] / np.sqrt(year))
    trials += [
        session_sharpe(track["net"].to_numpy()) for _, strategy, track, _ in traded if strategy
    ]
    portfolios = []
    for name, strategy, track, index in traded:
        figures = performance(track, trials=trials if strategy else None, index=index, year=year)
        portfolios.append({"portfolio": name, "strategy": strategy, **asdict(figures)})
    survivorship = backtest.survivorship(bars)
    with transaction(backtest.engine) as conn:
        save_outcomes(conn, backtest, record)
        rules = dated_directions(record.rules, record.target)
        save(conn, "rule_direction", rules, market=context.name)
        # With the outcomes stored above; the views calibration and coverage read the counts.
        save_counts(conn, query(conn, "settled_folds", backtest=backtest.id))
        backtests.finish_backtest(
            conn,
            backtest.id,
            scores=scores,
            returns=pd.concat(
                [track.assign(portfolio=name) for name, _, track, _ in traded], ignore_index=True
            ),
            portfolios=pd.DataFrame(portfolios),
            counts={
                # Predicted on any day.
                "stocks": int(np.isfinite(record.probability).any(axis=0).sum()),
                "tried": len(trials),
                # A year, of the best of so many strategies without any skill.
                "expected_best": expected_best(trials) * np.sqrt(year),
                "constituent_days": survivorship.constituent_days,
                "without_price": survivorship.without_price,
            },
            finished_at=datetime.now(UTC),
            seconds=seconds,
        )


def save_outcomes(conn: Connection, backtest: Backtest, record: TrackRecord) -> None:
    """Store the outcome of every prediction whose return is known, as a night's scoring would."""
    is_settled = np.isfinite(record.probability) & np.isfinite(record.movement)
    day_places, stock_places = np.nonzero(is_settled)
    symbols = pd.Index(record.symbols)[stock_places]
    rows = outcome_rows(symbols, record.target[day_places], record.movement[is_settled])
    record_outcomes(
        conn,
        # Nights that these outcomes settle are scored too, beside rules computed from these bars.
        Tonight(backtest.context, backtest.plan.last),
        rows,
        known_at=backtest.known_at,
        recorded_at=datetime.now(UTC),
    )


# A portfolio: its name, the settings of one that follows predictions, and its track beside that of
# the index bought when its stocks are.
Traded = tuple[str, dict[str, Any] | None, pd.DataFrame, pd.DataFrame | None]


def _traded(backtest: Backtest, record: TrackRecord, bars: pd.DataFrame) -> Iterator[Traded]:
    """Trade the predictions by each strategy, and hold the index and equal parts for comparison.

    The last two are bought at the next open. Portfolios without a single session are left out: that
    of the index has none if the store has no opens of it.
    """
    context = backtest.context
    quotes = quotes_of(context, bars, record.symbols)
    index_quotes = quotes_of(context, bars, (context.market.index.symbol,))
    index_tracks = {fill: index_track(index_quotes, record.as_of, fill) for fill in get_args(Fill)}
    traded: list[Traded] = []
    for strategy in backtest.plan.strategies:
        weights = positions(record.probability, strategy)
        track = follow(weights, record.as_of, quotes, strategy)
        traded.append((strategy.name, asdict(strategy), track, index_tracks[strategy.fill]))
    of_index = index_tracks["next_open"]
    equal = equal_weight_track(record.probability, record.as_of, quotes, "next_open")
    traded += [("index", None, of_index, None), ("equal weight", None, equal, of_index)]
    yield from (each for each in traded if len(each[2]))


def require_sessions(backtest: Backtest, days: Sequence[date]) -> None:
    """Raise UsageError for a day that is no session of the backtest."""
    for day in days:
        require_session(backtest.context.market.calendar, day)
        if not backtest.plan.first <= day <= backtest.plan.last:
            raise UsageError(
                f"--attention-on {day} is outside {backtest.plan.first} .. {backtest.plan.last}, "
                "the span of the backtest: choose a session in it"
            )


def keep_attention(backtest: Backtest, days: Sequence[date]) -> None:
    """Store, for each session of `days`, which stocks looked at which when it was predicted.

    The session is predicted again by the model of its fold, from the bars that its night read.
    Nothing is stored for a refused night.
    """
    context = backtest.context
    with reading(backtest.engine) as conn:
        folds = read(conn, "backtest_fold", backtest_id=backtest.id)
    for day in days:
        target = pd.Timestamp(day)
        # Every session of the backtest is in one fold.
        fold = folds[(folds["first"] <= target) & (target <= folds["last"])].iloc[0]
        as_of = previous_session(context.market.calendar, day)
        if str(as_of) in fold["refused"]:  # the reasons by night
            continue
        with reading(backtest.engine) as conn:
            model = load_run(context, runs.run(conn, fold["run_id"]))
        first = first_needed(context, model.ensemble.windows, as_of)
        known_at = known_before(context, as_of, backtest.known_at, backtest.plan.prices_known)
        bars = read_bars(context, first, as_of, known_at)
        pairs = look(context, model, as_of, bars).rows().assign(run_id=model.run_id, target=target)
        with transaction(backtest.engine) as conn:
            save(conn, "attention_weight", pairs, market=context.name)
