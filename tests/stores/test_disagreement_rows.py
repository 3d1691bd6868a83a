"""Values that differ from a second source's: each version once, and the newest one in force."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from db.engine import reading, transaction
from db.errors import StoreError
from db.rows import fetches
from db.save import save
from tests.support.prediction_rows import save_stocks

pytestmark = pytest.mark.on_postgresql

SESSION = pd.Timestamp("2024-01-05")
MONDAY = datetime(2024, 1, 8, 22, tzinfo=UTC)


@pytest.fixture
def store(engine: Engine) -> Engine:
    with transaction(engine) as conn:
        save_stocks(conn, ["A", "B"])
    return engine


def row(
    symbol: str = "A", field: str = "close", first: float = 10.0, second: float = 11.0
) -> pd.DataFrame:
    values = {"first_value": first, "second_value": second, "difference": second / first - 1}
    return pd.DataFrame(
        [{"symbol": symbol, "session": SESSION, "field": field, **values, "settled_by": None}]
    )


def append(store: Engine, rows: pd.DataFrame, days: int = 0) -> int:
    known_at = MONDAY + timedelta(days=days)
    with transaction(store) as conn:
        return fetches.append_disagreements(conn, "toy", rows, source="files", known_at=known_at)


def in_force(store: Engine) -> list[tuple[str, str, float]]:
    with reading(store) as conn:
        rows = fetches.disagreements(conn, "toy")
    return list(rows[["symbol", "field", "second_value"]].itertuples(index=False, name=None))


def test_a_version_is_added_only_where_the_values_are_others(store: Engine) -> None:
    rows = pd.concat([row(), row("B"), row("B", "volume")])
    assert append(store, rows) == 3
    assert append(store, rows, days=1) == 0
    assert append(store, row(second=11.0 * (1 + 1e-12)), days=2) == 0
    assert append(store, row(second=12.0), days=3) == 1
    assert in_force(store) == [("A", "close", 12.0), ("B", "close", 11.0), ("B", "volume", 11.0)]
    with reading(store) as conn:
        found = fetches.disagreements_found(conn, "toy", MONDAY)
        later = fetches.disagreements_found(conn, "toy", MONDAY + timedelta(days=3))
    assert found["known_until"].notna().tolist() == [True, False, False]
    assert later["known_until"].isna().all()


def test_a_missing_value_equals_a_missing_one(store: Engine) -> None:
    rows = row(first=np.nan, field="bar")
    assert append(store, rows) == 1
    assert append(store, rows, days=1) == 0
    assert append(store, row(field="bar"), days=2) == 1


def test_what_agrees_again_is_a_version_and_may_differ_again(store: Engine) -> None:
    append(store, row())
    agreeing = row(second=10.0).assign(settled_by="second")
    assert append(store, agreeing, days=1) == 1
    assert append(store, agreeing, days=2) == 0
    assert in_force(store) == []
    assert append(store, row(), days=3) == 1
    assert in_force(store) == [("A", "close", 11.0)]


def test_two_rows_of_one_value_are_refused(store: Engine) -> None:
    with pytest.raises(StoreError, match=r"A 2024-01-05 close .*duplicated"):
        append(store, pd.concat([row(), row(second=12.0)]))
    assert in_force(store) == []


def test_a_comparison_is_dated_after_every_fetch_and_comparison(store: Engine) -> None:
    ahead = datetime.now(UTC) + timedelta(hours=3)
    with transaction(store) as conn:
        assert fetches.comparison(conn, "toy") is None
        counts = dict.fromkeys(("asked", "fetched", "stored", "rejected"), 0)
        fetch = {"market": "toy", "known_at": ahead, "as_of": SESSION.date(), "source": "files"}
        save(conn, "price_fetch", fetch | counts | {"restated": [], "failures": []})
        first = fetches.next_compared_at(conn, "toy")
        assert first == ahead + timedelta(microseconds=1)
        counts = dict.fromkeys(("symbols", "bars", "differing", "found", "settled"), 0)
        compared = fetch | {"known_at": first} | counts | {"failures": [], "failure": None}
        assert save(conn, "price_comparison", compared) == 1
        assert fetches.next_compared_at(conn, "toy") == first + timedelta(microseconds=1)
        stored = fetches.comparison(conn, "toy")
        assert stored is not None
        assert stored == {name: compared[name] for name in stored}
        assert fetches.comparison(conn, "toy", before=first) is None
        assert fetches.comparison(conn, "toy", since=SESSION.date()) == stored
        later = SESSION.date() + timedelta(days=1)
        assert fetches.comparison(conn, "toy", since=later) is None
