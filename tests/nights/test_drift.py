"""When inputs, skill and coverage are no longer what a model was trained on."""

import numpy as np

from dtml.evaluation.drift import (
    RECENT,
    STOCK_DAY,
    Inputs,
    coverage_drift,
    skill_drift,
)
from tests.support.bounds import in_float64

NAMES = ("a", "b")
DRAWN = np.random.default_rng(5).standard_normal((400, 30, 2)) * np.array([1.0, 20.0])


def drifted(features):
    rows = list(Inputs.of(DRAWN[:300]).drift(features, NAMES))
    assert [row["measure"] for row in rows] == [*NAMES, STOCK_DAY]
    return {row["measure"] for row in rows if row["drifted"]}


def test_what_is_as_before_has_not_drifted_and_one_feature_that_grew_is_named():
    assert drifted(DRAWN[-RECENT:]) == set()
    assert drifted(DRAWN[-RECENT:] * np.array([3.0, 1.0])) == {"a", STOCK_DAY}
    assert drifted(DRAWN[-RECENT:] * np.array([1.0, 0.2])) >= {"b"}


def test_skill_that_ends_is_told_and_skill_that_lasts_is_not():
    rng = np.random.default_rng(3)
    before = rng.normal(0.08, 0.1, 252)
    lasts, ends = (
        skill_drift(np.concatenate([before, rng.normal(mean, 0.1, 252)])) for mean in (0.08, 0.0)
    )
    assert lasts is not None
    assert ends is not None
    assert (lasts["drifted"], ends["drifted"]) == (False, True)
    assert ends["expected"] == in_float64(before.mean())
    assert skill_drift(before[:100]) is None, "too few nights"
    assert skill_drift(-np.concatenate([before, before])) is None, "no skill that could end"


def test_a_band_that_covers_too_little_is_told():
    rng = np.random.default_rng(4)
    assert coverage_drift(np.array([]), 0.8) is None
    for share, expected in ((0.82, False), (0.6, True)):
        row = coverage_drift(rng.binomial(30, share, 200) / 30, 0.8)
        assert row is not None
        assert row["drifted"] is expected
