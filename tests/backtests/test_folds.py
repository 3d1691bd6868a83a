"""When a backtest trains, what on, and how its directions are scored by fold, year and stock."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from dtml.evaluation.breakdowns import (
    ROLLING_SESSIONS,
    TrackRecord,
    rolling_figures,
    slice_scores,
)
from flows.studies.backtest import folds
from tests.support.bounds import as_drawn, in_float64
from tests.support.directions import score

DAYS = pd.bdate_range("2023-11-01", periods=97)
SYMBOLS = ("A", "B", "C", "D", "E")
GENERATOR = np.random.default_rng(11)
MOVEMENT = GENERATOR.normal(0, 0.02, (97, 5))
MOVEMENT[3, 2] = np.nan
MODEL = np.where(GENERATOR.random((97, 5)) < 0.9, GENERATOR.random((97, 5)) < 0.5, np.nan).astype(
    float
)
FOLD = np.repeat([1, 2, 3], [40, 40, 17])
RECORD = TrackRecord(
    probability=0.1 + 0.8 * MODEL,
    movement=MOVEMENT,
    as_of=DAYS - pd.offsets.BDay(),
    target=DAYS,
    fold=FOLD,
    symbols=SYMBOLS,
    rules=pd.DataFrame({"always_up": 1.0}, DAYS),
    losers=GENERATOR.normal(0, 1, MOVEMENT.shape),
)


@pytest.mark.slow
@given(every=st.integers(1, 120), begin=st.integers(1, 60), length=st.integers(1, 36))
def test_folds_predict_every_session_once_and_train_on_the_one_before(every, begin, length):
    laid = folds(DAYS[begin - 1 : begin + length], every)
    predicted = [
        day for fold in laid for day in DAYS[(str(fold.first) <= DAYS) & (str(fold.last) >= DAYS)]
    ]
    assert predicted == list(DAYS[begin : begin + length])
    assert [fold.number for fold in laid] == list(range(1, len(laid) + 1))
    for fold in laid:
        assert DAYS[DAYS.get_loc(pd.Timestamp(fold.first)) - 1].date() == fold.as_of


def long_calls(days, stocks=slice(None)):
    """The model's directions one by one."""
    rows = [
        {
            "session": DAYS[day],
            "predicted": MODEL[day, stock] == 1,
            "rose": MOVEMENT[day, stock] > 0,
        }
        for day in np.flatnonzero(days)
        for stock in range(5)[stocks]
        if np.isfinite(MODEL[day, stock]) and np.isfinite(MOVEMENT[day, stock])
    ]
    return pd.DataFrame(rows)


def test_slices_score_as_the_calls_one_by_one_do():
    scores = slice_scores(RECORD)
    mine = scores[(scores["predictor"] == "dtml") & (scores["protocol"] == "all")].set_index(
        ["slice", "value"]
    )
    wanted = {
        ("all", ""): long_calls(np.ones(97, dtype=bool)),
        ("fold", "2"): long_calls(FOLD == 2),
        ("year", "2024"): long_calls(DAYS.year == 2024),
        ("symbol", "D"): long_calls(np.ones(97, dtype=bool), slice(3, 4)),
    }
    for key, directions in wanted.items():
        expected = score(directions)
        found = mine.loc[key]
        assert (found["n"], found["days"]) == (expected.directions, expected.days)
        assert (found["acc"], found["mcc"]) == in_float64((expected.acc.value, expected.mcc.value))
        # fewer resamples
        assert found["acc_low"] == as_drawn(expected.acc.low, within=0.02)
        assert found["mcc_high"] == as_drawn(expected.mcc.high, within=0.04)
    assert mine.loc[("fold", "3"), ["acc_low", "mcc_high"]].isna().all()  # 17 days
    assert set(mine.index.get_level_values("slice")) == {"all", "fold", "year", "symbol"}


def test_an_order_is_scored_as_the_correlation_of_ranks_of_each_day():
    scores = slice_scores(replace(RECORD, probability=MOVEMENT))
    found = scores.dropna(subset="rank_ic").set_index(["slice", "value"])
    assert found["rank_ic"].tolist() == in_float64([1.0] * len(found))
    daily = [
        spearmanr(RECORD.losers[day], MOVEMENT[day]).statistic
        for day in range(97)
        if np.isfinite(MOVEMENT[day]).all()
    ]
    assert found.loc[("all", ""), "rank_gain"] == in_float64(1 - np.mean(daily))
    assert found.loc[("fold", "3"), ["rank_ic_low", "rank_gain_high"]].isna().all()  # 17 days
    assert set(found.index) == {
        ("all", ""),
        *(("fold", str(n)) for n in (1, 2, 3)),
        ("year", "2023"),
        ("year", "2024"),
    }


def test_a_rolling_score_is_that_of_its_last_quarter():
    rolling = rolling_figures(RECORD)
    mine = rolling[rolling["predictor"] == "dtml"].set_index("session")
    assert len(mine) == 97 - ROLLING_SESSIONS + 1
    last = score(long_calls(np.arange(97) >= 97 - ROLLING_SESSIONS))
    newest = mine.loc[DAYS[-1]]
    assert newest["mcc"] == in_float64(last.mcc.value)
    assert newest["mcc_low"] == as_drawn(last.mcc.low, within=0.04)
    ordered = rolling_figures(replace(RECORD, probability=GENERATOR.normal(0, 1, MOVEMENT.shape)))
    assert ordered["rank_ic"].notna().sum() == len(mine) - 1  # of a day without a whole order, none
    cut = ("probability", "movement", "as_of", "target", "fold", "rules", "losers")
    short = replace(RECORD, **{name: getattr(RECORD, name)[:9] for name in cut})
    assert rolling_figures(short).empty
