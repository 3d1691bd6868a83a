"""Run SQL that a user typed, and only to read the store: no file, no program,
no unbounded time or rows.
"""

import logging
import math
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from sys import getsizeof
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Engine, text

from db import engine as opened
from db.errors import StoreError, StoreUsageError

if TYPE_CHECKING:  # a statement is asked without waiting for pandas
    import pandas as pd

WRITES = "attempt to write a readonly database"  # as SQLite says it
READS = ("select", "with", "values", "table", "explain", "show")
LONGEST = 16_000_000  # bytes of a value on SQLite
ROWS, BYTES = 2000, 8_000_000  # of a batch, whichever comes first
# Steps of SQLite's machine between two looks at the clock: some 20 ms. Each look takes the
# interpreter from all else that this process does, such as the pages that others read meanwhile.
STEPS = 1_000_000
# What an answer may hold in memory at once.
HELD_ROWS, HELD_BYTES = 1_000_000, 200_000_000

CANCEL_LIMIT_S = 5  # for PostgreSQL to be told that a statement is to end
UNREAD = "the SQL was interrupted because its client has gone"

# Line comments and brackets may come first; a block comment, which PostgreSQL nests, could hide
# what does.
_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\r\n]*(?:[\r\n]|$))*([a-z]*)", re.IGNORECASE)
# Whoever is one of these, or may become one, reads files of the server or runs programs there:
# `set_config` changes a role in the midst of a statement, and `query_to_xml` makes one of text that
# no search of the statement finds.
_OUTSIDE = """
    select rolname from pg_roles
    where pg_has_role(session_user, oid, 'member') and (
        rolsuper
        or rolname in (
            'pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program'
        )
    )
    order by rolsuper desc, rolname limit 1
"""
Rows = Sequence[Sequence[Any]]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """The names of an answer's columns, and its rows as they come."""

    names: Sequence[str]
    batches: Iterator[Rows]


class Interruption:
    """End a statement of a user before its time, from another thread: its reader has left."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_requested = False
        self._cancel: Callable[[], object] | None = None

    @property
    def is_requested(self) -> bool:
        """Return whether the statement is to end."""
        return self._is_requested

    def request(self) -> None:
        """End the statement that runs, and any that would begin; it waits until
        PostgreSQL was told.
        """
        with self._lock:
            self._is_requested = True
            if self._cancel is not None:
                self._cancel()

    @contextmanager
    def ends_by(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Let a request call this, until the statement is over: its connection
        may then be another reader's.
        """
        with self._lock:
            self._cancel = cancel
        try:
            yield
        finally:
            with self._lock:
                self._cancel = None


@contextmanager
def asked(
    engine: Engine,
    sql: str,
    *,
    own: bool = False,
    time_limited: bool = True,
    interruption: Interruption | None = None,
) -> Iterator[Answer]:
    """Run one statement of a user, or this program's `own`; what it gives is read within, in
    batches of ROWS or BYTES.

    If `time_limited`, it ends after READ_LIMIT_S; an `interruption` ends it at once. Raises
    StoreUsageError, in one line, for SQL that does not run, that writes, that holds more than one
    statement or gives no rows, for an engine that was not opened read only, for SQL that a
    superuser of PostgreSQL typed and for what is interrupted.
    """
    if not opened.is_read_only(engine):
        raise StoreUsageError("SQL of a user runs only on an engine opened with read_only=True")
    run = _of_sqlite if engine.dialect.name == "sqlite" else _of_postgresql
    if interruption is not None and interruption.is_requested:
        raise StoreUsageError(UNREAD)
    try:
        with (
            opened.reading(engine) as conn,
            guarded(conn, sql, own=own, time_limited=time_limited, interruption=interruption),
            run(conn.connection.cursor(), sql) as answer,
        ):
            if not answer.names:
                raise StoreUsageError("the SQL returns no rows: write a select")
            yield answer
    except StoreUsageError:
        raise
    except StoreError as error:
        if WRITES in str(error):
            raise StoreUsageError(
                "the SQL failed: it would write, but the store is open read-only"
            ) from error
        raise StoreUsageError(f"the SQL failed: {error}") from error


def select(
    engine: Engine,
    sql: str,
    most: int | None = None,
    *,
    own: bool = False,
    interruption: Interruption | None = None,
) -> "pd.DataFrame":
    """Return the rows of SQL that a user typed, as the engine gives them: SQLite keeps dates and
    timestamps as text.

    With `most`, the first rows, no more than that. A statement that is this program's `own` may be
    asked as a superuser of PostgreSQL too. An `interruption` ends it at once. Raises
    StoreUsageError, in one line, for what `asked` refuses and for an answer of more than HELD_ROWS
    or about HELD_BYTES.
    """
    with asked(engine, sql, own=own, interruption=interruption) as answer:
        return held(answer, most)


def held(answer: Answer, most: int | None = None) -> "pd.DataFrame":
    """Return the rows of an answer as a frame, or the first `most` of them.

    Raises StoreUsageError, as `select` does, for more than fit into memory.
    """
    from db.connection.frames import typed

    return typed(first_rows(answer, most), answer.names)


def first_rows(answer: Answer, most: int | None = None) -> list[Sequence[Any]]:
    """Return the rows of an answer as the driver gives them, or the first `most` of them.

    Raises StoreUsageError for more than HELD_ROWS or about HELD_BYTES.
    """
    rows: list[Sequence[Any]] = []
    size = 0
    for batch in answer.batches:
        rows += batch
        if most is not None and len(rows) >= most:
            break
        size += sum(_size(row) for row in batch)
        if len(rows) > HELD_ROWS or size > HELD_BYTES:
            raise StoreUsageError(
                f"an answer of more than {HELD_ROWS:,} rows or {HELD_BYTES:,} bytes does not fit "
                "into memory: request less data, or CSV, JSON or Parquet, which are streamed"
            )
    return rows[:most]


@contextmanager
def _of_sqlite(cursor: Any, sql: str) -> Iterator[Answer]:
    # A cursor that is not closed here is closed by the garbage collector, in any thread, and then
    # waits for whatever statement its connection runs: so one that failed is closed too.
    with closing(cursor):
        cursor.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        yield Answer(names=names, batches=_batches(cursor))


@contextmanager
def _of_postgresql(cursor: Any, sql: str) -> Iterator[Answer]:
    """Yield the answer of one statement of PostgreSQL, read row by row.

    Otherwise the client would hold all rows. `stream` takes only a single statement, so that no
    commit can follow it.
    """
    with closing(cursor.stream(sql)) as rows:
        first_row = next(rows, None)
        if first_row is not None:
            names = [column.name for column in cursor.description]
            yield Answer(names=names, batches=_batches(chain([first_row], rows)))
            return
    # The names of columns come only with a row: without one, the server describes the statement.
    connection = cursor.connection.pgconn
    connection.prepare(b"", sql.encode())
    description = connection.describe_prepared(b"")
    names = [description.fname(place).decode() for place in range(description.nfields)]
    yield Answer(names=names, batches=iter(()))


def _batches(rows: Iterator[Sequence[Any]]) -> Iterator[Rows]:
    """Yield rows in batches of `ROWS` rows or about `BYTES` bytes, whichever is reached first."""
    batch: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += _size(row)
        if len(batch) == ROWS or size > BYTES:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _size(row: Sequence[Any]) -> int:
    """Return the bytes that a row's values take in memory."""
    return sum(getsizeof(value) for value in row)


@contextmanager
def guarded(
    conn: Connection,
    sql: str,
    *,
    own: bool = False,
    time_limited: bool = True,
    interruption: Interruption | None = None,
) -> Iterator[None]:
    """Guard a read-only connection while one statement of a user, or this program's `own`, runs.

    On SQLite, which has no time limit of its own, the statement is interrupted after READ_LIMIT_S.
    PostgreSQL's readers are opened with that limit. Neither counts unless `time_limited`. An
    `interruption` ends the statement at once. On PostgreSQL the statement must begin with a word of
    READS, and a role that can reach the server's files or programs may type none: nothing could
    stop a superuser's SQL that is written to get around these limits. Raises StoreUsageError for
    what is refused.
    """
    interruption = interruption or Interruption()
    if conn.dialect.name == "sqlite":
        driver = cast(sqlite3.Connection, conn.connection.driver_connection)
        limit = opened.READ_LIMIT_S if time_limited else math.inf
        # Even without a limit: an interruption is noticed when the clock is read.
        with _time_limit(driver, limit, interruption):
            yield
        return
    first_word = _FIRST_WORD.match(sql)
    if first_word is None or first_word[1].lower() not in READS:
        raise StoreUsageError(f"a query must begin with one of {', '.join(READS)}")
    if not own:
        _require_no_power(conn)
    if not time_limited:
        conn.execute(text("set local statement_timeout = 0"))
    with _cancellable(conn, interruption):
        yield


def _require_no_power(conn: Connection) -> None:
    """Raise StoreUsageError for a role that can reach the server's files or programs."""
    power = conn.execute(text(_OUTSIDE)).scalar()
    if power is not None:
        raise StoreUsageError(
            f"as {power}, SQL could read the server's files and run programs there, so it is "
            f"refused: set {opened.URL_VARIABLE} to a role without such rights; "
            "`dtml db grant-reader NAME` creates one that reads the views"
        )


@contextmanager
def _time_limit(
    driver: sqlite3.Connection, limit: float, interruption: Interruption
) -> Iterator[None]:
    """Interrupt what SQLite runs after `limit` seconds, or once an interruption is requested."""
    deadline = time.monotonic() + limit

    def must_end() -> bool:
        return interruption.is_requested or time.monotonic() > deadline

    driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    driver.set_progress_handler(must_end, STEPS)
    try:
        yield
    finally:
        driver.set_progress_handler(None, STEPS)


@contextmanager
def _cancellable(conn: Connection, interruption: Interruption) -> Iterator[None]:
    """Let an interruption cancel what PostgreSQL runs on this connection.

    The connection is not used again then: a cancellation that the server takes late would end its
    next statement.
    """
    driver = conn.connection.driver_connection
    cancel = partial(_cancel, driver, conn.dialect.loaded_dbapi.Error)
    try:
        with interruption.ends_by(cancel):
            if interruption.is_requested:
                raise StoreUsageError(UNREAD)
            yield
    finally:
        if interruption.is_requested:
            conn.invalidate()


def _cancel(driver: Any, failure: type[Exception]) -> None:
    """Cancel what a connection of PostgreSQL runs."""
    try:
        driver.cancel_safe(timeout=CANCEL_LIMIT_S)
    except failure as error:  # The statement's own time limit ends it then.
        log.warning(
            "a query that nobody waits for any more could not be cancelled (%s); "
            "its time limit ends it",
            error,
        )
