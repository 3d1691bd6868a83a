"""A small store that is sound and has rows in every table, some with values
that are awkward to copy.
"""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Engine

from db import tables
from db.admin.copying import copy_store, snapshot, table_counts
from db.connection.bulk import insert_frame
from db.engine import location, open_engine, reading, transaction, upgrade
from tests.support.prediction_rows import AS_OF, STOCKS

FIRST = "models/first.safetensors"
WEIGHTS = b"weights of the first run"
MOMENT = datetime(2024, 1, 5, 2, 30, 0, 7, tzinfo=UTC)
GAP = {"symbol": "Ünïcode", "reason": "no bar: 'quoted', \"twice\", \\ and\ttab"}
ROWS = Path(__file__).with_name("store.sql")


def fill(engine: Engine) -> None:
    """Rows in every table, those of `store.sql`."""
    if engine.dialect.name == "sqlite":
        with closing(sqlite3.connect(str(engine.url.database))) as conn:
            conn.executescript(ROWS.read_text(encoding="utf-8"))
        return
    with TemporaryDirectory() as folder:
        made = open_engine(f"sqlite:///{folder}/store.sqlite")
        upgrade(made)
        fill(made)
        with snapshot(made) as conn:
            copy_store(conn, engine)
        made.dispose()


def keep_weights(folder: Path) -> Path:
    """The checkpoint of the run of `fill`, in its place below a data folder."""
    file = folder / FIRST
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(WEIGHTS)
    return file


def add_predictions(engine: Engine, count: int) -> None:
    """That many more predictions of the run of `fill`, of its stocks and later sessions."""
    with transaction(engine) as conn:
        ids = conn.execute(
            sa.select(tables.instrument.c.id).where(tables.instrument.c.symbol.in_(STOCKS))
        ).scalars()
        targets = pd.bdate_range("2024-01-08", periods=-(-count // len(STOCKS)))
        keys = pd.MultiIndex.from_product([targets, list(ids)], names=["target", "instrument_id"])
        frame = keys.to_frame(index=False).head(count)
        frame["probability"] = np.random.default_rng(17).random(count)
        frame = frame.assign(
            run_id="first", as_of=AS_OF, probability_std=np.nan, known_at=MOMENT, made_at=MOMENT
        )
        insert_frame(conn, tables.prediction, frame)


def contents(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, as Python values, in the order of its key,
    strings by their characters.
    """
    found = {}
    with reading(engine) as conn:
        for table in tables.metadata.sorted_tables:
            rows = [tuple(each) for each in conn.execute(sa.select(table))]
            found[table.name] = sorted(rows, key=lambda row: [repr(value) for value in row])
    assert all(found.values()), f"a table of {location(engine)} has no row"
    return found


def counts(engine: Engine) -> dict[str, int]:
    """How many rows each table has."""
    with reading(engine) as conn:
        return table_counts(conn)


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def rows(url: str) -> int:
    return sum(counts(open_engine(url)).values())
