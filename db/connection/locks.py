"""A lock on a market, which ends with its process: only one night of a market runs at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from db.engine import location, reading
from db.errors import StoreBusyError

WAIT_S = 2  # a process that was killed has released its lock within that time
LOCKED = "55P03"  # PostgreSQL: lock_not_available
MARKET_LOCK = 0x64746D6D  # any number, as long as every process of a store asks for the same one
HELD = """
    select count(*) from pg_locks
    where locktype = 'advisory' and granted and objsubid = 2
        and database = (select oid from pg_database where datname = current_database())
        and classid::bigint = :lock
        and objid::bigint = (hashtext(:market)::bigint & 4294967295)
"""


@contextmanager
def market_lock(engine: Engine, market: str) -> Iterator[None]:
    """Lock a market of a store; raises StoreBusyError when another process holds it for `WAIT_S` s.

    On SQLite a file beside the store is locked, on PostgreSQL an advisory lock of the server: both
    are released when the process or the connection ends, whatever ended it.
    """
    lock = _file if engine.dialect.name == "sqlite" else _advisory
    with lock(engine, market):
        yield


def is_free(engine: Engine, market: str) -> bool:
    """Return whether no other process holds a market."""
    try:
        with market_lock(engine, market):
            return True
    except StoreBusyError:
        return False


def is_held(conn: Connection, market: str) -> bool:
    """Return whether a process holds a market now, without waiting and without locking it.

    A role that only reads, or a program that may not write beside the store, may ask too. It may
    take a process that was killed for alive until its connection to PostgreSQL has ended.
    """
    if conn.dialect.name == "postgresql":
        key = {"lock": MARKET_LOCK, "market": market}
        return bool(conn.execute(text(HELD), key).scalar_one())
    try:
        file = _lock_file(conn.engine, market).open("rb")
    except FileNotFoundError:
        return False
    except PermissionError:  # of another user's file nothing can be known
        return True
    with file:
        try:
            # A shared lock, which `file` drops at its end: two who ask do not disturb each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock_file(engine: Engine, market: str) -> Path:
    return Path(f"{location(engine)}.{market}.lock")


@contextmanager
def _file(engine: Engine, market: str) -> Iterator[None]:
    try:
        lock = FileLock(_lock_file(engine, market)).acquire(timeout=WAIT_S)
    except Timeout as error:
        raise _busy(market) from error
    with lock:
        yield


@contextmanager
def _advisory(engine: Engine, market: str) -> Iterator[None]:
    with reading(engine.execution_options(isolation_level="AUTOCOMMIT")) as conn:
        # Out of the pool, closing the connection releases the lock, even if the unlock fails.
        conn.detach()
        key = {"lock": MARKET_LOCK, "market": market}
        conn.execute(text(f"set lock_timeout = '{WAIT_S}s'"))
        try:
            conn.execute(text("select pg_advisory_lock(:lock, hashtext(:market))"), key)
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) == LOCKED:
                raise _busy(market) from error
            raise
        try:
            yield
        finally:
            with suppress(SQLAlchemyError):  # closing the connection would unlock too, but later
                conn.execute(text("select pg_advisory_unlock(:lock, hashtext(:market))"), key)


def _busy(market: str) -> StoreBusyError:
    return StoreBusyError(f"another process is working on {market}: wait until it ends")
