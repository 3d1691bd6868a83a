"""Walk forward through history as the nights would have: what a backtest is, and its folds, one job each.

A job trains and predicts, and writes what it found to files; it writes nothing to the store. So jobs run here, in
other processes or on other machines alike, and one process stores what they return (`flows.backtest_scores`).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from db.engine import location
from dtml.backtest import Fold, folds
from dtml.checkpoints import load_ensemble
from dtml.errors import DtmlError, UsageError
from dtml.inference import attention, choose_device
from dtml.portfolio import Costs
from dtml.sessions import next_session, previous_session, sessions_between
from flows.desk import Desk, Order, open_stored_desk
from flows.predict import first_needed, night_windows, predict_night, shortage, too_few
from flows.settings import data_folder
from flows.train import Model, fit_model, stored_bars

_EARLIEST = date(1900, 1, 1)
MOMENTS = ("data_watermark", "created_at")
DAYS = ("train_first", "train_last")


@dataclass(frozen=True)
class Plan:
    """What a user asks of a backtest, besides the market."""

    first: date  # sessions predicted, first .. last
    last: date
    retrain_every: int
    top: int = 10  # stocks a portfolio is long, and short
    max_weight: float = 0.1
    costs: Costs = field(default_factory=Costs)
    attention_on: tuple[date, ...] = ()  # sessions predicted whose attention is kept


@dataclass(frozen=True)
class Backtest:
    """A plan with everything opened: its folds, and the moment as known at which every bar is read."""

    desk: Desk
    order: Order
    plan: Plan
    folds: tuple[Fold, ...]
    known_at: datetime

    @property
    def id(self) -> str:
        """Market, first session, and a digest of all that decides the figures."""
        spells = [(each.symbol, str(each.since), str(each.until)) for each in self.desk.market.constituents]
        device = choose_device(self.desk.device).type
        made_by = [version("dtml-nightshift"), version("torch"), device, str(self.known_at), spells]
        said = json.dumps([asdict(self.plan), asdict(self.desk.experiment), made_by], default=str)
        return f"{self.desk.name}-{self.plan.first}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"

    @property
    def until(self) -> date:
        """The last session whose bars it reads: the one after the last predicted, whose open ends the last position."""
        return next_session(self.desk.market.calendar, self.plan.last)

    @property
    def folder(self) -> Path:
        """Where the folds leave what they found."""
        return data_folder() / "backtests" / self.id

    @property
    def config(self) -> dict[str, Any]:
        """The settings as JSON gives them back."""
        settings = {"experiment": asdict(self.desk.experiment), "plan": asdict(self.plan)}
        plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
        return plain


@dataclass(frozen=True)
class Job:
    """One fold, in plain values, for whichever process takes it."""

    order: Order
    fold: Fold
    known_at: datetime
    attention_on: tuple[date, ...]
    folder: Path
    store: str  # where the store is, without its password
    previous: Path | None = None  # what the fold before left, for a warm start
    threads: int | None = None

    @property
    def card(self) -> Path:
        """The file that says that the fold is done, and what it found."""
        return self.folder / f"fold-{self.fold.number:04d}.json"


Runner = Callable[[Sequence[Job]], Iterable[Path]]


def open_backtest(order: Order, plan: Plan) -> Backtest:
    """Open what is stored of a market and lay out the folds; every session predicted must have happened."""
    desk = open_stored_desk(order)
    last = desk.source.last_session()
    if last is None or plan.last > last:
        raise UsageError(f"the store holds {desk.name} up to {last}; a backtest to {plan.last} needs what came of it")
    if plan.first > plan.last:
        raise UsageError(f"--from {plan.first} lies after --to {plan.last}")
    sessions = sessions_between(desk.market.calendar, previous_session(desk.market.calendar, plan.first), plan.last)
    _, known_at = stored_bars(desk, _EARLIEST, next_session(desk.market.calendar, plan.last))
    laid = folds(sessions, plan.first, plan.last, plan.retrain_every)
    return Backtest(desk, order, plan, tuple(laid), known_at)


def jobs_of(backtest: Backtest, threads: int | None = None) -> list[Job]:
    """A job for each fold; those whose card lies there have nothing left to do."""
    common = Job(
        backtest.order,
        backtest.folds[0],
        backtest.known_at,
        backtest.plan.attention_on,
        backtest.folder,
        location(backtest.desk.engine),
        threads=threads,
    )
    jobs = [replace(common, fold=fold) for fold in backtest.folds]
    if backtest.desk.experiment.warm_start:
        jobs = jobs[:1] + [replace(job, previous=before.card) for before, job in pairwise(jobs)]
    return jobs


def one_by_one(jobs: Sequence[Job]) -> Iterator[Path]:
    """Run the jobs here, in order."""
    for job in jobs:
        yield run_fold(job)


def run_fold(job: Job) -> Path:
    """Train as of the fold's day, predict each of its sessions as its night would have, and leave files.

    Returns the card's path. What a killed job had trained is gone on with.
    """
    if job.card.exists():
        return job.card
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    desk = open_stored_desk(job.order)
    if location(desk.engine) != job.store:
        raise UsageError(
            f"this worker's store is {location(desk.engine)}, the backtest's is {job.store}: "
            "set DTML_DATABASE_URL and DTML_DATA for the workers as for the command"
        )
    job.folder.mkdir(parents=True, exist_ok=True)
    previous = None if job.previous is None else _model_of(desk, read_card(job.previous)["run"])
    trained = fit_model(desk, job.fold.as_of, kind="backtest", known_at=job.known_at, previous=previous)
    nights = _Nights(desk, trained.model, job.fold, job.known_at)
    parts, refused = nights.predict()
    made = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    seen = [nights.attention(target) for target in job.attention_on if job.fold.first <= target <= job.fold.last]
    _write_frame(made, job.card.with_suffix(".parquet"))
    if seen:
        _write_frame(pd.concat(seen, ignore_index=True), job.card.with_suffix(".attention.parquet"))
    card = {"fold": asdict(job.fold), "run": dict(trained.row), "refused": refused, "known_at": job.known_at}
    _write(job.card, json.dumps(card, default=str).encode())
    return job.card


def read_card(card: Path) -> dict[str, Any]:
    """What a fold left: `fold`, the row of its `run`, and the nights `refused` with their reasons."""
    found: dict[str, Any] = json.loads(card.read_text())
    run = found["run"]
    run |= {name: datetime.fromisoformat(str(run[name])) for name in MOMENTS}
    run |= {name: date.fromisoformat(str(run[name])) for name in DAYS}
    return found


def read_predictions(card: Path) -> pd.DataFrame:
    """The predictions of a fold: `as_of, target, symbol, probability, spread`."""
    return pd.read_parquet(card.with_suffix(".parquet"))


def read_attention(card: Path) -> pd.DataFrame | None:
    """Who moved whom on the days asked for, or None when none of them lies in the fold."""
    file = card.with_suffix(".attention.parquet")
    return pd.read_parquet(file) if file.exists() else None


def _model_of(desk: Desk, run: Mapping[str, Any]) -> Model:
    file = data_folder() / run["checkpoint_path"]
    return Model(run["id"], load_ensemble(file, market=desk.name, sha=run["checkpoint_hash"]))


class _Nights:
    """The nights of a fold, with the bars they read."""

    def __init__(self, desk: Desk, model: Model, fold: Fold, known_at: datetime) -> None:
        self.desk, self.model, self.fold = desk, model, fold
        first = first_needed(desk, model, fold.as_of)
        bars, _ = stored_bars(desk, first, previous_session(desk.market.calendar, fold.last), known_at)
        self.bars = bars.sort_values(["session", "symbol"], ignore_index=True)

    def predict(self) -> tuple[list[pd.DataFrame], dict[str, str]]:
        """The predictions of every night, and why some nights are refused, as the nightly job would have."""
        calendar = self.desk.market.calendar
        made, refused = [], {}
        for day in sessions_between(calendar, self.fold.as_of, previous_session(calendar, self.fold.last)):
            as_of = day.date()
            try:
                made.append(self._night(as_of))
            except DtmlError as error:
                refused[str(as_of)] = str(error)
        return made, refused

    def attention(self, target: date) -> pd.DataFrame:
        """Rows `target, symbol, source, weight` of one session predicted."""
        as_of = previous_session(self.desk.market.calendar, target)
        tonight = night_windows(self.desk, self.model, as_of, self._bars(as_of))
        weights = attention(self.model.ensemble, tonight, choose_device(self.desk.device))[0]
        there = tonight.observed[0].numpy()
        names = pd.Index(tonight.symbols)[there]
        square = pd.DataFrame(weights.numpy()[there][:, there], index=names, columns=names)
        rows = square.rename_axis("symbol").reset_index().melt("symbol", var_name="source", value_name="weight")
        return rows.assign(target=pd.Timestamp(target))

    def _night(self, as_of: date) -> pd.DataFrame:
        bars = self._bars(as_of)
        short = shortage(self.desk, as_of, set(bars.loc[bars["session"] == pd.Timestamp(as_of), "symbol"]))
        if short is not None:
            raise DtmlError(short.what)
        made = predict_night(self.desk, self.model, as_of, bars)
        if too_few(self.desk, as_of, made):
            raise DtmlError(f"{len(made)} of {len(self.desk.members(as_of))} constituents can be predicted")
        return made

    def _bars(self, as_of: date) -> pd.DataFrame:
        """The bars that a night reads."""
        begin = self.bars["session"].searchsorted(pd.Timestamp(first_needed(self.desk, self.model, as_of)))
        end = self.bars["session"].searchsorted(pd.Timestamp(as_of), side="right")
        return self.bars.iloc[begin:end]


def _write_frame(frame: pd.DataFrame, file: Path) -> None:
    partial = file.with_suffix(".partial")
    frame.to_parquet(partial, index=False)
    partial.replace(file)


def _write(file: Path, content: bytes) -> None:
    partial = file.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(file)
