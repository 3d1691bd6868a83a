"""Calibration to the last digit: the correction by Newton's steps, thresholds
by trying each, counts by hand.
"""

import numpy as np
import pandas as pd
import pytest

from dtml.evaluation.bootstrap import interval
from dtml.evaluation.calibration import LEVELS, calibrate, count_bins, coverage
from dtml.evaluation.metrics import ratio
from tests.support.bounds import in_float64


def newton(rows):
    """Slope and intercept, as the module describes them."""
    day, chance, rose, weight = (np.array(each) for each in zip(*rows, strict=True))
    said, days = np.log(chance / (1 - chance)), day.max() + 1
    centre = (weight * said).sum() / weight.sum()
    spread = ((weight * (said - centre) ** 2).sum() / weight.sum()) ** 0.5
    design = np.stack([np.ones(len(rows)), (said - centre) / spread], axis=1)
    target = np.where(rose, (rose.sum() + 1) / (rose.sum() + 2), 1 / ((~rose).sum() + 2))
    line = np.zeros(2)
    for _ in range(31):
        fitted = 1 / (1 + np.exp(-design @ line))
        curve = np.linalg.inv((design * (weight * fitted * (1 - fitted))[:, None]).T @ design)
        line = line + curve @ design.T @ (weight * (target - fitted))
    pulls = [
        ((weight * (target - fitted))[day == one, None] * design[day == one]).sum(axis=0)
        for one in range(days)
    ]
    variance = (
        np.diag(curve @ sum(np.outer(pull, pull) for pull in pulls) @ curve) * days / (days - 1)
    )
    height, lean = line**3 / (line**2 + variance)
    return lean / spread, height - lean / spread * centre


DAYS, STOCKS = 31, 7
MONDAY = pd.Timestamp("2021-01-04")


def made(seed=3):
    """Probabilities with skill and returns, on days of unlike numbers of
    stocks; two days have nothing known.
    """
    generator = np.random.default_rng(seed)
    said = generator.standard_normal((DAYS, STOCKS))
    movement = np.where(
        generator.random((DAYS, STOCKS)) < 1 / (1 + np.exp(-2 * said - 0.4)), 0.01, -0.01
    )
    probability = 1 / (1 + np.exp(-said / 3))
    probability[(generator.random((DAYS, STOCKS)) < 0.4) & (np.arange(STOCKS) > 0)] = np.nan
    probability[4], movement[11] = np.nan, np.nan
    movement[7, 0] = 0.0  # a tie is a fall
    return probability, movement


def halves(probability, movement):
    """Day, probability, outcome and weight of each stock-day, of every second
    day that has one and of the others.
    """
    known = [
        [s for s in range(STOCKS) if np.isfinite(probability[d, s] + movement[d, s])]
        for d in range(len(movement))
    ]
    days = [day for day in range(len(movement)) if known[day]]
    return [
        [
            (n, probability[d, s], movement[d, s] > 0, 1 / len(known[d]))
            for n, d in enumerate(half)
            for s in known[d]
        ]
        for half in (days[0::2], days[1::2])
    ]


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_threshold_is_the_smallest_that_leaves_so_many_days_of_shares_without_a_wrong_call(seed):
    probability, movement = made(seed)
    _, measured = halves(probability, movement)
    found = calibrate(probability, movement)
    days = measured[-1][0] + 1
    assert (found.days, found.directions) == (days, len(measured))
    left = [(float(found.apply(np.array([p]))[0]), rose, weight) for _, p, rose, weight in measured]
    surprises = sorted((1 - p if rose else p, weight) for p, rose, weight in left)
    for level in LEVELS:
        enough = [
            s
            for s, _ in surprises
            if sum(w for o, w in surprises if o <= s) >= level * (days + 1) - 1e-9
        ]
        expected = round(enough[0] + 1e-6, 6) if level * (days + 1) <= days else 1.0
        assert found.thresholds[level] == min(max(expected, 0.5), 1.0), level


def test_where_a_single_day_or_a_single_probability_is_fitted_the_base_rate_is_said():
    """One day of three stocks, two of which rose: (2/3 + 1) / (1 + 2)."""
    one_day = calibrate(np.array([[0.2, 0.6, 0.9]]), np.array([[0.01, -0.01, 0.01]]))
    assert one_day.slope == 0
    assert one_day.apply(np.array([0.1, 0.9])) == in_float64([5 / 9, 5 / 9])
    assert set(one_day.thresholds.values()) == {1.0}
    assert (one_day.days, one_day.directions) == (0, 0)


def test_coverage_by_hand_and_its_intervals_are_those_of_2000_resamples_of_the_same_seed():
    target, generator = pd.bdate_range("2021-01-01", periods=29), np.random.default_rng(7)
    n, silent, wrong = (generator.integers(*ends, 29) for ends in ((5, 9), (1, 4), (0, 2)))
    decided = {"decided": n - silent, "decided_correct": n - silent - wrong}
    counts = pd.DataFrame({"target": target, "level": 0.8, "n": n, "covered": n - wrong, **decided})
    found = coverage(counts).iloc[0]
    assert found[["level", "days", "n"]].tolist() == [0.8, 29, n.sum()]
    assert found["decided"] == counts["decided"].sum() / n.sum()
    for name, part, whole in (
        ("coverage", "covered", "n"),
        ("decided_acc", "decided_correct", "decided"),
    ):
        assert found[name] == counts[part].sum() / counts[whole].sum()
        low, high = interval(counts[[part, whole]].to_numpy()[:, None], ratio, resamples=2000)
        assert found[[f"{name}_low", f"{name}_high"]].tolist() == [low[0], high[0]]


def test_bins_by_hand():
    directions = pd.DataFrame({"target": MONDAY, "probability": [0.29, 0.295, 1.0, np.nan, 0.5]})
    for missing in ("boolean", object):
        given = directions.assign(rise=pd.Series([True, False, True, True, None], dtype=missing))
        found = count_bins(given)
        assert list(found.itertuples(index=False, name=None)) == [
            (MONDAY, 29, 2, in_float64(0.585), 1),
            (MONDAY, 99, 1, 1.0, 1),
        ]
        assert [found[name].dtype.kind for name in ("bin", "n", "rises")] == ["i", "i", "i"]


@pytest.mark.parametrize(("seed", "days"), [(3, DAYS), (4, DAYS), (5, DAYS), (3, 4)])
def test_the_correction_is_platts_shrunk_by_what_days_say_of_it(seed, days):
    probability, movement = made(seed)
    fitted, _ = halves(probability[:days], movement[:days])
    found = calibrate(probability[:days], movement[:days])
    assert (found.slope, found.intercept) == in_float64(newton(fitted))
    assert found.slope > 0
