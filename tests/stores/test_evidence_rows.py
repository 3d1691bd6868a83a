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
from db.read import query, read
from db.rows import rankings
from db.rows.calibration import night_counts
from db.save import save
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
            save(conn, "instrument", stocks, market=market)
        for name, kind in (("first", "nightly"), ("second", "nightly"), ("folded", "backtest")):
            save(conn, "run", run(name, kind=kind))
        save(conn, "run", run("abroad", market="far"))
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
    assert set(found) >= set(expected)


def test_a_run_is_calibrated_once_and_its_bands_stand(store: Engine) -> None:
    given = pd.DataFrame({"level": [0.9, 0.5], "threshold": [0.75, 0.5], "days": 7, "n": 21})
    with transaction(store) as conn:
        assert save(conn, "abstention_band", given.assign(is_default=False), run_id="first") == 2
        assert save(conn, "abstention_band", given.assign(is_default=False), run_id="first") == 0
        assert (
            save(conn, "abstention_band", given.head(1).assign(is_default=False), run_id="second")
            == 1
        )
        same(read(conn, "abstention_band", run_id="first"), given.iloc[::-1])
        assert read(conn, "abstention_band", run_id="folded").empty
        columns = "run_id, level, threshold"
        several = read(conn, "abstention_band", columns=columns, run_id=["second", "first"])
        assert list(several.itertuples(index=False, name=None)) == [
            ("first", 0.5, 0.5),
            ("first", 0.9, 0.75),
            ("second", 0.9, 0.75),
        ]
    with pytest.raises(
        StoreError,
        match=r"^abstention_band: first 0\.9 .*already.*only once; ",
    ):
        save_bands(store, given.assign(threshold=[0.8, 0.5]))


def save_bands(store: Engine, given: pd.DataFrame) -> None:
    with transaction(store) as conn:
        save(conn, "abstention_band", given.assign(is_default=False), run_id="first")


def test_counts_of_a_night_are_replaced_and_those_of_others_stay(store: Engine) -> None:
    kinds = (
        ("calibration_bin", bins),
        ("abstention_count", counts),
    )
    with transaction(store) as conn:
        for table, made in kinds:
            given = pd.concat(
                [made(), made("second"), made(target=NEXT), made("folded"), made("abroad")]
            )
            assert save(conn, table, given) == 10
            again = pd.concat([made(n=6).head(1), made("second", NEXT)])
            assert save(conn, table, again.sample(frac=1, random_state=1)[again.columns[::-1]]) == 2
            assert save(conn, table, made().head(0)) == 0
            first = [made(n=6).head(1), made().tail(1)]
            expected = [*first, made("second"), made(target=NEXT), made("second", NEXT)]
            same(night_counts(conn, table, "toy", NEXT.date()), pd.concat(expected))
            same(night_counts(conn, table, "toy", TARGET.date()), pd.concat(expected[:3]))
            same(night_counts(conn, table, "far", NEXT.date()), made("abroad"))


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
        assert save(conn, "backtest", begun | {"created_at": NOW}) == 1
        save(
            conn,
            "backtest_fold",
            fold | {"predictions": 3, "refused": {}, "seconds": 1.0},
            backtest_id="b",
        )
        save(
            conn,
            "abstention_count",
            pd.concat([counts("folded"), counts("folded", NEXT), counts("first")]),
        )
        same(query(conn, "fold_counts", backtest="b"), counts("folded"))
        assert query(conn, "fold_counts", backtest="other").empty


def test_rules_calls_are_kept_once(store: Engine) -> None:
    given = pd.DataFrame({"target": [TARGET], "as_of": AS_OF} | RULES)
    with transaction(store) as conn:
        assert save(conn, "rule_direction", given, market="toy") == 1
        assert save(conn, "rule_direction", given.assign(index_reversal=True), market="toy") == 0
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
        save(conn, "prediction", made, market="toy", known_at=NOW, made_at=NOW)
        assert save(conn, "attention_weight", given, market="toy") == 3
        assert save(conn, "attention_weight", pd.concat([later, given]), market="toy") == 3
        stored = read(
            conn,
            "attention_weight",
            columns="symbol, source, weight",
            run_id="second",
            target=NEXT.date(),
        )
        assert list(stored.itertuples(index=False, name=None)) == [
            ("A", "A", 1.0),
            ("B", "A", 0.75),
            ("B", "C", 0.25),
        ]
        assert read(
            conn,
            "attention_weight",
            columns="symbol, source, weight",
            run_id="first",
            target=NEXT.date(),
        ).empty
        assert (
            save(
                conn, "attention_weight", given.assign(weight=given["weight"] - 9e-7), market="toy"
            )
            == 0
        )
    for wrong, words in (
        (
            given.assign(weight=given["weight"] - 2e-6),
            "^attention_weight: first 2024-01-05 A A .*already.*never rewritten; ",
        ),
        (pd.concat([given, given.head(1)]), "^first 2024-01-05 B C .*duplicated: "),
    ):
        with reading(store) as conn, pytest.raises(StoreError, match=words):
            save(conn, "attention_weight", wrong, market="toy")


def test_a_stock_of_an_older_ranking_alone_is_not_in_the_ranking_shown(store: Engine) -> None:
    places = pd.DataFrame({"symbol": STOCKS, "place": [1, 2, 3], "score": [3.0, 2.0, 1.0]})
    places = places.assign(
        predictor="ridge", as_of=AS_OF, target=TARGET, probability=None, chosen=True
    )
    with transaction(store) as conn:
        for name, count, at in (("old", 3, NOW), ("new", 2, NOW + timedelta(hours=1))):
            row = ranker(checkpoint_path=name, checkpoint_hash=name) | {"id": name}
            save(conn, "ranker", row)
            ranked = places.head(count).assign(ranker_id=name)
            save(conn, "stock_rank", ranked, market="toy", known_at=NOW, made_at=at)
        found = rankings.night_ranking(conn, "toy", TARGET.date())
        assert found["symbol"].tolist() == ["A", "B"]
