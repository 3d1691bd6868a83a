"""Predictions and rankings of nights, and what they are judged by."""

from datetime import date

import numpy as np
import pandas as pd
import pytest

from db.engine import reading, transaction
from db.rows import predictions as stored_predictions
from db.rows.runs import latest_trained
from db.save import save
from tests.support.prediction_rows import LATER, NEXT, NOW, STOCKS, TARGET, predictions, run


@pytest.fixture
def store(engine):
    stocks = pd.DataFrame(
        {"symbol": STOCKS, "kind": "stock", "source_symbol": STOCKS, "name": None, "sector": "Tin"}
    )
    with transaction(engine) as conn:
        save(conn, "instrument", stocks, market="toy")
        assert save(conn, "run", run()) == 1
    return engine


def keep(store, frame, made_at=NOW):
    with transaction(store) as conn:
        return save(conn, "prediction", frame, market="toy", known_at=NOW, made_at=made_at)


def save_outcomes(store, returns=(-0.01, 0.0, 0.02), at=LATER):
    happened = pd.DataFrame({"symbol": STOCKS, "session": TARGET, "realised_return": returns})
    happened = happened.assign(
        rise=happened["realised_return"] > 0, label=np.sign(happened["realised_return"]).astype(int)
    )
    with transaction(store) as conn:
        return save(conn, "outcome", happened, market="toy", known_at=at, recorded_at=at)


def test_the_latest_run_saw_nothing_after_the_day_it_serves(store):
    with transaction(store) as conn:
        save(conn, "run", run("second", train_last=date(2024, 3, 1)))
        save(conn, "run", run("fold", train_last=date(2024, 2, 1), kind="backtest"))
        latest = {
            day: latest_trained(conn, "run", "toy", on_or_before=day)
            for day in (date(2024, 1, 3), date(2024, 1, 4), date(2024, 2, 29), date(2024, 3, 1))
        }
    assert [each and each["id"] for each in latest.values()] == [None, "first", "first", "second"]


def test_the_history_of_a_symbol_tells_calls_from_hits(store):
    keep(store, predictions())
    keep(store, predictions(target=NEXT))
    save_outcomes(store)
    with reading(store) as conn:
        night = stored_predictions.prediction_history(conn, market="toy", last=TARGET.date())
        one = stored_predictions.prediction_history(conn, symbol="C")
    assert night["symbol"].tolist() == STOCKS
    assert night["direction"].tolist() == ["fall", "fall", "rise"]
    assert night["correct"].tolist() == [1, 1, 1]
    assert night["label"].tolist() == [-1, 0, 1]
    assert one["target"].tolist() == [TARGET, NEXT]
    assert one["correct"].isna().tolist() == [False, True]
    save_outcomes(store, (0.01, 0.001, -0.02))
    with reading(store) as conn:
        wrong = stored_predictions.prediction_history(conn, market="toy", last=TARGET.date())
    assert wrong["correct"].tolist() == [0, 0, 0]


def test_the_latest_predictions_are_the_newest_models_for_the_newest_session(store):
    with transaction(store) as conn:
        save(conn, "run", run("second"))
        save(conn, "run", run("fold", kind="backtest"))
    keep(store, predictions())
    keep(store, predictions(target=NEXT))
    keep(store, predictions("second", NEXT).assign(probability=[0.9, 0.1, 0.3]), LATER)
    keep(store, predictions("fold", NEXT + pd.Timedelta(days=1)), LATER)
    with reading(store) as conn:
        latest = pd.read_sql(
            "select * from latest_prediction where market = 'toy' order by probability desc", conn
        )
    assert latest["symbol"].tolist() == ["A", "C", "B"]
    assert set(pd.to_datetime(latest["target"])) == {NEXT}
    assert set(latest["run_id"]) == {"second"}
    assert set(latest["sector"]) == {"Tin"}
