"""The look-ahead audit: does anything behind a prediction come from after it was made?

Each check runs a whole pipeline, from bars to probabilities, on a history and on a changed one. The
change is in the future or is pure chance, so the predictions of an honest pipeline stay the same;
`dtml.lookahead.leaks` holds pipelines whose predictions do not. All random numbers come from a
seed, and everything runs on CPU, where equal means equal to the last bit.

Trainings are short (`hurried`), and only a part of a large market is audited (`History.cut`): the
audit is about where rows come from. It does not find a leak that needs more stocks, sessions or
epochs to show.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import numpy as np
import pandas as pd
import torch

from dtml.checkpoints import Ensemble
from dtml.errors import DtmlError
from dtml.evaluation.metrics import MINIMUM_DAYS, score
from dtml.experiments import MINIMUM_TRAIN_DAYS, Experiment, vary
from dtml.lookahead.leaks import LEAKS, fit_for_leaks
from dtml.lookahead.pipeline import Course, History, Pipeline
from dtml.markets import Market
from dtml.model import Normalisation
from dtml.prices.returns import adjusted_price, returns_of
from dtml.windows import Windows

LOOK_BACK = 10  # sessions before a date that are predicted when the date is checked
LOOK_AHEAD = 5  # sessions after the date that are predicted too
LATEST_RETRAINING = 20  # the most sessions from a training to a date that it serves
ZOO_STOCKS = 12  # of the history on which the planted leaks are audited
ZOO_SESSIONS = 280
TEST_DAYS = 252  # at most, that are scored with directions drawn by coin
TRAIN_DAYS = 252  # at most
VALIDATION_DAYS = 21  # at most
SHORT = 2  # epochs
LONGER = 12  # epochs where a leak must be learnt to show
MEMBERS = 2  # seeds trained where predictions are compared to the last bit: a leak may choose one
LEAST_GAP = 1  # sessions: without a gap, a close is part of labels on both sides
# Least correlation with the index: on real markets it is .93 to .98, a session apart at most .12.
IN_STEP = 0.3
MEDIAN_DAYS = 42  # before the scored days; their median probability is the threshold of a rise
DRAWINGS = 4  # of the coin, at most
ONE_SIDED = 0.05  # a direction with a smaller share of the predictions counts as never predicted


@dataclass(frozen=True)
class Finding:
    """The finding of one check; `at` is the date that it looked at, `detail` one line for people.

    A check without power could not have failed: it does not count as passed and raises no alarm.
    """

    check: str
    at: pd.Timestamp
    passed: bool
    detail: str
    has_power: bool = True

    @property
    def is_alarm(self) -> bool:
        """Return whether look-ahead was found."""
        return self.has_power and not self.passed


@dataclass(frozen=True)
class Trained(Pipeline):
    """A pipeline with a model that is already trained."""

    ensemble: Ensemble

    def symbols(self, market: Market) -> tuple[str, ...]:
        """Return the stocks of the model if it has gains for each of them, else the market's."""
        return self.ensemble.symbols if self.ensemble.is_tied else market.symbols

    def model(self, windows: Windows, as_of: pd.Timestamp) -> Ensemble:  # noqa: ARG002 - it serves every date
        """Return that model."""
        return self.ensemble


def audit(pipeline: Pipeline, history: History, *, seed: int = 0, dates: int = 3) -> list[Finding]:
    """Run every check and return the findings, one for each check and date.

    Checks that look at a date run at `dates` dates drawn from the seed, `whole_days` at the last
    alone. Trainings are short. Raises DtmlError when the history is too short to train and score.
    """
    return [*_without_coin(pipeline, history, seed, dates), _with_coin(pipeline, history, seed)]


def _without_coin(pipeline: Pipeline, history: History, seed: int, dates: int) -> list[Finding]:
    """Return the findings of every check but the coin's, which needs a longer training."""
    experiment = hurried(pipeline.experiment, SHORT, seeds=MEMBERS)
    quick = replace(pipeline, experiment=experiment)
    history = pipeline.received(history)
    findings: list[Finding] = []
    for at, trained in _dates(quick, history, seed, dates):
        findings.extend(_bitwise_findings(quick, history, at, trained, seed))
        findings.append(spans_apart(quick, history, at))
    findings.append(whole_days(quick, history, findings[-1].at))  # at the last date drawn
    findings.append(index_in_step(history))
    return findings


def _with_coin(pipeline: Pipeline, history: History, seed: int) -> Finding:
    """Return the finding with directions drawn by coin, after a training that can learn a leak."""
    longer = replace(pipeline, experiment=hurried(pipeline.experiment, LONGER))
    return permuted_labels(longer, pipeline.received(history), seed)


def audit_model(
    ensemble: Ensemble, history: History, *, seed: int = 0, dates: int = 3
) -> list[Finding]:
    """Check a model's windows and predictions at `dates` dates, whatever it was trained on."""
    # Only the windows of this experiment are used, because nothing is trained.
    pipeline = Trained(Experiment(windows=ensemble.windows), ensemble)
    findings: list[Finding] = []
    for at, trained in _dates(pipeline, history, seed, dates, training_days=0):
        findings.extend(_bitwise_findings(pipeline, history, at, trained, seed))
    return findings


def _bitwise_findings(
    pipeline: Pipeline, history: History, at: pd.Timestamp, trained: pd.Timestamp, seed: int
) -> tuple[Finding, ...]:
    """Return the findings of one date that compare predictions or windows bit for bit."""
    rows = appended_rows(pipeline, history, at, seed)
    future = scrambled_future(pipeline, history, at, trained, seed)
    return future, rows, rescaled_past(pipeline, history, at)


def prove(
    history: History, experiment: Experiment, *, seed: int = 0, dates: int = 2
) -> pd.DataFrame:
    """Audit every planted leak, and honest pipelines of both normalisations.

    They run on a small part of a history (`fit_for_leaks`), with a small network. Returns rows
    `pipeline, planted, caught_by, caught`: `caught_by` names the checks that failed, and the audit
    works where `caught` equals `planted`. The coin, which takes longest, is tossed for those
    pipelines alone that no other check caught. Raises DtmlError as `audit` does.
    """
    part = history.cut(stocks=ZOO_STOCKS, sessions=ZOO_SESSIONS, seed=seed)
    small = fit_for_leaks(part, seed)
    small_network = vary(experiment, {"hidden": 16, "heads": 2})
    # Shared by all pipelines: most leaks train on the days of the honest one.
    fits: dict[str, Ensemble] = {}
    pipelines: dict[str, Pipeline] = {}
    for normalisation in get_args(Normalisation):
        honest = vary(small_network, {"normalisation": normalisation})
        pipelines[f"honest, {normalisation}"] = Pipeline(honest, fits=fits)
    for leak in LEAKS:
        pipelines[leak.__name__] = leak(small_network, fits=fits)
    rows = []
    for name, pipeline in pipelines.items():
        findings = _without_coin(pipeline, small, seed, dates)
        failed = sorted({finding.check for finding in findings if finding.is_alarm})
        if not failed:
            by_coin = _with_coin(pipeline, small, seed)
            failed = [by_coin.check] if by_coin.is_alarm else []
        is_planted = type(pipeline) is not Pipeline
        rows.append((name, is_planted, ", ".join(failed), bool(failed)))
    return pd.DataFrame(rows, columns=["pipeline", "planted", "caught_by", "caught"])


def scrambled_future(
    pipeline: Pipeline, history: History, at: pd.Timestamp, trained: pd.Timestamp, seed: int
) -> Finding:
    """Check that no prediction made up to `at` changes when everything after `at` is scrambled.

    The model is trained as of `trained`. In all histories, some stocks lack the bar of `at`, or the
    last two, so that a fill from later bars shows. The check fails where nothing is predicted.
    """
    true_future = history.with_holes(at, seed)
    predictions = _predictions_up_to(pipeline, true_future, at, trained, back=LOOK_BACK)
    of_last_day = predictions[predictions["as_of"] == at].reset_index(drop=True)
    # A pipeline that chooses its seed by later results chooses another in a rising future than in a
    # falling one. Another seed changes the predictions of every day, so one day is enough there.
    for course in get_args(Course):
        is_shuffled = course == "shuffled"
        other_future = true_future.scrambled_after(at, seed, course)
        back = LOOK_BACK if is_shuffled else 0
        others = _predictions_up_to(pipeline, other_future, at, trained, back=back)
        expected = predictions if is_shuffled else of_last_day
        if not expected.equals(others):
            return Finding("scrambled_future", at, passed=False, detail=changes(expected, others))
    detail = (
        f"{len(predictions)} predictions up to that day are equal to the last bit, whatever comes "
        "later"
    )
    return Finding("scrambled_future", at, passed=len(predictions) > 0, detail=detail)


def appended_rows(pipeline: Pipeline, history: History, at: pd.Timestamp, seed: int) -> Finding:
    """Check that windows up to `at` are the same to the last bit without what came later."""
    whole = history.with_holes(at, seed)  # so that a backward fill of a missing bar shows
    old = _up_to(pipeline.windows(whole.known_at(at)), at)
    new = _up_to(pipeline.windows(whole), at)
    changed = _changed_parts(old, new, at)
    if changed:
        detail = f"later rows change {', '.join(changed)} of earlier days"
    else:
        detail = f"{len(old)} days have the same windows with and without later rows"
    return Finding("appended_rows", at, not changed, detail)


def _up_to(windows: Windows, at: pd.Timestamp) -> Windows:
    """Return the windows of the days up to `at`."""
    return windows.days(slice(0, int((windows.as_of <= at).sum())))


def _changed_parts(old: Windows, new: Windows, at: pd.Timestamp) -> list[str]:
    """Return the names of what differs: days, else symbols, else inputs and known outcomes."""
    parts = ("as_of", "target")
    changed_days = [name for name in parts if not getattr(old, name).equals(getattr(new, name))]
    if changed_days:
        return changed_days
    if old.symbols != new.symbols:
        return ["symbols"]
    changed = _changed_inputs(old, new)
    is_known = slice(0, int((old.target <= at).sum()))
    if not _same_outcomes(old.days(is_known), new.days(is_known)):
        changed.append("movement")
    return changed


def rescaled_past(pipeline: Pipeline, history: History, at: pd.Timestamp) -> Finding:
    """Check that windows ignore the scale of past prices, which later dividends and splits set."""
    past = history.known_at(at)
    windows = pipeline.windows(past)
    changed = _changed_inputs(windows, pipeline.windows(past.rescaled()))
    if changed:
        detail = f"later dividends and splits change {', '.join(changed)} of earlier days"
    else:
        detail = (
            f"{len(windows)} days have the same windows whatever dividends and splits come later"
        )
    return Finding("rescaled_past", at, not changed, detail)


def index_in_step(history: History) -> Finding:
    """Check that the index moves with its constituents on the same session, not one apart.

    The check has no power if the index moves with them on none of these sessions.
    """
    bars = history.bars.assign(price=adjusted_price(history.bars, history.market.returns))
    prices = bars.pivot(index="session", columns="symbol", values="price")
    changes_by_stock = prices.pct_change(fill_method=None)
    index = changes_by_stock.pop(history.market.index.symbol)
    stocks = changes_by_stock.median(axis=1)
    # An index that is dated a session early has moved the session before its stocks.
    early = float(stocks.corr(index.shift(1)))
    same = float(stocks.corr(index.shift(0)))
    late = float(stocks.corr(index.shift(-1)))
    detail = (
        f"index and median stock: correlation {same:.2f} on the same session, "
        f"{early:.2f} and {late:.2f} when shifted by one session either way"
    )
    return Finding(
        "index_in_step",
        changes_by_stock.index[-1],
        passed=same > max(IN_STEP, early, late),
        detail=detail,
        has_power=max(early, same, late) > IN_STEP,
    )


def spans_apart(pipeline: Pipeline, history: History, at: pd.Timestamp) -> Finding:
    """Check the order of a training as of `at`: days to fit, a gap, days to choose epochs, a gap.

    All outcomes must be known at `at`. As an outcome may depend on prices after the target of its
    day, another future must leave them all unchanged.
    """
    train, validation = pipeline.spans(pipeline.windows(history), at)
    scrambled = history.scrambled_after(at, seed=0)
    other_train, other_validation = pipeline.spans(pipeline.windows(scrambled), at)
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
    """Check that every observed stock of `at` and the next `LOOK_AHEAD` days is predicted.

    None may be left out because of its outcome, and none added. The model is trained as of `at`.
    """
    windows = pipeline.windows(history)
    days = _days_around(windows, at, back=0)
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


def permuted_labels(pipeline: Pipeline, history: History, seed: int) -> Finding:
    """Check that with directions drawn by coin the 95 % interval of MCC covers 0.

    If the interval of the first drawing excludes 0, a second drawing is made. A pipeline fails only
    if both intervals exclude 0 on the same side, as 2 x .025 x .025 of the honest ones do, about
    one in 800. The coin is tossed before windows are built, so features and labels change together,
    and a label among the features stays one. It is tossed for whole days, so that stocks still rise
    and fall together (`History.tossed`).

    A drawing in which almost all predictions have one direction shows nothing, and another is made
    in its place, up to `DRAWINGS` in all. Without enough informative drawings the check has no
    power. Raises DtmlError where too few days can be scored.
    """
    details: list[str] = []
    sides: list[int] = []  # of each interval: 1 above 0, -1 below it, 0 where it covers 0
    # Every seed has drawings of its own. After the loop, `at` is the date of the last drawing.
    for drawing in range(DRAWINGS * seed, DRAWINGS * (seed + 1)):
        at, mcc, (low, high), share_of_rises = _score_tossed(pipeline, history.tossed(drawing))
        if not ONE_SIDED <= share_of_rises <= 1 - ONE_SIDED:
            details.append(f"undefined ({share_of_rises:.0%} of the predictions are rises)")
            continue
        details.append(f"{mcc:+.3f} [{low:+.3f}, {high:+.3f}]")
        side = int(low > 0) - int(high < 0)
        sides.append(side)
        if side == 0 or len(sides) == 2:
            break
    is_decided = len(sides) == 2 or 0 in sides
    both_on_one_side = sides in ([1, 1], [-1, -1])
    return Finding(
        "permuted_labels",
        at,
        passed=is_decided and not both_on_one_side,
        detail=f"MCC when a coin toss draws the directions: {', then '.join(details)}",
        has_power=is_decided,
    )


def hurried(experiment: Experiment, epochs: int, *, seeds: int = 1) -> Experiment:
    """Return the same experiment with few seeds and a short training on few days."""
    training = experiment.training
    return vary(
        experiment,
        {
            "epochs": epochs,
            "first_kept_epoch": 1,  # the validation days choose among all of the few epochs
            "patience": None,  # no early stopping: all of them are trained
            "learning_rate": 0.01,  # larger steps, as a leak must be learnt in these few epochs
            "batch_days": min(training.batch_days, 16),  # more steps in an epoch, for that too
            "penalty": min(training.penalty, 0.01),  # less regularisation, for that too
            "seeds": seeds,
            "train_sessions": min(experiment.train_sessions or TRAIN_DAYS, TRAIN_DAYS),
            "validation_sessions": min(experiment.validation_sessions, VALIDATION_DAYS),
        },
    )


def changes(rows: pd.DataFrame, others: pd.DataFrame) -> str:
    """Say how two frames `as_of, symbol, probability` differ: in values, rows or their order."""
    paired = rows.merge(others, on=["as_of", "symbol"], how="outer", suffixes=("", "_other"))
    changed = paired[paired["probability"] != paired["probability_other"]]  # NaN: a row of one only
    if changed.empty:
        return "the same probabilities in different rows or in a different sequence"
    first = changed.sort_values(["as_of", "symbol"]).iloc[0]
    return (
        f"{len(changed)} of {len(paired)} predictions change with later data: "
        f"{first['symbol']} on {_day(first['as_of'])} "
        f"from {first['probability']:.6f} to {first['probability_other']:.6f}"
    )


class _Tossed(NamedTuple):
    """The score of a history whose directions were drawn by coin.

    `at` is the date of training. `mcc`, its `interval` and `rises`, the share of predictions that
    are rises, are of the predictions made at its close and later.
    """

    at: pd.Timestamp
    mcc: float
    interval: tuple[float, float]
    rises: float


def _score_tossed(pipeline: Pipeline, tossed: History) -> _Tossed:
    """Train once, and score the days that follow: the last third of all, at most `TEST_DAYS`.

    A rise is predicted above the median probability of the days before: with one half as the
    threshold, a short training often predicts one direction only. Raises DtmlError where there are
    too few days for an interval.
    """
    windows = pipeline.windows(tossed)
    test_days = min(TEST_DAYS, len(windows) // 3)
    place = len(windows) - test_days  # of the first day scored
    at = windows.as_of[place]
    model = pipeline.model(windows, at)
    days_before = windows.days(slice(max(0, place - MEDIAN_DAYS), place))
    rows_before = pipeline.predict(model, days_before)
    rows = pipeline.predict(model, windows.days(slice(place, len(windows))))
    change = pd.Series(returns_of(rows, tossed.bars, tossed.market.returns))
    is_rise = rows["probability"] > rows_before["probability"].median()
    directions = pd.DataFrame({"session": rows["target"], "predicted": is_rise, "rose": change > 0})
    # A coin cannot change the sign of a return of 0.
    directions = directions[change.notna() & (change != 0)]
    scored = score(directions)
    if not np.isfinite(scored.mcc_interval).all():
        raise DtmlError(
            f"only {scored.days} days after {_day(at)} have a stock whose price changed, but the "
            f"audit must score {MINIMUM_DAYS}: fetch a longer history, or audit as of a later day"
        )
    rises = float(directions["predicted"].mean())
    return _Tossed(at=at, mcc=scored.mcc, interval=scored.mcc_interval, rises=rises)


def _predictions_up_to(
    pipeline: Pipeline, history: History, at: pd.Timestamp, trained: pd.Timestamp, back: int
) -> pd.DataFrame:
    """Return what a model trained as of `trained` predicts on the day `at` and `back` days before.

    `LOOK_AHEAD` later days are predicted with them, as in a backtest, and then dropped.
    """
    windows = pipeline.windows(history)
    model = pipeline.model(windows, trained)
    rows = pipeline.predict(model, _days_around(windows, at, back))
    return rows[rows["as_of"] <= at].reset_index(drop=True)


def _days_around(windows: Windows, at: pd.Timestamp, back: int) -> Windows:
    """Return the day of a date, and up to `back` days before it and `LOOK_AHEAD` after it."""
    place = int(windows.as_of.searchsorted(at))
    return windows.days(slice(max(0, place - back), place + 1 + LOOK_AHEAD))


def _dates(
    pipeline: Pipeline, history: History, seed: int, dates: int, training_days: int | None = None
) -> Iterator[tuple[pd.Timestamp, pd.Timestamp]]:
    """Yield drawn dates, each with the date of the training that serves it.

    The first is trained at its own close, the others up to `LATEST_RETRAINING` days before. Each
    has `LOOK_AHEAD` days after it and, before it, those that a training needs (`training_days`;
    None: as the experiment says); too few raise DtmlError.
    """
    # The honest windows, whatever a leak makes of them: all pipelines are checked at equal dates.
    windows = Pipeline.windows(pipeline, history)
    as_of = windows.as_of[windows.observed.any(dim=1).numpy()]
    if training_days is None:
        experiment = pipeline.experiment
        gaps = 2 * experiment.gap_sessions
        training_days = MINIMUM_TRAIN_DAYS + experiment.validation_sessions + gaps + 1
    first = training_days + LATEST_RETRAINING
    stop = len(as_of) - LOOK_AHEAD
    if stop - first < dates:
        raise DtmlError(
            f"only {len(as_of)} days have a stock with all sessions that the model reads, but an "
            f"audit of {dates} dates needs {first + LOOK_AHEAD + dates}: fetch a longer history, "
            "audit as of a later day, or lower window or gap_sessions in the market file's [model]"
        )
    generator = np.random.default_rng(seed)
    places = generator.choice(np.arange(first, stop), dates, replace=False)
    for number, place in enumerate(places):
        age = 0 if number == 0 else int(generator.integers(0, LATEST_RETRAINING + 1))
        yield as_of[place], as_of[place - age]


def _changed_inputs(old: Windows, new: Windows) -> list[str]:
    """Return the names of the inputs of a model that differ in a bit."""
    parts = ("stocks", "index", "observed")
    return [name for name in parts if not torch.equal(getattr(old, name), getattr(new, name))]


def _day(moment: pd.Timestamp) -> str:
    return str(moment.date())
