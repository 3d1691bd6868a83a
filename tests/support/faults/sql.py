"""The statements that change a store and its commits, as points of `faults`: at
the drivers of both engines.
"""

import errno
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import psycopg

from tests.support.faults.points import Effect, Watch

CHANGES = re.compile(
    r"\s*(with\b.*?\b)?(insert|update|delete|create|drop|alter|copy|vacuum|truncate|grant|revoke"
    r"|select setval|pragma journal_mode =)",
    re.IGNORECASE | re.DOTALL,
)
SAID = {errno.ENOSPC: "database or disk is full", errno.EIO: "disk I/O error"}


@contextmanager
def watch_drivers(watch: Watch) -> Iterator[None]:
    """Let every statement that writes, and every commit that has something to
    commit, be a point.
    """
    with ExitStack() as stack:
        real = sqlite3.dbapi2.connect

        def connect(*given: Any, **named: Any) -> sqlite3.Connection:
            return real(*given, **(named | {"factory": _sqlite(watch)}))

        stack.enter_context(mock.patch.object(sqlite3.dbapi2, "connect", connect))
        for owner, name in (
            (psycopg.Cursor, "execute"),
            (psycopg.Cursor, "executemany"),
            (psycopg.Cursor, "copy"),
        ):
            stack.enter_context(
                mock.patch.object(owner, name, _of_cursor(watch, getattr(owner, name)))
            )
        commit = _of_connection(watch, psycopg.Connection.commit)
        stack.enter_context(mock.patch.object(psycopg.Connection, "commit", commit))
        yield


def _sqlite(watch: Watch) -> type[sqlite3.Connection]:
    def refused(number: int) -> Exception:
        return sqlite3.OperationalError(SAID[number])

    def reach(kind: str, sql: str, act: Callable[[], Any]) -> Any:
        return watch.reach(kind, told(sql), Effect(act, error=refused))

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, *given: Any) -> Any:
            act = lambda: super(Cursor, self).execute(sql, *given)  # noqa: E731
            return reach("statement", sql, act) if CHANGES.match(sql) else act()

        def executemany(self, sql: str, *given: Any) -> Any:
            act = lambda: super(Cursor, self).executemany(sql, *given)  # noqa: E731
            return reach("statement", sql, act) if CHANGES.match(sql) else act()

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = None) -> Any:
            return super().cursor(factory or Cursor)

        def execute(self, *given: Any) -> Any:
            return self.cursor().execute(*given)

        def commit(self) -> None:
            if self.in_transaction:
                reach("commit", "commit", super().commit)

    return Connection


def _of_cursor(watch: Watch, real: Callable[..., Any]) -> Callable[..., Any]:
    def direction(cursor: psycopg.Cursor[Any], statement: Any, *given: Any, **named: Any) -> Any:
        sql = statement.decode() if isinstance(statement, bytes) else str(statement)
        act = lambda: real(cursor, statement, *given, **named)  # noqa: E731
        return (
            _reach(watch, "statement", sql, cursor.connection, act) if CHANGES.match(sql) else act()
        )

    return direction


def _of_connection(watch: Watch, real: Callable[..., Any]) -> Callable[..., None]:
    def commit(conn: psycopg.Connection[Any]) -> None:
        _reach(watch, "commit", "commit", conn, lambda: real(conn))

    return commit


def _reach(
    watch: Watch, kind: str, sql: str, conn: psycopg.Connection[Any], act: Callable[[], Any]
) -> Any:
    def refused(number: int) -> Exception:
        return {errno.ENOSPC: psycopg.errors.DiskFull, errno.EIO: psycopg.errors.IoError}[number](
            SAID[number]
        )

    def lose() -> None:
        """Cut the connection; where the effect is over already, nobody is told of it."""
        cut(conn)
        if watch.fault is not None and watch.fault.kind == "lost after":
            conn.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    return watch.reach(kind, told(sql), Effect(act, error=refused, lose=lose))


def cut(conn: psycopg.Connection[Any]) -> None:
    """End a connection as a network does: neither side says so to the other."""
    with suppress(OSError), socket.socket(fileno=socket.dup(conn.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def told(sql: str) -> str:
    """The first words of a statement."""
    return " ".join(sql.split()[:4])
