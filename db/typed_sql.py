"""What keeps SQL that a user typed to reading the store: no file, no program, no end of time."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import Connection, text

from db import engine as opened
from db.errors import StoreUsageError

READS = ("select", "with", "values", "table", "explain", "show")
LONGEST = 100_000_000  # bytes of a value on SQLite
STEPS = 10_000  # of SQLite's machine between two looks at the clock: about a millisecond

# Line comments and brackets may come first; a block comment, which PostgreSQL nests, could hide what does.
_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\r\n]*(?:[\r\n]|$))*([a-z]*)", re.IGNORECASE)
# How a statement could take back a superuser's rights, and how it could spell that out of sight.
_RIGHTS = re.compile(r"set_config|pg_settings|u&[\"']", re.IGNORECASE)


@contextmanager
def guarded(conn: Connection, sql: str) -> Iterator[None]:
    """Hold a read-only connection while one statement of a user runs on it.

    SQLite, which has no limit of its own, ends it after READ_LIMIT_S; PostgreSQL's readers are opened with theirs.
    There, where `copy` runs programs and a superuser's functions read files, only what gives rows may begin the
    statement, and a superuser gives up all rights but reading tables: that holds mistakes and pasted SQL, not one who
    writes against it, so a store whose SQL others type needs a role of its own. Raises StoreUsageError for what is
    refused.
    """
    if conn.dialect.name == "sqlite":
        with _time_limit(cast(sqlite3.Connection, conn.connection.driver_connection)):
            yield
        return
    found = _FIRST_WORD.match(sql)
    if found is None or found[1].lower() not in READS:
        raise StoreUsageError(f"a statement that asks begins with {', '.join(READS)}")
    if conn.execute(text("show is_superuser")).scalar_one() == "on":
        if _RIGHTS.search(sql):
            raise StoreUsageError("settings are not for a superuser's SQL: give the store a role of its own")
        conn.execute(text("set local role pg_read_all_data"))
    yield


@contextmanager
def _time_limit(driver: sqlite3.Connection) -> Iterator[None]:
    until = time.monotonic() + opened.READ_LIMIT_S

    def is_over() -> Any:
        return time.monotonic() > until

    driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    driver.set_progress_handler(is_over, STEPS)
    try:
        yield
    finally:
        driver.set_progress_handler(None, STEPS)
