"""The figures of a ranking's tear sheet, against pandas and SciPy, with a planted order and without
one.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from dtml.evaluation.ranking import (
    beside_rules,
    both_known,
    rank_ics,
    score_groups,
    score_ranking,
)
from dtml.evaluation.tear_sheet import (
    HORIZONS,
    answers,
    by_horizon,
    group_returns,
    net_spread,
)
from dtml.markets.definition import Costs
from dtml.pages.ranking import answer_words
from tests.support.bounds import in_float64
from tests.support.tear_sheets import DAYS, SESSIONS, made, sheet


@pytest.mark.slow
def test_the_band_of_the_cumulative_rank_ic_ends_in_the_interval_of_the_score():
    scores, outcome = made(0.2)
    score = score_ranking(scores, outcome)
    rows = sheet(0.2).cumulative
    last = rows.iloc[-1]
    assert len(rows) == score["days"]
    assert last["total"] / score["days"] == in_float64(score["rank_ic"])
    assert last["low"] / score["days"] == in_float64(score["rank_ic_low"])
    assert last["high"] / score["days"] == in_float64(score["rank_ic_high"])
    expected = [
        spearmanr(*grids, nan_policy="omit").statistic
        for grids in zip(scores, outcome, strict=True)
    ]
    np.testing.assert_allclose(rows["total"], np.cumsum(expected), rtol=1e-9)


def test_group_returns_are_means_of_days_and_the_excess_ignores_the_market():
    scores, outcome = both_known(*made(0.3))
    found = group_returns(scores, outcome)
    groups = pd.DataFrame(score_groups(scores)).stack()
    returns = pd.DataFrame(outcome).stack().rename("return")
    rows = (
        pd.DataFrame({"return": returns, "group": groups})
        .dropna()
        .reset_index(names=["day", "stock"])
    )
    by_day = rows[rows["group"] >= 0].groupby(["group", "day"])["return"].mean()
    np.testing.assert_allclose(found["mean_return"], by_day.groupby("group").mean(), rtol=1e-9)
    market = np.random.default_rng(5).standard_normal((DAYS, 1))
    moved = group_returns(scores, outcome + market)
    np.testing.assert_allclose(moved["excess"], found["excess"], atol=1e-12)
    np.testing.assert_allclose(moved["excess_high"], found["excess_high"], atol=1e-6)


def test_costs_are_those_of_replacing_every_holding_and_of_borrowing():
    scores = np.tile(np.arange(20.0), (3, 1))
    scores[1] = -scores[1]  # the best tenth becomes the worst
    gross = np.array([0.01, 0.02, np.nan])
    costs = Costs(commission=10, half_spread=5, purchase_tax=1, sale_tax=2, borrow=252)
    found = net_spread(scores, gross, SESSIONS[:3], costs)
    assert list(found["turnover"]) == [2, 4]
    basis_point = 1e-4
    first = basis_point * (16 + 17 + 1)  # bought 1, sold 1 short, borrowed for a session
    second = basis_point * (2 * 16 + 2 * 17 + 1)
    np.testing.assert_allclose(found["cost"], [first, second])
    np.testing.assert_allclose(found["net_total"], [0.01 - first, 0.03 - first - second])
    unknown = net_spread(scores, gross, SESSIONS[:3], None)
    assert unknown["net"].isna().all()
    assert list(unknown["gross_total"]) == [0.01, 0.03]


@pytest.mark.slow
def test_autocorrelation_and_turnover_are_those_of_the_two_days():
    scores, _ = made(0.2)
    found = by_horizon(scores).set_index("horizon")
    assert tuple(found.index) == HORIZONS
    best = score_groups(scores) == 9
    for horizon in HORIZONS:
        pairs = list(zip(range(horizon, DAYS), range(DAYS), strict=False))
        correlations = [
            spearmanr(scores[day], scores[before], nan_policy="omit").statistic
            for day, before in pairs
        ]
        replaced = [(best[day] & ~best[before]).sum() / best[day].sum() for day, before in pairs]
        row = found.loc[horizon, ["autocorrelation", "replaced", "days"]].tolist()
        assert row == in_float64([np.mean(correlations), np.mean(replaced), len(pairs)])


@pytest.mark.parametrize(
    ("skill_of_rule", "word"), [(-0.3, "Proven"), (0.3, "Not proven"), (0.6, "No")]
)
def test_a_ranking_is_compared_with_the_strongest_rule_on_the_same_days(skill_of_rule, word):
    own, rule, weak = (rank_ics(*both_known(*made(skill))) for skill in (0.3, skill_of_rule, -0.6))
    own[0], rule[0] = np.nan, -1.0  # a day that only one of both has changes nothing
    strongest = beside_rules(own, {"weak": weak, "rule": rule})
    assert strongest is not None
    assert (strongest["other"], strongest["rules"]) == ("rule", 2)
    assert strongest["gain"] == in_float64((own - rule)[1:].mean())
    assert answer_words(answers(sheet(0.3)), strongest)["Beats the rules"] == word
    assert beside_rules(own, {}) is None


def test_a_sheet_without_a_day_has_no_figures():
    found = answers(sheet(0.2, days=0))
    assert found.days == 0
    assert np.isnan([found.rank_ic.value, found.net.value]).all()
