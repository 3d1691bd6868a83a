"""Open a store by its URL: SQLite by default, PostgreSQL when DTML_DATABASE_URL names one.

`reading(engine)` and `transaction(engine)` open connections. Every failure becomes a StoreError of
one line without the password.
"""

import json
import os
import re
import shutil
import sqlite3
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from sqlalchemy import (
    URL,
    Connection,
    Dialect,
    Engine,
    NullPool,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DisconnectionError, SQLAlchemyError, StatementError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from db.errors import StoreError, StoreUsageError
from db.migrations import REVISION, REVISIONS, migrate
from db.migrations.columns import missing_column, stored_columns

URL_VARIABLE: Final = "DTML_DATABASE_URL"
FOLDER_VARIABLE = "DTML_DATA"  # the folder of the store when no URL is given
LOCK_WAIT_S = 30  # for another writer to end
READ_LIMIT_S = 30  # for one statement of a user, or of a reader on PostgreSQL
CONNECT_LIMIT_S = 10
NO_LIMITS = (  # that a database may set for its sessions
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
)
# The advisory lock of PostgreSQL that every writer takes. Any number would do, as long as all
# writers of a store lock the same one.
WRITER_LOCK = 0x64746D6C
RESTORE: Final = (
    "run `dtml db check` on this store for details, then move it away and restore a backup with "
    "`dtml db restore`"
)
# What the user can do about a failure: by the code of the database's error, or by words of its
# message.
REMEDIES: Final = tomllib.loads(
    Path(__file__).with_name("remedies.toml").read_text(encoding="utf-8")
)
FULL: Final = REMEDIES["postgresql"]["53100"]


def database_url() -> URL:
    """Return DTML_DATABASE_URL, else that of dtml.sqlite in DTML_DATA, by default `data`.

    Raises StoreUsageError for a malformed URL, an unknown engine, an SQLite URL without a file.
    """
    url = os.environ.get(URL_VARIABLE)
    if url:
        return _parse_url(url, f" in {URL_VARIABLE}")
    file = Path(os.environ.get(FOLDER_VARIABLE) or "data", "dtml.sqlite")
    return URL.create("sqlite", database=str(file.absolute()))


def open_engine(
    url: str | None = None, *, read_only: bool = False, unlimited: bool = False
) -> Engine:
    """Return an engine of `url`, by default `database_url()`, after connecting once.

    With `read_only` every write is refused, and PostgreSQL ends a statement after `READ_LIMIT_S`
    unless `unlimited`. Raises StoreUsageError for a bad URL, a missing driver, or read only a
    missing file; StoreError when the server, the folder or the file cannot be used.
    """
    parsed = database_url() if url is None else _parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = _open_sqlite(parsed, read_only)
    else:
        engine = _open_postgresql(parsed, read_only, unlimited or not read_only)
    engine = engine.execution_options(read_only=read_only)
    with reading(engine) as conn:  # connects, which raises for a store that cannot be used
        if conn.dialect.name == "postgresql" and not read_only:
            encoding = conn.execute(text("show server_encoding")).scalar_one()
            if encoding != "UTF8":
                raise StoreUsageError(
                    f"{location(conn.engine)} has the encoding {encoding}, which cannot hold every "
                    "name or title: use a database with `encoding 'UTF8' template template0`"
                )
        return engine


def open_reader(*, unlimited: bool = False) -> Engine:
    """Open the store read only; raises StoreUsageError where there is none of this schema."""
    engine = open_engine(read_only=True, unlimited=unlimited)
    require_current_schema(engine)
    return engine


def open_reader_or_new() -> Engine:
    """Open the store read only, after creating it where there is none; raises as `open_store`."""
    try:
        return open_reader()
    except StoreUsageError:  # there is none; of another schema, `open_store` says the same
        open_store().dispose()
        return open_reader()


def open_store() -> Engine:
    """Open the store, and create its tables where it is empty.

    Raises as `open_engine`, and StoreUsageError for another schema.
    """
    engine = open_engine()
    prepare(engine)
    return engine


def is_read_only(engine: Engine) -> bool:
    """Return whether the engine was opened read only."""
    return bool(engine.get_execution_options().get("read_only", False))


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a connection for reads; raises StoreError, in one line, for whatever goes wrong."""
    with _errors_in_one_line(engine), engine.connect() as conn:
        yield conn


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Open a connection whose writes are stored all together, or not at all where anything raises.

    Another writer waits up to `LOCK_WAIT_S`. Raises StoreError for whatever the database refuses.
    """
    # "begin immediate" takes SQLite's write lock at once. A deferred transaction would take it at
    # its first write, where SQLite refuses it if another has written since its first read.
    writer = engine.execution_options(sqlite_begin="immediate")
    with _errors_in_one_line(engine), writer.begin() as conn:
        if conn.dialect.name == "postgresql":  # the server itself would let several write at once
            conn.execute(text(f"set local lock_timeout = '{LOCK_WAIT_S}s'"))
            conn.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": WRITER_LOCK})
        yield conn


def upgrade(engine: Engine) -> bool:
    """Bring the schema to this code's version, completely or not at all; return whether it changed.

    Raises StoreUsageError for an unknown schema or another program's database, StoreError for a
    damaged store.
    """
    with transaction(engine) as conn:
        stored = _stored_revision(conn)
        if stored != REVISION:
            migrate(conn, stored)
    return stored != REVISION


def require_current_schema(engine: Engine, command: str = "dtml db upgrade") -> None:
    """Raise StoreUsageError, naming the `command` that upgrades, unless the schema is this one.

    Raises StoreError for a damaged store.
    """
    with reading(engine) as conn:
        stored = _stored_revision(conn)
    if stored is None:
        raise StoreUsageError(
            f"the store at {location(engine)} is empty: check that it is the store you meant; a "
            f"night fills it, and `{command}` creates its tables"
        )
    if stored != REVISION:  # an earlier one: `_stored_revision` refuses others
        raise StoreUsageError(
            f"the store at {location(engine)} has schema {stored}, too old for this dtml "
            f"({REVISION}): run `{command}`"
        )


def prepare(engine: Engine) -> None:
    """Create the tables in an empty database; raises as `require_current_schema` for another."""
    with reading(engine) as conn:
        is_empty = _stored_revision(conn) is None
    if is_empty:
        upgrade(engine)
    require_current_schema(engine)


def location(engine: Engine) -> str:
    """Return where the store is, for a message: its file, or its server's URL without password."""
    url = engine.url
    if url.get_backend_name() == "sqlite":
        file = str(url.database)
        # `_open_sqlite` gives a reader's file as a quoted URI.
        return unquote(file.removeprefix("file:")) if file.startswith("file:") else file
    # Other values of the query, such as options, may hold a secret.
    query = {key: value for key, value in url.query.items() if key in ("host", "port")}
    return url.set(query=query).render_as_string(hide_password=True)


def _parse_url(url: str, where: str = "") -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    # Of two @, the first may be part of a password: what follows it would be shown as the host. A
    # password in the query may hold an @.
    without_password = re.sub(r"([?&]password=)[^&]*", r"\1", url)
    is_misread = without_password.count("@") > 1
    if parsed is not None and parsed.get_backend_name() == "sqlite":
        # With two slashes in place of three, the first folder of its path would be the host.
        is_misread = bool(parsed.host)
    if parsed is None or is_misread:
        # The URL may hold a password that cannot be recognised as one, so it is not shown, not even
        # in a traceback.
        raise StoreUsageError(
            f"malformed database URL{where}: use sqlite:///FILE, with three slashes, or "
            "postgresql://USER:PASSWORD@HOST/NAME, with a password's @ as %40, / as %2F and : as "
            "%3A"
        )
    engine = parsed.get_backend_name()
    if engine in ("postgresql", "postgres"):
        secret = parsed.query.get("password")
        # SQLAlchemy hides a password only in its own place, not in the query.
        if isinstance(secret, str):
            parsed = parsed.difference_update_query(["password"]).set(password=secret)
        return parsed.set(drivername="postgresql+psycopg")
    if engine != "sqlite":
        raise StoreUsageError(
            f"the database engine {engine!r}{where} is not supported: use sqlite:///FILE or "
            "postgresql://USER@HOST/NAME"
        )
    if not parsed.database or parsed.database == ":memory:":
        raise StoreUsageError(
            f"the database URL{where} names no file, and a store in memory would be lost: use "
            "sqlite:///FILE"
        )
    return parsed.set(drivername="sqlite", database=str(Path(parsed.database).absolute()))


def _open_sqlite(url: URL, read_only: bool) -> Engine:
    path = Path(str(url.database))
    if read_only:
        try:
            is_file = path.is_file()
        except OSError as error:
            raise StoreError(
                f"cannot look for a store at {path}: {error.strerror}; check the path and the "
                "permissions of its folders"
            ) from error
        if not is_file:
            raise StoreUsageError(
                f"no store at {path}: run a night first, or correct the path (commands take it "
                f"from {URL_VARIABLE} or {FOLDER_VARIABLE})"
            )
        # SQLite takes the mode, ro for read-only, only in a URI.
        url = url.set(database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true"})
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot create the store's folder {path.parent}: {error.strerror}; create it "
                f"yourself, or choose another with {URL_VARIABLE} or {FOLDER_VARIABLE}"
            ) from error
    arguments = {"timeout": LOCK_WAIT_S, "factory": SqliteConnection}
    can_lock = not read_only or os.access(path.parent, os.W_OK)
    # Without a pool, each connection looks anew whether somebody else writes to the file.
    pool = None if can_lock else NullPool
    engine = create_engine(url, connect_args=arguments, json_serializer=_json, poolclass=pool)
    if not can_lock:
        event.listen(engine, "do_connect", partial(_connect_without_locks, path))
    event.listen(engine, "connect", partial(prepare_sqlite, read_only, path))
    event.listen(engine, "checkout", partial(require_its_file, path))
    event.listen(engine, "begin", begin_sqlite)
    return engine


class SqliteConnection(sqlite3.Connection):
    """A connection without functions in Python, which closes its file when it is deleted.

    From Python 3.13 on, an open one that is deleted warns, as a pool's do at the end.
    """

    def __del__(self) -> None:
        """Close the file."""
        with suppress(sqlite3.ProgrammingError):  # raised where the file could not be opened
            self.close()

    def create_function(self, *_arguments: object, **_options: object) -> None:
        """Leave out SQLAlchemy's `regexp` and `floor`, which SQL could call.

        A call holds the interpreter lock: no thread could interrupt an endless regular expression.
        """


def prepare_sqlite(
    read_only: bool, path: Path, connection: sqlite3.Connection, record: ConnectionPoolEntry
) -> None:
    """Set up a new connection; one that may write switches its file to a write-ahead log."""
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
    """Raise StoreError where a pooled connection's file was moved, deleted or replaced."""
    if not path.exists() or path.stat().st_ino != record.info["inode"]:
        raise StoreError(
            f"{path} was moved, deleted or replaced while it was in use, and nothing more is "
            "stored: put it back, or run the command again to use what is there now"
        )


def begin_sqlite(conn: Connection) -> None:
    """Begin a transaction: deferred, or as the option `sqlite_begin` of `transaction` says."""
    mode = conn.get_execution_options().get("sqlite_begin", "deferred")
    conn.exec_driver_sql(f"begin {mode}")


def _connect_without_locks(
    path: Path, dialect: Dialect, _record: object, arguments: list[Any], options: dict[str, Any]
) -> DBAPIConnection | None:
    """Connect to a file, as one that never changes, in a folder where SQLite can make no others.

    Where its write-ahead log or the index of that is there already, returns None, and SQLAlchemy
    connects as usual.
    """
    if any(path.with_name(f"{path.name}-{part}").exists() for part in ("wal", "shm")):
        return None
    database, *others = arguments
    return dialect.connect(f"{database}&immutable=1", *others, **options)


def _open_postgresql(url: URL, read_only: bool, unlimited: bool) -> Engine:
    # The server returns moments in UTC and as psycopg reads them, whatever its own settings are.
    settings: dict[str, object] = {"timezone": "UTC", "datestyle": "ISO"}
    if read_only:
        settings["default_transaction_read_only"] = "on"
    if unlimited:  # a night is long, and waits between its statements
        settings |= dict.fromkeys(NO_LIMITS, 0)
    else:
        settings["statement_timeout"] = f"{READ_LIMIT_S}s"
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_LIMIT_S,
        "client_encoding": "UTF8",
        "options": f"{url.query.get('options', '')} {options}",
    }
    try:
        # Hours may pass between two steps of a night: pre_ping replaces a connection that the
        # server has dropped.
        return create_engine(url, connect_args=arguments, json_serializer=_json, pool_pre_ping=True)
    except ImportError as error:
        raise StoreUsageError(
            "the database URL names a PostgreSQL server, but its driver psycopg cannot be "
            "imported: pip install 'dtml-nightshift[postgres]'"
        ) from error


def _json(value: object) -> str:
    try:
        # NaN is not JSON: PostgreSQL refuses it, and SQLite would store it.
        return json.dumps(value, allow_nan=False, default=lambda moment: moment.isoformat())
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(
            f"the value that begins with {str(value)[:60]!r} cannot be stored as JSON ({error}): "
            "use only finite numbers, booleans, text, days, moments, lists and mappings"
        ) from error


@contextmanager
def _errors_in_one_line(engine: Engine) -> Iterator[None]:
    """Raise StoreError for any database error: one line, with a remedy where one is known."""
    driver = engine.dialect.loaded_dbapi
    try:
        yield
    except (SQLAlchemyError, driver.Error, driver.Warning) as last_error:
        error: BaseException = last_error
        # When a connection breaks, the rollback fails too: the message must name the first error.
        # That the pool replaces a broken connection (DisconnectionError) is no error with words.
        while isinstance(
            before := error.__context__, (SQLAlchemyError, driver.Error)
        ) and not isinstance(before, DisconnectionError):
            error = before
        # SQLAlchemy wraps the driver's error, and what a type raises for a parameter's value.
        cause: BaseException = error
        if isinstance(error, StatementError) and error.orig is not None:
            cause = error.orig
        if isinstance(cause, StoreError):
            raise cause from error
        message = " ".join(str(cause).split())
        if engine.url.password:
            password = str(engine.url.password)
            message = message.replace(password, "***").replace(quote(password), "***")
        advice = ""
        remedy = _stored_remedy(cause, message)
        if remedy is not None:
            # A full disk has the same remedy on both engines. Only SQLite's disk is this machine's.
            if remedy == FULL and engine.dialect.name == "sqlite":
                # SQLite gives the same error for a full disk, for a file at a limit of its size,
                # and for damage that used up the row numbers of a table.
                with suppress(OSError):
                    free = shutil.disk_usage(Path(location(engine)).parent).free / 1e9
                    remedy += (
                        f". {free:.1f} GB are free there. If that is enough, the disk for "
                        "temporary files is full, the file has reached a limit of its size, or it "
                        f"is damaged: {RESTORE}"
                    )
            advice = f" ({remedy.format(wait_s=LOCK_WAIT_S, limit_s=READ_LIMIT_S)})"
        raise StoreError(f"{location(engine)}: {message}{advice}") from error


def _stored_remedy(error: BaseException, message: str) -> str | None:
    """Return the remedy in REMEDIES by the error's code, else by words of its message; else None.

    SQLite's message may quote a user's SQL: it is not searched for the words of a server.
    """
    sqlite_code = getattr(error, "sqlite_errorcode", None)
    state = getattr(error, "sqlstate", None)
    codes: list[str] = []
    if sqlite_code is not None:
        codes = [str(sqlite_code & 0xFF)]  # the last byte of an extended code is the primary code
    elif state is not None:
        # The whole code first, then shorter beginnings, down to the class of all its codes.
        codes = [state, state[:3], state[:2]]
    by_code = REMEDIES["postgresql" if sqlite_code is None else "sqlite"]
    by_words = REMEDIES["words" if sqlite_code is None else "sqlite_words"] if state is None else {}
    found = [by_code[code] for code in codes if code in by_code]
    found += [remedy for words, remedy in by_words.items() if words in message]
    return found[0] if found else None


def _stored_revision(conn: Connection) -> str | None:
    """Return the revision of a store's schema, None for an empty database; raises as `upgrade`."""
    columns = stored_columns(conn)
    tables = {table for table, _ in columns} - {"alembic_version"}
    where = location(conn.engine)
    stored: Sequence[str] = ()
    if ("alembic_version", "version_num") in columns:
        stored = conn.execute(text("select version_num from alembic_version")).scalars().all()
    if not tables and not stored:
        return None
    if len(stored) != 1:
        # Late: describing all tables takes time that a short command need not spend.
        from db.tables import metadata

        if metadata.tables.keys().isdisjoint(tables):
            raise StoreUsageError(
                f"{where} has tables of another program and none of dtml: use another database, "
                f"usually by setting {URL_VARIABLE}"
            )
        raise StoreError(
            f"{where} is damaged, because its table alembic_version records {len(stored)} schemas "
            f"in place of one: {RESTORE}"
        )
    (revision,) = stored
    if revision not in REVISIONS:
        raise StoreUsageError(
            f"{where} has schema {revision}, which {this_version()} cannot read: install the "
            f"version that made it, or start a new store by moving this one away or setting "
            f"{URL_VARIABLE}"
        )
    missing = missing_column(columns) if revision == REVISION else None
    if missing is not None:
        table, column = missing
        raise StoreError(
            f"{where} has no column {column} of a table {table} as schema {revision} has it: if a "
            f"version before 0.1.0 made this store, start a new one; else it is damaged: {RESTORE}"
        )
    return revision


def this_version() -> str:
    """Return words for a message: the version of this program, and its schema."""
    return f"dtml {version('dtml-nightshift')} (schema {REVISION})"
