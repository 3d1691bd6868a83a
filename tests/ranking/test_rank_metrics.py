"""The metrics of a ranking, against scikit-learn, SciPy and formulas, and the
laws that make them honest.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata, spearmanr
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, matthews_corrcoef, roc_auc_score

from dtml.evaluation.ranking import (
    against_median,
    both_known,
    decile_spreads,
    rank_ic_t,
    rank_ics,
    residual_ics,
    score_each_day,
    score_ranking,
    within_day_aucs,
)
from tests.support.bounds import in_float64

DAYS, STOCKS = 61, 37
ENDS = ("rank_ic", "rank_ic_low", "rank_ic_high", "acc", "acc_low", "acc_high")


def made(seed=0, skill=0.2):
    drawn = np.random.default_rng(seed)
    scores, noise = drawn.standard_normal((2, DAYS, STOCKS))
    outcome = 0.01 * (skill * scores + noise) + 0.02 * drawn.standard_normal((DAYS, 1))
    scores[drawn.random(scores.shape) < 0.1] = np.nan
    outcome[drawn.random(scores.shape) < 0.1] = np.nan
    return both_known(np.round(scores, 1), outcome)  # with ties


def test_the_residual_ic_is_of_what_least_squares_on_the_rules_leave():
    scores, outcome = made()
    drawn = np.random.default_rng(1)
    rules = [scores + drawn.standard_normal(scores.shape), drawn.standard_normal(scores.shape)]
    rules[1][drawn.random(scores.shape) < 0.1] = np.nan
    found = residual_ics(scores, outcome, [*rules, rules[0]])  # twice the same takes no more away
    for day in range(DAYS):
        known = np.isfinite(scores[day])
        ranks = [rankdata(rule[day, known], nan_policy="omit") for rule in rules]
        of_rules = np.transpose(
            [np.where(np.isnan(each), np.nanmean(each), each) for each in ranks]
        )
        own = rankdata(scores[day, known])
        left = own - LinearRegression().fit(of_rules, own).predict(of_rules)
        expected = np.corrcoef(left, rankdata(outcome[day, known]))[0, 1]
        assert found[day] == pytest.approx(expected, abs=1e-9)
    # Nothing is left of a rule itself, and nothing is taken away without rules.
    assert np.isnan(residual_ics(rules[0], outcome, rules)).all()
    assert np.isnan(residual_ics(scores, outcome, [])).all()


def test_upper_and_lower_ic_are_of_the_halves_of_the_ranking():
    scores, outcome = made()
    outcome = np.where(scores > np.nanmedian(scores, axis=1)[:, None], outcome, -scores)
    found = score_each_day(scores, outcome)
    for day in range(DAYS):
        known = np.isfinite(scores[day])
        s, y = scores[day, known], outcome[day, known]
        is_upper = rankdata(s) > (len(s) + 1) / 2
        assert found["upper_ic"][day] == in_float64(spearmanr(s[is_upper], y[is_upper]).statistic)
        assert found["lower_ic"][day] == in_float64(spearmanr(s[~is_upper], y[~is_upper]).statistic)


@pytest.mark.slow
def test_daily_figures_are_those_of_scipy_and_scikit_learn():
    scores, outcome = made()
    ics, aucs, counts = (
        rank_ics(scores, outcome),
        within_day_aucs(scores, outcome),
        against_median(scores, outcome),
    )
    for day in range(DAYS):
        known = np.isfinite(scores[day])
        s, y = scores[day, known], outcome[day, known]
        middle = (len(s) + 1) / 2
        above, called = rankdata(y) > middle, rankdata(s) > middle
        assert ics[day] == in_float64(spearmanr(s, y).statistic)
        assert aucs[day] == in_float64(roc_auc_score(above, s))
        assert (counts[day, 0] + counts[day, 3]) / counts[day].sum() == in_float64(
            accuracy_score(above, called)
        )
    totals = counts.sum(axis=0)
    found = score_ranking(scores, outcome)
    assert found["mcc"] == in_float64(
        matthews_corrcoef(np.repeat([1, 0, 1, 0], totals), np.repeat([1, 1, 0, 0], totals))
    )
    assert (found["days"], found["n"]) == (DAYS, int(np.isfinite(scores).sum()))
    assert found["rank_ic"] == in_float64(ics.mean())
    assert found["icir"] == in_float64(ics.mean() / ics.std())


def test_a_decile_spread_is_the_mean_of_the_best_tenth_less_that_of_the_worst():
    outcome = np.arange(20.0)[None] / 100
    assert decile_spreads(outcome, outcome)[0] == in_float64((0.185) - 0.005)
    at_the_edges = np.arange(11.0)[None]  # two stocks at either end
    assert decile_spreads(at_the_edges, at_the_edges)[0] == in_float64(9.5 - 0.5)


def test_the_t_of_four_days_by_hand():
    """One lag: mean .25; squares .0225 .0025 .0225 .0025 add up to .05, neighbours to .0075, which
    count half, twice.
    """
    assert rank_ic_t(np.array([0.1, 0.2, 0.4, 0.3])) == in_float64(0.25 * 4 / 0.0575**0.5)


def test_what_all_stocks_do_together_changes_no_figure():
    scores, outcome = made()
    market = np.random.default_rng(3).standard_normal((DAYS, 1))
    found = score_ranking(scores, outcome)
    moved = score_ranking(scores + 5 * market, outcome + market)
    assert [moved[name] for name in ENDS] == [found[name] for name in ENDS]


def test_below_twenty_days_there_is_no_interval_and_a_day_of_four_stocks_does_not_count():
    scores, outcome = made()
    few = score_ranking(scores[:19], outcome[:19])
    assert np.isnan([few["rank_ic_low"], few["acc_high"]]).all()
    scores[0, 4:] = np.nan
    assert score_ranking(scores, outcome)["days"] == DAYS - 1


def test_days_scored_together_have_the_figures_of_each_day_alone():
    scores, outcome = made()
    scores[1, 4:] = np.nan  # too few stocks
    scores[2] = 0.5  # no order
    scores[3] = np.nan
    together = score_each_day(scores, outcome)
    alone = pd.DataFrame(
        score_ranking(scores[day, None], outcome[day, None]) for day in range(DAYS)
    )
    pd.testing.assert_frame_equal(together, alone, check_exact=True, check_like=True)


@pytest.mark.slow
def test_intervals_of_rankings_without_skill_hold_zero_about_as_often_as_they_say():
    held = [score_ranking(*made(seed, skill=0.0)) for seed in range(60)]
    # of a binomial of .95, .0003 lie below
    assert sum(each["rank_ic_low"] <= 0 <= each["rank_ic_high"] for each in held) >= 52
