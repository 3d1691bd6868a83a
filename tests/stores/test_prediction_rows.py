"""Predictions and rankings of nights, and what they are judged by."""

from datetime import date, datetime

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from db.engine import reading, transaction
from db.errors import StoreError, StoreUsageError
from db.read import query
from db.rows import nights, rankings, runs
from db.rows import predictions as stored_predictions
from db.rows.calibration import night_counts
from db.rows.runs import latest_trained
from db.save import save
from tests.support.benchmark_rows import ranker
from tests.support.prediction_rows import AS_OF, LATER, NEXT, NOW, STOCKS, TARGET, predictions, run


@pytest.fixture
def store(engine: Engine) -> Engine:
    stocks = pd.DataFrame(
        {"symbol": STOCKS, "kind": "stock", "source_symbol": STOCKS, "name": None, "sector": "Tin"}
    )
    with transaction(engine) as conn:
        save(conn, "instrument", stocks, market="toy")
        assert save(conn, "run", run()) == 1
    return engine


def keep(store: Engine, frame: pd.DataFrame, made_at: datetime = NOW) -> int:
    with transaction(store) as conn:
        return save(conn, "prediction", frame, market="toy", known_at=NOW, made_at=made_at)


def save_outcomes(
    store: Engine, returns: tuple[float, ...] = (-0.01, 0.0, 0.02), at: datetime = LATER
) -> int:
    happened = pd.DataFrame({"symbol": STOCKS, "session": TARGET, "realised_return": returns})
    happened = happened.assign(
        rise=happened["realised_return"] > 0, label=np.sign(happened["realised_return"]).astype(int)
    )
    with transaction(store) as conn:
        return save(conn, "outcome", happened, market="toy", known_at=at, recorded_at=at)


def close_night(store: Engine, target: pd.Timestamp) -> None:
    as_of = (AS_OF if target == TARGET else TARGET).date()
    counts = {"fetched": 0, "stored": 0, "rejected": 0, "predictions": len(STOCKS)}
    with transaction(store) as conn:
        nights.start_night(conn, "toy", as_of, target=target.date(), source="files", started_at=NOW)
        nights.finish_night(
            conn,
            "toy",
            as_of,
            status="complete",
            finished_at=NOW,
            counts=counts,
            gaps=[],
            run_id="first",
        )


def test_the_latest_run_saw_nothing_after_the_day_it_serves(store: Engine) -> None:
    with transaction(store) as conn:
        save(conn, "run", run("second", train_last=date(2024, 3, 1)))
        save(conn, "run", run("fold", train_last=date(2024, 2, 1), kind="backtest"))
        latest = {
            day: latest_trained(conn, "run", "toy", on_or_before=day)
            for day in (date(2024, 1, 3), date(2024, 1, 4), date(2024, 2, 29), date(2024, 3, 1))
        }
    assert [each and each["id"] for each in latest.values()] == [None, "first", "first", "second"]


def test_an_unknown_run_is_named(store: Engine) -> None:
    with pytest.raises(StoreUsageError, match="no run 'nothing'"), reading(store) as conn:
        runs.run(conn, "nothing")


def test_predictions_of_many_models_and_sessions_are_stored_as_one_by_one(store: Engine) -> None:
    with transaction(store) as conn:
        save(conn, "run", run("second"))
    every = pd.concat([predictions(), predictions(target=NEXT), predictions("second")])
    assert keep(store, predictions(target=NEXT)) == 3
    assert keep(store, every) == 6
    assert keep(store, every.sample(frac=1, random_state=3), LATER) == 0
    with pytest.raises(StoreError, match=r"second 2024-01-05 A .*already"):
        keep(store, pd.concat([every.head(6), predictions("second").assign(probability=0.75)]))


def test_a_closed_nights_calls_wait_for_their_outcome(store: Engine) -> None:
    keep(store, predictions())
    keep(store, predictions(target=NEXT))
    for target in (TARGET, NEXT):
        close_night(store, target)
    assert save_outcomes(store) == len(STOCKS)
    with reading(store) as conn:
        waiting = query(
            conn, "unsettled", market="toy", first=date.min, last=NEXT.date(), since=NEXT.date()
        )
        settled = query(conn, "direction_counts", market="toy", first=date.min, last=NEXT.date())
    assert set(waiting["target"]) == {NEXT}
    assert len(waiting) == settled["n"].sum() == len(STOCKS)


def test_the_history_of_a_symbol_tells_calls_from_hits(store: Engine) -> None:
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


def test_the_history_of_an_unknown_symbol_is_an_error(store: Engine) -> None:
    for market, where in ((None, "in the store:"), ("toy", "in the store .*toy:")):
        with pytest.raises(StoreUsageError, match=f"no symbol 'Z' {where}"), reading(store) as conn:
            stored_predictions.prediction_history(conn, symbol="Z", market=market)


def test_the_latest_predictions_are_the_newest_models_for_the_newest_session(store: Engine) -> None:
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


def test_the_counts_of_nights_are_those_of_the_nightly_runs_of_the_market(store: Engine) -> None:
    keys = pd.DataFrame(
        {
            "run_id": ["first", "second", "first", "folded", "abroad"],
            "target": [TARGET, TARGET, NEXT, TARGET, TARGET],
            "level": 0.8,
        }
    )
    counts = keys.assign(n=5, covered=4, decided=3, decided_correct=2)
    with transaction(store) as conn:
        save(conn, "run", run("second"))
        save(conn, "run", run("folded", kind="backtest"))
        save(conn, "run", run("abroad", market="far"))
        save(conn, "abstention_count", counts)
        for last, expected in ((NEXT, counts.head(3)), (TARGET, counts.head(2))):
            found = night_counts(conn, "abstention_count", "toy", last.date())
            pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def test_a_stock_of_an_older_ranking_alone_is_not_in_the_ranking_shown(store: Engine) -> None:
    ranked = pd.DataFrame({"symbol": STOCKS, "place": [1, 2, 3], "score": [3.0, 2.0, 1.0]})
    ranked = ranked.assign(
        predictor="ridge", as_of=AS_OF, target=TARGET, probability=None, chosen=True
    )
    with transaction(store) as conn:
        for name, count, at in (("old", 3, NOW), ("new", 2, LATER)):
            row = ranker(checkpoint_path=name, checkpoint_hash=name) | {"id": name}
            save(conn, "ranker", row)
            shown = ranked.head(count).assign(ranker_id=name)
            save(conn, "stock_rank", shown, market="toy", known_at=NOW, made_at=at)
        found = rankings.night_ranking(conn, "toy", TARGET.date())
    assert found["symbol"].tolist() == ["A", "B"]
