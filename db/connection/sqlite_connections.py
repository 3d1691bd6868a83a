"""How every connection to SQLite is set up, begins a transaction and is closed."""

import sqlite3
from contextlib import suppress
from functools import partial

from sqlalchemy import Connection


class SqliteConnection(sqlite3.Connection):
    """A connection that closes its file when it is deleted.

    An engine pools its connections, and most commands use an engine until the process ends. From
    Python 3.13 on, a connection that is still open when it is deleted warns of it.
    """

    def __del__(self) -> None:
        """Close the file."""
        with suppress(sqlite3.ProgrammingError):  # raised where the file could not be opened
            self.close()


def prepare_sqlite(read_only: bool, connection: sqlite3.Connection, _record: object) -> None:
    """Set up a new connection, one that can attach no other file if it is `read_only`.

    One that may write switches its file to a write-ahead log, which lasts.
    SQLAlchemy calls this, with its record of the connection, for each that an engine opens.
    """
    # The driver's own BEGIN would come only after the first read, and never before a statement such
    # as CREATE TABLE. So the driver begins no transaction: begin_sqlite does.
    connection.isolation_level = None
    # SQLite keeps any bytes in a column of text. Bytes of another program that are not UTF-8 must
    # not make their table unreadable.
    connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
    # mode=ro protects only the store's file: SQL could attach another file, and write there.
    if read_only:
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.execute("pragma foreign_keys = on")  # SQLite's default is off
    # With a write-ahead log (WAL) a power failure may then lose the last commits, but it cannot
    # damage the file. The default waits for the disk at each commit.
    connection.execute("pragma synchronous = normal")
    # A switch to WAL needs exclusive access to the file, so it is requested only where needed.
    journal_mode = connection.execute("pragma journal_mode").fetchone()
    if journal_mode != ("wal",) and not read_only:
        connection.execute("pragma journal_mode = wal")


def begin_sqlite(conn: Connection) -> None:
    """Begin a transaction: deferred, or as the option `sqlite_begin` of `transaction` says."""
    mode = conn.get_execution_options().get("sqlite_begin", "deferred")
    conn.exec_driver_sql(f"begin {mode}")
