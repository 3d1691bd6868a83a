"""A whole store copied into an empty one, of either engine, and compared with it row by row.

Rows pass as SQLite keeps them: dates, moments in UTC and JSON as text, truth as 0 or 1. Nothing is
rounded, and a chunk of rows is all that memory holds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Date,
    Engine,
    String,
    Table,
    func,
    select,
    text,
)

from db.connection.bulk import insert_rows
from db.engine import open_engine, prepare, reading, transaction
from db.errors import StoreError, StoreUsageError
from db.tables import UtcTimestamp, metadata

ROWS = 20_000

Rows = Sequence[tuple[object, ...]]
Progress = Callable[[str, str, int], None]
"""Told what is being done, of which table, and how many of its rows are done."""
NO_PROGRESS: Progress = lambda *_: None  # noqa: E731 - the default of three functions

# How PostgreSQL is to write a value so that it reads as SQLite's does; the session's time zone is
# UTC.
AS_SQLITE = {
    JSON: "cast({} as text)",
    Boolean: "cast({} as integer)",
    Date: "to_char({}, 'YYYY-MM-DD')",
    UtcTimestamp: "to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')",
}


def table_counts(conn: Connection) -> dict[str, int]:
    """Return the number of rows of each table, by its name."""
    count = select(func.count())
    return {
        each.name: conn.execute(count.select_from(each)).scalar_one()
        for each in metadata.sorted_tables
    }


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """Open a connection that reads the store as it is at one moment, however
    long it takes, while others write.
    """
    if engine.dialect.name == "postgresql":
        engine = engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
    with reading(engine) as conn, conn.begin():
        if conn.dialect.name == "postgresql":
            conn.execute(text("set local statement_timeout = 0"))
        yield conn


def copy_store(
    source: Connection, target: Engine, progress: Progress = NO_PROGRESS
) -> dict[str, int]:
    """Copy all rows of a `snapshot` into an empty store and compare them; return how many rows each
    table has.

    All or nothing. Raises StoreUsageError when the target holds a row, StoreError for a row that is
    not the same on both sides, naming it.
    """
    prepare(target)
    with transaction(target) as conn:
        require_empty(conn)
        for each in (source, conn):
            if each.dialect.name == "postgresql":
                each.execute(text("set local time zone 'UTC'"))
        for table in metadata.sorted_tables:
            done = 0
            for rows in _rows(source, table):
                done += insert_rows(conn, table, table.c.keys(), rows)
                progress("copying", table.name, done)
        copied = {
            table.name: _compare(source, conn, table, progress) for table in metadata.sorted_tables
        }
        _set_sequences(conn)
    return copied


def require_empty(conn: Connection) -> None:
    """Raise StoreUsageError, naming a table, for a store that holds a row."""
    for table, rows in table_counts(conn).items():
        if rows:
            held = f"its table {table} has {rows} rows"
            raise StoreUsageError(f"the target store is not empty: {held}; choose an empty one")


def write_snapshot(engine: Engine, file: Path, progress: Progress = NO_PROGRESS) -> dict[str, int]:
    """Write the store as it is at one moment into a new SQLite file, while others write.

    Returns the number of rows of each table.
    """
    target_url = f"sqlite:///{file}"
    if engine.dialect.name == "sqlite":
        progress("copying", "all tables", 0)
        # VACUUM cannot run inside a transaction, so the driver's own cursor runs it.
        with reading(engine) as conn:
            conn.connection.cursor().execute("vacuum into ?", (str(file),))
        target = open_engine(target_url, read_only=True)
        with reading(target) as conn:
            rows = table_counts(conn)
    else:
        target = open_engine(target_url)
        with snapshot(engine) as source:
            rows = copy_store(source, target, progress)
        with reading(target) as conn:  # one file, without a log beside it
            conn.connection.cursor().execute("pragma journal_mode = delete")
    target.dispose()
    return rows


def _compare(source: Connection, target: Connection, table: Table, progress: Progress) -> int:
    """Return the number of rows, which are the same on both sides, value by value."""
    done = 0
    for ours, theirs in zip_longest(_rows(source, table), _rows(target, table), fillvalue=()):
        if ours != theirs:
            one, other = next(
                (one, other) for one, other in zip_longest(ours, theirs) if one != other
            )
            became = f"{one or 'no row'} became {other or 'no row'}"
            raise StoreError(f"the copy of {table.name} differs, so nothing was copied: {became}")
        done += len(ours)
        progress("comparing", table.name, done)
    return done


def _rows(conn: Connection, table: Table) -> Iterator[Rows]:
    """Return all rows in the order of the primary key, strings by their bytes,
    as many at a time as memory may hold.
    """
    columns = ", ".join(_value(conn, column) for column in table.c)
    order = ", ".join(_key(conn, column) for column in table.primary_key)
    sql = f"select {columns} from {table.name} order by {order}"  # noqa: S608  (the schema's own names)
    on_the_server: dict[str, Any] = (
        {"name": "rows", "binary": True} if conn.dialect.name == "postgresql" else {}
    )
    with closing(conn.connection.cursor(**on_the_server)) as cursor:
        cursor.execute(sql)
        while rows := cursor.fetchmany(ROWS):
            yield rows


def _value(conn: Connection, column: Column[Any]) -> str:
    if conn.dialect.name == "sqlite":
        return f'"{column.name}"'
    form = next((form for kind, form in AS_SQLITE.items() if isinstance(column.type, kind)), "{}")
    return form.format(f'"{column.name}"')


def _key(conn: Connection, column: Column[Any]) -> str:
    by_bytes = conn.dialect.name == "postgresql" and isinstance(column.type, String)
    return f'"{column.name}" collate "C"' if by_bytes else f'"{column.name}"'


def _set_sequences(conn: Connection) -> None:
    """Let PostgreSQL continue numbering after the largest number copied."""
    if conn.dialect.name == "sqlite":
        return
    for table in metadata.sorted_tables:
        numbered = table.autoincrement_column
        if numbered is not None:
            serial = f"pg_get_serial_sequence('{table.name}', '{numbered.name}')"
            highest = f"(select max({numbered.name}) from {table.name})"  # noqa: S608  (the schema's own names)
            conn.execute(text(f"select setval({serial}, {highest})"))
