"""The scoreboard: every predictor on the same stock-days, beside the best rule;
market timing apart from picking.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, brier_score_loss, matthews_corrcoef, roc_auc_score

from dtml.errors import DtmlError
from dtml.evaluation.scoreboard import Predictor, calibration_line, scoreboard
from tests.support.bounds import as_solved, in_float64

DAYS, STOCKS, MEMBERS = 31, 7, 3
TARGET = pd.bdate_range("2021-01-01", periods=DAYS)


def rule_of(direction, name="rule"):
    return Predictor(
        name, np.repeat(direction.astype(float)[None, :, None], STOCKS, axis=2), is_rule=True
    )


def table(*predictors, movement, protocol="all"):
    board = scoreboard(predictors, movement=movement, target=TARGET)
    return board[board["protocol"] == protocol].set_index("predictor")


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr("dtml.evaluation.scoreboard.RESAMPLES", 499)


@pytest.fixture
def movement():
    generator = np.random.default_rng(1)
    return 0.01 * (generator.standard_normal((DAYS, 1)) + generator.standard_normal((DAYS, STOCKS)))


@pytest.fixture
def model(movement):
    noise = np.random.default_rng(2).standard_normal((MEMBERS, DAYS, STOCKS))
    return Predictor("model", 1 / (1 + np.exp(-(30 * movement + noise))), configurations=11)


@pytest.fixture
def rule(movement):
    return rule_of(np.random.default_rng(3).random(DAYS) < 0.5)


def test_every_figure_is_that_of_scikit_learn(movement, model, rule):
    row = table(model, rule, movement=movement).loc["model"]
    rose, together = (movement > 0).ravel(), model.probability.mean(axis=0).ravel()
    rule_acc = accuracy_score(rose, rule.probability.ravel() > 0.5)
    members = [accuracy_score(rose, one.ravel() > 0.5) for one in model.probability]
    phis = [matthews_corrcoef(rose, one.ravel() > 0.5) for one in model.probability]
    daily = zip(model.probability.mean(axis=0), movement, strict=True)
    logit = np.log(together / (1 - together))
    fit = LogisticRegression(C=np.inf, tol=1e-10).fit(logit[:, None], rose)
    expected = {
        "days": DAYS,
        "n": DAYS * STOCKS,
        "rises": rose.sum(),
        "seeds": MEMBERS,
        "configurations": 11,
        "acc": accuracy_score(rose, together > 0.5),
        "mcc": matthews_corrcoef(rose, together > 0.5),
        "acc_mean": np.mean(members),
        "acc_sd": np.std(members, ddof=1),
        "mcc_mean": np.mean(phis),
        "mcc_sd": np.std(phis, ddof=1),
        "acc_gain": accuracy_score(rose, together > 0.5) - rule_acc,
        "brier": brier_score_loss(rose, together),
        "rank_ic": np.mean([spearmanr(said, outcome).statistic for said, outcome in daily]),
    }
    assert {name: row[name] for name in expected} == in_float64(expected)
    assert row["calibration_slope"] == as_solved(fit.coef_[0, 0], 1e-3)
    assert row["calibration_intercept"] == as_solved(fit.intercept_[0], 1e-3)
    for name in ("acc", "mcc", "acc_gain", "mcc_gain", "brier", "auc", "rank_ic"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]


def test_timing_the_market_perfectly_is_no_skill_within_a_day(movement, rule):
    common = np.sign(movement.mean(axis=1, keepdims=True)) * 0.3 + 0.5
    timer = Predictor("timer", np.broadcast_to(common, (1, DAYS, STOCKS)).copy())
    row = table(timer, rule, movement=movement).loc["timer"]
    assert row["acc"] > 0.65
    assert (row["auc"], row["auc_low"], row["auc_high"]) == (0.5, 0.5, 0.5)
    assert row["same_direction"] == 1


def test_pairs_are_pooled_over_days_and_the_level_of_a_day_does_not_matter(movement, model, rule):
    together = model.probability.mean(axis=0)
    odds = together / (1 - together) * np.exp(np.linspace(-3, 3, DAYS))[:, None]
    shifted = Predictor("shifted", (odds / (1 + odds))[None])
    auc = table(model, shifted, rule, movement=movement)["auc"]
    assert auc["shifted"] == auc["model"]
    rises = (movement > 0).sum(axis=1)
    weights = rises * (STOCKS - rises)  # pairs of a rise and a fall
    scores = [
        roc_auc_score(day > 0, chance)
        for chance, day in zip(together[weights > 0], movement[weights > 0], strict=True)
    ]
    assert auc["model"] == in_float64(np.average(scores, weights=weights[weights > 0]))


def test_the_papers_protocol_drops_small_moves(movement, model, rule):
    movement = np.round(movement, 4)
    movement[:2] = 0.0054
    movement[2, 0], movement[3, 0] = 0.0055, -0.005
    row = table(model, rule, movement=movement, protocol="published").loc["model"]
    large = (movement >= 0.0055) | (movement <= -0.005)
    assert (row["days"], row["n"]) == (DAYS - 2, large.sum())
    together = model.probability.mean(axis=0)
    assert row["acc"] == in_float64(accuracy_score(movement[large] > 0, together[large] > 0.5))


def test_a_move_of_nothing_is_no_rise(movement, model, rule):
    movement[5] = 0.0
    assert table(model, rule, movement=movement).loc["model", "rises"] == (movement > 0).sum()


def test_stock_days_without_a_probability_or_a_move_are_left_out_for_everyone(
    movement, model, rule
):
    """What is said of a stock-day that one seed of one model does not know
    changes no figure of anyone.
    """
    partial = replace(model, name="partial", probability=model.probability[:, ::-1].copy())
    partial.probability[1, :3, 2] = np.nan
    partial.probability[0, 7] = np.nan
    movement[11, 4] = np.nan
    rows = table(model, partial, rule, movement=movement)
    assert set(rows["n"]) == {DAYS * STOCKS - 3 - STOCKS - 1}
    assert set(rows["days"]) == {DAYS - 1}
    model.probability[:, :3, 2], model.probability[:, 7] = 0.01, 0.99
    rule.probability[:, 7] = np.nan
    movement[7] = 0.5
    pd.testing.assert_frame_equal(table(model, partial, rule, movement=movement), rows)


@pytest.mark.parametrize(
    ("chance", "rose"),
    [([0.4, 0.4, 0.4], [1, 0, 1]), ([0.2, 0.5, 0.7], [1, 1, 1]), ([0.2, 0.5, 0.7], [0, 0, 1])],
)
def test_a_line_that_cannot_be_fitted_is_missing(chance, rose):
    assert np.isnan(calibration_line(np.array(chance), np.array(rose, dtype=bool))).all()


def test_what_does_not_fit_is_an_error(movement, model, rule):
    silent = replace(rule, probability=rule.probability.copy())
    silent.probability[:, 2] = np.nan
    with pytest.raises(DtmlError, match=f"{rule.name} .*7 stock-days.* 2021-01-05"):
        table(model, silent, movement=movement)
    with pytest.raises(DtmlError, match="'published'"):
        table(model, rule, movement=np.full_like(movement, 0.001))
