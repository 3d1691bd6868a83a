"""The documented views answer the same on both engines, and quickly enough to browse."""

from datetime import UTC, date, datetime, timedelta

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db.connection.user_sql import select
from db.engine import open_engine, reading, transaction, upgrade
from db.rows import nights, prices
from db.save import save
from db.tables import BAR_VALUES, UtcTimestamp, metadata
from db.views import view
from db.views import views as documented_views
from tests.support import stores as made_stores

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
    stocks = pd.DataFrame({"symbol": ["A", "B"], "kind": "stock", "source_symbol": ["A", "B"]})
    with transaction(engine) as conn:
        save(conn, "instrument", stocks.assign(name=None, sector=None), market="toy")
        for day, closes in enumerate(([10.0, 20.0], [11.0, 20.0], [12.0, 20.0])):
            bars = pd.DataFrame({"symbol": ["A", "B"], "session": SESSION, "close": closes})
            bars = bars.reindex(columns=["symbol", "session", *BAR_VALUES])
            known_at = MONDAY + timedelta(days=day)
            prices.append_prices(conn, "toy", bars, source="files", known_at=known_at)
    return engine


def test_price_latest_has_one_version_of_each_bar(store: Engine, reader: Engine) -> None:
    rows = select(reader, "select symbol, close from price_latest order by symbol")
    assert rows.to_dict("list") == {"symbol": ["A", "B"], "close": [12.0, 20.0]}


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


def test_a_rejected_bar_and_a_night_can_be_asked_for_in_sql(store: Engine, reader: Engine) -> None:
    refused = pd.DataFrame(
        {"symbol": ["B"], "session": [SESSION], "reason": ["null_price"], "value": ["close=nan"]}
    )
    with transaction(store) as conn:
        save(conn, "rejected_bar", refused, market="toy", source="files", first_known_at=MONDAY)
        nights.start_night(
            conn, "toy", SESSION.date(), target=MONDAY.date(), source="files", started_at=MONDAY
        )
    rows = select(reader, "select symbol, reason, value from rejected where session = '2024-01-05'")
    assert rows.to_dict("records") == [
        {"symbol": "B", "reason": "null_price", "value": "close=nan"}
    ]
    assert select(reader, "select market, status from night_log").to_dict("records") == [
        {"market": "toy", "status": "running"}
    ]


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("view", "asked"),
    [
        ("prediction_history", "market = 'toy' and symbol = 'A'"),
        ("prediction_history", "market = 'toy' and target = '2024-01-05'"),
        ("latest_prediction", "market = 'toy'"),
        ("price_latest", "market = 'toy' and symbol = 'A'"),
        ("price_restatement", "market = 'toy' and symbol = 'A'"),
        ("daily_score", "market = 'toy' and target = '2024-01-05'"),
        ("night_log", "market = 'toy' and as_of = '2024-01-05'"),
    ],
)
def test_asking_for_one_symbol_or_one_night_reads_no_whole_fact_table(
    store: Engine, reader: Engine, view: str, asked: str
) -> None:
    plan = select(reader, f"explain query plan select * from {view} where {asked}")["detail"]
    scanned = {step.split()[1] for step in plan if step.startswith("SCAN")}
    assert scanned.isdisjoint(
        {"p", "o", "later", "b", "earlier", "d", "night", "price", "prediction"}
    )


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
