"""The look-ahead audit: does anything behind a prediction come from after it was made?

Each check runs a whole pipeline, from bars to probabilities, on a history and on a changed one. The
change lies in the future or is pure chance, so the predictions of an honest pipeline stay the same;
`dtml.lookahead.leaks` holds pipelines whose predictions do not. Everything is drawn from a seed and
runs on CPU, where equal means equal to the last bit.

Trainings are short (`hurried`), and of a large market a part is audited (`History.cut`): the audit
is about where rows come from. It does not find a leak that needs more stocks, sessions or epochs to
show.
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
from dtml.experiments import MINIMUM_TRAIN_DAYS, Experiment, vary
from dtml.lookahead.leaks import LEAKS
from dtml.lookahead.pipeline import Course, History, Pipeline
from dtml.markets import Market
from dtml.model import Normalisation
from dtml.prices.returns import adjusted_price, returns_of
from dtml.windows import Windows

LOOK_BACK, LOOK_AHEAD = (
    10,
    5,
)  # sessions before and after a date that are predicted when it is checked
LATEST_RETRAINING = 20  # a date is at most so many sessions after the training that serves it
ZOO_STOCKS, ZOO_SESSIONS = 12, 280  # the size of the history on which the planted leaks are audited
TEST_DAYS = 252  # at most, scored with directions drawn by coin
TRAIN_DAYS, VALIDATION_DAYS = 252, 21  # at most
SHORT, LONGER = 2, 12  # epochs; the latter where a leak must be learnt to show
MEMBERS = (
    2  # trained where predictions are compared to the last bit: of one alone none can be chosen
)
LEAST_GAP = 1  # sessions: with none, a close is part of labels on both sides
# correlation with the index: .93 to .98 on every real market, one session apart at most .12
IN_STEP = 0.3
MEDIAN_DAYS = 42  # before the days that the coin scores
DRAWINGS = 4  # of the coin, at most
ONE_SIDED = 0.05  # share of calls below which a direction counts as never called


@dataclass(frozen=True)
class Finding:
    """The finding of one check; `at` is the date that it looked at, `detail` one line for people.

    A check without power could not have failed: it did not pass, and is no alarm.
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
        """Return the stocks of the model, where it has gains for each of them."""
        return self.ensemble.symbols if self.ensemble.is_tied else market.symbols

    def model(self, windows: Windows, as_of: pd.Timestamp) -> Ensemble:  # noqa: ARG002 - it serves every date
        """Return that model."""
        return self.ensemble


def audit(pipeline: Pipeline, history: History, *, seed: int = 0, dates: int = 3) -> list[Finding]:
    """Run every check, those that look at a date at so many dates, drawn from the seed.

    Trainings are short. Raises DtmlError when the history is too short to train and to score.
    """
    return [*_exact(pipeline, history, seed, dates), _by_coin(pipeline, history, seed)]


def _exact(pipeline: Pipeline, history: History, seed: int, dates: int) -> list[Finding]:
    quick = replace(pipeline, experiment=hurried(pipeline.experiment, SHORT, seeds=MEMBERS))
    history = pipeline.received(history)
    findings = []
    for at, trained in _dates(quick, history, seed, dates):
        findings += [
            *_to_the_last_bit(quick, history, at, trained, seed),
            spans_apart(quick, history, at),
        ]
    return [*findings, whole_days(quick, history, findings[-1].at), index_in_step(history)]


def _by_coin(pipeline: Pipeline, history: History, seed: int) -> Finding:
    longer = replace(pipeline, experiment=hurried(pipeline.experiment, LONGER))
    return permuted_labels(longer, pipeline.received(history), seed)


def audit_model(
    ensemble: Ensemble, history: History, *, seed: int = 0, dates: int = 3
) -> list[Finding]:
    """Check the windows and predictions of a trained model at so many dates,
    whatever it was trained on.
    """
    pipeline = Trained(Experiment(windows=ensemble.windows), ensemble)
    drawn = _dates(pipeline, history, seed, dates, training=0)
    return [
        each
        for at, trained in drawn
        for each in _to_the_last_bit(pipeline, history, at, trained, seed)
    ]


def _to_the_last_bit(
    pipeline: Pipeline, history: History, at: pd.Timestamp, trained: pd.Timestamp, seed: int
) -> tuple[Finding, ...]:
    rows = appended_rows(pipeline, history, at, seed)
    return (
        scrambled_future(pipeline, history, at, trained, seed),
        rows,
        rescaled_past(pipeline, history, at),
    )


def prove(
    history: History, experiment: Experiment, *, seed: int = 0, dates: int = 2
) -> pd.DataFrame:
    """Audit every planted leak, and honest pipelines of both normalisations, on a small part of a
    history.

    Rows `pipeline, planted, caught_by, caught`: `caught_by` names the checks that failed, and the
    audit works where `caught` equals `planted`. The coin is tossed for those that nothing else
    caught. The network is small; some stocks enter and leave, and every bar has a volume and an
    adjusted close, whatever the market's list and bars say.
    """
    small = fit_for_leaks(history.cut(stocks=ZOO_STOCKS, sessions=ZOO_SESSIONS, seed=seed), seed)
    small_network = vary(experiment, {"hidden": 16, "heads": 2})
    fits: dict[
        str, Ensemble
    ] = {}  # of all pipelines: most leaks train on the days of the honest one
    honest = {
        f"honest, {one}": vary(small_network, {"normalisation": one})
        for one in get_args(Normalisation)
    }
    variants = {name: Pipeline(each, fits=fits) for name, each in honest.items()}
    variants |= {leak.__name__: leak(small_network, fits=fits) for leak in LEAKS}
    rows = []
    for name, pipeline in variants.items():
        failed = sorted(
            {each.check for each in _exact(pipeline, small, seed, dates) if each.is_alarm}
        )
        if not failed and (tossed := _by_coin(pipeline, small, seed)).is_alarm:
            failed = [tossed.check]
        rows.append((name, type(pipeline) is not Pipeline, ", ".join(failed), bool(failed)))
    return pd.DataFrame(rows, columns=["pipeline", "planted", "caught_by", "caught"])


def scrambled_future(
    pipeline: Pipeline, history: History, at: pd.Timestamp, trained: pd.Timestamp, seed: int
) -> Finding:
    """Scramble everything after `at`, train as of `trained` and predict: no row made up to `at` may
    change.

    Some stocks lack their last bars in all histories, so that backward filling shows.
    """
    before = history.with_holes(at, seed)
    rows = _served(pipeline, before, at, trained, back=LOOK_BACK)
    detail = f"{len(rows)} predictions up to that day, the same to the last bit whatever came later"
    for course in get_args(
        Course
    ):  # of two members each wins one: that which predicts more rises, or fewer
        back = LOOK_BACK if course == "shuffled" else 0
        others = _served(pipeline, before.scrambled_after(at, seed, course), at, trained, back=back)
        expected = rows if back else rows[rows["as_of"] == at].reset_index(drop=True)
        if not expected.equals(others):
            return Finding("scrambled_future", at, passed=False, detail=changes(expected, others))
    return Finding("scrambled_future", at, len(rows) > 0, detail)


def appended_rows(pipeline: Pipeline, history: History, at: pd.Timestamp, seed: int) -> Finding:
    """Check that windows of what was known at `at` equal those of the whole
    history up to `at`, to the last bit.
    """
    whole = history.with_holes(at, seed)
    old, new = (pipeline.windows(each) for each in (whole.known_at(at), whole))
    old, new = (each.days(slice(0, int((each.as_of <= at).sum()))) for each in (old, new))
    changed = [
        name for name in ("as_of", "target") if not getattr(old, name).equals(getattr(new, name))
    ]
    if not changed and old.symbols == new.symbols:
        known = torch.from_numpy(np.asarray(old.target <= at))
        changed = _changed(old, new)
        changed += (
            []
            if torch.equal(*(each.movement[known].nan_to_num() for each in (old, new)))
            else ["movement"]
        )
    elif not changed:
        changed = ["symbols"]
    same = f"{len(old)} days have the same windows with and without what came later"
    said = f"later rows change {', '.join(changed)} of old days" if changed else same
    return Finding("appended_rows", at, not changed, said)


def rescaled_past(pipeline: Pipeline, history: History, at: pd.Timestamp) -> Finding:
    """Check that windows up to `at` do not know the scale of past prices, which
    later dividends and splits set.
    """
    known = history.known_at(at)
    then, now = (pipeline.windows(each) for each in (known, known.rescaled()))
    changed = _changed(then, now)
    same = f"{len(then)} days have the same windows whatever dividends and splits come later"
    said = (
        f"later dividends and splits change {', '.join(changed)} of old days" if changed else same
    )
    return Finding("rescaled_past", at, not changed, said)


def index_in_step(history: History) -> Finding:
    """Check that the index moves with its constituents on the same session, not
    one apart; no power if on none.
    """
    bars = history.bars.assign(price=adjusted_price(history.bars, history.market.returns))
    wide = bars.pivot(index="session", columns="symbol", values="price").pct_change(
        fill_method=None
    )
    index = wide.pop(history.market.index.symbol)
    stocks = wide.median(axis=1)
    early, same, late = (float(stocks.corr(index.shift(sessions))) for sessions in (1, 0, -1))
    detail = (
        f"index and median stock: correlation {same:.2f} on the same session, "
        f"{early:.2f} and "
        f"{late:.2f} one apart"
    )
    passed, has_power = same > max(IN_STEP, early, late), max(early, same, late) > IN_STEP
    return Finding("index_in_step", wide.index[-1], passed, detail, has_power)


def spans_apart(pipeline: Pipeline, history: History, at: pd.Timestamp) -> Finding:
    """Check a training as of `at`: days to fit, a gap, days that choose the epoch, a gap, and no
    later outcome.

    An outcome may reach further than its day says: another future may change none of them.
    """
    futures = (history, history.scrambled_after(at, seed=0))
    parts, others = (pipeline.spans(pipeline.windows(each), at) for each in futures)
    pairs = (
        (one.movement.numpy(), other.movement.numpy())
        for one, other in zip(parts, others, strict=True)
    )
    known = all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
    fitted, chosen = (part.target[part.movement.isfinite().any(dim=1).numpy()] for part in parts)
    gap = max(LEAST_GAP, pipeline.experiment.gap_sessions)
    ends = [fitted.max(), chosen.min(), chosen.max(), at]
    places = history.sessions.get_indexer(pd.DatetimeIndex(ends))
    between, after = places[1] - places[0] - 1, places[3] - places[2]
    spans = f"fitted to {_day(ends[0])}, epoch chosen on {_day(ends[1])} to {_day(ends[2])}"
    detail = (
        f"{spans}, {between} and {after} sessions apart from what follows; {gap} or more needed"
    )
    if not known:
        detail += f"; outcomes before {_day(at)} depend on prices after it"
    return Finding("spans_apart", at, bool(between >= gap and after >= gap and known), detail)


def whole_days(pipeline: Pipeline, history: History, at: pd.Timestamp) -> Finding:
    """Check that from `at` on every observed stock of a day is predicted, so
    that no outcome chooses the rows.
    """
    windows = pipeline.windows(history)
    days = _around(windows, at, back=0)
    rows = pipeline.predict(pipeline.model(windows, at), days)
    day, stock = days.observed.nonzero(as_tuple=True)
    expected = pd.MultiIndex.from_arrays(
        [days.as_of[day.numpy()], pd.Index(days.symbols)[stock.numpy()]]
    )
    missing = expected.difference(pd.MultiIndex.from_frame(rows[["as_of", "symbol"]]))
    detail = (
        f"{len(rows)} predictions of {len(expected)} observed stock-days, {len(missing)} "
        "without one"
    )
    return Finding("whole_days", at, len(expected) == len(rows) and not len(missing), detail)


def permuted_labels(pipeline: Pipeline, history: History, seed: int) -> Finding:
    """Check that with directions drawn by coin the 95 % interval of MCC covers 0, at the first or a
    second drawing.

    A pipeline fails if both exclude 0 on the same side: of honest ones 2 x .025 x .025, about one
    in 800. The coin is tossed before windows are built, so features and labels change together, and
    a label among the features stays one; and it is tossed for whole days, so that stocks still rise
    and fall together (`History.tossed`).

    A drawing at which almost all calls are of one direction shows nothing and is drawn again.
    Without enough drawings that show something the check has no power.
    """
    detail, sides = [], []
    for drawing in range(DRAWINGS * seed, DRAWINGS * (seed + 1)):
        at, found, (low, high), rises = _score_tossed(pipeline, history.tossed(drawing))
        if not ONE_SIDED <= rises <= 1 - ONE_SIDED:
            detail.append(f"nothing ({rises:.0%} of the calls are rises)")
            continue
        detail.append(f"{found:+.3f} [{low:+.3f}, {high:+.3f}]")
        sides.append(1 if low > 0 else -1 if high < 0 else 0)
        if sides[-1] == 0 or len(sides) == 2:
            break
    decided = len(sides) == 2 or 0 in sides
    passed = decided and (len(set(sides)) > 1 or sides[-1] == 0)
    said = f"MCC with directions drawn by coin: {', then '.join(detail)}"
    return Finding("permuted_labels", at, passed, said, has_power=decided)


def hurried(experiment: Experiment, epochs: int, *, seeds: int = 1) -> Experiment:
    """Return the same experiment with few seeds and a short training on few days."""
    mine = experiment.training
    fast = {
        "epochs": epochs,
        "first_kept_epoch": 1,
        "patience": None,
        "learning_rate": 0.01,
        "seeds": seeds,
    }
    least = {"batch_days": min(mine.batch_days, 16), "penalty": min(mine.penalty, 0.01)}
    least |= {"train_sessions": min(experiment.train_sessions or TRAIN_DAYS, TRAIN_DAYS)}
    least |= {"validation_sessions": min(experiment.validation_sessions, VALIDATION_DAYS)}
    return vary(experiment, fast | least)


def changes(rows: pd.DataFrame, others: pd.DataFrame) -> str:
    """Say how many predictions `as_of, symbol, probability` changed, came or
    went, and name the first of them.
    """
    both = rows.merge(others, on=["as_of", "symbol"], how="outer", suffixes=("", "_other"))
    changed = both[both["probability"] != both["probability_other"]].sort_values(
        ["as_of", "symbol"]
    )
    if changed.empty:
        return "the same probabilities in other rows or another order"
    first = changed.iloc[0]
    values = f"from {first['probability']:.6f} to {first['probability_other']:.6f}"
    said = f"{len(changed)} of {len(both)} predictions change with what came later"
    return f"{said}: {first['symbol']} on {_day(first['as_of'])} {values}"


def fit_for_leaks(history: History, seed: int) -> History:
    """Let a third of the stocks enter and a third leave, on sessions drawn from the middle of the
    history.

    Volumes are drawn too, and a missing adjusted close is the close.
    """
    generator = np.random.default_rng([seed, 2])
    days = np.sort(history.bars["session"].unique())
    listed = list(history.market.constituents)
    for place, which in enumerate(generator.permutation(len(listed))):
        day = pd.Timestamp(generator.choice(days[len(days) // 3 : -len(days) // 8])).date()
        if place % 3:
            listed[which] = replace(
                listed[which], **({"since": day} if place % 3 == 1 else {"until": day})
            )
    bars = history.bars.assign(volume=generator.lognormal(size=len(history.bars)))
    bars["adj_close"] = bars["adj_close"].fillna(bars["close"])
    return replace(history, bars=bars, market=replace(history.market, constituents=tuple(listed)))


def _score_tossed(
    pipeline: Pipeline, tossed: History
) -> tuple[pd.Timestamp, float, tuple[float, float], float]:
    """Return the date of training; MCC, its interval and the share of rises on
    the days after it, a third of all.
    """
    # A rise is called above the median probability of the days before, which splits what a model
    # says of any market; above one half, a short training often calls one direction throughout.
    windows = pipeline.windows(tossed)
    at = windows.as_of[-min(TEST_DAYS, len(windows) // 3)]
    place = int(windows.as_of.searchsorted(at))
    model = pipeline.model(windows, at)
    spans = (slice(max(0, place - MEDIAN_DAYS), place), slice(place, len(windows)))
    before, rows = (pipeline.predict(model, windows.days(days)) for days in spans)
    change = pd.Series(returns_of(rows, tossed.bars, tossed.market.returns))
    rises = rows["probability"] > before["probability"].median()
    directions = pd.DataFrame({"session": rows["target"], "predicted": rises, "rose": change > 0})
    directions = directions[
        change.notna() & (change != 0)
    ]  # a coin cannot change the sign of a return of 0
    found = score(directions)
    if not np.isfinite(found.mcc_interval).all():
        raise DtmlError(
            f"{found.days} days after {_day(at)} can be scored: too few for the audit; fetch "
            "more history"
        )
    return at, found.mcc, found.mcc_interval, float(directions["predicted"].mean())


def _served(
    pipeline: Pipeline, history: History, at: pd.Timestamp, trained: pd.Timestamp, back: int
) -> pd.DataFrame:
    """Return the predictions made up to `at`, of so many days before; a few
    later days are predicted with them.
    """
    windows = pipeline.windows(history)
    rows = pipeline.predict(pipeline.model(windows, trained), _around(windows, at, back))
    return rows[rows["as_of"] <= at].reset_index(drop=True)


def _around(windows: Windows, at: pd.Timestamp, back: int) -> Windows:
    """Return the day of a date, so many before it, and some after it."""
    place = int(windows.as_of.searchsorted(at))
    return windows.days(slice(max(0, place - back), place + 1 + LOOK_AHEAD))


def _dates(
    pipeline: Pipeline, history: History, seed: int, dates: int, training: int | None = None
) -> Iterator[tuple[pd.Timestamp, pd.Timestamp]]:
    """Draw dates that have a history and a future, each with the date of the
    training that serves it.
    """
    # The first is served by a training at its own close, the strictest case: nothing later may
    # reach it.
    windows = Pipeline.windows(pipeline, history)
    as_of = windows.as_of[windows.observed.any(dim=1).numpy()]
    experiment = pipeline.experiment
    if training is None:
        training = (
            MINIMUM_TRAIN_DAYS + experiment.validation_sessions + 2 * experiment.gap_sessions + 1
        )
    first, stop = training + LATEST_RETRAINING, len(as_of) - LOOK_AHEAD
    if stop - first < dates:
        needs = (
            f"an audit of {dates} dates needs {first + LOOK_AHEAD + dates}: fetch a longer history"
        )
        raise DtmlError(f"{len(as_of)} days have a constituent with a whole window, and {needs}")
    generator = np.random.default_rng(seed)
    for number, place in enumerate(generator.choice(np.arange(first, stop), dates, replace=False)):
        age = 0 if number == 0 else int(generator.integers(0, LATEST_RETRAINING + 1))
        yield as_of[place], as_of[place - age]


def _changed(old: Windows, new: Windows) -> list[str]:
    parts = ("stocks", "index", "observed")
    return [name for name in parts if not torch.equal(getattr(old, name), getattr(new, name))]


def _day(moment: pd.Timestamp) -> str:
    return str(moment.date())
