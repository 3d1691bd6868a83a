"""Remove attention of old nights and old models, measure a store, and compact its file.

Predictions, outcomes, scores and every version of a price stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Engine, text

from db import tables
from db.admin import statements
from db.engine import reading
from db.read import read
from db.rows.markets import markets
from db.rows.nights import COMPLETE
from db.rows.runs import latest_trained

MODELS: Final = ("run", "ranker")
BANDS = tables.abstention_band  # are removed with their model, so that they do not keep it
SIZES = statements("sizes")
# Below this share of free pages, compacting an SQLite file costs more than it gives back.
FREE_SHARE = 0.05


@dataclass(frozen=True)
class OldRows:
    """Rows to remove: the number of rows of attention, and the weights of each model.

    `models` has, for run and ranker, the path below the data folder (None: no file) by id.
    """

    attention: int
    models: Mapping[str, Mapping[str, str | None]]


def first_kept_nights(conn: Connection, keep: int) -> dict[str, date]:
    """Return the session of the first of the last `keep` complete nights, by market."""
    first_kept = {}
    for market in markets(conn):
        kept = read(
            conn,
            "night",
            columns="as_of",
            market=market,
            status=COMPLETE,
            order="-as_of",
            limit=keep,
        )
        if len(kept) == keep:
            first_kept[market] = kept["as_of"].iloc[-1].date()
    return first_kept


def old_rows(conn: Connection, first_kept: Mapping[str, date], created_before: datetime) -> OldRows:
    """Return what can be removed, with the first night to keep by market.

    A model can be removed if it was trained on earlier sessions alone, before `created_before`, is
    not its market's newest, and no row but its abstention bands names it.
    """
    attention = 0
    models: dict[str, dict[str, str | None]] = {name: {} for name in MODELS}
    for market, first in first_kept.items():
        count = sa.select(sa.func.count()).where(*_is_old_attention(market, first))
        attention += conn.execute(count).scalar_one()
        for name in MODELS:
            table = tables.metadata.tables[name]
            references = [
                key.parent
                for other in tables.metadata.sorted_tables
                for key in other.foreign_keys
                if key.column is table.c.id and other is not BANDS
            ]
            old = sa.select(table.c.id, table.c.checkpoint_path).where(
                table.c.market == market,
                table.c.train_last < first,
                table.c.created_at < created_before,
                table.c.id != (latest_trained(conn, name, market) or {}).get("id", ""),
                *[~sa.exists().where(reference == table.c.id) for reference in references],
            )
            models[name].update(conn.execute(old.order_by(table.c.id)).tuples().all())
    return OldRows(attention, models)


def remove_rows(conn: Connection, first_kept: Mapping[str, date], old: OldRows) -> None:
    """Remove what `old_rows` returned, but files; StoreError where a row names a model since."""
    for market, first in first_kept.items():
        is_old = _is_old_attention(market, first)
        conn.execute(sa.delete(tables.attention_weight).where(*is_old))
    conn.execute(sa.delete(BANDS).where(BANDS.c.run_id.in_(old.models["run"])))
    for name, ids in old.models.items():
        table = tables.metadata.tables[name]
        conn.execute(sa.delete(table).where(table.c.id.in_(ids)))


def _is_old_attention(market: str, first: date) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of attention of a market's nights, not backtests, before `first`."""
    attention = tables.attention_weight.c
    run = tables.run.c
    runs_of_nights = sa.select(run.id).where(run.market == market, run.kind == "nightly")
    # A night predicts the session after its own: the last night before `first` has the target
    # `first`, and the night of `first` itself has a later one.
    return attention.run_id.in_(runs_of_nights), attention.target <= first


def table_bytes(conn: Connection, table: str) -> int | None:
    """Return the bytes of a table with its indexes; None where SQLite lacks dbstat."""
    if not _measured(conn, "whether bytes of a table are known"):
        return None
    return _measured(conn, "bytes of a table with its indexes", name=table)


def attention_bytes(conn: Connection, rows: int) -> int | None:
    """Return the bytes of so many mean rows of attention; None where `table_bytes` is None."""
    total_bytes = table_bytes(conn, "attention_weight")
    stored = sa.select(sa.func.count()).select_from(tables.attention_weight)
    if total_bytes is None or rows == 0:
        return total_bytes and 0
    return round(total_bytes * rows / conn.execute(stored).scalar_one())


def compact(engine: Engine) -> tuple[int, int] | None:
    """Give the free pages of an SQLite file back to the disk; return its bytes before and after.

    None on PostgreSQL, and where less than `FREE_SHARE` is free. Needs up to twice the file's size
    in free disk space; writers wait. Raises StoreError when the disk is full, or another process
    writes for longer than `db.engine.LOCK_WAIT_S`.
    """
    if engine.dialect.name != "sqlite":
        return None
    with reading(engine) as conn:
        before = _measured(conn, "bytes of the store")
        if _measured(conn, "bytes of the store that hold nothing") < FREE_SHARE * before:
            return None
    with reading(engine) as conn:
        # SQLite refuses VACUUM inside a transaction, which SQLAlchemy would begin.
        cursor = conn.connection.cursor()
        cursor.execute("vacuum")
        # VACUUM writes to the log first: this moves the pages into the file and empties the log.
        cursor.execute("pragma wal_checkpoint(truncate)")
        return before, _measured(conn, "bytes of the store")


def _measured(conn: Connection, what: str, **values: str) -> int:
    statement = text(SIZES[f"{conn.dialect.name}: {what}"])
    return int(conn.execute(statement, values).scalar_one() or 0)
