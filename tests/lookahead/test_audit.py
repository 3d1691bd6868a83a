"""The look-ahead audit: every planted leak is caught, honest pipelines are left
alone, and each check can fail.
"""

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest
import torch

from dtml.checkpoints import Ensemble
from dtml.errors import DtmlError
from dtml.experiments import Experiment, nightly, nightly_of, vary
from dtml.lookahead import audit as audit_module
from dtml.lookahead.audit import (
    Finding,
    appended_rows,
    audit,
    audit_model,
    index_in_step,
    permuted_labels,
    prove,
    rescaled_past,
    scrambled_future,
    spans_apart,
    whole_days,
)
from dtml.lookahead.leaks import (
    LEAKS,
    AdjustmentAsFeature,
    BackwardFill,
    CentredAverage,
    LabelInFeatures,
    LabelledRowsOnly,
    LaterCheckpoint,
    LiquidUniverse,
    LongerLabels,
    MemberChosenOnTest,
    ScaledByMaximum,
    ShuffledSplit,
    SurvivorsOnly,
    TodaysConstituents,
    ValidationOverTest,
)
from dtml.lookahead.pipeline import History, Pipeline
from dtml.markets import load_market
from dtml.prices.returns import returns_of
from dtml.prices.sessions import next_session, sessions_between
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from dtml.windows import Windows
from tests.support.bounds import assert_arrays_close_in_float32, assert_arrays_close_in_float64
from tests.support.real_sets import SETS, checked, needs_real_sets

pytestmark = pytest.mark.slow

SIMULATED = SimulatedSource(market=SimulatedMarket(leaders=4, followers=2, start=date(2022, 1, 3)))
LAST = date(2023, 4, 28)  # 332 sessions
SNAPSHOT = History(
    SIMULATED.bars(LAST),
    sessions_between("XNYS", SIMULATED.market.start, next_session("XNYS", LAST)),
    load_market("simulated").with_symbols(sorted(SIMULATED.market.symbols)),
)
AT, TRAINED = pd.Timestamp("2022-12-14"), pd.Timestamp("2022-12-07")
QUICK = {
    "window": 5,
    "hidden": 16,
    "heads": 2,
    "epochs": 2,
    "first_kept_epoch": 1,
    "seeds": 1,
    "batch_days": 16,
    "learning_rate": 0.01,
    "train_sessions": 64,  # the fewest: where rows come from does not depend on their number
    "validation_sessions": 19,
}


def dated() -> History:
    """The simulated market, with stocks that enter and leave, before AT and after it."""
    dates = {
        "F01A": {"until": date(2022, 8, 1)},
        "F01B": {"since": date(2022, 8, 1)},
        "F02A": {"since": date(2022, 6, 1), "until": date(2023, 2, 1)},
        "F03A": {"until": date(2023, 1, 17)},
        "L01": {"since": date(2023, 1, 17)},
    }
    listed = tuple(
        replace(each, **dates.get(each.symbol, {})) for each in SNAPSHOT.market.constituents
    )
    return replace(SNAPSHOT, market=replace(SNAPSHOT.market, constituents=listed))


DATED = dated()
FITS: dict[str, Ensemble] = {}  # of the tests of one check, which train on the same days


def experiment(**overrides: object) -> Experiment:
    return vary(
        nightly_of({}, z_close="adjusted", returns="adj_close", max_return=0.35), QUICK | overrides
    )


def alarms(findings: list[Finding]) -> list[Finding]:
    """Whatever did not pass, for want of power too."""
    return [finding for finding in findings if not finding.passed]


@pytest.mark.soak
def test_every_planted_leak_is_caught_and_honest_pipelines_raise_no_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # fewer predictions to compare: a leak that shows in these shows in those of an audit, too
    monkeypatch.setattr(audit_module, "LOOK_BACK", 2)
    proof = prove(DATED, experiment(), dates=1).set_index("pipeline")
    assert len(LEAKS) == 18
    assert proof["planted"].sum() == len(LEAKS)
    assert proof["caught"].equals(proof["planted"].rename("caught")), proof
    assert list(proof.index[~proof["planted"]]) == ["honest, per_stock", "honest, shared"]


@pytest.mark.soak
@pytest.mark.parametrize(("normalisation", "seed"), [("shared", 1), ("per_stock", 2)])
def test_an_honest_pipeline_raises_no_alarm_at_other_seeds_and_dates(
    normalisation: str, seed: int
) -> None:
    findings = audit(Pipeline(experiment(normalisation=normalisation)), DATED, seed=seed, dates=2)
    assert not alarms(findings)
    assert [finding.check for finding in findings].count("scrambled_future") == 2


@pytest.mark.soak
def test_an_honest_pipeline_raises_no_alarm_on_a_list_without_dates() -> None:
    assert SNAPSHOT.market.is_snapshot
    assert not alarms(audit(Pipeline(experiment()), SNAPSHOT, dates=1))


LEAKS_OF_THE_FUTURE = [
    *(BackwardFill, LabelledRowsOnly, SurvivorsOnly, ShuffledSplit),
    *(MemberChosenOnTest, LaterCheckpoint, LiquidUniverse, ScaledByMaximum),
]


@pytest.mark.soak
@pytest.mark.one_case
@pytest.mark.parametrize("leak", LEAKS_OF_THE_FUTURE)
def test_a_prediction_that_changes_with_what_came_later_is_named(leak: type[Pipeline]) -> None:
    found = scrambled_future(leak(experiment(seeds=2), fits=FITS), DATED, AT, TRAINED, seed=0)
    assert not found.passed
    assert found.at == AT
    assert "predictions change with later data" in found.detail


def test_an_honest_prediction_changes_with_no_future() -> None:
    assert scrambled_future(
        Pipeline(experiment(seeds=2), fits=FITS), DATED, AT, TRAINED, seed=0
    ).passed


def test_a_training_is_shared_between_equal_days_alone() -> None:
    pipeline = Pipeline(experiment(epochs=1))
    windows = pipeline.windows(DATED)
    train, validation = pipeline.spans(windows, AT)
    fitted = pipeline.fit(train, validation)
    assert pipeline.fit(train, validation) is fitted
    other = replace(train, movement=-train.movement)
    assert pipeline.fit(other, validation) is not fitted
    assert replace(pipeline, experiment=experiment(epochs=2)).fit(train, validation) is not fitted
    (again,) = [Pipeline(experiment(epochs=1)).fit(train, validation)]
    assert all(torch.equal(again.weights[name], fitted.weights[name]) for name in fitted.weights)


def test_todays_members_for_every_day_are_seen_even_where_the_list_has_no_dates() -> None:
    found = scrambled_future(
        TodaysConstituents(experiment(seeds=2), fits=FITS), SNAPSHOT, AT, TRAINED, seed=0
    )
    assert not found.passed


@pytest.mark.parametrize(
    ("leak", "changed"),
    [
        (LabelInFeatures, "stocks"),
        (CentredAverage, "stocks, index, movement"),
        (TodaysConstituents, "observed"),
    ],
)
def test_old_windows_that_later_rows_change_are_named(leak: type[Pipeline], changed: str) -> None:
    found = appended_rows(leak(experiment()), DATED, AT, seed=0)
    assert not found.passed
    assert f"change {changed} of" in found.detail
    assert appended_rows(Pipeline(experiment()), DATED, AT, seed=0).passed


class Touching(Pipeline):
    """Training days up to `as_of`, whatever gap was asked for."""

    def spans(self, windows: Windows, as_of: pd.Timestamp) -> tuple[Windows, Windows]:
        return Pipeline(replace(self.experiment, gap_sessions=0)).spans(windows, as_of)


@pytest.mark.parametrize("wrong", [ValidationOverTest, ShuffledSplit, Touching])
def test_training_days_too_close_to_those_they_must_not_touch_are_named(
    wrong: type[Pipeline],
) -> None:
    assert not spans_apart(wrong(experiment()), DATED, AT).passed
    assert not spans_apart(Pipeline(experiment(gap_sessions=0)), DATED, AT).passed
    honest = spans_apart(Pipeline(experiment(gap_sessions=3)), DATED, AT)
    assert honest.passed
    assert "gaps after these spans: 3 and 3 sessions" in honest.detail


def test_labels_that_reach_beyond_their_day_are_found_by_another_future() -> None:
    found = spans_apart(LongerLabels(experiment()), DATED, AT)
    assert (
        found.passed,
        "outcomes before 2022-12-14 depend on prices after it" in found.detail,
    ) == (False, True)


def test_stock_days_that_are_left_out_are_counted() -> None:
    assert not whole_days(LabelledRowsOnly(experiment()), DATED, AT).passed
    assert whole_days(Pipeline(experiment()), DATED, AT).passed


@pytest.mark.soak
def test_a_label_among_the_features_beats_a_coin_at_both_drawings() -> None:
    learning = experiment(epochs=12, train_sessions=126)
    found = permuted_labels(LabelInFeatures(learning), DATED, seed=0)
    assert not found.passed
    assert ", then " in found.detail


@pytest.mark.parametrize(
    ("drawn", "passed", "has_power"),
    [
        ([(-0.1, 0.1, 0.5)], True, True),
        ([(0.1, 0.2, 0.5), (-0.1, 0.1, 0.5)], True, True),
        ([(0.1, 0.2, 0.5), (-0.2, -0.1, 0.5)], True, True),
        ([(0.1, 0.2, 0.5), (0.1, 0.3, 0.5)], False, True),
        ([(-0.2, -0.1, 0.5), (-0.3, -0.1, 0.5)], False, True),
        ([(0.0, 0.0, 1.0), (-0.1, 0.1, 0.06)], True, True),
        ([(0.0, 0.0, 0.0), (0.1, 0.2, 0.5), (-0.1, 0.1, 0.97), (0.1, 0.2, 0.5)], False, True),
        ([(0.0, 0.0, 0.0), (0.1, 0.2, 0.5), (0.0, 0.0, 1.0), (0.0, 0.0, 1.0)], False, False),
    ],
)
def test_two_intervals_on_one_side_of_0_are_an_alarm_and_one_direction_throughout_is_none(
    monkeypatch: pytest.MonkeyPatch,
    drawn: list[tuple[float, float, float]],
    passed: bool,
    has_power: bool,
) -> None:
    ends = iter(drawn)

    def drawing(*_: object) -> tuple[pd.Timestamp, float, tuple[float, float], float]:
        low, high, rises = next(ends)
        return AT, 0.0, (low, high), rises

    monkeypatch.setattr(audit_module, "_score_tossed", drawing)
    found = permuted_labels(Pipeline(nightly()), DATED, seed=0)
    assert (found.passed, found.has_power, found.is_alarm) == (
        passed,
        has_power,
        has_power and not passed,
    )
    assert not list(ends)


class AlwaysUp(Pipeline):
    """Predicting that everything rises, whatever was trained."""

    def model(self, windows: Windows, as_of: pd.Timestamp) -> Ensemble:  # noqa: ARG002 - there is none
        return None  # type: ignore[return-value]

    def predict(self, ensemble: Ensemble, windows: Windows) -> pd.DataFrame:  # noqa: ARG002 - the same
        day, stock = windows.observed.nonzero(as_tuple=True)
        dates = {"as_of": windows.as_of[day.numpy()], "target": windows.target[day.numpy()]}
        return pd.DataFrame(
            dates | {"symbol": pd.Index(windows.symbols)[stock.numpy()], "probability": 0.6}
        )


def test_a_coin_that_meets_one_direction_throughout_is_no_evidence() -> None:
    found = permuted_labels(AlwaysUp(experiment()), DATED, seed=0)
    assert not found.passed
    assert not found.is_alarm
    assert "undefined (0% of the predictions are rises)" in found.detail


@pytest.mark.parametrize(("sessions", "passed"), [(0, True), (-1, False), (1, False)])
def test_an_index_a_session_early_or_late_is_seen(sessions: int, passed: bool) -> None:
    index = SNAPSHOT.bars["symbol"] == SNAPSHOT.market.index.symbol
    moved = SNAPSHOT.bars[index].assign(session=lambda bars: bars["session"].shift(-sessions))
    shifted = replace(
        SNAPSHOT, bars=pd.concat([SNAPSHOT.bars[~index], moved.dropna(subset="session")])
    )
    found = index_in_step(shifted)
    assert found.passed == passed
    assert found.has_power


def test_an_index_that_moves_with_none_of_its_stocks_is_no_evidence() -> None:
    index = SNAPSHOT.bars["symbol"] == SNAPSHOT.market.index.symbol
    other = SNAPSHOT.bars[index].assign(
        adj_close=100 + np.random.default_rng(0).random(int(index.sum()))
    )
    found = index_in_step(replace(SNAPSHOT, bars=pd.concat([SNAPSHOT.bars[~index], other])))
    assert not found.passed
    assert not found.is_alarm


def test_a_feature_that_knows_later_dividends_is_named() -> None:
    found = rescaled_past(AdjustmentAsFeature(experiment()), DATED, AT)
    assert not found.passed
    assert found.detail == "later dividends and splits change stocks of earlier days"
    for z_close, returns in (("raw", "adj_close"), ("adjusted", "close")):
        honest = vary(nightly_of({}, z_close=z_close, returns=returns, max_return=0.35), QUICK)
        assert rescaled_past(Pipeline(honest), DATED, AT).passed


def log_moves(history: History) -> pd.DataFrame:
    wide = history.bars.pivot(index="session", columns="symbol", values="adj_close")
    returns: pd.DataFrame = np.log(wide).diff().iloc[1:]
    return returns


def test_a_toss_turns_all_moves_of_a_session_or_none_and_leaves_their_sizes() -> None:
    returns, tossed = log_moves(SNAPSHOT), log_moves(SNAPSHOT.tossed(3))
    assert_arrays_close_in_float64(tossed.abs(), returns.abs())
    heads = (tossed / returns).mean(axis=1)
    assert_arrays_close_in_float64(heads.abs(), 1)
    assert abs((heads > 0).mean() - 0.5) < 0.1  # 331 tosses of a fair coin: 3.6 standard deviations
    bars = SNAPSHOT.tossed(3).bars
    assert (bars["high"] >= bars[["open", "close"]].max(axis=1) - 1e-9).all()
    assert (bars["low"] <= bars[["open", "close"]].min(axis=1) + 1e-9).all()


def test_another_future_leaves_the_past_as_it_was() -> None:
    other = DATED.scrambled_after(AT, seed=0)
    past, future = (
        DATED.bars[part] for part in (DATED.bars["session"] <= AT, DATED.bars["session"] > AT)
    )
    assert other.bars[other.bars["session"] <= AT].equals(past)
    both = future.merge(other.bars, on=["symbol", "session"], suffixes=("", "_other"))
    assert (both["close"] != both["close_other"]).all()
    assert 0.5 * len(future) < len(both) < 0.9 * len(future)
    days = DATED.sessions[DATED.sessions <= AT]
    assert (other.market.is_constituent(days) == DATED.market.is_constituent(days)).all()
    later = DATED.sessions[DATED.sessions > AT]
    assert (other.market.is_constituent(later) != DATED.market.is_constituent(later)).any()


def test_what_was_known_on_a_day_holds_no_later_bar_entry_or_exit() -> None:
    known = DATED.known_at(AT)
    assert known.bars["session"].max() == AT
    members = {each.symbol: each for each in known.market.constituents_on(date(2023, 4, 28))}
    assert "L01" not in members  # enters on 2023-01-17
    assert members["F03A"].until is None  # leaves on 2023-01-17
    assert "F01A" not in members  # left on 2022-08-01


@pytest.mark.soak
def test_the_same_seed_finds_the_same() -> None:
    first, second, other = (
        permuted_labels(Pipeline(experiment()), DATED, seed) for seed in (5, 5, 6)
    )
    assert first == second
    assert first.detail != other.detail


@pytest.mark.soak
@pytest.mark.parametrize("normalisation", ["shared", "per_stock"])
def test_a_trained_model_is_checked_on_the_market_it_serves(normalisation: str) -> None:
    pipeline = Pipeline(experiment(normalisation=normalisation))
    windows = pipeline.windows(DATED)
    ensemble = pipeline.model(windows, AT)
    findings = audit_model(ensemble, DATED, dates=2)
    assert [finding.check for finding in findings] == [
        "scrambled_future",
        "appended_rows",
        "rescaled_past",
    ] * 2
    assert not alarms(findings)


def test_a_history_too_short_for_an_audit_is_refused_with_what_it_takes() -> None:
    with pytest.raises(DtmlError, match="an audit of 3 dates needs"):
        audit(Pipeline(experiment()), SNAPSHOT.cut(stocks=5, sessions=120, seed=0))


def test_moves_of_rows_are_those_of_the_windows() -> None:
    windows = Pipeline(experiment()).windows(SNAPSHOT)
    day, stock = torch.nonzero(windows.observed[:-1], as_tuple=True)
    rows = pd.DataFrame(
        {"as_of": windows.as_of[day.numpy()], "target": windows.target[day.numpy()]}
        | {"symbol": np.array(windows.symbols)[stock.numpy()]}
    )
    expected = windows.movement[day, stock].numpy()
    assert_arrays_close_in_float32(
        returns_of(rows, SNAPSHOT.bars, SNAPSHOT.market.returns), expected
    )


@pytest.mark.soak
@needs_real_sets
def test_an_honest_pipeline_raises_no_alarm_on_real_prices() -> None:
    bars = checked("kdd17").accepted
    traded = bars.loc[bars["symbol"] != f"^{SETS['kdd17'].index}", "session"]
    bars = bars[bars["session"] <= traded.max()]
    first, last = bars["session"].min().date(), bars["session"].max().date()
    whole = History(
        bars, sessions_between("XNYS", first, next_session("XNYS", last)), load_market("kdd17")
    )
    assert not alarms(
        audit(Pipeline(experiment()), whole.cut(stocks=17, sessions=400, seed=0), dates=2)
    )
