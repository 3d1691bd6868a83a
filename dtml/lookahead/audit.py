"""The look-ahead audit: does anything behind a prediction come from after it was made?

Three questions, whose answers must be equal to the last bit, on CPU. Cut: what a path from bars to
predictions says up to a day is the same where the history ends there, goes on, or goes on
otherwise. Rescale: the same after later dividends and splits. Repeat: the same again. Beside them,
the spans of a training lie apart, and no stock is left out. The tests plant leaks to show that they
are found.

Trainings are short (`hurried`), and a part of a large market is audited (`History.cut`): a leak
that needs more stocks, sessions or epochs is not found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial

import numpy as np
import pandas as pd

from dtml.checkpoints import Ensemble
from dtml.errors import DtmlError
from dtml.experiments import MINIMUM_TRAIN_DAYS, Experiment, vary
from dtml.lookahead.pipeline import LOOK_AHEAD, Answer, History, Pipeline, Said, days_around
from dtml.markets import Market
from dtml.windows import Windows

DATES = 2  # at which a path is asked
LATEST_RETRAINING = 20  # the most sessions from a training to a date that it serves
TRAIN_DAYS = 126  # at most
VALIDATION_DAYS = 21  # at most
EPOCHS = 2
MEMBERS = 2  # seeds: a leak may choose one
LEAST_GAP = 1  # sessions: without a gap, a close is part of labels on both sides
AFTER = {
    "cut": "with later bars",
    "rescale": "with later dividends and splits",
    "repeat": "when asked again",
}


@dataclass(frozen=True)
class Finding:
    """The finding of one check at a date; `passed` is None where none could be made."""

    check: str
    at: pd.Timestamp
    passed: bool | None
    detail: str


@dataclass(frozen=True)
class Trained(Pipeline):
    """A pipeline with a model that is already trained."""

    ensemble: Ensemble

    def symbols(self, market: Market) -> tuple[str, ...]:
        """Return the stocks of the model if it has gains for each of them, else the market's."""
        return self.ensemble.symbols if self.ensemble.model.is_tied else market.symbols

    def model(self, windows: Windows, as_of: pd.Timestamp) -> Ensemble:  # noqa: ARG002 - it serves every date
        """Return that model."""
        return self.ensemble


def audit(pipeline: Pipeline, history: History, *, trains: bool = True) -> list[Finding]:
    """Make every check, trained briefly, at `DATES` dates; return the findings, latest date first.

    Of a pipeline that `trains` nothing, only the three questions are asked. Raises DtmlError when
    the history is too short.
    """
    brief = replace(pipeline, experiment=hurried(pipeline.experiment))
    findings: list[Finding] = []
    # As many as `Experiment.spans` asks for.
    gaps = 2 * brief.experiment.gap_sessions
    days = MINIMUM_TRAIN_DAYS + brief.experiment.validation_sessions + gaps + 1
    for at, trained in _dates(brief, history, training_days=days if trains else 0):
        findings += questions(partial(brief.said, at=at, trained=trained), history, at)
        if trains:
            findings.append(spans_apart(brief, history, at))
    return [*findings, whole_days(brief, history, findings[0].at)] if trains else findings


def audit_model(ensemble: Ensemble, history: History) -> list[Finding]:
    """Ask a trained model the three questions at `DATES` dates."""
    return audit(Trained(Experiment(windows=ensemble.windows), ensemble), history, trains=False)


def questions(
    ask: Callable[[History], Said], history: History, at: pd.Timestamp, *, seed: int = 0
) -> list[Finding]:
    """Return the findings of cut, rescale and repeat at a date.

    `ask` returns what the path says of the sessions up to it; it fails where nothing is said. Some
    stocks, drawn by the seed, lack the last bar or two, so that a fill from later ones shows.
    """
    whole = history.with_holes(at, seed)
    past = whole.known_at(at)
    said = ask(past)
    others = {
        "cut": (ask(whole), ask(whole.scrambled_after(at, seed))),
        "rescale": (ask(past.rescaled()),),
        "repeat": (ask(past),),
    }
    findings = []
    for check, answers in others.items():
        change = next(filter(None, (changes(said, answer) for answer in answers)), "")
        lacking = [name for name, answer in said.items() if not len(answer)]
        detail = f"{', '.join(said)} up to that day are equal to the last bit"
        if lacking:
            detail = f"there are no {', '.join(lacking)} up to that day"
        elif change:
            detail = f"{change} {AFTER[check]}"
        findings.append(Finding(check, at, not (change or lacking), detail))
    return findings


def changes(said: Said, other: Said) -> str:
    """Say which answers differ, and in which row first; return an empty text if none does."""
    changed = [name for name in said if not _is_same(said[name], other[name])]
    if not changed:
        return ""
    words = f"{', '.join(changed)} change"
    rows, others = said[changed[-1]], other[changed[-1]]
    if isinstance(rows, pd.DataFrame) and isinstance(others, pd.DataFrame) and "symbol" in rows:
        key = ["as_of", "symbol"]
        paired = rows.merge(others, how="outer", indicator=True)
        differing = paired[paired["_merge"] != "both"].sort_values(key).drop_duplicates(key)
        if len(differing):  # else only the order differs
            first = differing.iloc[0]
            words += (
                f" ({len(differing)} of {len(paired.drop_duplicates(key))}, the first of "
                f"{first['symbol']} on {_day(first['as_of'])})"
            )
    return words


def _is_same(answer: Answer, other: Answer) -> bool:
    if isinstance(answer, pd.DataFrame) and isinstance(other, pd.DataFrame):
        return answer.equals(other)
    return np.array_equal(answer, other, equal_nan=True)


def spans_apart(pipeline: Pipeline, history: History, at: pd.Timestamp) -> Finding:
    """Check a training as of `at`: days to fit, a gap, days to choose epochs, a gap.

    All outcomes are the same where the history ends at `at`.
    """
    train, validation = pipeline.spans(pipeline.windows(history), at)
    other_train, other_validation = pipeline.spans(pipeline.windows(history.known_at(at)), at)
    is_known = _same_outcomes(train, other_train) and _same_outcomes(validation, other_validation)

    fitted = _days_with_outcome(train)
    choosing = _days_with_outcome(validation)
    ends = pd.DatetimeIndex([fitted.max(), choosing.min(), choosing.max(), at])  # targets, and `at`
    fitted_last, choosing_first, choosing_last, training = history.sessions.get_indexer(ends)
    between = choosing_first - fitted_last - 1
    # The first target predicted is the session after the training, so no 1 is subtracted here.
    after = training - choosing_last
    gap = max(LEAST_GAP, pipeline.experiment.gap_sessions)
    detail = (
        f"fitted up to {_day(ends[0])}, epoch chosen on {_day(ends[1])} to {_day(ends[2])}; "
        f"gaps after these spans: {between} and {after} sessions, at least {gap} needed"
    )
    if not is_known:
        detail = f"{detail}; outcomes before {_day(at)} depend on prices after it"
    passed = bool(between >= gap and after >= gap and is_known)
    return Finding("spans_apart", at, passed, detail)


def _same_outcomes(windows: Windows, others: Windows) -> bool:
    """Return whether two windows have the same outcomes, the same ones of which are missing."""
    return np.array_equal(windows.movement.numpy(), others.movement.numpy(), equal_nan=True)


def _days_with_outcome(windows: Windows) -> pd.DatetimeIndex:
    return windows.target[windows.movement.isfinite().any(dim=1).numpy()]


def whole_days(pipeline: Pipeline, history: History, at: pd.Timestamp) -> Finding:
    """Check that the observed stocks of `at` and `LOOK_AHEAD` days, and no other, are predicted."""
    windows = pipeline.windows(history)
    days = days_around(windows, at, back=0)
    model = pipeline.model(windows, at)
    rows = pipeline.predict(model, days)
    day_places, stock_places = days.observed.nonzero(as_tuple=True)
    expected = pd.MultiIndex.from_arrays(
        [days.as_of[day_places.numpy()], pd.Index(days.symbols)[stock_places.numpy()]]
    )
    missing = expected.difference(pd.MultiIndex.from_frame(rows[["as_of", "symbol"]]))
    detail = (
        f"{len(rows)} predictions of {len(expected)} observed stock-days, "
        f"{len(missing)} without one"
    )
    passed = len(expected) == len(rows) and not len(missing)
    return Finding("whole_days", at, passed, detail)


def hurried(experiment: Experiment) -> Experiment:
    """Return the same experiment with few seeds and a short training on few days."""
    training = experiment.training
    return vary(
        experiment,
        {
            "epochs": EPOCHS,
            "first_kept_epoch": 1,  # the validation days choose among all of the few epochs
            "patience": None,  # no early stopping: all of them are trained
            "learning_rate": 0.01,  # larger steps, so that the weights leave their beginning
            "batch_days": min(training.batch_days, 16),  # more steps in an epoch, for that too
            "seeds": MEMBERS,
            "train_sessions": min(experiment.train_sessions or TRAIN_DAYS, TRAIN_DAYS),
            "validation_sessions": min(experiment.validation_sessions, VALIDATION_DAYS),
        },
    )


def _dates(
    pipeline: Pipeline, history: History, training_days: int
) -> Iterator[tuple[pd.Timestamp, pd.Timestamp]]:
    """Yield `DATES` dates, evenly spread from the latest on, each with that of its training.

    At its own close for the latest, `LATEST_RETRAINING` days before for others. Raises DtmlError
    without `LOOK_AHEAD` days after, and `training_days` before.
    """
    windows = pipeline.windows(history)
    as_of = windows.as_of[windows.observed.any(dim=1).numpy()]
    first = training_days + LATEST_RETRAINING
    latest = len(as_of) - LOOK_AHEAD - 1
    if latest - first < DATES:
        raise DtmlError(
            f"only {len(as_of)} days have a stock with all sessions that the model reads, but an "
            f"audit of {DATES} dates needs {first + LOOK_AHEAD + DATES + 1}: fetch a longer "
            "history, audit as of a later day, or lower window or gap_sessions in the market "
            "file's [model]"
        )
    yield as_of[latest], as_of[latest]
    for place in np.linspace(latest, first, DATES).astype(int)[1:]:
        yield as_of[place], as_of[place - LATEST_RETRAINING]


def _day(moment: pd.Timestamp) -> str:
    return str(moment.date())


CHECK = "list_known_earlier"
SHOWN = 5  # stocks that a finding names


@dataclass(frozen=True)
class EarlierList:
    """A list of constituents as a training recorded it, on the last day on which it was true."""

    market: Market
    day: date


def audit_list(market: Market, earlier: Sequence[EarlierList], at: pd.Timestamp) -> Finding:
    """Check that a market's list has the constituents that earlier lists had on their own day.

    Those from before this list's date, if it has one; without any, no check can be made.
    """
    own_day = market.constituents_as_of
    comparable = [each for each in earlier if own_day is None or each.day < own_day]
    if not comparable:
        detail = (
            f"no training recorded this list before {own_day or 'today'}, so it cannot be checked "
            "yet, for any day, whether a stock leaves the list before its removal was announced"
        )
        return Finding(CHECK, at, passed=None, detail=detail)
    days = sorted({each.day for each in comparable})
    changes = [change for each in comparable for change in _changes(market, each)]
    if changes:
        more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        detail = (
            f"the past of the list has changed: {'; '.join(changes[:SHOWN])}{more}. This "
            "is look-ahead, unless the earlier list was wrong"
        )
        return Finding(CHECK, at, passed=False, detail=detail)
    detail = (
        f"the constituents of {len(days)} days from {days[0]} to {days[-1]} are those that were "
        f"known then; before {days[0]} no earlier list is stored, so nothing can be checked"
    )
    return Finding(CHECK, at, passed=True, detail=detail)


def _changes(market: Market, earlier: EarlierList) -> list[str]:
    """Say which stocks only one of two lists has on the day of the earlier one."""
    day = earlier.day
    then, now = (
        {stay.symbol for stay in each.constituents_on(day)} for each in (earlier.market, market)
    )
    changes = [
        f"{symbol} was a constituent on {day} in the earlier list, but not in the present one"
        if symbol in then
        else f"{symbol} was no constituent on {day} in the earlier list, but is in the present one"
        for symbol in then ^ now
    ]
    return sorted(changes)
