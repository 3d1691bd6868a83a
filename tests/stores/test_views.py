"""The documented views answer the same on both engines, quickly, and say what each column means."""

import sqlite3
from datetime import UTC, date, datetime, timedelta

import pandas as pd
import pytest
import sqlalchemy as sa

from db.engine import open_engine, reading, transaction, upgrade
from db.rows import prices
from db.tables import BAR_VALUES, UtcTimestamp, metadata
from db.views import data_dictionary, view, views
from db.views import views as documented_views
from tests.support import stores as made_stores
from tests.support.prediction_rows import STOCKS, save_stocks
from tests.support.stores import add_predictions, fill

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
def store(engine):
    """One bar of A in three versions, one of B in one."""
    with transaction(engine) as conn:
        save_stocks(conn, ["A", "B"])
        for day, closes in enumerate(([10.0, 20.0], [11.0, 20.0], [12.0, 20.0])):
            bars = pd.DataFrame({"symbol": ["A", "B"], "session": SESSION, "close": closes})
            bars = bars.reindex(columns=["symbol", "session", *BAR_VALUES])
            known_at = MONDAY + timedelta(days=day)
            prices.append_prices(conn, "toy", bars, source="files", known_at=known_at)
    return engine


def test_every_view_gives_the_types_that_it_is_read_with(engine):
    made_stores.fill(engine)
    with reading(engine) as conn:
        for name in documented_views():
            asked = view(name)
            for row in conn.execute(sa.select(asked)):
                for column, value in zip(asked.c, row, strict=True):
                    kind = PYTHON.get(type(column.type), float)
                    assert value is None or isinstance(value, kind), (name, column.name, value)


def test_the_dictionary_says_what_every_view_table_and_column_means():
    described = [(view.name, view.meaning, view.meanings()) for view in views().values()]
    described += [
        (table.name, table.comment, {column.name: column.comment for column in table.columns})
        for table in metadata.tables.values()
    ]
    printed = data_dictionary()
    for name, meaning, columns in described:
        section = printed.split(f"**`{name}`** (")[1].split("\n**")[0]
        assert f"): {meaning}" in section
        for column, about in columns.items():
            assert f"| `{column}` | {about} |" in section, (name, column)


def steps(folder, nights, sql):
    """The instructions that SQLite's machine takes for rows of a store of so many nights."""
    engine = open_engine(f"sqlite:///{folder / str(nights)}.sqlite")
    upgrade(engine)
    fill(engine)
    add_predictions(engine, nights * len(STOCKS))
    engine.dispose()
    taken = 0

    def count():
        nonlocal taken
        taken += 1
        return 0

    with sqlite3.connect(folder / f"{nights}.sqlite") as conn:
        assert conn.execute(sql).fetchall()  # the first query reads the schema as well
        conn.set_progress_handler(count, 1)
        conn.execute(sql).fetchall()
        conn.set_progress_handler(None, 0)
    return taken


@pytest.mark.parametrize(
    ("view", "night"),
    [
        ("latest_prediction", "1 = 1"),
        ("latest_prediction", "symbol = 'A'"),
        ("prediction_history", "target = '2024-01-05'"),
    ],
)
def test_one_night_takes_no_longer_after_many_nights(view, night, tmp_path):
    sql = f"select * from {view} where market = 'toy' and {night}"
    assert steps(tmp_path, 320, sql) < 1.5 * steps(tmp_path, 10, sql)
