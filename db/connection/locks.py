"""One night of a market at a time, whoever runs it: a lock that ends with its process."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from db.engine import location, reading
from db.errors import StoreBusyError

WAIT_S = 2  # a holder that was killed is gone within that
LOCKED = "55P03"  # PostgreSQL: lock_not_available
MARKET_LOCK = 0x64746D6D  # any number, as long as every process of a store asks for the same one


@contextmanager
def market_lock(engine: Engine, market: str) -> Iterator[None]:
    """Hold a market of a store; raises StoreBusyError when another process has held it for `WAIT_S`
    seconds.

    On SQLite a file beside the store is locked, on PostgreSQL an advisory lock of the server: both
    are let go when the process or the connection ends, however that was.
    """
    hold = _file if engine.dialect.name == "sqlite" else _advisory
    with hold(engine, market):
        yield


def is_free(engine: Engine, market: str) -> bool:
    """Return whether no other process holds a market."""
    try:
        with market_lock(engine, market):
            return True
    except StoreBusyError:
        return False


@contextmanager
def _file(engine: Engine, market: str) -> Iterator[None]:
    try:
        held = FileLock(Path(f"{location(engine)}.{market}.lock")).acquire(timeout=WAIT_S)
    except Timeout as error:
        raise _busy(market) from error
    with held:
        yield


@contextmanager
def _advisory(engine: Engine, market: str) -> Iterator[None]:
    with reading(engine.execution_options(isolation_level="AUTOCOMMIT")) as conn:
        conn.detach()  # it goes back to no pool: closing it lets go, whatever became of the server
        key = {"lock": MARKET_LOCK, "market": market}
        conn.execute(text(f"set lock_timeout = '{WAIT_S}s'"))
        try:
            conn.execute(text("select pg_advisory_lock(:lock, hashtext(:market))"), key)
        except OperationalError as error:
            raise (
                _busy(market) if getattr(error.orig, "sqlstate", None) == LOCKED else error
            ) from error
        try:
            yield
        finally:
            with suppress(SQLAlchemyError):  # closing would do, only later
                conn.execute(text("select pg_advisory_unlock(:lock, hashtext(:market))"), key)


def _busy(market: str) -> StoreBusyError:
    return StoreBusyError(f"another process is working on {market}: wait until it ends")
