"""Copy a whole store into an empty one, of either engine, and compare a digest of each table.

Rows are copied in SQLite's form: dates, moments in UTC and JSON as text, booleans as 0 or 1.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
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
from db.engine import URL_VARIABLE, location, open_engine, prepare, reading, transaction
from db.errors import StoreError, StoreUsageError
from db.tables import UtcTimestamp, metadata

ROWS = 20_000  # of a chunk

Rows = Sequence[tuple[object, ...]]
Progress = Callable[[str, str, int], None]
"""Called with the step (such as "copying"), its table, and the number of rows done."""
NO_PROGRESS: Progress = lambda *_: None  # noqa: E731 - the default of three functions

# How PostgreSQL must write a value so that it equals SQLite's; the session's time zone is UTC.
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
        table.name: conn.execute(count.select_from(table)).scalar_one()
        for table in metadata.sorted_tables
    }


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """Open a connection that reads the store as it is at one moment; others may write meanwhile."""
    # On SQLite any transaction reads the store as it was at its first read.
    if engine.dialect.name == "postgresql":
        engine = engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
    with reading(engine) as conn, conn.begin():
        if conn.dialect.name == "postgresql":  # A whole store may take longer than READ_LIMIT_S.
            conn.execute(text("set local statement_timeout = 0"))
        yield conn


def copy_store(
    source: Connection, target: Engine, progress: Progress = NO_PROGRESS
) -> dict[str, int]:
    """Copy all rows of a `snapshot` into an empty store, or none; return the rows of each table.

    PostgreSQL connections get the time zone UTC. Raises StoreUsageError when the target has another
    schema or holds a row, and StoreError when the digest of a table differs.
    """
    prepare(target)  # creates the tables
    counts: dict[str, int] = {}
    digests: dict[str, str] = {}
    with transaction(target) as conn:
        require_empty(conn)
        # AS_SQLITE writes moments in the time zone of the session.
        for connection in (source, conn):
            if connection.dialect.name == "postgresql":
                connection.execute(text("set local time zone 'UTC'"))
        for table in metadata.sorted_tables:
            digest = hashlib.sha256()
            counts[table.name] = 0
            for rows in _rows(source, table):
                digest.update(repr(rows).encode())
                counts[table.name] += insert_rows(conn, table, table.c.keys(), rows)
                progress("copying", table.name, counts[table.name])
            digests[table.name] = digest.hexdigest()
        for table in metadata.sorted_tables:
            digest = hashlib.sha256()
            done = 0
            for rows in _rows(conn, table):
                digest.update(repr(rows).encode())
                done += len(rows)
                progress("comparing", table.name, done)
            if (done, digest.hexdigest()) != (counts[table.name], digests[table.name]):
                raise StoreError(
                    f"the copy of {table.name} differs ({counts[table.name]:,} rows became "
                    f"{done:,}), so nothing was copied: run the same command again, and if it "
                    "differs again, correct the rows of that table in the store that is copied"
                )
        # PostgreSQL plans by counts that it would take only later, and copied rows do not advance
        # its sequences. The largest number of a table without rows is NULL, with which `setval`
        # does nothing.
        for table in metadata.sorted_tables if conn.dialect.name != "sqlite" else ():
            conn.execute(text(f"analyze {table.name}"))
            numbered_column = table.autoincrement_column
            if numbered_column is not None:
                sequence = f"pg_get_serial_sequence('{table.name}', '{numbered_column.name}')"
                highest = f"(select max({numbered_column.name}) from {table.name})"  # noqa: S608  (the schema's own names)
                conn.execute(text(f"select setval({sequence}, {highest})"))
    return counts


def require_empty(conn: Connection) -> None:
    """Raise StoreUsageError, naming a table, for a store that holds a row."""
    for table, rows in table_counts(conn).items():
        if rows:
            raise StoreUsageError(
                f"the store to fill, {location(conn.engine)}, is not empty: its table {table} has "
                f"{rows:,} rows; set {URL_VARIABLE} to an empty or new store"
            )


def write_snapshot(engine: Engine, file: Path, progress: Progress = NO_PROGRESS) -> dict[str, int]:
    """Write the store as it is now into a new SQLite file; return the rows of each table."""
    target_url = f"sqlite:///{file}"
    if engine.dialect.name == "sqlite":
        progress("copying", "all tables", 0)
        # SQLite copies itself, as it is at one moment. VACUUM cannot run inside a transaction, and
        # SQLAlchemy would begin one: so the driver's own cursor runs it.
        with reading(engine) as conn:
            conn.connection.cursor().execute("vacuum into ?", (str(file),))
        target = open_engine(target_url, read_only=True)
        with reading(target) as conn:
            row_counts = table_counts(conn)
    else:
        target = open_engine(target_url)
        with snapshot(engine) as source:
            row_counts = copy_store(source, target, progress)
        # The copy is to be one file, without a write-ahead log beside it.
        with reading(target) as conn:
            conn.connection.cursor().execute("pragma journal_mode = delete")
    target.dispose()  # closes the file
    return row_counts


def _rows(conn: Connection, table: Table) -> Iterator[Rows]:
    """Yield all rows in SQLite's form, `ROWS` at a time, by key; text is ordered by bytes."""
    columns = ", ".join(_value_sql(conn, column) for column in table.c)
    collation = ' collate "C"' if conn.dialect.name == "postgresql" else ""
    order = ", ".join(
        f'"{column.name}"' + (collation if isinstance(column.type, String) else "")
        for column in table.primary_key
    )
    sql = f"select {columns} from {table.name} order by {order}"  # noqa: S608  (the schema's own names)
    # PostgreSQL's server keeps the rows of a cursor with a name, so that the client holds ROWS at
    # most. Of any other cursor the client reads all rows at once. In binary, numbers are exact: as
    # text, they have as many digits as the server's settings allow.
    cursor_options: dict[str, Any] = {}
    if conn.dialect.name == "postgresql":
        cursor_options = {"name": "rows", "binary": True}
    with closing(conn.connection.cursor(**cursor_options)) as cursor:
        cursor.execute(sql)
        yield from iter(partial(cursor.fetchmany, ROWS), [])


def _value_sql(conn: Connection, column: Column[Any]) -> str:
    name = f'"{column.name}"'
    if conn.dialect.name == "sqlite":
        return name
    for kind, sql in AS_SQLITE.items():
        if isinstance(column.type, kind):
            return sql.format(name)
    return name
