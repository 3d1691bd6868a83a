"""The look-ahead audit: does anything behind a prediction come from after it was made?

Each check runs a whole pipeline, from bars to probabilities, on a history and on a changed one. The change lies in the
future or is pure chance, so the predictions of an honest pipeline stay the same; `dtml.lookahead.leaks` holds pipelines
whose predictions do not. Everything is drawn from a seed and runs on CPU, where equal means equal to the last bit.

Trainings are short (`hurried`), and of a large market a part is audited (`History.cut`): the audit is about where rows
come from. It does not find a leak that needs more stocks, sessions or epochs to show.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pandas as pd
import torch

from dtml.checkpoints import Ensemble
from dtml.errors import DtmlError
from dtml.evaluation.metrics import score
from dtml.experiments import MINIMUM_TRAIN_DAYS, Experiment
from dtml.lookahead.leaks import LEAKS
from dtml.lookahead.pipeline import History, Pipeline
from dtml.markets import Market
from dtml.model import ModelConfig, Normalisation
from dtml.windows import Windows

LOOK_BACK, LOOK_AHEAD = 10, 5  # sessions before and after a date that are predicted when it is checked
LATEST_RETRAINING = 20  # a date is at most so many sessions after the training that serves it
ZOO_STOCKS, ZOO_SESSIONS = 12, 280  # the size of the history on which the planted leaks are audited
TEST_DAYS = 252  # at most, scored with directions drawn by coin
TRAIN_DAYS, VALIDATION_DAYS = 252, 21  # at most
SHORT, LONGER = 2, 12  # epochs; the latter where a leak must be learnt to show


@dataclass(frozen=True)
class Finding:
    """The finding of one check; `at` is the date that it looked at, `detail` one line for people."""

    check: str
    at: pd.Timestamp
    passed: bool
    detail: str


@dataclass(frozen=True)
class Trained(Pipeline):
    """A pipeline with a model that is already trained."""

    ensemble: Ensemble

    def symbols(self, market: Market) -> tuple[str, ...]:
        """Return the stocks of the model, where it has gains for each of them."""
        return self.ensemble.symbols if self.ensemble.is_tied else market.symbols

    def model(self, windows: Windows, as_of: pd.Timestamp) -> Ensemble:  # noqa: ARG002 - it serves every date
        """Return that model."""
        return self.ensemble


def audit(pipeline: Pipeline, history: History, *, seed: int = 0, dates: int = 3) -> list[Finding]:
    """Run every check, those that look at a date at so many dates, drawn from the seed.

    Trainings are short and of one seed. Raises DtmlError when the history is too short to train and to score.
    """
    quick, longer = (replace(pipeline, experiment=hurried(pipeline.experiment, epochs)) for epochs in (SHORT, LONGER))
    findings = []
    for at, trained in _dates(quick, history, seed, dates):
        findings += [
            scrambled_future(quick, history, at, trained, seed),
            appended_rows(quick, history, at, seed),
            spans_apart(quick, history, at),
        ]
    last = findings[-1].at
    return [*findings, whole_days(quick, history, last), permuted_labels(longer, history, seed)]


def audit_model(ensemble: Ensemble, history: History, *, seed: int = 0, dates: int = 3) -> list[Finding]:
    """Check the windows and predictions of a trained model at so many dates, whatever it was trained on."""
    pipeline = Trained(Experiment(windows=ensemble.windows), ensemble)
    findings = []
    for at, trained in _dates(pipeline, history, seed, dates, training=0):
        findings += [
            scrambled_future(pipeline, history, at, trained, seed),
            appended_rows(pipeline, history, at, seed),
        ]
    return findings


def prove(history: History, experiment: Experiment, *, seed: int = 0, dates: int = 2) -> pd.DataFrame:
    """Audit every planted leak, and honest pipelines of both normalisations, on a small part of a history.

    Rows `pipeline, planted, caught_by, caught`: `caught_by` names the checks that failed, and the audit works where
    `caught` equals `planted`. The network is small; some stocks enter and leave, whatever the market's list says.
    """
    small = _with_memberships(history.cut(stocks=ZOO_STOCKS, sessions=ZOO_SESSIONS, seed=seed), seed)
    network = replace(experiment.model, hidden=16, heads=2)
    variants = {f"honest, {one}": Pipeline(_of(experiment, network, one)) for one in get_args(Normalisation)}
    variants |= {leak.__name__: leak(_of(experiment, network, network.normalisation)) for leak in LEAKS}
    rows = []
    for name, pipeline in variants.items():
        failed = sorted({each.check for each in audit(pipeline, small, seed=seed, dates=dates) if not each.passed})
        rows.append((name, type(pipeline) is not Pipeline, ", ".join(failed), bool(failed)))
    return pd.DataFrame(rows, columns=["pipeline", "planted", "caught_by", "caught"])


def scrambled_future(
    pipeline: Pipeline, history: History, at: pd.Timestamp, trained: pd.Timestamp, seed: int
) -> Finding:
    """Scramble everything after `at`, train as of `trained` and predict: no row made up to `at` may change.

    Some stocks lack their last bars in both histories, so that backward filling shows.
    """
    before = history.with_holes(at, seed)
    rows, others = (_served(pipeline, each, at, trained) for each in (before, before.scrambled_after(at, seed)))
    detail = f"{len(rows)} predictions up to that day, the same to the last bit whatever came later"
    if not (same := rows.equals(others)):
        detail = changes(rows, others)
    return Finding("scrambled_future", at, same and len(rows) > 0, detail)


def appended_rows(pipeline: Pipeline, history: History, at: pd.Timestamp, seed: int) -> Finding:
    """Check that windows of what was known at `at` equal those of the whole history up to `at`, to the last bit."""
    whole = history.with_holes(at, seed)
    old, new = (pipeline.windows(each) for each in (whole.known_at(at), whole))
    old, new = (each.days(slice(0, int((each.as_of <= at).sum()))) for each in (old, new))
    changed = [name for name in ("as_of", "target") if not getattr(old, name).equals(getattr(new, name))]
    if not changed and old.symbols == new.symbols:
        known = torch.from_numpy(np.asarray(old.target <= at))
        changed = [name for name in ("stocks", "index", "observed") if not _equal(old, new, name)]
        changed += [] if torch.equal(*(each.movement[known].nan_to_num() for each in (old, new))) else ["movement"]
    elif not changed:
        changed = ["symbols"]
    detail = f"{len(old)} days have the same windows with and without what came later"
    return Finding(
        "appended_rows", at, not changed, f"later rows change {', '.join(changed)} of old days" if changed else detail
    )


def spans_apart(pipeline: Pipeline, history: History, at: pd.Timestamp) -> Finding:
    """Check a training as of `at`: days to fit, a gap, days that choose the epoch, a gap, and no later outcome."""
    parts = pipeline.spans(pipeline.windows(history), at)
    fitted, chosen = (part.target[part.movement.isfinite().any(dim=1).numpy()] for part in parts)
    gap = pipeline.experiment.gap_sessions
    ends = [fitted.max(), chosen.min(), chosen.max(), at]
    places = history.sessions.get_indexer(pd.DatetimeIndex(ends))
    between, after = places[1] - places[0] - 1, places[3] - places[2]
    detail = (
        f"fitted to {_day(ends[0])}, epoch chosen on {_day(ends[1])} to {_day(ends[2])}, "
        f"{between} and {after} sessions apart from what follows; {gap} asked for"
    )
    return Finding("spans_apart", at, bool(between >= gap and after >= gap), detail)


def whole_days(pipeline: Pipeline, history: History, at: pd.Timestamp) -> Finding:
    """Check that from `at` on every observed stock of a day is predicted, so that no outcome chooses the rows."""
    windows = pipeline.windows(history)
    days = _around(windows, at, back=0)
    rows = pipeline.predict(pipeline.model(windows, at), days)
    day, stock = days.observed.nonzero(as_tuple=True)
    expected = pd.MultiIndex.from_arrays([days.as_of[day.numpy()], pd.Index(days.symbols)[stock.numpy()]])
    missing = expected.difference(pd.MultiIndex.from_frame(rows[["as_of", "symbol"]]))
    detail = f"{len(rows)} predictions of {len(expected)} observed stock-days, {len(missing)} without one"
    return Finding("whole_days", at, len(expected) == len(rows) and not len(missing), detail)


def permuted_labels(pipeline: Pipeline, history: History, seed: int) -> Finding:
    """Check that with directions drawn by coin the 95 % interval of MCC covers 0, at the first or a second drawing.

    A pipeline fails if both exclude 0 on the same side: of honest ones 2 x .025 x .025, about one in 800. The coin is
    tossed before windows are built, so features and labels change together, and a label among the features stays one;
    and it is tossed for whole days, so that stocks still rise and fall together (`History.tossed`).
    """
    detail, sides = [], []
    for drawing in (2 * seed, 2 * seed + 1):
        at, found, (low, high) = _score_tossed(pipeline, history.tossed(drawing))
        detail.append(f"{found:+.3f} [{low:+.3f}, {high:+.3f}]")
        sides.append(1 if low > 0 else -1 if high < 0 else 0)
        if low <= 0 <= high:
            break
    passed = len(set(sides)) > 1 or sides[-1] == 0
    return Finding("permuted_labels", at, passed, f"MCC with directions drawn by coin: {', then '.join(detail)}")


def hurried(experiment: Experiment, epochs: int) -> Experiment:
    """Return the same experiment with one seed and a short training on few days."""
    mine = experiment.training
    recipe = replace(
        mine,
        epochs=epochs,
        first_kept_epoch=1,
        patience=None,
        batch_days=min(mine.batch_days, 16),
        learning_rate=0.01,
        penalty=min(mine.penalty, 0.01),
    )
    return replace(
        experiment,
        training=recipe,
        seeds=1,
        train_sessions=min(experiment.train_sessions or TRAIN_DAYS, TRAIN_DAYS),
        validation_sessions=min(experiment.validation_sessions, VALIDATION_DAYS),
    )


def changes(rows: pd.DataFrame, others: pd.DataFrame) -> str:
    """Say how many predictions `as_of, symbol, probability` changed, came or went, and name the first of them."""
    both = rows.merge(others, on=["as_of", "symbol"], how="outer", suffixes=("", "_other"))
    changed = both[both["probability"] != both["probability_other"]].sort_values(["as_of", "symbol"])
    if changed.empty:
        return "the same probabilities in other rows or another order"
    first = changed.iloc[0]
    return (
        f"{len(changed)} of {len(both)} predictions change with what came later: {first['symbol']} on "
        f"{_day(first['as_of'])} from {first['probability']:.6f} to {first['probability_other']:.6f}"
    )


def _of(experiment: Experiment, network: ModelConfig, normalisation: Normalisation) -> Experiment:
    return replace(experiment, model=replace(network, normalisation=normalisation))


def _with_memberships(history: History, seed: int) -> History:
    """Let a third of the stocks enter and a third leave, on sessions drawn from the middle of the history."""
    generator = np.random.default_rng([seed, 2])
    days = np.sort(history.bars["session"].unique())
    listed = list(history.market.constituents)
    for place, which in enumerate(generator.permutation(len(listed))):
        day = pd.Timestamp(generator.choice(days[len(days) // 3 : -len(days) // 8])).date()
        if place % 3:
            listed[which] = replace(listed[which], **({"since": day} if place % 3 == 1 else {"until": day}))
    return replace(history, market=replace(history.market, constituents=tuple(listed)))


def _score_tossed(pipeline: Pipeline, tossed: History) -> tuple[pd.Timestamp, float, tuple[float, float]]:
    """Return the date of training, and MCC with its interval on the days after it, at most a third of all."""
    windows = pipeline.windows(tossed)
    at = windows.as_of[-min(TEST_DAYS, len(windows) // 3)]
    later = windows.days(slice(int(windows.as_of.searchsorted(at)), len(windows)))
    rows = pipeline.predict(pipeline.model(windows, at), later)
    change = pd.Series(tossed.returns(rows))
    directions = pd.DataFrame({"session": rows["target"], "predicted": rows["probability"] > 0.5, "rose": change > 0})
    found = score(directions[change.notna() & (change != 0)])  # a coin cannot change the sign of a return of 0
    if not np.isfinite(found.mcc_interval).all():
        raise DtmlError(f"{found.days} days after {_day(at)} can be scored: too few for the audit; fetch more history")
    return at, found.mcc, found.mcc_interval


def _served(pipeline: Pipeline, history: History, at: pd.Timestamp, trained: pd.Timestamp) -> pd.DataFrame:
    """Return the predictions made up to `at`; a few later days are predicted with them, as in a backtest."""
    windows = pipeline.windows(history)
    rows = pipeline.predict(pipeline.model(windows, trained), _around(windows, at, LOOK_BACK))
    return rows[rows["as_of"] <= at].reset_index(drop=True)


def _around(windows: Windows, at: pd.Timestamp, back: int) -> Windows:
    """Return the day of a date, so many before it, and some after it."""
    place = int(windows.as_of.searchsorted(at))
    return windows.days(slice(max(0, place - back), place + 1 + LOOK_AHEAD))


def _dates(
    pipeline: Pipeline, history: History, seed: int, dates: int, training: int | None = None
) -> Iterator[tuple[pd.Timestamp, pd.Timestamp]]:
    """Draw dates that have a history and a future, each with the date of the training that serves it.

    The first is served by a training at its own close, the strictest case: nothing later may reach it.
    """
    windows = Pipeline.windows(pipeline, history)
    as_of = windows.as_of[windows.observed.any(dim=1).numpy()]
    experiment = pipeline.experiment
    if training is None:
        training = MINIMUM_TRAIN_DAYS + experiment.validation_sessions + 2 * experiment.gap_sessions + 1
    first, stop = training + LATEST_RETRAINING, len(as_of) - LOOK_AHEAD
    if stop - first < dates:
        raise DtmlError(
            f"{len(as_of)} days have a constituent with a whole window, and an audit of {dates} dates needs "
            f"{first + LOOK_AHEAD + dates}: fetch a longer history"
        )
    generator = np.random.default_rng(seed)
    for number, place in enumerate(generator.choice(np.arange(first, stop), dates, replace=False)):
        age = 0 if number == 0 else int(generator.integers(0, LATEST_RETRAINING + 1))
        yield as_of[place], as_of[place - age]


def _equal(old: Windows, new: Windows, name: str) -> bool:
    return torch.equal(getattr(old, name), getattr(new, name))


def _day(moment: pd.Timestamp) -> str:
    return str(moment.date())
