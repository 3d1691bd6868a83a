"""Run SQL that a user typed, which can only read the store, with bounded time and rows."""

import logging
import math
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from sys import getsizeof
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Engine, text

from db import engine as engines
from db.errors import StoreError, StoreUsageError, did_you_mean
from db.views import views

if TYPE_CHECKING:  # a statement is asked without waiting for pandas
    import pandas as pd

# The messages of SQLite and of PostgreSQL about a statement that would write.
READ_ONLY_ERRORS = ("attempt to write a readonly database", "in a read-only transaction")
# Words with which a query may begin, by engine; a statement that begins otherwise may write.
_OF_BOTH = ("select", "with", "values", "explain")
FIRST_WORDS = {"sqlite": _OF_BOTH, "postgresql": (*_OF_BOTH, "table", "show")}
# Of SQLite, within whose functions nothing can interrupt a statement: the bytes of a value and of a
# LIKE pattern, so that none of them takes longer than some seconds, such as `instr` of two long
# values; and the bytes of this process's whole heap of SQLite, which a short statement could fill
# while it is prepared.
LONGEST_VALUE, LONGEST_PATTERN, LARGEST_HEAP = 1_000_000, 1_000, 1_000_000_000
WATCH_S = 0.1  # between two looks at the clock while SQLite runs a statement
# An answer that is held in memory as a whole may have at most so many rows and bytes.
HELD_ROWS, HELD_BYTES = 1_000_000, 200_000_000

CANCEL_LIMIT_S = 5  # for a request to PostgreSQL that it cancel a statement
CLIENT_GONE = "the SQL was interrupted because its client has gone: send it again"

# Spaces, brackets and line comments may come before the first word. Block comments may not:
# PostgreSQL nests them, so that this pattern could take a word inside one for the first word.
_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\r\n]*(?:[\r\n]|$))*([a-z]*)", re.IGNORECASE)
# The name of a role that can read files of the server or run programs there, if the connected role
# is that role or may become it. A search of the statement could not stop it from doing so:
# `set_config` changes the role in the midst of a statement, and `query_to_xml` runs a statement
# that is put together from text.
_ROLE_WITH_SERVER_ACCESS = """
    select rolname from pg_roles
    where pg_has_role(session_user, oid, 'member') and (
        rolsuper
        or rolname in (
            'pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program'
        )
    )
    order by rolsuper desc, rolname limit 1
"""
# The messages of SQLite and PostgreSQL about a name, with the name of its table before a point.
_UNKNOWN = (
    re.compile(r"no such (?P<kind>table|column): (?:\w+\.)?(?P<name>\w+)"),
    re.compile(r'(?P<kind>relation|column) "?(?:\w+\.)?(?P<name>\w+)"? does not exist'),
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """The names of a statement's columns, and its rows, each read when it is asked for."""

    names: Sequence[str]
    rows: Iterator[Sequence[Any]]


class Interruption:
    """A switch by which another thread ends a statement whose reader has left."""

    def __init__(self) -> None:
        self.is_requested = False
        self._lock = Lock()
        self._cancel: Callable[[], object] | None = None

    def request(self) -> None:
        """End the running statement and let none begin; PostgreSQL has then received it."""
        # With the lock held, `calling` cannot end, so that the connection of the statement is not
        # yet another reader's when the cancellation arrives.
        with self._lock:
            self.is_requested = True
            if self._cancel is not None:
                self._cancel()

    @contextmanager
    def calling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Let a request call `cancel` only while the statement runs, not another reader's."""
        with self._lock:
            self._cancel = cancel
        try:
            yield
        finally:
            with self._lock:
                self._cancel = None


@contextmanager
def open_answer(
    engine: Engine,
    sql: str,
    *,
    is_trusted: bool = False,
    is_time_limited: bool = True,
    interruption: Interruption | None = None,
) -> Iterator[Answer]:
    """Run one statement and yield its answer, whose rows must be read inside the context.

    A statement that `is_trusted` is this program's own, for any role; one that `is_time_limited`
    ends after READ_LIMIT_S. Raises StoreUsageError for SQL that does not run, writes, is more than
    one statement, returns no columns or begins with none of FIRST_WORDS; for an engine not opened
    read only; for a user's SQL under a role that reaches the server's files or programs; for too
    much memory on SQLite; and for one that was interrupted.
    """
    if not engines.is_read_only(engine):
        raise StoreUsageError(
            "this engine may write, and SQL of a user must not: open it with read_only=True"
        )
    run = _run_on_sqlite if engine.dialect.name == "sqlite" else _run_on_postgresql
    # Checked before the statement runs, as SQLite ends a short one without another check.
    if interruption is not None and interruption.is_requested:
        raise StoreUsageError(CLIENT_GONE)
    try:
        with (
            engines.reading(engine) as conn,
            guarded(
                conn,
                sql,
                is_trusted=is_trusted,
                is_time_limited=is_time_limited,
                interruption=interruption,
            ),
            run(conn.connection.cursor(), sql) as answer,
        ):
            if not answer.names:
                raise StoreUsageError(
                    "the SQL returned no columns, so it is not a query: write a select"
                )
            yield answer
    except StoreUsageError:  # raised here or in `guarded`: it already says what is wrong
        raise
    except StoreError as error:
        if any(words in str(error) for words in READ_ONLY_ERRORS):
            raise StoreUsageError(
                "the SQL would write, but the store is open read-only: write a select"
            ) from error
        meant = suggestion(str(error), sql)
        raise StoreUsageError(f"the SQL failed: {error}{meant}") from error


def suggestion(message: str, sql: str) -> str:
    """Return `; did you mean NAME?` for a database's message about an unknown name; else nothing.

    Columns are looked for in the views that the SQL names, or in all.
    """
    match = next(filter(None, (pattern.search(message) for pattern in _UNKNOWN)), None)
    if match is None:
        return ""
    if match["kind"] != "column":
        meant = did_you_mean(match["name"], views())
        return f"; {meant.strip()}" if meant else f"; the views are {', '.join(views())}"
    words = set(re.findall(r"\w+", sql.lower()))
    used = [view for name, view in views().items() if name in words] or views().values()
    columns = dict.fromkeys(column.name for view in used for column in view.columns)
    columns.pop(match["name"], None)  # other views have it, where the SQL names none
    meant = did_you_mean(match["name"], columns)
    return f"; {meant.strip()}" if meant else ""


def select(
    engine: Engine,
    sql: str,
    row_limit: int | None = None,
    *,
    is_trusted: bool = False,
    interruption: Interruption | None = None,
) -> "pd.DataFrame":
    """Return the rows of one statement as a frame of the driver's values, at most `row_limit`.

    Dates and timestamps are text on SQLite, decimals floats. Raises StoreUsageError as
    `open_answer`, and for more than HELD_ROWS or about HELD_BYTES.
    """
    from db.connection.frames import typed

    with open_answer(engine, sql, is_trusted=is_trusted, interruption=interruption) as answer:
        return typed(first_rows(answer, row_limit), answer.names)


def first_rows(answer: Answer, row_limit: int | None = None) -> list[Sequence[Any]]:
    """Return an answer's rows, at most `row_limit`.

    Raises StoreUsageError for more than HELD_ROWS or about HELD_BYTES.
    """
    rows: list[Sequence[Any]] = []
    size = 0
    for row in islice(answer.rows, row_limit):
        rows.append(row)
        size += sum(map(getsizeof, row))
        if len(rows) > HELD_ROWS or size > HELD_BYTES:
            bound = f"{HELD_ROWS:,} rows" if len(rows) > HELD_ROWS else f"{HELD_BYTES:,} bytes"
            raise StoreUsageError(
                f"the answer has more than {bound}, which is too much to hold in memory: request "
                "less data, or use `dtml query` with --csv, --json or --parquet"
            )
    return rows


@contextmanager
def _run_on_sqlite(cursor: Any, sql: str) -> Iterator[Answer]:
    # A cursor that is left open is closed by the garbage collector, in any thread, which then waits
    # for whatever statement the connection runs. So it is closed here, even if the statement fails.
    with closing(cursor):
        cursor.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        yield Answer(names, cursor)


@contextmanager
def _run_on_postgresql(cursor: Any, sql: str) -> Iterator[Answer]:
    """Run one statement on PostgreSQL and yield its answer.

    `stream` holds no rows in memory, and takes a single statement, so that no commit can follow it.
    """
    with closing(cursor.stream(sql)) as rows:
        first_row = next(rows, None)
        if first_row is not None:
            names = [column.name for column in cursor.description]
            yield Answer(names, chain([first_row], rows))
            return
    # The names of columns come only with a first row. Without one, the server describes the
    # statement, which is prepared under the name b"": the next one of that name replaces it.
    connection = cursor.connection.pgconn
    connection.prepare(b"", sql.encode())
    description = connection.describe_prepared(b"")
    names = [description.fname(position).decode() for position in range(description.nfields)]
    yield Answer(names, iter(()))


@contextmanager
def guarded(
    conn: Connection,
    sql: str,
    *,
    is_trusted: bool = False,
    is_time_limited: bool = True,
    interruption: Interruption | None = None,
) -> Iterator[None]:
    """Guard a read-only connection while one statement runs; options and errors as `open_answer`.

    SQLite has no time limit, so the statement is interrupted here. It must begin with one of
    FIRST_WORDS: a pragma of SQLite would change the connection of later readers.
    """
    if not sql.strip():
        raise StoreUsageError("the SQL is empty: write a select")
    match = _FIRST_WORD.match(sql)
    first_word = "" if match is None else match[1]
    first_words = FIRST_WORDS[conn.dialect.name]
    if first_word.lower() not in first_words:
        # No word is found before a block comment, for example: then the first characters are named.
        beginning = first_word or sql.strip()[:20]
        raise StoreUsageError(
            f"the SQL begins with {beginning!r}, so it may do more than read: begin it with one "
            f"of {', '.join(first_words)}"
        )
    interruption = interruption or Interruption()
    if conn.dialect.name == "sqlite":
        driver = cast(sqlite3.Connection, conn.connection.driver_connection)
        limit = engines.READ_LIMIT_S if is_time_limited else math.inf
        # Needed even without a limit: the same check notices an interruption.
        with _time_limit(driver, limit, interruption):
            yield
        return
    if not is_trusted:
        powerful_role = conn.execute(text(_ROLE_WITH_SERVER_ACCESS)).scalar()
        if powerful_role is not None:
            raise StoreUsageError(
                f"through the role {powerful_role}, SQL could reach the server's files or "
                "programs, so it is refused: connect as a role without such rights; `dtml db "
                "grant-reader NAME` creates one that reads the views"
            )
    if not is_time_limited:
        conn.execute(text("set local statement_timeout = 0"))
    with _cancellable(conn, interruption):
        yield


@contextmanager
def _time_limit(
    driver: sqlite3.Connection, limit: float, interruption: Interruption
) -> Iterator[None]:
    """Interrupt SQLite's statement after `limit` seconds, or once an interruption is requested.

    By a thread: a progress handler is called only between steps, of which one may take seconds.
    """
    deadline = time.monotonic() + limit
    is_over = Event()

    def watch() -> None:
        while not is_over.wait(WATCH_S):
            if interruption.is_requested or time.monotonic() > deadline:
                # Again and again, as SQLite forgets it before the first step of a statement.
                driver.interrupt()

    driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    driver.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_PATTERN)
    driver.execute(f"pragma hard_heap_limit = {LARGEST_HEAP}")
    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except MemoryError as error:
        raise StoreUsageError(
            f"the SQL needs more than {LARGEST_HEAP:,} bytes of memory: request less data"
        ) from error
    finally:
        is_over.set()
        watcher.join()  # so that it cannot interrupt what the connection runs next


@contextmanager
def _cancellable(conn: Connection, interruption: Interruption) -> Iterator[None]:
    """Let an interruption cancel what PostgreSQL runs; its connection is not used again."""
    driver = cast(Any, conn.connection.driver_connection)

    def cancel() -> None:
        try:
            driver.cancel_safe(timeout=CANCEL_LIMIT_S)
        except conn.dialect.loaded_dbapi.Error as error:
            log.warning(
                "a query that nobody waits for any more could not be cancelled (%s): nothing needs "
                "to be done, because its time limit ends it",
                error,
            )

    try:
        with interruption.calling(cancel):
            # A request that came before this context had nothing to cancel.
            if interruption.is_requested:
                raise StoreUsageError(CLIENT_GONE)
            yield
    finally:
        if interruption.is_requested:
            conn.invalidate()
