"""The look-ahead audit: every planted leak is found by the questions that must find it, honest
pipelines are left alone, and each question can fail.

A draw is one of a date, of memberships and of another future.
"""

from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial

import pandas as pd
import pytest

from dtml.errors import DtmlError
from dtml.experiments import nightly_of, vary
from dtml.lookahead.audit import (
    audit,
    audit_model,
    questions,
    spans_apart,
    whole_days,
)
from dtml.lookahead.pipeline import History, Pipeline
from dtml.markets import load_market
from dtml.prices.sessions import next_session, sessions_between
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from tests.support.leaks import (
    LEAKS,
    AdjustmentAsFeature,
    LabelInFeatures,
    LabelledRowsOnly,
    LongerLabels,
    MemberChosenOnTest,
    ShuffledSplit,
    ValidationOverTest,
    fit_for_leaks,
)

pytestmark = pytest.mark.slow

SIMULATED = SimulatedSource(market=SimulatedMarket(leaders=4, followers=2, start=date(2022, 1, 3)))
LAST = date(2023, 4, 28)  # 332 sessions
SNAPSHOT = History(
    SIMULATED.bars(LAST),
    sessions_between("XNYS", SIMULATED.market.start, next_session("XNYS", LAST)),
    load_market("simulated").with_symbols(sorted(SIMULATED.market.symbols)),
)
AT = pd.Timestamp("2022-12-14")
QUICK = {
    "window": 5,
    "hidden": 16,
    "heads": 2,
    "epochs": 1,
    "first_kept_epoch": 1,
    "seeds": 2,
    "batch_days": 16,
    "learning_rate": 0.01,
    "train_sessions": 64,  # the fewest: where rows come from does not depend on their number
    "validation_sessions": 19,
}


def dated():
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


def experiment(**overrides):
    return vary(
        nightly_of({}, z_close="adjusted", returns="adj_close", max_return=0.35), QUICK | overrides
    )


def not_passed(findings):
    return {finding.check for finding in findings if not finding.passed}


def found_in(pipeline, draw, history=SNAPSHOT):
    """The checks that do not pass in one draw."""
    drawn = fit_for_leaks(history, draw)
    at = SNAPSHOT.sessions[-40 - draw]
    findings = questions(partial(pipeline.said, at=at, trained=at), drawn, at, seed=draw)
    return not_passed(
        [*findings, spans_apart(pipeline, drawn, at), whole_days(pipeline, drawn, at)]
    )


FOUND_BY = {leak: {"cut"} for leak in LEAKS} | {
    AdjustmentAsFeature: {"rescale"},
    LabelledRowsOnly: {"cut", "whole_days"},
    ValidationOverTest: {"spans_apart"},
    LongerLabels: {"spans_apart"},
    ShuffledSplit: {"cut", "spans_apart"},
}
# Independent draws: a leak is missed in all of them less often than once in 10,000. One missed
# no leak in 40 tries, so it misses less than 7.2 % of the time, at 95 %; but the better of two
# seeds in 47 of 100, less than 57 %, because the same seed may be the better in every future.
DRAWS = dict.fromkeys(LEAKS, 4) | {MemberChosenOnTest: 17}


@pytest.mark.soak
@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_every_planted_leak_is_found(leak):
    pipeline = leak(experiment())
    assert any(found_in(pipeline, draw) >= FOUND_BY[leak] for draw in range(DRAWS[leak]))


@pytest.mark.one_case
@pytest.mark.parametrize("leak", [LabelInFeatures, AdjustmentAsFeature])
def test_a_planted_leak_is_found_by_its_question(leak):
    assert found_in(leak(experiment()), draw=0) == FOUND_BY[leak]


@pytest.mark.one_case
@pytest.mark.parametrize("normalisation", ["shared", "per_stock"])
def test_an_honest_pipeline_is_left_alone(normalisation):
    assert found_in(Pipeline(experiment(normalisation=normalisation)), draw=0) == set()


@pytest.mark.soak
@pytest.mark.parametrize("history", [DATED, SNAPSHOT], ids=["dated", "snapshot"])
def test_an_audit_of_an_honest_pipeline_passes(history):
    findings = audit(Pipeline(experiment()), history)
    assert not_passed(findings) == set()
    assert [finding.check for finding in findings] == [
        *(["cut", "rescale", "repeat", "spans_apart"] * 2),
        "whole_days",
    ]


@dataclass(frozen=True)
class Remembering(Pipeline):
    """A path that says another thing when it is asked for the fifth time, which is to repeat."""

    asked: list[pd.Timestamp] = field(default_factory=list)

    def predict(self, ensemble, windows):
        self.asked.append(windows.as_of[-1])
        rows = super().predict(ensemble, windows)
        return rows.assign(probability=rows["probability"] / (2 if len(self.asked) == 5 else 1))


def test_a_path_that_says_another_thing_when_it_is_asked_again_is_found():
    assert found_in(Remembering(experiment()), draw=0) == {"repeat"}


class Silent(Pipeline):
    """A path that predicts no stock."""

    def predict(self, ensemble, windows):
        return super().predict(ensemble, windows).iloc[:0]


def test_where_nothing_is_said_nothing_passes():
    assert found_in(Silent(experiment()), draw=0) == {"cut", "rescale", "repeat", "whole_days"}


class Touching(Pipeline):
    """Training days up to `as_of`, whatever gap was asked for."""

    def spans(self, windows, as_of):
        return Pipeline(replace(self.experiment, gap_sessions=0)).spans(windows, as_of)


class ValidationUpToNow(Pipeline):
    """Validation days up to `as_of`, a gap after the days to fit."""

    def spans(self, windows, as_of):
        train, _ = super().spans(windows, as_of)
        return train, Pipeline(replace(self.experiment, gap_sessions=0)).spans(windows, as_of)[1]


@pytest.mark.parametrize("wrong", [ValidationOverTest, ShuffledSplit, Touching, ValidationUpToNow])
def test_training_days_too_close_to_those_they_must_not_touch_are_named(wrong):
    assert not spans_apart(wrong(experiment()), DATED, AT).passed
    assert not spans_apart(Pipeline(experiment(gap_sessions=0)), DATED, AT).passed
    honest = spans_apart(Pipeline(experiment(gap_sessions=3)), DATED, AT)
    assert honest.passed
    assert "3 and 3 sessions" in honest.detail


@pytest.mark.soak
@pytest.mark.parametrize("normalisation", ["shared", "per_stock"])
def test_a_trained_model_is_checked_on_the_market_it_serves(normalisation):
    pipeline = Pipeline(experiment(normalisation=normalisation))
    ensemble = pipeline.model(pipeline.windows(DATED), AT)
    findings = audit_model(ensemble, DATED)
    assert [finding.check for finding in findings] == ["cut", "rescale", "repeat"] * 2
    assert not_passed(findings) == set()


def test_a_history_too_short_for_an_audit_is_refused_with_what_it_takes():
    with pytest.raises(DtmlError, match="2 dates needs"):
        audit(Pipeline(experiment()), SNAPSHOT.cut(stocks=5, sessions=120, seed=0))
