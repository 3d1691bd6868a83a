"""From a database URL to a connection: SQLite by default, PostgreSQL when DTML_DATABASE_URL says
so.

Reads open `reading(engine)`, writes `transaction(engine)`: writers queue, on both engines, and
every failure comes out as one line without the password.
"""

import json
import os
import re
import shutil
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError, StatementError

from db import migrations
from db.errors import StoreError, StoreUsageError
from db.migrations import REVISION
from db.tables import metadata

URL_VARIABLE: Final = "DTML_DATABASE_URL"
FOLDER_VARIABLE = "DTML_DATA"  # where the store lies when no URL is given
LOCK_WAIT_S = 30
READ_LIMIT_S = 30
CONNECT_LIMIT_S = 10
# Any number would do, as long as every writer of a store asks for the same one.
WRITER_LOCK = 0x64746D6C
RESTORE: Final = (
    "run `dtml db check` for details, then move the store away and restore a backup with "
    "`dtml db restore`"
)
UNRELEASED: Final = (
    "it was made before 0.1.0: start a new store (move this one away or name "
    "another); prices can be fetched again"
)
# What a failure means and what its user can do about it: by the engine's own codes, else by its
# words.
REMEDIES: Final = tomllib.loads(
    Path(__file__).with_name("remedies.toml").read_text(encoding="utf-8")
)
FULL: Final = REMEDIES["postgresql"]["53100"]


def database_url() -> URL:
    """Return DTML_DATABASE_URL, else the URL of dtml.sqlite in the folder DTML_DATA (data), its
    path made absolute.

    Raises StoreUsageError for a malformed URL, an unknown engine and an SQLite URL without a file.
    """
    if url := os.environ.get(URL_VARIABLE):
        return _parse(url)
    file = Path(os.environ.get(FOLDER_VARIABLE) or "data", "dtml.sqlite")
    return URL.create("sqlite", database=str(file.absolute()))


def open_engine(url: str | None = None, *, read_only: bool = False) -> Engine:
    """Return an engine that was reached once; `read_only` refuses every write, even by SQL that a
    user typed.

    `url` defaults to `database_url()`. Raises StoreUsageError for a bad URL, a missing driver and,
    read only, a missing file; StoreError when the server, the folder or the file cannot be used.
    """
    parsed = database_url() if url is None else _parse(url)
    opened = _open_sqlite if parsed.get_backend_name() == "sqlite" else _open_postgresql
    engine = opened(parsed, read_only).execution_options(read_only=read_only)
    with reading(engine):
        return engine


def open_reader() -> Engine:
    """Open the store read only; raises StoreUsageError unless it is there with
    this code's version of the schema.
    """
    engine = open_engine(read_only=True)
    require_current(engine)
    return engine


def open_store() -> Engine:
    """Open the store and make its tables where it is empty; raises StoreError
    for one of another schema.
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
    with _one_line(engine), engine.connect() as conn:
        yield conn


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Open a connection whose writes all happen or none; another writer waits, up to 30 s, for its
    turn.

    Raises StoreError, in one line, for whatever the database refuses: disk full, locked, connection
    lost, a broken constraint.
    """
    with _one_line(engine), engine.execution_options(sqlite_begin="immediate").begin() as conn:
        if conn.dialect.name == "postgresql":
            conn.execute(text(f"set local lock_timeout = '{LOCK_WAIT_S}s'"))
            conn.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": WRITER_LOCK})
        yield conn


def upgrade(engine: Engine) -> bool:
    """Bring the schema to this code's version, all of it or nothing; return whether there was
    anything to do.

    Raises StoreUsageError for a schema newer than this code and for a database that is not a dtml
    store.
    """
    with transaction(engine) as conn:
        stored = _stored_revision(conn)
        if stored == REVISION:
            return False
        if stored is None:
            migrations.create(conn)
        else:
            migrations.migrate(conn)
    return True


def require_current(engine: Engine) -> None:
    """Raise StoreUsageError, saying what to do, unless the schema is this code's version."""
    with reading(engine) as conn:
        stored = _stored_revision(conn)
    if stored is None:
        raise StoreUsageError(
            f"the store at {location(engine)} is empty: run `dtml db upgrade` or a night"
        )
    if stored != REVISION:
        old = f"schema {stored}, too old for this dtml ({REVISION})"
        raise StoreUsageError(f"the store at {location(engine)} has {old}: run `dtml db upgrade`")


def prepare(engine: Engine) -> None:
    """Make the tables in an empty database; any other must be current, else StoreUsageError."""
    with reading(engine) as conn:
        empty = _stored_revision(conn) is None
    if empty:
        upgrade(engine)
    require_current(engine)


def location(engine: Engine) -> str:
    """Return where the store is, to be shown: the file, or the server's URL
    without its password.
    """
    url = engine.url
    if url.get_backend_name() == "sqlite":
        name = str(url.database)
        return unquote(name.removeprefix("file:")) if name.startswith("file:") else name
    shown = {key: value for key, value in url.query.items() if key in ("host", "port")}
    return url.set(query=shown).render_as_string(hide_password=True)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    # Of two @, the first may be a password's: what follows it would be shown as the host.
    apart = re.sub(r"([?&]password=)[^&]*", r"\1", url)
    if parsed is None or (parsed.get_backend_name() != "sqlite" and apart.count("@") > 1):
        # The text may hold a password where none can be told apart, so it is not shown: not in a
        # traceback either.
        forms = (
            "sqlite:///FILE or postgresql://USER@HOST/NAME, with a password's @ as %40, / as "
            "%2F and : as %3A"
        )
        raise StoreUsageError(f"malformed database URL: set {URL_VARIABLE} to {forms}")
    engine = parsed.get_backend_name()
    if engine in ("postgresql", "postgres"):
        secret = parsed.query.get("password")
        if isinstance(secret, str):  # a place where SQLAlchemy would not hide it
            parsed = parsed.difference_update_query(["password"]).set(password=secret)
        return parsed.set(drivername="postgresql+psycopg")
    if engine != "sqlite":
        raise StoreUsageError(
            f"database engine {engine!r} is not supported: use sqlite or postgresql"
        )
    if not parsed.database or parsed.database == ":memory:":
        raise StoreUsageError("a store must be a file: write sqlite:///FILE")
    return parsed.set(drivername="sqlite", database=str(Path(parsed.database).absolute()))


def _open_sqlite(url: URL, read_only: bool) -> Engine:
    path = Path(str(url.database))
    if read_only:
        if not path.is_file():
            raise StoreUsageError(f"no store at {path}: run a night first, or set {URL_VARIABLE}")
        url = url.set(database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true"})
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    engine = create_engine(url, connect_args={"timeout": LOCK_WAIT_S}, json_serializer=_json)
    event.listen(engine, "connect", partial(_prepare_sqlite, read_only))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(read_only: bool, connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own BEGIN would come after the first read, and never before DDL: _begin_sqlite
    # says it.
    connection.isolation_level = None
    # A column of text holds any bytes: what another program wrote as no UTF-8 must not keep its
    # table from being read.
    connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
    if read_only:  # mode=ro binds the store's file alone: an attached one could be made and written
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.execute("pragma foreign_keys = on")
    connection.execute("pragma synchronous = normal")
    # Switching to WAL needs the file for itself, so it is asked only once.
    if connection.execute("pragma journal_mode").fetchone() != ("wal",) and not read_only:
        connection.execute("pragma journal_mode = wal")


def _begin_sqlite(conn: Connection) -> None:
    conn.exec_driver_sql(f"begin {conn.get_execution_options().get('sqlite_begin', 'deferred')}")


def _open_postgresql(url: URL, read_only: bool) -> Engine:
    # as SQLite shows moments, wherever the server stands
    said = f"{url.query.get('options', '')} -c timezone=UTC"
    if read_only:
        said += f" -c default_transaction_read_only=on -c statement_timeout={READ_LIMIT_S}s"
    arguments: dict[str, Any] = {"connect_timeout": CONNECT_LIMIT_S, "options": said}
    try:
        # Hours may pass between two steps of a night: pre_ping replaces a connection the server has
        # dropped.
        return create_engine(url, connect_args=arguments, json_serializer=_json, pool_pre_ping=True)
    except ImportError as error:
        raise StoreUsageError(
            "PostgreSQL needs a driver: pip install 'dtml-nightshift[postgres]'"
        ) from error


def _json(value: object) -> str:
    try:
        # NaN is not JSON: PostgreSQL refuses it and SQLite would keep it.
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"a value cannot be stored as JSON: {error}") from error


@contextmanager
def _one_line(engine: Engine) -> Iterator[None]:
    driver = engine.dialect.loaded_dbapi
    try:
        yield
    except (SQLAlchemyError, driver.Error, driver.Warning) as last:
        error: BaseException = last
        # A connection that broke cannot be rolled back either: how it broke is to be said.
        while isinstance(error.__context__, (SQLAlchemyError, driver.Error)):
            error = error.__context__
        cause = (
            error.orig if isinstance(error, StatementError) and error.orig is not None else error
        )
        if isinstance(cause, StoreError):
            raise cause from error
        said = " ".join(str(cause).split())
        if engine.url.password:
            for password in (str(engine.url.password), quote(str(engine.url.password))):
                said = said.replace(password, "***")
        file = Path(location(engine)) if engine.dialect.name == "sqlite" else None
        remedy = _remedy_of(cause, said, file)
        raise StoreError(f"{location(engine)}: {said}{f' ({remedy})' if remedy else ''}") from error


def _remedy_of(error: BaseException, said: str, file: Path | None) -> str | None:
    """Return what to do about a driver's error, which said that, in SQLite's
    `file`; None where its words must do.
    """
    code, state = getattr(error, "sqlite_errorcode", None), getattr(error, "sqlstate", None)
    if code is not None and str(code & 0xFF) in REMEDIES["sqlite"]:
        found: str | None = REMEDIES["sqlite"][str(code & 0xFF)]
    elif state is not None:
        known = REMEDIES["postgresql"]
        found = next((known[key] for key in (state, state[:3], state[:2]) if key in known), None)
    else:
        found = next((what for sign, what in REMEDIES["words"].items() if sign in said), None)
    if found is not None and found == FULL and file is not None:
        found += _free_space(file)
    return None if found is None else found.format(wait_s=LOCK_WAIT_S, limit_s=READ_LIMIT_S)


def _free_space(file: Path) -> str:
    """Tell a full disk from a file's limit and from damage that used up a
    table's numbers: SQLite does not.
    """
    try:
        free = shutil.disk_usage(file.parent).free / 1e9
    except OSError:
        return ""
    return (
        f". {free:.1f} GB are free there: if that is enough, a limit was reached, or the "
        f"file is damaged: {RESTORE}"
    )


def _stored_revision(conn: Connection) -> str | None:
    """Return the revision of a store's schema, known to this code; None for an empty database."""
    tables = set(inspect(conn).get_table_names())
    where = location(conn.engine)
    stored = []
    if "alembic_version" in tables:
        stored = sorted(conn.execute(text("select version_num from alembic_version")).scalars())
    if not stored and tables & metadata.tables.keys():
        raise StoreError(
            f"{where} does not record its schema: alembic_version has no rows. It is damaged: "
            f"{RESTORE}"
        )
    if not stored and tables - {"alembic_version"}:
        raise StoreUsageError(
            f"{where} has tables that are not from dtml: set {URL_VARIABLE} to another database"
        )
    if len(stored) > 1:
        said = ", ".join(map(repr, stored))
        raise StoreError(
            f"{where} records {len(stored)} schemas: alembic_version has {said}. "
            f"It is damaged: {RESTORE}"
        )
    if not stored:
        return None
    if stored[0] not in migrations.revisions():
        perhaps = f"It may be newer: update dtml. Or {UNRELEASED}. Or it belongs to another program"
        raise StoreUsageError(
            f"{where} has schema {stored[0]}, unknown to this dtml ({REVISION}). {perhaps}"
        )
    if stored[0] == REVISION and (lacking := sorted(metadata.tables.keys() - tables)):
        perhaps = f"Perhaps {UNRELEASED}. Or it is damaged: {RESTORE}"
        raise StoreError(f"{where} has schema {REVISION} without its table {lacking[0]}. {perhaps}")
    return str(stored[0])
