"""ACC, MCC and their intervals, and the naive rules."""

from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, matthews_corrcoef

from benchmarks.interval_coverage import MIXED, ONE_WAY_LONG, WORLDS, autoregressive, coverages
from dtml.baselines.naive_rules import (
    NAIVE_RULES,
    choose_rule,
    directions_on,
    naive_directions,
    stock_directions,
)
from dtml.evaluation.bootstrap import interval, resample_days
from dtml.evaluation.metrics import gain_in_mcc, told_apart
from tests.support.bounds import as_drawn, in_float64
from tests.support.directions import score, score_days

DAYS, STOCKS = 61, 7


def calls_of(predicted, rose):
    sessions = np.repeat(pd.bdate_range("2021-01-01", periods=len(rose)), rose.shape[1])
    return pd.DataFrame({"session": sessions, "predicted": predicted.ravel(), "rose": rose.ravel()})


@pytest.fixture
def directions():
    generator = np.random.default_rng(3)
    rose = generator.random((DAYS, STOCKS)) < 0.5
    return calls_of(np.where(generator.random((DAYS, STOCKS)) < 0.7, rose, ~rose), rose)


def test_counts_give_the_acc_and_mcc_of_scikit_learn(directions):
    found, rose, predicted = score(directions), directions["rose"], directions["predicted"]
    assert found.acc.value == in_float64(accuracy_score(rose, predicted))
    assert found.mcc.value == in_float64(matthews_corrcoef(rose, predicted))
    assert (found.days, found.directions) == (DAYS, DAYS * STOCKS)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((0.1, 3), "beats"),
        ((0, 1), "does not differ"),
        ((-1, 1), "does not differ"),
        ((-1, 0), "does not differ"),
        ((-2, -0.1), "is beaten by"),
        ((np.nan, 1), None),
        ((0.1, None), None),
    ],
)
def test_two_figures_are_told_apart_where_the_interval_of_their_difference_does_not_hold_zero(
    ends, words
):
    assert str(told_apart(*ends)).startswith(str(words))


def test_predictors_are_told_apart_on_the_same_days_though_their_own_intervals_meet():
    """Days on which all is right or wrong widen each interval; that one more is
    right each day stays the same.
    """
    right = np.random.default_rng(4).integers(4, 17, 60)
    rule, model = (np.stack([n, 20 - n, 20 - n, n], axis=1) for n in (right, right + 1))
    apart, other = score_days(model), score_days(rule)
    assert apart.mcc.low < other.mcc.high
    found = gain_in_mcc(model, rule[:, None], resamples=4000)
    gain, *ends = [float(values[0]) for values in found.values()]
    assert gain == in_float64(apart.mcc.value - other.mcc.value)
    assert told_apart(*ends) == "beats"


def test_stocks_that_move_together_widen_the_interval_as_fewer_days_would():
    """Copies of one stock add stock-days and no information: the interval stays
    that of the single stock.
    """
    generator = np.random.default_rng(4)
    rose = generator.random((DAYS, 1)) < 0.5
    predicted = generator.random((DAYS, 1)) < 0.5
    single = score(calls_of(predicted, rose))
    copied = score(calls_of(np.repeat(predicted, 31, axis=1), np.repeat(rose, 31, axis=1)))
    assert astuple(copied.acc) == in_float64(astuple(single.acc))


def test_dependent_days_widen_the_interval():
    generator = np.random.default_rng(7)
    remembered = np.stack(
        [50 + 5 * autoregressive(0.5, 251, 499, generator), np.full((251, 499), 100.0)], axis=-1
    )
    shuffled = generator.permutation(remembered, axis=0)
    width = [
        np.median(
            np.subtract(
                *interval(sums, lambda total: total[..., 0] / total[..., 1], resamples=499)[::-1]
            )
        )
        for sums in (remembered, shuffled)
    ]
    assert 1.4 < width[0] / width[1] < 2  # in the limit the root of (1 + .5) / (1 - .5)


@pytest.mark.soak
@pytest.mark.parametrize("days", [64, 252])
def test_95_percent_intervals_hold_the_truth_of_95_percent_of_the_markets(days):
    """2,000 markets without signal, of independent days: ACC, MCC, and both as
    paired differences to a one-way rule.
    """
    found = coverages(WORLDS[0], (MIXED, ONE_WAY_LONG), days, markets=2000, seed=3)
    for name, shares in found.items():
        assert all(0.94 <= share <= 0.96 for share in shares), (name, shares)


@pytest.mark.parametrize(("days", "known"), [(19, False), (20, True)])
def test_few_days_have_no_interval(days, known):
    rose = np.random.default_rng(2).random((days, STOCKS)) < 0.5
    found = score(calls_of(~rose, rose))
    assert found.acc.value == 0
    assert np.isfinite([found.acc.low, found.acc.high]).all() == known


def test_the_naive_rules_read_the_index_up_to_the_session_before():
    close = pd.Series(np.linspace(100, 80, 23), index=pd.bdate_range("2022-03-01", periods=23))
    close.iloc[-1] = 120.0
    found = naive_directions(close)
    assert list(found.columns) == list(NAIVE_RULES)
    assert (found["always_up"] == 1).all()
    assert found["index_reversal"].iloc[-2:].tolist() == [1.0, 0.0]
    assert found["index_below_mean20"].iloc[-2:].tolist() == [1.0, 0.0]
    assert np.isnan(found["index_reversal"].iloc[0])
    assert found["index_below_mean20"].isna().sum() == 19
    cut = naive_directions(close.iloc[:-1])
    pd.testing.assert_frame_equal(cut, found.iloc[:-1])


def test_a_day_without_a_bar_of_the_index_has_no_call():
    days = pd.bdate_range("2022-03-01", periods=23)
    bars = pd.DataFrame({"session": days, "symbol": "X", "close": np.linspace(100, 80, 23)}).drop(
        index=21
    )
    bars = pd.concat([bars, bars.assign(symbol="A", close=1.0)])
    found = directions_on(days[[22, 21]], bars, "X")
    assert found.index.tolist() == [days[22], days[21]]
    assert found.to_numpy()[0].tolist() == [1.0, 1.0, 1.0]
    assert found.iloc[1].isna().all()


def test_half_of_the_stocks_rise_by_a_rule_of_stocks():
    """The losers of the session, and those that moved least over twenty."""
    sessions = pd.bdate_range("2022-03-01", periods=25, name="session")
    moves = 0.01 * np.array([1, 2, 3, 4]) * np.where(np.arange(25) % 2, 1, -1)[:, None]
    prices = pd.DataFrame(
        np.cumprod(1 + moves, axis=0), sessions, pd.Index([*"ABCD"], name="symbol")
    )
    long = prices.stack().swaplevel().sort_index()
    days = sessions[[23, 24, 10]]
    found = stock_directions(days, long, ("C", "A", "B", "D"))
    assert found["day_losers"][0].tolist() == [0, 1, 1, 0]  # all rose, A and B least
    assert found["day_losers"][1].tolist() == [1, 0, 0, 1]  # all fell, C and D most
    assert found["low_volatility"][0].tolist() == [0, 1, 1, 0]
    assert np.isnan(found["low_volatility"][2]).all()  # fewer than twenty returns
    cut = stock_directions(days[:1], long[long.index.get_level_values(1) <= days[0]], ("C", "A"))
    assert cut["low_volatility"][0].tolist() == [0, 1]


def test_the_rule_is_chosen_on_the_papers_labels_where_all_rules_have_a_direction():
    change = np.array([[0.02] * 7, [0.01] * 7, [-0.02] * 7, [0.004] * 7, [-0.004] * 7])
    up, down = np.ones_like(change), np.zeros_like(change)
    late = np.array([[np.nan], [1], [0], [1], [0]]) * up
    assert choose_rule({"up": up, "down": down, "late": late}, change) == "late"
    assert choose_rule({"up": up, "down": down}, change) == "up"
    # a tie goes to the first
    assert choose_rule({"down": down[1:], "up": up[1:]}, change[1:]) == "down"


def test_resampled_days_come_in_blocks_that_wrap_around():
    """A run of equal days is drawn together more often than single days would
    be: the sum varies more, and wraps.
    """
    counts = np.zeros((DAYS, 4), dtype=int)
    counts[:, 3] = 1
    counts[-4:], counts[:4] = [1, 0, 0, 0], [1, 0, 0, 0]
    drawn = resample_days(counts, 4.0, resamples=9973)
    assert (drawn.sum(axis=1) == DAYS).all()
    assert drawn[:, 0].mean() == as_drawn(8, share=0.02)
    alone = resample_days(counts, 1.0, resamples=9973)
    assert alone[:, 0].var() == as_drawn(8 * (1 - 8 / DAYS), share=0.05)
    assert drawn[:, 0].var() > 2 * alone[:, 0].var()
