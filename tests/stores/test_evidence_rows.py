"""What a night can be judged by: bands stand, counts are replaced, rules'
directions kept once, attention renewed.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db import tables
from db.engine import reading, transaction
from db.errors import StoreError
from db.rows import attention, backtests, calibration, markets, rankings, runs
from db.rows import predictions as stored_predictions
from tests.support.benchmark_rows import ranker
from tests.support.prediction_rows import AS_OF, NEXT, STOCKS, TARGET, predictions, run

NOW = datetime(2024, 1, 9, 2, 30, tzinfo=UTC)
RULES = {"always_up": True, "index_reversal": False, "index_below_mean20": None}


@pytest.fixture
def store(engine: Engine) -> Engine:
    stocks = pd.DataFrame(
        {"symbol": STOCKS, "kind": "stock", "source_symbol": STOCKS, "name": None, "sector": None}
    )
    with transaction(engine) as conn:
        for market in ("toy", "far"):
            markets.save_instruments(conn, market, stocks)
        for name, kind in (("first", "nightly"), ("second", "nightly"), ("folded", "backtest")):
            runs.save_run(conn, run(name, kind=kind))
        runs.save_run(conn, run("abroad", market="far"))
    return engine


def bins(run_id: str = "first", target: pd.Timestamp = TARGET, **changed: Any) -> pd.DataFrame:
    counts = {"n": [3, 5], "probability_sum": [0.75, 3.5], "rises": [1, 4]}
    return pd.DataFrame({"run_id": run_id, "target": target, "bin": [25, 70]} | counts | changed)


def counts(run_id: str = "first", target: pd.Timestamp = TARGET, **changed: Any) -> pd.DataFrame:
    counted = {"n": [5, 5], "covered": 0, "decided": [3, 1], "decided_correct": [2, 1]}
    made = pd.DataFrame(
        {"run_id": run_id, "target": target, "level": [0.8, 0.9]} | counted | changed
    )
    return made.assign(covered=made["n"] - made["decided"] + made["decided_correct"])


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(
        found[list(expected)], expected.reset_index(drop=True), check_dtype=False
    )
    assert set(found) == set(expected)


def test_a_run_is_calibrated_once_and_its_bands_stand(store: Engine) -> None:
    given = pd.DataFrame({"level": [0.9, 0.5], "threshold": [0.75, 0.5], "days": 7, "n": 21})
    with transaction(store) as conn:
        assert calibration.save_bands(conn, "first", given) == 2
        assert calibration.save_bands(conn, "first", given) == 0
        assert calibration.save_bands(conn, "second", given.head(1)) == 1
        same(calibration.bands(conn, "first"), given.iloc[::-1])
        assert calibration.bands(conn, "folded").empty
        several = calibration.bands_of(conn, ["second", "first"])
        assert list(several.itertuples(index=False, name=None)) == [
            ("first", 0.5, 0.5),
            ("first", 0.9, 0.75),
            ("second", 0.9, 0.75),
        ]
    with pytest.raises(
        StoreError,
        match=r"^abstention_band: first 0\.9 .*already.*different figure.*only once; ",
    ):
        save_bands(store, given.assign(threshold=[0.8, 0.5]))


def save_bands(store: Engine, given: pd.DataFrame) -> None:
    with transaction(store) as conn:
        calibration.save_bands(conn, "first", given)


def test_counts_of_a_night_are_replaced_and_those_of_others_stay(store: Engine) -> None:
    kinds = (
        (calibration.save_bins, calibration.calibration_bins, bins),
        (calibration.save_band_counts, calibration.band_counts, counts),
    )
    with transaction(store) as conn:
        for save, read, made in kinds:
            given = pd.concat(
                [made(), made("second"), made(target=NEXT), made("folded"), made("abroad")]
            )
            assert save(conn, given) == 10
            again = pd.concat([made(n=6).head(1), made("second", NEXT)])
            assert save(conn, again.sample(frac=1, random_state=1)[again.columns[::-1]]) == 3
            assert save(conn, made().head(0)) == 0
            expected = [made(n=6).head(1), made("second"), made(target=NEXT), made("second", NEXT)]
            same(read(conn, "toy", NEXT.date()), pd.concat(expected))
            same(read(conn, "toy", TARGET.date()), pd.concat(expected[:2]))
            same(read(conn, "far", NEXT.date()), made("abroad"))


def test_the_counts_of_a_backtest_are_those_of_its_own_folds(store: Engine) -> None:
    begun = {
        "id": "b",
        "market": "toy",
        "first": TARGET.date(),
        "last": NEXT.date(),
        "retrain_every": 1,
        "config": {},
    }
    begun |= {
        "seeds": [2],
        "code_version": "1",
        "data_watermark": NOW,
        "list_is_snapshot": True,
        "device": "cpu",
    }
    fold = {
        "number": 1,
        "run_id": "folded",
        "as_of": AS_OF.date(),
        "first": TARGET.date(),
        "last": TARGET.date(),
    }
    with transaction(store) as conn:
        assert backtests.save_backtest(conn, begun | {"created_at": NOW}) == 1
        backtests.save_fold(conn, "b", fold | {"predictions": 3, "refused": {}, "seconds": 1.0})
        calibration.save_band_counts(
            conn, pd.concat([counts("folded"), counts("folded", NEXT), counts("first")])
        )
        same(calibration.fold_counts(conn, "b"), counts("folded"))
        assert calibration.fold_counts(conn, "other").empty


def test_rules_calls_are_kept_once(store: Engine) -> None:
    given = pd.DataFrame({"target": [TARGET], "as_of": AS_OF} | RULES)
    with transaction(store) as conn:
        assert stored_predictions.save_rule_directions(conn, "toy", given) == 1
        assert (
            stored_predictions.save_rule_directions(conn, "toy", given.assign(index_reversal=True))
            == 0
        )
        kept = conn.execute(sa.select(tables.rule_direction.c.index_reversal)).scalars().all()
    assert kept == [RULES["index_reversal"]]


def test_attention_of_several_models_and_sessions_is_compared_each_with_its_own(
    store: Engine,
) -> None:
    given = pd.DataFrame(
        {"run_id": "first", "target": TARGET, "symbol": list("BBA"), "source": list("CAA")}
    )
    given = given.assign(weight=[0.25, 0.75, 1.0])
    later = given.assign(run_id="second", target=NEXT)
    with transaction(store) as conn:
        made = pd.concat([predictions(), predictions("second", NEXT)])
        stored_predictions.save_predictions(conn, "toy", made, known_at=NOW, made_at=NOW)
        assert attention.save_attention(conn, "toy", given) == 3
        assert attention.save_attention(conn, "toy", pd.concat([later, given])) == 3
        stored = attention.attention(conn, "second", NEXT.date())
        assert list(stored.itertuples(index=False, name=None)) == [
            ("A", "A", 1.0),
            ("B", "A", 0.75),
            ("B", "C", 0.25),
        ]
        assert attention.attention(conn, "first", NEXT.date()).empty
        assert (
            attention.save_attention(conn, "toy", given.assign(weight=given["weight"] - 9e-7)) == 0
        )
    for wrong, words in (
        (
            given.assign(weight=given["weight"] - 2e-6),
            "^attention .*first 2024-01-05 A A .*already.*different weight.*never rewritten; ",
        ),
        (pd.concat([given, given.head(1)]), "^first 2024-01-05 B C .*duplicated: "),
    ):
        with reading(store) as conn, pytest.raises(StoreError, match=words):
            attention.save_attention(conn, "toy", wrong)


def explained(**changed: Any) -> dict[str, Any]:
    told = dict.fromkeys(("stocks", "days", "seeds", "shuffles", "epochs", "top"), 3)
    figures = dict.fromkeys(("distance", "distance_p", "agreement", "seconds"), 0.25)
    missing = dict.fromkeys(
        ("agreement_low", "agreement_high", "drivers", "drivers_chance", "drivers_importance")
    )
    named = {
        "run_id": "first",
        "market": "toy",
        "as_of": AS_OF.date(),
        "made_at": NOW,
        "told_apart": True,
    }
    return named | told | figures | missing | changed


def test_what_is_known_of_attention_is_renewed_unless_only_its_time_differs(store: Engine) -> None:
    later = {"made_at": NOW + timedelta(days=1), "seconds": 9.0}
    with transaction(store) as conn:
        assert attention.explanation(conn, "first") is None
        assert attention.save_explanation(conn, explained()) == 1
        for stamp, value in later.items():
            assert attention.save_explanation(conn, explained(**{stamp: value})) == 0
        assert attention.explanation(conn, "first") == explained()
        assert attention.save_explanation(conn, explained(agreement=0.5, **later)) == 0
        assert attention.explanation(conn, "first") == explained(agreement=0.5, **later)


def test_a_stock_of_an_older_ranking_alone_is_not_in_the_ranking_shown(store: Engine) -> None:
    places = pd.DataFrame({"symbol": STOCKS, "place": [1, 2, 3], "score": [3.0, 2.0, 1.0]})
    places = places.assign(
        predictor="ridge", as_of=AS_OF, target=TARGET, probability=None, chosen=True
    )
    with transaction(store) as conn:
        for name, count, at in (("old", 3, NOW), ("new", 2, NOW + timedelta(hours=1))):
            row = ranker(checkpoint_path=name, checkpoint_hash=name) | {"id": name}
            rankings.save_ranker(conn, row)
            ranked = places.head(count).assign(ranker_id=name)
            rankings.save_night_ranking(conn, "toy", ranked, known_at=NOW, made_at=at)
        for symbols, shown in ((["C"], []), (["B", "C"], ["B"]), (None, ["A", "B"])):
            found = rankings.night_ranking(conn, "toy", TARGET.date(), symbols=symbols)
            assert found["symbol"].tolist() == shown
