"""A lock on a market, one night at a time, which ends with the process that holds it."""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread, current_thread
from time import monotonic, sleep

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from db.engine import location, reading
from db.errors import StoreBusyError, StoreError

ASK_S = 1  # between two questions whether the lock is still held
WAIT_S = 2  # The lock of a process that was killed is released within that time.
LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL's code for a lock that was not granted in time
# The first of the two numbers of the advisory lock on PostgreSQL; the second is the market's hash.
# Any number would do, as long as every process of a store asks for the same one.
MARKET_LOCK = 0x64746D6D
# Counts the holders of a market's advisory lock; objsubid 2 marks locks of two numbers. pg_locks
# shows the hash, which may be negative, as an unsigned number of 32 bits.
HELD = """
    select count(*) from pg_locks
    where locktype = 'advisory' and granted and objsubid = 2
        and database = (select oid from pg_database where datname = current_database())
        and classid::bigint = :lock
        and objid::bigint = (hashtext(:market)::bigint & 4294967295)
"""


@contextmanager
def market_lock(engine: Engine, market: str) -> Iterator[None]:
    """Lock a market of a store, by a file on SQLite, by an advisory lock on PostgreSQL.

    Raises StoreBusyError when another process holds it for `WAIT_S` s.
    """
    if engine.dialect.name != "sqlite":
        with _advisory_lock(engine, market):
            yield
        return
    try:
        lock = FileLock(_lock_file(engine, market)).acquire(timeout=WAIT_S)
    except Timeout as error:
        raise _busy(market) from error
    with lock:
        yield


def is_free(engine: Engine, market: str) -> bool:
    """Return whether nobody, not even this process, holds a market within `WAIT_S` s."""
    until = monotonic() + WAIT_S
    with reading(engine) as conn:
        while is_held(conn, market):
            if monotonic() > until:
                return False
            sleep(0.1)
    return True


def is_held(conn: Connection, market: str) -> bool:
    """Return whether a process holds a market now, without waiting or a right to write.

    An unreadable file counts as held; so does a killed process of PostgreSQL until its connection
    ends.
    """
    if conn.dialect.name == "postgresql":
        key = {"lock": MARKET_LOCK, "market": market}
        return bool(conn.execute(text(HELD), key).scalar_one())
    try:
        file = _lock_file(conn.engine, market).open("rb")
    except FileNotFoundError:
        return False
    except PermissionError:  # another user's lock cannot be tested
        return True
    with file:
        try:
            # A shared lock, so that two processes that ask do not disturb each other. Closing the
            # file releases it.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock_file(engine: Engine, market: str) -> Path:
    return Path(f"{location(engine)}.{market}.lock")


@contextmanager
def _advisory_lock(engine: Engine, market: str) -> Iterator[None]:
    """Lock a market on a PostgreSQL connection of its own; raises StoreBusyError after `WAIT_S` s.

    A thread checks the connection every `ASK_S` and takes a lost lock again; until then this
    process can begin no transaction.
    """
    # A transaction would stay open as long as the night and delay the server's cleanup of old rows.
    autocommitting = engine.execution_options(isolation_level="AUTOCOMMIT")
    lost: list[StoreError] = []
    is_over = Event()

    def keep(conn: Connection, connections: ExitStack) -> None:
        while not is_over.wait(ASK_S):
            try:
                conn.execute(text("select 1"))
            except SQLAlchemyError:
                try:
                    conn = _locked(autocommitting, market, connections)
                    lost.clear()
                except StoreError as error:
                    lost[:] = [StoreBusyError(f"the lock of {market} was lost: {error}")]

    def require_held(_conn: Connection) -> None:
        if lost and current_thread() is not keeper:
            raise lost[0]

    with ExitStack() as connections:
        conn = _locked(autocommitting, market, connections)
        keeper = Thread(target=keep, args=(conn, connections), daemon=True)
        event.listen(engine, "begin", require_held)
        keeper.start()
        try:
            yield
        finally:
            is_over.set()
            keeper.join()
            event.remove(engine, "begin", require_held)


def _locked(engine: Engine, market: str, connections: ExitStack) -> Connection:
    with ExitStack() as opened:
        conn = opened.enter_context(reading(engine))
        # Closing a connection of the pool only returns it there, with its lock. A detached one is
        # really closed, which releases the lock.
        conn.detach()
        conn.execute(text(f"set lock_timeout = '{WAIT_S}s'"))
        try:
            key = {"lock": MARKET_LOCK, "market": market}
            conn.execute(text("select pg_advisory_lock(:lock, hashtext(:market))"), key)
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE:
                raise _busy(market) from error
            raise
        connections.push(opened.pop_all())
        return conn


def _busy(market: str) -> StoreBusyError:
    return StoreBusyError(f"another process is working on {market}: wait until it ends")
