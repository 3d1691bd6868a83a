"""The documented views answer the same on both engines, and quickly enough to browse."""

from datetime import UTC, date, datetime, timedelta

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db.connection.user_sql import select
from db.engine import open_engine, reading, transaction, upgrade
from db.rows import prices
from db.tables import BAR_VALUES, UtcTimestamp, metadata
from db.views import view
from db.views import views as documented_views
from tests.support import stores as made_stores
from tests.support.prediction_rows import save_stocks

PYTHON = {
    sa.Date: date,
    UtcTimestamp: datetime,
    sa.JSON: (list, dict),
    sa.Integer: int,
    sa.String: str,
}
MONDAY = datetime(2024, 1, 8, 22, tzinfo=UTC)
SESSION = pd.Timestamp("2024-01-05")


@pytest.fixture
def store(engine: Engine) -> Engine:
    """One bar of A in three versions, one of B in one."""
    with transaction(engine) as conn:
        save_stocks(conn, ["A", "B"])
        for day, closes in enumerate(([10.0, 20.0], [11.0, 20.0], [12.0, 20.0])):
            bars = pd.DataFrame({"symbol": ["A", "B"], "session": SESSION, "close": closes})
            bars = bars.reindex(columns=["symbol", "session", *BAR_VALUES])
            known_at = MONDAY + timedelta(days=day)
            prices.append_prices(conn, "toy", bars, source="files", known_at=known_at)
    return engine


def test_price_restatement_has_every_version_after_the_first_beside_the_one_before(
    store: Engine, reader: Engine
) -> None:
    rows = select(
        reader,
        "select symbol, close, close_before from price_restatement where known_at > "
        "known_at_before order by close",
    )
    assert rows.to_dict("list") == {
        "symbol": ["A", "A"],
        "close": [11.0, 12.0],
        "close_before": [10.0, 11.0],
    }


@pytest.mark.slow
def test_every_view_gives_the_types_that_it_is_read_with(engine: Engine) -> None:
    made_stores.fill(engine)
    with reading(engine) as conn:
        for name in documented_views():
            asked = view(name)
            for row in conn.execute(sa.select(asked)):
                for column, value in zip(asked.c, row, strict=True):
                    kind = PYTHON.get(type(column.type), float)
                    assert value is None or isinstance(value, kind), (name, column.name, value)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)  # SQLite keeps no comments
def test_postgresql_says_what_each_table_view_and_column_means(store_url: str) -> None:
    engine = open_engine(store_url)
    upgrade(engine)
    told = """
        select c.relname, a.attname, col_description(c.oid, a.attnum), obj_description(c.oid)
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'v')
            and c.relname <> 'alembic_version'
    """
    with reading(engine) as conn:
        found = {(each[0], each[1]): (each[2], each[3]) for each in conn.execute(sa.text(told))}
    assert {name for name, _ in found} == {*metadata.tables, *documented_views()}
    for name, each in documented_views().items():
        assert {
            column: said for (of, column), (said, _) in found.items() if of == name
        } == each.meanings()
        assert found[name, each.columns[0].name][1] == each.meaning
    assert [where for where, said in found.items() if None in said] == []
    engine.dispose()
