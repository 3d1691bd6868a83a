"""What differs from a second source: a row for each night and value, and a comparison a night."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from db.engine import reading, transaction
from db.errors import StoreError
from db.read import read, read_row
from db.rows.fetches import save_comparison
from db.save import save

pytestmark = pytest.mark.on_postgresql

SESSION = pd.Timestamp("2024-01-05")
MONDAY = datetime(2024, 1, 8, 22, tzinfo=UTC)


@pytest.fixture
def store(engine: Engine) -> Engine:
    stocks = pd.DataFrame({"symbol": ["A", "B"], "kind": "stock", "source_symbol": ["A", "B"]})
    with transaction(engine) as conn:
        for market in ("toy", "other"):
            save(conn, "instrument", stocks.assign(name=None, sector=None), market=market)
    return engine


def row(symbol: str = "A", field: str = "close", second: float = 11.0) -> pd.DataFrame:
    values = {"first_value": 10.0, "second_value": second, "difference": second / 10 - 1}
    return pd.DataFrame([{"symbol": symbol, "session": SESSION, "field": field, **values}])


def compared(store: Engine, rows: pd.DataFrame, days: int = 0, market: str = "toy") -> None:
    known_at = MONDAY + timedelta(days=days)
    comparison = {"market": market, "as_of": known_at.date(), "known_at": known_at}
    counts = {"source": "files", "symbols": 2, "bars": 2, "differing": len(rows)}
    with transaction(store) as conn:
        save_comparison(conn, comparison | counts | {"failures": [], "failure": None}, rows)


def stored(store: Engine, market: str = "toy") -> list[tuple[str, str, str, float]]:
    with reading(store) as conn:
        rows = read(conn, "price_disagreement", market=market, order="as_of, symbol, field")
    columns = rows[["as_of", "symbol", "field", "second_value"]].assign(
        as_of=rows["as_of"].astype(str)
    )
    return list(columns.itertuples(index=False, name=None))


def test_a_night_has_the_rows_of_its_last_comparison(store: Engine) -> None:
    compared(store, row("B"), market="other")
    compared(store, pd.concat([row(), row("B", "bar", np.nan)]))
    compared(store, row(), days=1)
    compared(store, row(second=12.0))
    assert stored(store) == [
        ("2024-01-08", "A", "close", 12.0),
        ("2024-01-09", "A", "close", 11.0),
    ]
    assert stored(store, "other") == [("2024-01-08", "B", "close", 11.0)]
    with reading(store) as conn:
        night = read_row(conn, "comparison_log", market="toy", as_of=MONDAY.date())
    assert night is not None
    assert (night["differing"], night["known_at"]) == (1, MONDAY)


def test_two_rows_of_one_value_are_refused(store: Engine) -> None:
    with pytest.raises(StoreError, match=r"A .*close.*duplicated"):
        compared(store, pd.concat([row(), row(second=12.0)]))
    assert stored(store) == []
