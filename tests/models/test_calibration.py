"""Calibrated probabilities and the abstention band: what they promise, counted
in days, and what is counted of them.
"""

import numpy as np
import pandas as pd
import pytest

from dtml.errors import DtmlError
from dtml.evaluation.calibration import (
    LEVELS,
    Calibration,
    calibrate,
    count_band,
    count_bins,
    coverage,
    curve_with_intervals,
    decide,
)
from dtml.evaluation.metrics import MINIMUM_DAYS
from tests.support.bounds import as_drawn, in_float64

DAYS, STOCKS, DRAWS, FRESH = 41, 11, 199, 7
MONDAY, TUESDAY = pd.Timestamp("2021-01-04"), pd.Timestamp("2021-01-05")


def logistic(logit):
    return 1 / (1 + np.exp(-logit))


def market(seed, days=DAYS, together=0.0):
    """The logit of each stock's chance of a rise, and returns; on a share of
    days one number decides for all stocks.
    """
    generator = np.random.default_rng(seed)
    logit = generator.standard_normal((days, 1)) / 2 + generator.standard_normal((days, STOCKS)) / 2
    drawn = generator.random((days, STOCKS))
    drawn = np.where(generator.random((days, 1)) < together, drawn[:, :1], drawn)
    return logit, np.where(drawn < logistic(logit), 0.01, -0.01)


def oracle(seed, days=DAYS):
    logit, movement = market(seed, days)
    return logistic(logit), movement


def long(probability, movement):
    target = np.repeat(pd.bdate_range("2021-01-01", periods=len(movement)), STOCKS)
    rise = pd.Series((movement > 0).ravel().astype(object)).where(
        np.isfinite(movement).ravel(), None
    )
    return pd.DataFrame(
        {"target": target, "run_id": "a", "probability": probability.ravel(), "rise": rise}
    )


WORLDS = {
    "an oracle": lambda logit, _: logit,
    "too bold and one-sided": lambda logit, _: 4 * logit + 1,
    "no skill, one direction a day": lambda logit, noise: np.broadcast_to(
        noise[:, :1], logit.shape
    ),
    "skill in some": lambda logit, noise: np.where(noise > 0, logit, 3 * noise),
    "the wrong way round": lambda logit, _: -logit,
}


@pytest.mark.one_case
@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_fresh_days_are_covered_at_least_as_often_as_promised_whatever_the_model(world):
    """Stocks rise and fall together, and days have unlike numbers of stocks:
    each day weighs the same.
    """
    shares = np.empty((DRAWS, len(LEVELS), 2))
    for draw in range(DRAWS):
        generator = np.random.default_rng([draw, 1])
        logit, movement = market(draw, DAYS + FRESH, together=0.8)
        said = logistic(WORLDS[world](logit, generator.standard_normal(logit.shape)))
        missing = generator.random(said.shape) > generator.uniform(0.2, 1, (len(said), 1))
        said[missing & (np.arange(STOCKS) > 0)] = np.nan
        made = calibrate(said[:DAYS], movement[:DAYS])
        fresh, rose = made.apply(said[DAYS:]), movement[DAYS:] > 0
        for position, level in enumerate(LEVELS):
            direction = decide(fresh, made.thresholds[level])
            kept = np.where(np.isfinite(fresh), np.isnan(direction) | (direction == rose), np.nan)
            shares[draw, position] = np.nanmean(kept, axis=1).mean(), np.isfinite(direction).mean()
    found, error = shares.mean(axis=0), shares[..., 0].std(axis=0) / np.sqrt(DRAWS)
    assert (found[:, 0] + 2.5 * error >= LEVELS).all()
    assert found[0, 1] > 0.2  # not by silence alone
    assert found[-1].tolist() == [1, 0]  # twenty days cannot promise .99


def test_a_model_whose_order_is_wrong_says_the_base_rate_of_every_stock():
    probability, movement = oracle(3)
    made = calibrate(1 - probability, movement)
    assert made.slope == 0
    assert made.apply(probability) == in_float64(
        ((movement[::2] > 0).mean(axis=1).sum() + 1) / (21 + 2)
    )


@pytest.mark.parametrize("share", [0.3, 0.62])
def test_equal_probabilities_get_one_call_and_none_at_high_levels(share):
    for seed in range(31):  # no rounding may part the base rate from the threshold that it set
        movement = np.where(np.random.default_rng(seed).random((DAYS, STOCKS)) < share, 0.01, -0.01)
        made = calibrate(np.full(movement.shape, 0.37), movement)
        directions = [
            decide(made.apply(np.array([0.2, 0.37, 0.9])), made.thresholds[level])
            for level in LEVELS
        ]
        assert (directions[0] == (share > 0.5)).all()
        assert np.isnan(directions[LEVELS.index(0.8) :]).all()
        assert all(len(np.unique(direction)) == 1 for direction in directions)


def test_calibrated_probabilities_keep_their_order_and_stay_inside():
    found = Calibration(3.0, -0.4).apply(np.array([0, 1e-12, 0.1, 0.5, 0.9, 1]))
    assert (np.diff(found) >= 0).all()
    assert ((found > 0) & (found < 1)).all()


def test_a_call_is_made_outside_the_band_alone():
    calibrated = np.array([0.2, 0.25, 0.3, 0.5, 0.75, 0.8, np.nan])
    expected = [0, np.nan, np.nan, np.nan, np.nan, 1, np.nan]
    np.testing.assert_array_equal(decide(calibrated, 0.75), expected)
    assert np.isnan(decide(np.array([1e-6, 0.5, 1 - 1e-6]), 1.0)).all()


def test_nothing_to_calibrate_on_is_an_error():
    probability, movement = oracle(16)
    with pytest.raises(DtmlError, match="none of 451 "):
        calibrate(probability, np.full_like(movement, np.nan))


def test_calls_of_several_nights_and_runs_are_counted_by_their_own_bands():
    columns = {
        "target": [TUESDAY, *[MONDAY] * 5, TUESDAY, TUESDAY],
        "run_id": ["b", "a", "a", "a", "a", "a", "a", "unknown"],
        "calibrated": [0.9, 0.9, 0.1, 0.65, 0.8, np.nan, 0.35, 0.9],
        "rise": [True, True, True, False, None, True, False, True],
    }
    directions = pd.DataFrame(columns)  # run b has no level .8, and a is not decided at .65 there
    bands = pd.DataFrame(
        {"run_id": ["a", "a", "b"], "level": [0.5, 0.8, 0.5], "threshold": [0.5, 0.7, 0.95]}
    )
    expected = [(MONDAY, 0.5, 3, 1, 3, 1), (MONDAY, 0.8, 3, 2, 2, 1)]
    expected += [(TUESDAY, 0.5, 2, 2, 1, 1), (TUESDAY, 0.8, 1, 1, 0, 0)]
    assert list(count_band(directions, bands).itertuples(index=False, name=None)) == expected


def test_few_days_or_few_days_with_directions_have_no_interval():
    target = pd.bdate_range("2021-01-01", periods=401)
    counts = pd.DataFrame(
        {"target": target, "level": 0.9, "n": 7, "covered": 7, "decided": 0, "decided_correct": 0}
    )
    for with_calls, known in (
        (MINIMUM_DAYS - 1, False),
        (MINIMUM_DAYS, True),
    ):  # many resamples have none of these
        counts.loc[: with_calls - 1, ["covered", "decided", "decided_correct"]] = [6, 3, 2]
        found, short = coverage(counts), coverage(counts[:with_calls])
        assert found[["coverage", "coverage_low", "decided_acc"]].notna().all(axis=None)
        assert found[["decided_acc_low", "decided_acc_high"]].notna().all(axis=None) == known
        assert short[["coverage_low", "coverage_high"]].notna().all(axis=None) == known


def test_a_curve_of_fine_bins_is_that_of_their_stock_days():
    probability, movement = oracle(20, days=401)
    found = curve_with_intervals(count_bins(long(probability, movement))).iloc[:, :5]
    assert found["n"].tolist() == as_drawn([401 * STOCKS / 10] * 10, share=0.2)
    for low, high, *told in found.itertuples(index=False):
        inside = (probability >= low) & (probability < high)
        assert told == in_float64(
            [*(each[inside].mean() for each in (probability, movement > 0)), inside.sum()]
        )


def test_without_an_outcome_nothing_is_counted():
    nothing = long(np.array([[0.6] * STOCKS]), np.full((1, STOCKS), np.nan)).assign(calibrated=0.5)
    bands = pd.DataFrame({"run_id": ["a"], "level": [0.8], "threshold": [0.6]})
    counts = count_band(nothing, bands)
    assert [len(counts), len(coverage(counts)), len(count_bins(nothing))] == [0, 0, 0]
