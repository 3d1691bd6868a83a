"""Walk forward through history as the nights would have, and score and publish what comes of it.

Each fold trains one model and predicts the sessions after it. A job runs one, in any process or on
another machine, and stores nothing but weights. One process stores and scores all, and trades them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import pandas as pd
import torch
from sqlalchemy import Connection, Engine

from db.engine import location, reading, transaction
from db.read import query, read, read_row, read_value
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
from dtml.baselines.naive_rules import directions_on, rules_read_from
from dtml.devices import choose_device
from dtml.errors import DtmlError, UsageError
from dtml.evaluation.breakdowns import TrackRecord, rolling_figures, slice_scores
from dtml.evaluation.calibration import coverage, curve_with_intervals
from dtml.evaluation.ranking import Days
from dtml.evaluation.survivorship import Survivorship, survivorship_of
from dtml.experiments import Experiment
from dtml.machine import torch_build
from dtml.markets.definition import FREE, Costs
from dtml.pages.backtest import EQUAL_WEIGHT, INDEX, backtest_page
from dtml.prices.returns import on_grid, returns_between
from dtml.prices.sessions import (
    next_session,
    previous_session,
    require_session,
    session_open,
    sessions_a_year,
    sessions_between,
)
from dtml.windows import Windows
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
from flows.progress import step_progress
from flows.service.tasks import as_task
from flows.studies.study import Study, study_id
from flows.workers import worker_pool

LONGEST_FOLD_S = 3600.0  # whose pace still counts

# Whether nights see every bar as known now, or as known before the session that they predict.
PricesKnown = Literal["now", "then"]


@dataclass(frozen=True)
class Fold:
    """The span of one model: trained up to the close of `as_of`, it predicts first..last."""

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
        if not 0 < self.max_weight <= 1:
            raise UsageError(f"--max-weight must be above 0 and at most 1, got {self.max_weight}")

    @property
    def strategies(self) -> list[Strategy]:
        """Return the strategies that are traded: every form of portfolio in two versions.

        Filled at the next open with the plan's costs; or at the close without any, as published.
        """
        costs: dict[Fill, Costs] = {"next_open": self.costs, "close": FREE}
        return [
            Strategy(form, fill, self.top, self.max_weight, costs_of_fill)
            for fill, costs_of_fill in costs.items()
            for form in get_args(Form)
        ]


@dataclass(frozen=True)
class Job:
    """Describe one fold in plain values for another process, named as in `Backtest` and `Plan`."""

    backtest: str  # its name
    request: RunRequest
    fold: Fold
    known_at: datetime
    store: str  # where the store is, without its password
    prices_known: PricesKnown


@dataclass(frozen=True)
class FoldRun:
    """What a job made: its run's row, bands, predictions, and `refused` nights by day."""

    fold: Fold
    run: Mapping[str, Any]
    bands: pd.DataFrame | None
    predictions: pd.DataFrame
    refused: dict[str, str]
    seconds: float


# Runs jobs, and yields what each made, once it is done.
Runner = Callable[[Sequence[Job]], Iterable[FoldRun]]


def one_by_one(jobs: Sequence[Job]) -> Iterator[FoldRun]:
    """Run the jobs here, in order."""
    for job in jobs:
        yield as_task(f"fold {job.fold.number}", partial(run_fold, job))


def beside(workers: int, jobs: Sequence[Job]) -> Iterator[FoldRun]:
    """Run them in processes beside this one, which share the threads that torch would use here."""
    threads = max(1, torch.get_num_threads() // workers)
    with worker_pool(workers, torch.set_num_threads, threads) as pool:
        for future in as_completed([pool.submit(run_fold, job) for job in jobs]):
            yield as_task("fold", future.result)


def on_cluster(address: str, seeds: int, jobs: Sequence[Job]) -> Iterator[FoldRun]:
    """Run them on a Dask cluster; tasks before that of a fold train so many `seeds` of it."""
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            "Dask, which --cluster uses, is not installed: run pip install 'dtml-nightshift[dask]'"
        ) from error
    dask = cast(Any, distributed)
    with dask.Client(address) as client:
        futures = []
        for job in jobs:
            trained = [client.submit(run_seed, job, seed, pure=False) for seed in range(seeds)]
            futures.append(client.submit(run_fold, job, trained, pure=False))
        for future in dask.as_completed(futures):
            yield as_task("fold", future.result)


@dataclass(frozen=True)
class Result:
    """A backtest as stored: its row, folds (with `validation_acc`), scores, portfolios."""

    row: dict[str, Any]
    folds: pd.DataFrame
    scores: pd.DataFrame
    portfolios: pd.DataFrame


def stock_day_rows(days: TrackRecord | Windows, **values: Days) -> pd.DataFrame:
    """Return a row for each stock-day that has a value: its days, its symbol, and its values."""
    is_known = np.isfinite(next(iter(values.values())))
    day_places, stock_places = np.nonzero(is_known)
    return pd.DataFrame(
        {
            "as_of": days.as_of[day_places],
            "target": days.target[day_places],
            "symbol": pd.Index(days.symbols)[stock_places],
            **{name: value[is_known] for name, value in values.items()},
        }
    )


def store_outcomes(
    conn: Connection,
    context: MarketContext,
    last: date,
    days: TrackRecord | Windows,
    movement: Days,
    *,
    known_at: datetime,
) -> None:
    """Store the outcomes of stock-days, and score nights that these settle, as a night would."""
    rows = stock_day_rows(days, movement=movement)
    record_outcomes(
        conn,
        Tonight(context, last),
        outcome_rows(rows["symbol"], rows["target"], rows["movement"].to_numpy()),
        known_at=known_at,
        recorded_at=datetime.now(UTC),
    )


@dataclass(frozen=True)
class Backtest(Study[Result]):
    """A plan with its market opened and its folds laid out.

    Outcomes come from bars as known at `known_at`, when it was opened; for others see `Nights`.
    """

    context: MarketContext
    request: RunRequest
    plan: Plan
    folds: tuple[Fold, ...]
    bars: pd.DataFrame = field(repr=False)  # as known at `known_at`
    runner: Runner = one_by_one
    attention: Sequence[date] = ()  # sessions whose attention is stored too

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
        """Return the name of the backtest; what "then" reads never changes."""
        settings = [
            asdict(self.plan),
            asdict(self.context.experiment),
            self.context.market.settings,
            torch_build(),
            self.context.place.type,
            digest_of_rejected(self.context, self.bars),
        ]
        bars = self.bars.drop(columns="known_at")
        return study_id(self.context.name, self.plan.first, settings, bars)

    @property
    def jobs(self) -> list[Job]:
        """Return a job for each fold, in order."""
        return [
            Job(
                backtest=self.id,
                request=self.request,
                fold=fold,
                known_at=self.known_at,
                store=location(self.engine),
                prices_known=self.plan.prices_known,
            )
            for fold in self.folds
        ]

    @cached_property
    def scored_bars(self) -> pd.DataFrame:
        """Read the bars of the predicted sessions, and those before them that the rules need."""
        first = rules_read_from(self.context.market.calendar, self.plan.first)
        return read_bars(self.context, first, self.plan.last, self.known_at)

    @cached_property
    def survivorship(self) -> Survivorship:
        """Count the constituents on the sessions of the plan, and those without a bar."""
        market = self.context.market
        days = sessions_between(market.calendar, self.plan.first, self.plan.last)
        return survivorship_of(market, days, self.scored_bars)

    @cached_property
    def record(self) -> TrackRecord:
        """Return all predictions and outcomes; raises DtmlError without any prediction."""
        market = self.context.market
        with reading(self.engine) as conn:
            predicted = query(conn, "backtest_predictions", backtest=self.id)
            folds = read(conn, "backtest_fold", backtest_id=self.id)
        if predicted.empty:
            refused = [refusal for of_fold in folds["refused"] for refusal in of_fold.items()]
            raise DtmlError(
                f"all {len(refused)} nights were refused, the first ({refused[0][0]}) for this "
                f"reason: {refused[0][1]}; choose another --from and --to, leave out "
                f"--prices-known if given, or fetch the missing prices with `dtml fetch "
                f"{market.name} --again` (and --prices FILE for files)"
            )
        days = predicted[["as_of", "target"]].drop_duplicates()
        days = days.sort_values("target", ignore_index=True)  # portfolios are traded in this order
        as_of = pd.DatetimeIndex(days["as_of"])
        target = pd.DatetimeIndex(days["target"])
        # A day belongs to the last fold that begins on it or before it.
        fold_of_day = folds["first"].searchsorted(days["target"], side="right") - 1
        days_before = [previous_session(market.calendar, day.date()) for day in as_of]
        by_session = predicted.rename(columns={"target": "session"})  # that `on_grid` reads
        bars = self.scored_bars
        stocks = (market.symbols, market.returns)
        return TrackRecord(
            probability=on_grid(by_session, "probability", target, market.symbols),
            movement=returns_between(bars, as_of, target, *stocks, market.checks.max_return),
            as_of=as_of,
            target=target,
            fold=folds["number"].to_numpy()[fold_of_day],
            symbols=market.symbols,
            rules=directions_on(as_of, bars, market.index.symbol),
            losers=-returns_between(bars, pd.DatetimeIndex(days_before), as_of, *stocks),
        )

    def stored(self) -> Result | None:
        """Return the backtest from the store; None if it is not stored or not finished."""
        with reading(self.engine) as conn:
            row = read_row(conn, "backtest", id=self.id)
            if row is None or row["finished_at"] is None:
                return None
            folds, scores, portfolios = (
                read(conn, f"backtest_{part}", columns="-backtest_id", backtest_id=self.id)
                for part in ("fold", "score", "portfolio")
            )
            accuracies = [_validation_acc(runs.run(conn, run_id)) for run_id in folds["run_id"]]
        return Result(row, folds.assign(validation_acc=accuracies), scores, portfolios)

    def make(self) -> None:
        """Train and predict fold by fold, then score.

        Raises DtmlError when a fold cannot be trained, every night was refused, or all equity is
        lost.
        """
        with transaction(self.engine) as conn:
            save(conn, "backtest", self._row())
            stored = read(conn, "backtest_fold", columns="number", backtest_id=self.id)["number"]
        start = time.perf_counter()
        jobs = [job for job in self.jobs if job.fold.number not in set(stored)]
        with step_progress(
            "fold", len(self.folds), already_done=len(stored), pace_seconds=LONGEST_FOLD_S
        ) as on_fold:
            for fold_run in self.runner(jobs):
                _store_fold(self, fold_run)
                on_fold()
        # The time that an earlier process spent is not known.
        _score_and_store(self, None if len(stored) else time.perf_counter() - start)

    def page(self, stored: Result) -> str:
        """Render the page, with figures of the predictions beside those stored."""
        with reading(self.engine) as conn:
            returns = read(conn, "backtest_return", backtest_id=self.id)
            band_counts = query(conn, "fold_counts", backtest=self.id)
            bins = read(conn, "calibration_bin", run_id=stored.folds["run_id"].to_list())
        return backtest_page(
            backtest=stored.row,
            folds=stored.folds,
            scores=stored.scores,
            tracks=returns,
            performances=stored.portfolios,
            rolling=rolling_figures(self.record),
            curve=curve_with_intervals(bins),
            coverage=coverage(band_counts),
        )

    def add(self, stored: Result) -> None:
        """Store which stocks looked at which when each session of `attention` was predicted.

        By its fold's model, from its night's bars; nothing for a refused night.
        """
        for day in self.attention:
            as_of = previous_session(self.context.market.calendar, day)
            fold = next(fold for fold in self.folds if fold.first <= day <= fold.last)
            (of_fold,) = stored.folds[stored.folds["number"] == fold.number].to_dict("records")
            if str(as_of) in of_fold["refused"]:  # the reasons by night
                continue
            with reading(self.engine) as conn:
                model = load_run(self.context, runs.run(conn, of_fold["run_id"]))
            nights = Nights(self.context, fold, self.known_at, self.plan.prices_known)
            pairs = look(self.context, model, as_of, nights.bars_of(as_of)).rows()
            pairs = pairs.assign(run_id=model.run_id, target=pd.Timestamp(day))
            with transaction(self.engine) as conn:
                save(conn, "attention_weight", pairs, market=self.context.name)

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
                "list": asdict(self.survivorship),
                "source": newest_source(self.context),
                "sessions_a_year": sessions_a_year(market.calendar),
            },
            "seeds": list(range(self.context.experiment.seeds)),
            "code_version": version("dtml-nightshift"),
            "data_watermark": self.known_at,
            "created_at": datetime.now(UTC),
            "list_is_snapshot": market.is_snapshot,
            "list_as_of": None if market.of_prices else market.constituents_as_of,
            "device": self.context.place.type,
        }


def _validation_acc(run: Mapping[str, Any]) -> float:
    """Return the validation accuracy in the chosen epoch of each seed, as a mean over the seeds."""
    # Epochs are numbered from 1.
    chosen_epochs = [seed["epochs"][seed["best_epoch"] - 1] for seed in run["losses"]]
    return float(np.mean([epoch["validation_acc"] for epoch in chosen_epochs]))


def open_backtest(
    request: RunRequest,
    plan: Plan,
    *,
    workers: int = 1,
    cluster: str | None = None,
    attention: Sequence[date] = (),
) -> Backtest:
    """Open the stored prices of a market, and lay out the folds.

    They run here, in `workers`, or on the Dask `cluster`, where each seed is a task.

    Raises UsageError where the store lacks prices of the last sessions; for a plan without a
    session, or with too short a history; for a day of `attention` outside it; for warm starts side
    by side; and for prices known "then" where too few of the first training were known in time.
    """
    context = open_stored_context(request)
    calendar = context.market.calendar
    for day in attention:
        require_session(calendar, day)
        if not plan.first <= day <= plan.last:
            raise UsageError(
                f"--attention-on {day} is outside {plan.first} .. {plan.last}, the span of the "
                "backtest: choose a session in it"
            )
    last = context.source.last_session()
    if last is None or plan.last > last:
        raise UsageError(
            f"the store has the index of {context.name} up to {last}, but a backtest to "
            f"{plan.last} needs prices up to that day: choose an earlier --to, or fetch later "
            f"prices with `dtml fetch {context.name}`, with --prices FILE if they come from files"
        )
    # From the session before the plan's first one on: the first model is trained as of that day.
    sessions = sessions_between(calendar, previous_session(calendar, plan.first), plan.last)
    if len(sessions) < 2:
        raise UsageError(
            f"there is no session from {plan.first} to {plan.last}: choose another --from or --to"
        )
    laid_out = folds(sessions, plan.retrain_every)
    first_training = laid_out[0].as_of
    bars = read_bars(context, history_start(context, first_training), plan.last)
    beginning = bars["session"].min().date()
    experiment = context.experiment
    needed = experiment.windows.history + experiment.needed_days
    if len(sessions_between(calendar, beginning, first_training)) < needed:
        possible = sessions_between(calendar, beginning, last)[needed:]
        choose = f"choose --from {possible[0].date()} or later, or " if len(possible) else ""
        raise UsageError(
            f"the store has prices of {context.name} from {beginning}, too late for a backtest "
            f"from {plan.first}: the first model needs {needed} earlier sessions; {choose}fetch "
            f"earlier prices with `dtml fetch {context.name} --as-of DAY`, with --prices FILE if "
            "they come from files"
        )
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
    runner = _runner(experiment, workers, cluster)
    if cluster is None:  # whose machines may have other devices than this one
        device = choose_device(request.device, [context.load] * len(laid_out)).type
        request = replace(request, device=device)
        context = replace(context, device=device)
    return Backtest(context, request, plan, laid_out, bars, runner, attention)


def _runner(experiment: Experiment, workers: int, cluster: str | None) -> Runner:
    if cluster is None and workers == 1:
        return one_by_one
    if experiment.warm_start:
        raise UsageError(
            "warm_start trains each fold from the previous one, so folds cannot be trained side by "
            "side: leave out --workers and --cluster, or the warm start"
        )
    if cluster is None:
        return partial(beside, workers)
    return partial(on_cluster, cluster, experiment.seeds if experiment.seeds > 1 else 0)


def folds(sessions: pd.DatetimeIndex, retrain_every: int) -> tuple[Fold, ...]:
    """Return the folds that predict all sessions but the first, `retrain_every` each, the last
    fewer.

    Each is trained as of the session before.
    """
    days = sessions.date
    return tuple(
        Fold(
            number=number,
            as_of=days[start - 1],
            first=days[start],
            last=days[min(start + retrain_every, len(days)) - 1],
        )
        for number, start in enumerate(range(1, len(days), retrain_every), start=1)
    )


def run_fold(job: Job, _trained: Sequence[Any] = ()) -> FoldRun:
    """Train as of the fold's day, resuming, and predict each of its sessions as its night would
    have.

    What was `_trained` before is only waited for.
    """
    start = time.perf_counter()
    tonight, nights = _open_job(job)
    previous = None
    if tonight.context.experiment.warm_start and job.fold.number > 1:
        number = job.fold.number - 1
        with reading(tonight.context.engine) as conn:
            run_id = read_value(
                conn, "backtest_fold", "run_id", backtest_id=job.backtest, number=number
            )
            run = runs.run(conn, run_id)
        previous = load_run(tonight.context, run)
    model = fit_model(
        tonight,
        kind="backtest",
        previous=previous,
        # A part of the run's id: equal weights that predict from other bars are another run.
        serves=nights.digest,
    )
    predictions, refused = nights.predict(model)
    return FoldRun(
        fold=job.fold,
        run=model.row,
        bands=None if model.calibration is None else model.calibration.bands,
        predictions=predictions,
        refused=refused,
        seconds=time.perf_counter() - start,
    )


def run_seed(job: Job, seed: int) -> None:
    """Train one seed of a fold, and leave its state for `run_fold`, or a failure."""
    with suppress(Exception):
        tonight, nights = _open_job(job)
        fit_seed(tonight, seed, kind="backtest", serves=nights.digest)


def _open_job(job: Job) -> tuple[Tonight, "Nights"]:
    """Return the night of the training, with bars as it knows them, and the nights to predict.

    Raises UsageError where this process has another store.
    """
    context = open_stored_context(job.request)
    if location(context.engine) != job.store:
        raise UsageError(
            f"this worker's store is {location(context.engine)}, but the backtest's is "
            f"{job.store}: give the workers and the command the same DTML_DATABASE_URL and "
            "DTML_DATA"
        )
    nights = Nights(context, job.fold, job.known_at, job.prices_known)
    as_of = job.fold.as_of
    return Tonight(context, as_of, nights.known_before(as_of)), nights


@dataclass(frozen=True)
class Nights:
    """Predict the nights of a fold.

    With `prices_known` "now", each from its part of the bars as known at `known_at`, read once;
    with "then", each from versions known before the session that it predicts.
    """

    context: MarketContext
    fold: Fold
    known_at: datetime
    prices_known: PricesKnown

    @cached_property
    def days(self) -> list[date]:
        """Return the `as_of` of each night: the session before each one that the fold predicts."""
        calendar = self.context.market.calendar
        last = previous_session(calendar, self.fold.last)
        return [day.date() for day in sessions_between(calendar, self.fold.as_of, last)]

    @cached_property
    def bars(self) -> pd.DataFrame:
        """Return the bars of all nights as known at `known_at`, in the order of their sessions."""
        first = first_needed(self.context, self.context.experiment.windows, self.fold.as_of)
        bars = read_bars(self.context, first, self.days[-1], self.known_at)
        return bars.sort_values(["session", "symbol"], ignore_index=True)

    def known_before(self, as_of: date) -> datetime:
        """Return the moment for which the training or the night of `as_of` reads its bars.

        With "then", the open of the next session, as for a missed night, at most `known_at`.
        """
        if self.prices_known == "now":
            return self.known_at
        calendar = self.context.market.calendar
        return min(self.known_at, session_open(calendar, next_session(calendar, as_of)))

    @property
    def digest(self) -> str:
        """Return a text that differs where equal models could predict or refuse differently.

        By bars as known at `known_at`, fold, checks and, with "then", the bars of each night.
        """
        digests_of_nights = ""
        if self.prices_known == "then":
            digests_of_nights = " ".join(digest_of(self.bars_of(day)) for day in self.days)
        checks = self.context.market.checks
        return f"{digest_of(self.bars)} {self.fold} {checks} {digests_of_nights}"

    def predict(self, model: Model) -> tuple[pd.DataFrame, dict[str, str]]:
        """Return the predictions of every night, and the reason of each refused night.

        The frame has the columns of `predict_windows` and `known_at`, and none if every night was
        refused. The reasons are by `as_of` as text.
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
            moment = self.known_before(as_of)
            with reading(self.context.engine) as conn:
                return prices.prices(conn, self.context.name, first, as_of, known_at=moment)
        begin = self.bars["session"].searchsorted(pd.Timestamp(first))
        end = self.bars["session"].searchsorted(pd.Timestamp(as_of), side="right")
        return self.bars.iloc[begin:end]

    def _predictions_of(self, model: Model, as_of: date) -> pd.DataFrame:
        """Return one night's predictions, with their watermark; DtmlError for a refused one."""
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


def _store_fold(backtest: Backtest, made: FoldRun) -> None:
    market = backtest.context.market
    run_id = made.run["id"]
    fold = asdict(made.fold) | {
        "run_id": run_id,
        "predictions": len(made.predictions),
        "refused": made.refused,
        "seconds": made.seconds,
    }
    now = datetime.now(UTC)
    with transaction(backtest.engine) as conn:
        save(conn, "run", made.run)
        if made.bands is not None:
            bands = made.bands.assign(is_default=made.bands["level"] == market.level)
            save(conn, "abstention_band", bands, run_id=run_id)
        # Those of a single watermark are saved together. Without predictions there are no columns.
        for known_at, rows in made.predictions.groupby("known_at") if len(made.predictions) else ():
            moment = cast(pd.Timestamp, known_at).to_pydatetime()
            owner = {"market": market.name, "known_at": moment, "made_at": now}
            save(conn, "prediction", rows.assign(run_id=run_id), **owner)
        save(conn, "backtest_fold", fold, backtest_id=backtest.id)


def _score_and_store(backtest: Backtest, seconds: float | None) -> None:
    context = backtest.context
    record = backtest.record
    traded = _traded(backtest)
    year = sessions_a_year(context.market.calendar)
    # Earlier backtests count too: the best of many strategies looks good by chance.
    with reading(backtest.engine) as conn:
        earlier = query(conn, "sharpe_ratios", market=context.name, other_than=backtest.id)
    trials = list(earlier["sharpe"] / np.sqrt(year))
    trials += [session_sharpe(each.track["net"].to_numpy()) for each in traded if each.strategy]
    portfolios = []
    for each in traded:
        own_trials = trials if each.strategy else None
        figures = performance(each.track, trials=own_trials, index=each.of_index, year=year)
        strategy = each.strategy and asdict(each.strategy)
        portfolios.append({"portfolio": each.name, "strategy": strategy, **asdict(figures)})
    returns = [each.track.assign(portfolio=each.name) for each in traded]
    with transaction(backtest.engine) as conn:
        predicted = np.where(np.isfinite(record.probability), record.movement, np.nan)
        last = backtest.plan.last
        store_outcomes(conn, context, last, record, predicted, known_at=backtest.known_at)
        rules = dated_directions(record.rules, record.target)
        save(conn, "rule_direction", rules, market=context.name)
        # With the outcomes stored above; the views calibration and coverage read the counts.
        save_counts(conn, query(conn, "settled_folds", backtest=backtest.id))
        backtests.finish_backtest(
            conn,
            backtest.id,
            scores=slice_scores(record),
            returns=pd.concat(returns, ignore_index=True),
            portfolios=pd.DataFrame(portfolios),
            counts={
                # Predicted on any day.
                "stocks": int(np.isfinite(record.probability).any(axis=0).sum()),
                "tried": len(trials),
                # A year, of the best of so many strategies without any skill.
                "expected_best": expected_best(trials) * np.sqrt(year),
                "constituent_days": backtest.survivorship.constituent_days,
                "without_price": backtest.survivorship.without_price,
            },
            finished_at=datetime.now(UTC),
            seconds=seconds,
        )


class Traded(NamedTuple):
    """A portfolio: its strategy if it follows predictions, and its track beside the index's."""

    name: str
    strategy: Strategy | None
    track: pd.DataFrame
    of_index: pd.DataFrame | None  # bought when its stocks are


def _traded(backtest: Backtest) -> list[Traded]:
    """Trade the predictions by each strategy, and hold the index and equal parts from the next
    open.

    Portfolios without a session are left out, as of an index without opens.
    """
    context, record, bars = backtest.context, backtest.record, backtest.scored_bars
    quotes = quotes_of(context, bars, record.symbols)
    index_quotes = quotes_of(context, bars, (context.market.index.symbol,))
    of_index = {fill: index_track(index_quotes, record.as_of, fill) for fill in get_args(Fill)}
    traded = []
    for strategy in backtest.plan.strategies:
        weights = positions(record.probability, strategy)
        track = follow(weights, record.as_of, quotes, strategy)
        traded.append(Traded(strategy.name, strategy, track, of_index[strategy.fill]))
    equal = equal_weight_track(record.probability, record.as_of, quotes, "next_open")
    traded += [
        Traded(INDEX, None, of_index["next_open"], None),
        Traded(EQUAL_WEIGHT, None, equal, of_index["next_open"]),
    ]
    return [each for each in traded if len(each.track)]
