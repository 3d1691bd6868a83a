"""One night of a market at a time, whoever runs it: a lock that ends with its process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import Engine, text

from db.engine import reading
from db.errors import StoreBusyError

MARKET_LOCK = 0x64746D6D  # any number, as long as every process of a store asks for the same one


@contextmanager
def market_lock(engine: Engine, market: str) -> Iterator[None]:
    """Hold a market of a store; raises StoreBusyError at once when another process holds it.

    On SQLite a file beside the store is locked, on PostgreSQL an advisory lock of the server: both are let go when
    the process or the connection ends, however that was.
    """
    hold = _file if engine.dialect.name == "sqlite" else _advisory
    with hold(engine, market):
        yield


@contextmanager
def _file(engine: Engine, market: str) -> Iterator[None]:
    lock = FileLock(Path(f"{engine.url.database}.{market}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise _busy(market) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _advisory(engine: Engine, market: str) -> Iterator[None]:
    with reading(engine.execution_options(isolation_level="AUTOCOMMIT")) as conn:
        conn.detach()  # it goes back to no pool: closing it lets go, even after the server has
        key = {"lock": MARKET_LOCK, "market": market}
        if not conn.execute(text("select pg_try_advisory_lock(:lock, hashtext(:market))"), key).scalar_one():
            raise _busy(market)
        yield


def _busy(market: str) -> StoreBusyError:
    return StoreBusyError(f"another process is at a night of {market}: let it end")
