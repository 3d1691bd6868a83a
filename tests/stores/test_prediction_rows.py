"""Predictions are never rewritten; runs and outcomes are stored once."""

from datetime import date, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db import tables
from db.engine import reading, transaction
from db.errors import StoreError, StoreUsageError
from db.read import query, read
from db.rows import nights, runs
from db.rows import predictions as stored_predictions
from db.rows.runs import latest_trained
from db.save import save
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


def test_a_run_comes_back_as_it_went_in(store: Engine) -> None:
    with reading(store) as conn:
        assert runs.run(conn, "first") == run()
        assert latest_trained(conn, "run", "toy") == run()
        assert read(conn, "run", market="toy", order="created_at, id")["seeds"].tolist() == [
            [2, 3, 5]
        ]
        assert read(conn, "run", market="other", order="created_at, id").empty


def test_a_run_is_stored_once_and_never_replaced(store: Engine) -> None:
    with transaction(store) as conn:
        assert save(conn, "run", run(created_at=LATER)) == 0
        assert runs.run(conn, "first")["created_at"] == NOW
    with (
        pytest.raises(
            StoreError,
            match=r"run: first .*already.*checkpoint_hash .*other",
        ),
        transaction(store) as conn,
    ):
        save(conn, "run", run(checkpoint_hash="other"))


def test_a_model_may_keep_no_weights(store: Engine) -> None:
    trees = run("trees", model="gradient_boosting", checkpoint_path=None, checkpoint_hash=None)
    with transaction(store) as conn:
        assert save(conn, "run", trees) == 1
        assert save(conn, "run", trees) == 0
        assert runs.run(conn, "trees") == trees
        assert read(conn, "run", order="created_at, id")["checkpoint_hash"].isna().tolist() == [
            False,
            True,
        ]
    with (
        pytest.raises(
            StoreError,
            match=r"run: trees .*already.*checkpoint_hash None, ",
        ),
        transaction(store) as conn,
    ):
        save(conn, "run", trees | {"checkpoint_hash": "other"})


def test_a_run_says_what_kind_of_network_it_is(store: Engine) -> None:
    unsaid = {name: value for name, value in run("second").items() if name != "model"}
    with (
        pytest.raises(StoreError, match=r"(?i)null.*model|model.*null"),
        transaction(store) as conn,
    ):
        save(conn, "run", unsaid)


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


@pytest.mark.parametrize(
    "changed", [{"losses": [float("nan")]}, {"kind": "guess"}, {"train_last": date(2001, 1, 1)}]
)
def test_a_run_that_makes_no_sense_is_refused(store: Engine, changed: dict[str, object]) -> None:
    with pytest.raises(StoreError), transaction(store) as conn:
        save(conn, "run", run("second", **changed))


def test_predictions_come_back_as_they_went_in(store: Engine) -> None:
    assert keep(store, predictions()) == len(STOCKS)
    with reading(store) as conn:
        stored = read(conn, "prediction", market="toy", order="target, symbol, made_at")
    pd.testing.assert_frame_equal(stored[list(predictions())], predictions(), check_dtype=False)
    assert stored["target"].dtype == stored["as_of"].dtype == "datetime64[ns]"
    assert set(stored["made_at"]) == set(stored["known_at"]) == {pd.Timestamp(NOW)}


def test_a_rerun_adds_no_prediction_and_the_first_stands(store: Engine) -> None:
    keep(store, predictions())
    assert keep(store, predictions(), LATER) == 0
    with reading(store) as conn:
        assert set(
            read(conn, "prediction", market="toy", order="target, symbol, made_at")["made_at"]
        ) == {pd.Timestamp(NOW)}


def test_a_rerun_adds_the_predictions_that_were_missing(store: Engine) -> None:
    keep(store, predictions().head(1))
    assert keep(store, predictions()) == len(STOCKS) - 1
    assert keep(store, predictions().iloc[:0]) == 0


def test_predictions_of_many_models_and_sessions_are_stored_as_one_by_one(store: Engine) -> None:
    with transaction(store) as conn:
        save(conn, "run", run("second"))
    every = pd.concat([predictions(), predictions(target=NEXT), predictions("second")])
    assert keep(store, predictions(target=NEXT)) == 3
    assert keep(store, every) == 6
    assert keep(store, every.sample(frac=1, random_state=3), LATER) == 0
    with pytest.raises(StoreError, match=r"second 2024-01-05 A .*already"):
        keep(store, pd.concat([every.head(6), predictions("second").assign(probability=0.75)]))


@pytest.mark.parametrize(("column", "value"), [("probability", 0.51), ("probability_std", 0.01)])
def test_a_past_prediction_is_never_rewritten(store: Engine, column: str, value: float) -> None:
    keep(store, predictions())
    other = predictions()
    other.loc[1, column] = value
    with pytest.raises(StoreError, match=r"first 2024-01-05 B .*already"):
        keep(store, other)
    with reading(store) as conn:
        assert read(conn, "prediction", market="toy", order="target, symbol, made_at")[
            "probability"
        ].tolist() == [
            0.25,
            0.5,
            0.75,
        ]


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.01, 1.01])
def test_a_probability_lies_between_0_and_1(store: Engine, value: float) -> None:
    with pytest.raises(
        StoreError, match=r"(?i)prediction.probability|ck_prediction_probability|null"
    ):
        keep(store, predictions().assign(probability=value))


def test_a_target_that_was_already_seen_is_refused(store: Engine) -> None:
    with pytest.raises(StoreError, match="ck_prediction_dates"):
        keep(store, predictions().assign(as_of=TARGET))


def test_a_prediction_needs_its_run(store: Engine) -> None:
    with pytest.raises(StoreError, match=r"(?i)foreign key"):
        keep(store, predictions("nothing"))


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


def test_an_outcome_is_stored_once_and_corrected_when_it_changes(store: Engine) -> None:
    def stored() -> tuple[list[float], list[datetime]]:
        with reading(store) as conn:
            rows = conn.execute(
                sa.select(tables.outcome.c.realised_return, tables.outcome.c.recorded_at)
            ).all()
        return [each[0] for each in rows], [each[1] for each in rows]

    save_outcomes(store)
    assert save_outcomes(store, at=LATER + timedelta(days=1)) == 0
    assert stored() == ([-0.01, 0.0, 0.02], [LATER] * 3)
    assert save_outcomes(store, at=LATER + timedelta(days=1), returns=(-0.01, 0.0, 0.03)) == 0
    assert sorted(stored()[1]) == [LATER, LATER, LATER + timedelta(days=1)]


def test_of_many_outcomes_the_new_are_added_and_the_changed_updated(store: Engine) -> None:
    """One of A is new, one of B changed, one of C the same: its stamps stay."""
    happened = pd.DataFrame(
        {"symbol": STOCKS, "session": TARGET, "realised_return": 0.01, "rise": True, "label": 1}
    )

    def saved(frame: pd.DataFrame, at: datetime) -> int:
        with transaction(store) as conn:
            return save(conn, "outcome", frame, market="toy", known_at=at, recorded_at=at)

    assert saved(happened.iloc[1:], NOW) == 2
    assert saved(happened.assign(realised_return=[0.01, 0.02, 0.01]), LATER) == 1
    asked = sa.select(
        tables.outcome.c.realised_return, tables.outcome.c.known_at, tables.outcome.c.recorded_at
    )
    with reading(store) as conn:
        rows = [
            tuple(each) for each in conn.execute(asked.order_by(tables.outcome.c.instrument_id))
        ]
    assert rows == [(0.01, LATER, LATER), (0.02, LATER, LATER), (0.01, NOW, NOW)]
    with pytest.raises(StoreError, match="A 2024-01-05 is duplicated"):
        saved(pd.concat([happened, happened]), NOW)


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


def test_a_wrong_call_is_no_hit(store: Engine) -> None:
    keep(store, predictions())
    save_outcomes(store, (0.01, 0.001, -0.02))
    with reading(store) as conn:
        assert stored_predictions.prediction_history(conn, market="toy")["correct"].tolist() == [
            0,
            0,
            0,
        ]


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
