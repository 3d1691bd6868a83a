"""ACC, MCC and their intervals, and the naive rules."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, matthews_corrcoef

from dtml.baselines import NAIVE_RULES, naive_calls
from dtml.metrics import MINIMUM_DAYS, accuracy, confusion_by_day, mcc, resample_days, score

DAYS, STOCKS = 61, 7


def calls_of(called: np.ndarray, rose: np.ndarray) -> pd.DataFrame:
    sessions = np.repeat(pd.bdate_range("2021-01-01", periods=len(rose)), rose.shape[1])
    return pd.DataFrame({"session": sessions, "called": called.ravel(), "rose": rose.ravel()})


@pytest.fixture
def calls() -> pd.DataFrame:
    generator = np.random.default_rng(3)
    rose = generator.random((DAYS, STOCKS)) < 0.5
    return calls_of(np.where(generator.random((DAYS, STOCKS)) < 0.7, rose, ~rose), rose)


def test_counts_give_the_acc_and_mcc_of_scikit_learn(calls: pd.DataFrame) -> None:
    total = confusion_by_day(calls).sum(axis=0)
    found = score(calls)
    assert found.acc == accuracy_score(calls["rose"], calls["called"]) == pytest.approx(float(accuracy(total)))
    assert found.mcc == matthews_corrcoef(calls["rose"], calls["called"]) == pytest.approx(float(mcc(total)))
    assert (found.days, found.calls) == (DAYS, DAYS * STOCKS)


def test_each_day_is_counted_for_itself(calls: pd.DataFrame) -> None:
    counts = confusion_by_day(calls.sample(frac=1, random_state=0))
    day = calls[calls["session"] == calls["session"].unique()[5]]
    expected = [
        (day["called"] & day["rose"]).sum(),
        (day["called"] & ~day["rose"]).sum(),
        (~day["called"] & day["rose"]).sum(),
        (~day["called"] & ~day["rose"]).sum(),
    ]
    assert counts[5].tolist() == expected


def test_mcc_is_zero_when_one_class_is_never_called() -> None:
    rose = np.random.default_rng(2).random((DAYS, STOCKS)) < 0.6
    found = score(calls_of(np.ones_like(rose), rose))
    assert found.mcc == 0
    assert found.mcc_interval == (0, 0)


def test_a_perfect_oracle_scores_one_and_a_coin_covers_one_half() -> None:
    generator = np.random.default_rng(8)
    rose = generator.random((DAYS, STOCKS)) < 0.5
    perfect = score(calls_of(rose, rose))
    assert (perfect.acc, perfect.mcc) == (1, 1)
    coin = score(calls_of(generator.random((DAYS, STOCKS)) < 0.5, rose))
    assert coin.acc_interval[0] < 0.5 < coin.acc_interval[1]
    assert coin.mcc_interval[0] < 0 < coin.mcc_interval[1]


def test_stocks_that_move_together_widen_the_interval_as_fewer_days_would() -> None:
    """Copies of one stock add stock-days and no information: the interval stays that of the single stock."""
    generator = np.random.default_rng(4)
    rose = generator.random((DAYS, 1)) < 0.5
    called = generator.random((DAYS, 1)) < 0.5
    single = score(calls_of(called, rose))
    copied = score(calls_of(np.repeat(called, 31, axis=1), np.repeat(rose, 31, axis=1)))
    assert copied.acc_interval == pytest.approx(single.acc_interval)


def test_resampled_days_come_in_blocks_that_wrap_around() -> None:
    """A run of equal days is drawn together more often than single days would be: the sum varies more, and wraps."""
    counts = np.zeros((DAYS, 4), dtype=int)
    counts[:, 3] = 1
    counts[-4:], counts[:4] = [1, 0, 0, 0], [1, 0, 0, 0]
    drawn = resample_days(counts, 9973, np.random.default_rng(0))
    assert (drawn.sum(axis=1) == DAYS).all()
    assert drawn[:, 0].mean() == pytest.approx(8, rel=0.02)
    alone = np.random.default_rng(1).binomial(DAYS, 8 / DAYS, 9973)
    assert drawn[:, 0].var() > 2 * alone.var()


@pytest.mark.parametrize(("days", "known"), [(MINIMUM_DAYS - 1, False), (MINIMUM_DAYS, True)])
def test_few_days_have_no_interval(days: int, known: bool) -> None:
    rose = np.random.default_rng(2).random((days, STOCKS)) < 0.5
    found = score(calls_of(~rose, rose))
    assert found.acc == 0
    assert np.isfinite(found.acc_interval).all() == known


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="no calls"):
        score(calls_of(np.ones((0, 3), dtype=bool), np.ones((0, 3), dtype=bool)))


def test_the_naive_rules_read_the_index_up_to_the_session_before() -> None:
    close = pd.Series(np.linspace(100, 80, 23), index=pd.bdate_range("2022-03-01", periods=23))
    close.iloc[-1] = 120.0
    found = naive_calls(close)
    assert list(found.columns) == list(NAIVE_RULES)
    assert (found["always_up"] == 1).all()
    assert found["index_reversal"].iloc[-2:].tolist() == [1.0, 0.0]
    assert found["index_below_mean20"].iloc[-2:].tolist() == [1.0, 0.0]
    assert np.isnan(found["index_reversal"].iloc[0])
    assert found["index_below_mean20"].isna().sum() == 19
    cut = naive_calls(close.iloc[:-1])
    pd.testing.assert_frame_equal(cut, found.iloc[:-1])
