"""Where many comparisons are made on the same days, chance alone seldom finds one."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, zscore

from dtml.evaluation.bootstrap import interval, overlapping_interval
from dtml.evaluation.family import ALPHA, BEATS_NOT_ALL, beside_strongest_rule, compared, family_p
from dtml.evaluation.metrics import MINIMUM_DAYS, ratio
from dtml.evaluation.ranking import score_ranking

DAYS = 127
MODELS = 10


def noise(seed, models=MODELS):
    """Daily figures of models without skill that share a part of each day."""
    generator = np.random.default_rng(seed)
    return 0.1 * (generator.standard_normal((DAYS, 1)) + generator.standard_normal((DAYS, models)))


def differences(figures):
    """The difference of each pair of models on each day."""
    first, second = np.triu_indices(figures.shape[1], k=1)
    return figures[:, first] - figures[:, second]


def test_a_family_of_noise_is_seldom_found_different():
    """With probability 5 % or less: more errors than the bound would be a rare event."""
    markets = 40
    found = [
        (family_p(differences(noise(seed)), resamples=499) <= ALPHA).any()
        for seed in range(markets)
    ]
    assert sum(found) <= binom.ppf(0.999, markets, ALPHA)


def rules_beside(figures, *, with_p):
    """The gains of the first column over each other one, as the store keeps them."""
    gains = figures[:, :1] - figures[:, 1:]
    low, high = interval(np.stack([gains, np.ones_like(gains)], axis=-1), ratio, resamples=499)
    rows = pd.DataFrame({"gain": gains.mean(axis=0), "gain_low": low, "gain_high": high})
    if with_p:
        rows["gain_p"] = family_p(gains, resamples=499)
    return rows.assign(other=range(1, figures.shape[1]))


@pytest.mark.parametrize("with_p", [True, False])
def test_a_model_is_seldom_told_apart_from_the_strongest_of_rules_that_are_as_good(*, with_p):
    """The strongest is the best of nine in hindsight, which alone would beat the model often."""
    markets = 40
    verbs = []
    for seed in range(markets):
        strongest = beside_strongest_rule(rules_beside(noise(seed), with_p=with_p))
        assert strongest is not None
        verbs.append(strongest["verb"])
    assert verbs.count("beats") == 0
    assert verbs.count("is beaten by") <= binom.ppf(0.999, markets, ALPHA)


@pytest.mark.parametrize("with_p", [True, False])
def test_the_rules_are_beaten_only_where_each_of_them_is(*, with_p):
    figures = noise(3, 4)
    figures[:, 0] += 0.1
    strongest = beside_strongest_rule(rules_beside(figures, with_p=with_p))
    assert strongest is not None
    assert (strongest["verb"], strongest["rules"]) == ("beats", 3)
    assert strongest["gain"] == (figures[:, :1] - figures[:, 1:]).mean(axis=0).min()
    named = strongest["other"]
    # A rule that is as good as the model, but for noise that makes it look the weakest of all.
    uncertain = figures[:, 0] + np.random.default_rng(1).normal(-0.2, 3, DAYS)
    beside = np.column_stack([figures, uncertain])
    strongest = beside_strongest_rule(rules_beside(beside, with_p=with_p))
    assert strongest is not None
    assert (strongest["verb"], strongest["other"]) == (BEATS_NOT_ALL, named)
    assert beside_strongest_rule(rules_beside(beside, with_p=with_p).assign(gain=np.nan)) is None


@pytest.mark.parametrize(
    ("changes", "verb"),
    [
        # As the views `ranking_summary` and `backtest_summary` choose it, whatever its p-value.
        ({}, BEATS_NOT_ALL),
        ({"gain_p": 0.01}, "beats"),
        # A rule that cannot be compared is not shown to be beaten.
        ({"gain_p": None, "gain_low": [np.nan, 0.004, 0.004]}, BEATS_NOT_ALL),
    ],
)
def test_the_strongest_rule_is_the_one_of_least_gain_and_of_equal_ones_the_first_by_name(
    changes, verb
):
    gains = pd.DataFrame({"other": ["b", "c", "a"], "gain": [0.03, 0.01, 0.01]})
    gains["gain_low"], gains["gain_high"] = [-0.01, 0.004, 0.004], [0.07, 0.016, 0.016]
    strongest = beside_strongest_rule(gains.assign(gain_p=[0.2, 0.01, 0.01]).assign(**changes))
    assert strongest is not None
    assert (strongest["other"], strongest["verb"]) == ("a", verb)


def test_a_model_with_skill_is_found_better_than_all_without():
    figures = noise(3)
    figures[:, 4] += 0.1
    first, second = np.triu_indices(MODELS, k=1)
    p = family_p(differences(figures), resamples=1999)
    is_of_skill = (first == 4) | (second == 4)
    assert (p[is_of_skill] <= ALPHA).all()
    assert (p[~is_of_skill] > ALPHA).all()


def test_the_p_value_of_one_comparison_is_that_of_students_t_where_days_are_independent():
    from scipy.stats import ttest_1samp

    for seed, shift in ((1, 0.0), (2, 0.02), (3, 0.03)):
        gains = noise(seed)[:, :1] + shift
        expected = ttest_1samp(gains[:, 0], 0).pvalue
        (found,) = family_p(gains, resamples=9999)
        assert found == pytest.approx(expected, abs=0.03)


def test_what_does_not_vary_has_no_p_value_and_few_days_have_none_at_all():
    gains = noise(11)
    gains[:, 2] = 0
    p = family_p(gains, resamples=499)
    assert np.isnan(p[2])
    assert np.isfinite(np.delete(p, 2)).all()
    assert np.isnan(family_p(gains[: MINIMUM_DAYS - 1])).all()
    missing = gains.copy()
    missing[5, 1] = np.nan
    without = family_p(np.delete(gains, 5, axis=0), resamples=499)
    assert np.array_equal(family_p(missing, resamples=499), without, equal_nan=True)


@pytest.mark.parametrize(
    ("gain", "p", "verb"),
    [
        (0.1, 0.05, "beats"),
        (-0.1, 0.05, "is beaten by"),
        (0.1, 0.051, "does not differ"),
        (0.1, float("nan"), None),
        (None, 0.01, None),
    ],
)
def test_the_verb_follows_the_p_value_and_the_sign(gain, p, verb):
    assert str(compared(gain, p)).startswith(str(verb))


def test_intervals_of_overlapping_outcomes_hold_the_truth_in_95_of_100():
    """And those that resample days hold it less often. The scores of 20 stocks know nothing and
    follow themselves from day to day; an outcome is the sum of the next ten returns.
    """
    markets, days, overlap, kept = 400, 120, 10, 0.95
    generator = np.random.default_rng(1)
    scores = generator.standard_normal((days, markets, 20))
    for day in range(1, days):
        scores[day] = kept * scores[day - 1] + np.sqrt(1 - kept**2) * scores[day]
    prices = generator.standard_normal((days + overlap, markets, 20)).cumsum(axis=0)
    outcome = prices[overlap:] - prices[:-overlap]
    ics = (zscore(scores, axis=2) * zscore(outcome, axis=2)).mean(axis=2)
    summands = np.stack([ics, np.ones_like(ics)], axis=-1)

    def holds_0(low, high):
        return int(((low <= 0) & (high >= 0)).sum())

    found = holds_0(*overlapping_interval(summands, ratio, overlap=overlap))
    assert binom.ppf(0.001, markets, 0.94) <= found <= binom.ppf(0.999, markets, 0.96)
    assert holds_0(*interval(summands, ratio, resamples=499)) < found


def test_the_interval_of_an_overlapping_leg_is_wider_and_its_figure_the_same():
    generator = np.random.default_rng(23)
    scores = generator.standard_normal((DAYS, 13)).cumsum(axis=0)
    prices = generator.standard_normal((DAYS + 5, 13)).cumsum(axis=0)
    outcome = (prices[5:] - prices[:-5])[:DAYS]
    alone, overlapping = (score_ranking(scores, outcome, overlap=each) for each in (1, 5))
    assert overlapping["rank_ic"] == alone["rank_ic"]
    widths = [each["rank_ic_high"] - each["rank_ic_low"] for each in (alone, overlapping)]
    assert widths[1] > widths[0]
