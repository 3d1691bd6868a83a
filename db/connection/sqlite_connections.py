"""How every connection to SQLite is set up, begins a transaction and is closed."""

import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from db.errors import StoreError


class SqliteConnection(sqlite3.Connection):
    """A connection without functions in Python, which closes its file when it is deleted.

    An engine pools its connections, and most commands use an engine until the process ends. From
    Python 3.13 on, a connection that is still open when it is deleted warns of it.
    """

    def __del__(self) -> None:
        """Close the file."""
        with suppress(sqlite3.ProgrammingError):  # raised where the file could not be opened
            self.close()

    def create_function(self, *_arguments: object, **_options: object) -> None:
        """Leave out what SQLAlchemy adds, `regexp` and `floor`, because SQL could call it.

        A call would hold Python's interpreter lock until it ends, and that of a regular expression
        may never end: no thread would run meanwhile, not even one that interrupts the statement.
        """


def prepare_sqlite(
    read_only: bool, path: Path, connection: sqlite3.Connection, record: ConnectionPoolEntry
) -> None:
    """Set up a new connection; one that may write switches its file to a write-ahead log for good.

    SQLAlchemy calls this, with its record of the connection, for each that an engine opens.
    """
    # The driver's own BEGIN would come only after the first read, and never before a statement such
    # as CREATE TABLE. So the driver begins no transaction: begin_sqlite does.
    connection.isolation_level = None
    # SQLite keeps any bytes in a column of text. Bytes of another program that are not UTF-8 must
    # not make their table unreadable.
    connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
    connection.execute("pragma foreign_keys = on")  # SQLite's default is off
    # With a write-ahead log (WAL) a power failure may then lose the last commits, but it cannot
    # damage the file. The default waits for the disk at each commit.
    connection.execute("pragma synchronous = normal")
    # A switch to WAL needs exclusive access to the file, so it is requested only where needed.
    journal_mode = connection.execute("pragma journal_mode").fetchone()
    if journal_mode != ("wal",) and not read_only:
        connection.execute("pragma journal_mode = wal")
    record.info["inode"] = path.stat().st_ino


def require_its_file(
    path: Path, _: object, record: ConnectionPoolEntry, _proxy: PoolProxiedConnection
) -> None:
    """Raise StoreError where a pooled connection's file was moved, deleted or replaced.

    The connection itself would go on, and what it writes would be lost with its file.
    """
    if not path.exists() or path.stat().st_ino != record.info["inode"]:
        raise StoreError(
            f"{path} was moved, deleted or replaced while it was in use, and nothing more is "
            "stored: put it back, or run the command again to use what is there now"
        )


def begin_sqlite(conn: Connection) -> None:
    """Begin a transaction: deferred, or as the option `sqlite_begin` of `transaction` says."""
    mode = conn.get_execution_options().get("sqlite_begin", "deferred")
    conn.exec_driver_sql(f"begin {mode}")
