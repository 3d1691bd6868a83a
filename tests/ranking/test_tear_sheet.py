"""The figures of a ranking's tear sheet, against pandas and SciPy, with a planted order and without
one.
"""

import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from dtml.evaluation.ranking import (
    beside_rules,
    both_known,
    decile_spreads,
    mean_of_days,
    rank_ics,
    score_groups,
    score_ranking,
)
from dtml.evaluation.tear_sheet import (
    HORIZONS,
    answers,
    by_horizon,
    by_sector,
    coverage,
    cumulative_ic,
    group_returns,
    net_spread,
    running_means,
)
from dtml.markets.definition import FREE, Costs
from dtml.pages.figures import figure
from dtml.pages.ranking import answer_words
from dtml.pages.rendering import said
from tests.support.bounds import in_float64
from tests.support.tear_sheets import DAYS, SECTORS, SESSIONS, made, sheet


@pytest.mark.slow
def test_the_band_of_the_cumulative_rank_ic_ends_in_the_interval_of_the_score() -> None:
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


@pytest.mark.slow
def test_a_day_without_a_rank_ic_is_left_out_of_the_cumulative_one() -> None:
    daily = np.random.default_rng(1).standard_normal(DAYS) / 10
    with_gap = np.insert(daily, 30, np.nan)
    sessions = pd.bdate_range("2024-01-02", periods=DAYS + 1)
    rows = cumulative_ic(sessions, with_gap, running_means(with_gap))
    assert sessions[30] not in set(rows["session"])
    expected = cumulative_ic(sessions.delete(30), daily, running_means(daily))
    pd.testing.assert_frame_equal(rows, expected)


def test_below_twenty_days_nothing_has_an_interval() -> None:
    short = sheet(0.2, days=19)
    assert short.cumulative[["low", "high"]].isna().all(axis=None)
    for table in (short.groups, short.halves, short.horizons, short.sectors):
        ends = [name for name in table if name.endswith(("_low", "_high"))]
        assert table[ends].isna().all(axis=None)
    enough = sheet(0.2, days=20)
    assert enough.cumulative[["low", "high"]].iloc[-1].notna().all()
    assert enough.groups["excess_low"].notna().any()


@pytest.mark.slow
def test_months_and_halves_are_means_of_their_days() -> None:
    found = sheet(0.2)
    daily = found.cumulative.set_index("session")["rank_ic"]
    expected = daily.groupby([daily.index.year, daily.index.month]).mean()
    np.testing.assert_allclose(found.months["rank_ic"], expected, rtol=1e-12)
    assert found.months["days"].sum() == len(daily)
    first, second = (mean_of_days(part) for part in np.array_split(daily.to_numpy(), 2))
    assert list(found.halves["rank_ic"]) == [first.value, second.value]
    assert list(found.halves["rank_ic_low"]) == [first.low, second.low]


def test_the_outer_groups_are_the_tenths_of_the_decile_spread_for_any_number_of_stocks() -> None:
    drawn = np.random.default_rng(3)
    for stocks in range(5, 60):
        scores, outcome = drawn.standard_normal((2, 4, stocks))
        scores = np.round(scores, 1)
        group_of = score_groups(scores)
        for day in range(4):
            top = outcome[day, group_of[day] == 9].mean()
            bottom = outcome[day, group_of[day] == 0].mean()
            assert top - bottom == in_float64(decile_spreads(scores, outcome)[day])
            # A higher score is never in a lower group, and equal scores share one.
            order = np.argsort(scores[day])
            assert (np.diff(group_of[day, order]) >= 0).all()
            same = np.diff(scores[day, order]) == 0
            assert (np.diff(group_of[day, order])[same] == 0).all()


def test_groups_without_ties_are_those_of_pandas_quantiles() -> None:
    scores = np.random.default_rng(4).standard_normal((3, 50))
    for day, groups in enumerate(score_groups(scores)):
        expected = pd.qcut(pd.Series(scores[day]), 10, labels=False)
        np.testing.assert_array_equal(groups, expected)


def test_group_returns_are_means_of_days_and_the_excess_ignores_the_market() -> None:
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


def test_costs_are_those_of_replacing_every_holding_and_of_borrowing() -> None:
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


def test_a_day_without_a_ranking_trades_nothing() -> None:
    scores = np.tile(np.arange(20.0), (3, 1))
    scores[1] = np.nan
    found = net_spread(scores, np.zeros(3), SESSIONS[:3], FREE)
    assert list(found["turnover"]) == [2, 0, 0]


@pytest.mark.slow
def test_autocorrelation_and_turnover_are_those_of_the_two_days() -> None:
    scores, _ = made(0.2)
    found = by_horizon(scores).set_index("horizon")
    assert tuple(found.index) == HORIZONS
    best = score_groups(scores) == 9
    for horizon in HORIZONS:
        pairs = range(horizon, DAYS)
        correlations = [
            spearmanr(scores[day], scores[day - horizon], nan_policy="omit").statistic
            for day in pairs
        ]
        assert found.loc[horizon, "autocorrelation"] == in_float64(np.mean(correlations))
        replaced = [(best[day] & ~best[day - horizon]).sum() / best[day].sum() for day in pairs]
        assert found.loc[horizon, "replaced"] == in_float64(np.mean(replaced))
        assert found.loc[horizon, "days"] == DAYS - horizon
    same = by_horizon(np.tile(np.arange(30.0), (25, 1)))
    np.testing.assert_allclose(same["autocorrelation"], 1)
    assert (same["replaced"] == 0).all()


def test_a_sector_is_scored_as_if_its_stocks_were_the_market() -> None:
    scores, outcome = made(0.2)
    found = by_sector(scores, outcome, SECTORS)
    assert list(found["sector"]) == ["Oil", "Tin"]
    alone = score_ranking(scores[:, 1::4], outcome[:, 1::4])
    oil = found.iloc[0]
    assert (oil["days"], oil["n"]) == (alone["days"], alone["n"])
    assert oil["rank_ic"] == in_float64(alone["rank_ic"])
    assert oil["rank_ic_low"] == in_float64(alone["rank_ic_low"])


def test_coverage_counts_constituents_ranked_and_scored() -> None:
    scores = np.array([[1.0, 2.0, np.nan, 4.0], [np.nan] * 4])
    outcome = np.array([[0.1, np.nan, 0.1, 0.1], [0.1] * 4])
    found = coverage(SESSIONS[:2], np.array([4, 0]), scores, outcome)
    assert list(found["ranked"]) == [3, 0]
    assert list(found["scored"]) == [2, 0]
    assert found["ranked_share"].iloc[0] == 0.75
    assert found["scored_share"].iloc[0] == 0.5
    assert found["scored_share"].isna().iloc[1]


@pytest.mark.soak
@pytest.mark.slow
def test_a_planted_order_is_found_steady_and_worth_its_costs_only_if_they_are_small() -> None:
    found = answers(sheet(0.4))
    assert found.rank_ic.low > 0
    assert all(half.low > 0 for half in found.halves)
    assert found.net == found.gross
    assert found.net.low > 0
    assert found.positive_months == found.months
    groups = sheet(0.4).groups["excess"]
    assert groups.iloc[-1] > groups.iloc[5] > groups.iloc[0]
    dear = answers(sheet(0.4, costs=Costs(commission=200)))
    assert dear.gross == found.gross
    assert dear.net.high < 0


@pytest.mark.parametrize(
    ("skill_of_rule", "word"),
    [
        (-0.3, "Proven"),
        (0.3, "Not proven"),
        (0.6, "No"),
    ],
)
def test_a_ranking_is_compared_with_the_strongest_rule_on_the_same_days(
    skill_of_rule: float, word: str
) -> None:
    own, of_rule = (sheet(skill).daily["rank_ic"] for skill in (0.3, skill_of_rule))
    # A rule that is weaker on these days changes nothing, nor does a day that only one of both has.
    weak = sheet(-0.6).daily["rank_ic"]
    daily = pd.DataFrame({"own": own, "rule": of_rule, "weak": weak}).reindex(range(-1, len(own)))
    daily.loc[-1, ["rule", "weak"]] = -1.0
    of_rules = {name: daily[name].to_numpy() for name in ("weak", "rule")}
    strongest = beside_rules(daily["own"].to_numpy(), of_rules)
    assert strongest is not None
    assert (strongest["other"], strongest["rules"]) == ("rule", 2)
    assert strongest["gain"] == in_float64(own.mean() - of_rule.mean())
    found = answers(sheet(0.3))
    assert answer_words(found, strongest)["Beats the rules"] == word
    # The p-value is adjusted for the rules, not for all pairs; a gain that never varies has none.
    p = strongest["gain_p"]
    how = "interval .* 2 rules" if np.isnan(p) else f"adjusted p {figure(p, 4)}"
    assert re.match(rf'"rule",.*hindsight.* 2 rules \({how}\)$', said("strongest_rule", strongest))
    assert len(answer_words(found)) == 3
    assert beside_rules(daily["own"].to_numpy(), {}) is None


@pytest.mark.parametrize("seed", range(3))
def test_noise_has_no_order(seed: int) -> None:
    scores, outcome = made(0.0, seed)
    found = mean_of_days(rank_ics(*both_known(scores, outcome)))
    assert found.low < 0 < found.high
    excess = group_returns(scores, outcome)
    holds_0 = (excess["excess_low"] <= 0) & (excess["excess_high"] >= 0)
    assert holds_0.sum() >= 8


def test_a_sheet_without_a_day_has_no_figures() -> None:
    empty = sheet(0.2, days=0)
    assert empty.cumulative.empty
    assert empty.months.empty
    found = answers(empty)
    assert found.days == 0
    assert np.isnan(found.rank_ic.value)
    assert np.isnan(found.net.value)
