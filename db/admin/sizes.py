"""Measure the space of a store and of its tables, and give free space back to the disk."""

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, text

from db import tables
from db.admin import statements
from db.engine import reading

SIZES = statements("sizes")
# Below this share of free pages, compacting an SQLite file costs more than it gives back.
FREE_SHARE = 0.05


def table_bytes(conn: Connection, table: str) -> int | None:
    """Return the bytes of a table with its indexes.

    None where SQLite was built without dbstat, the table that has these sizes.
    """
    is_known = _measured(conn, "whether bytes of a table are known")
    if not is_known:
        return None
    return _measured(conn, "bytes of a table with its indexes", name=table)


def mean_row_bytes(conn: Connection, table: str) -> float | None:
    """Return the bytes of a table with its indexes, divided by its rows.

    None for a table without rows, and where `table_bytes` is None.
    """
    counted = conn.execute(sa.select(sa.func.count()).select_from(tables.metadata.tables[table]))
    row_count = counted.scalar_one()
    total_bytes = table_bytes(conn, table)
    return total_bytes / row_count if total_bytes and row_count else None


def store_bytes(conn: Connection) -> int:
    """Return the bytes of the whole store, without SQLite's write-ahead log."""
    return _measured(conn, "bytes of the store")


def free_bytes(conn: Connection) -> int:
    """Return the bytes of an SQLite file's free pages; 0 on PostgreSQL, which reuses them."""
    return _measured(conn, "bytes of the store that hold nothing")


def has_much_free(conn: Connection) -> bool:
    """Return whether compacting an SQLite file would free `FREE_SHARE` of it or more."""
    return free_bytes(conn) >= FREE_SHARE * store_bytes(conn)


def compact(engine: Engine) -> None:
    """Give the free pages of an SQLite file back to the disk; leave PostgreSQL to its autovacuum.

    It needs up to twice the size of the file in free disk space: once beside the file, once in
    SQLite's folder of temporary files. Others may read meanwhile, and writers wait. Raises
    StoreError when the disk is full, or when another process writes for longer than
    `db.engine.LOCK_WAIT_S`. Where one reads for longer, the file becomes smaller only later.
    """
    if engine.dialect.name != "sqlite":
        return
    with reading(engine) as conn:
        # SQLite refuses VACUUM inside a transaction, which SQLAlchemy would begin.
        driver = conn.connection.driver_connection
        assert driver is not None
        driver.execute("vacuum")
        # VACUUM writes to the log first: this moves the pages into the file and empties the log.
        driver.execute("pragma wal_checkpoint(truncate)")


def _measured(conn: Connection, what: str, **values: str) -> int:
    """Return the number that a statement of sizes.sql gives on an engine; 0 where it is NULL."""
    statement = text(SIZES[f"{conn.dialect.name}: {what}"])
    return int(conn.execute(statement, values).scalar_one() or 0)
