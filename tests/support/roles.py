"""A store of PostgreSQL in a database of its own, and a reader of it."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, create_engine, make_url, text

from db.admin.roles import grant_reader
from db.engine import open_engine, upgrade
from tests.support.stores import fill

NAME, SECOND = "analyst_of_tests", "second_of_tests"


def as_role(url: str, name: str, password: str | None = None) -> Engine:
    """The same database as a user's own program opens it: with nothing of this program's care."""
    parsed = make_url(url).set(drivername="postgresql+psycopg", username=name, password=password)
    return create_engine(parsed, poolclass=sa.NullPool)


def run(engine: Engine, *statements: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for statement in statements:
            conn.execute(text(statement))


@pytest.fixture(scope="module")
def stores(postgresql_server: str) -> Iterator[dict[str, str]]:
    """URLs of two filled stores, in two schemas of a database to make others from."""
    made = make_url(postgresql_server).set(database="stores")
    own = made.update_query_dict({"options": '-c search_path="A\\ schema"'})
    urls = {"public": made, "schema of its own": own}
    server = as_role(postgresql_server, "postgres")
    run(server, "create database stores")
    run(as_role(made.render_as_string(hide_password=False), "postgres"), 'create schema "A schema"')
    for url in urls.values():
        engine = open_engine(url.render_as_string(hide_password=False))
        upgrade(engine)
        fill(engine)
        engine.dispose()
    readers = {
        name: url.set(database="readers").render_as_string(hide_password=False)
        for name, url in urls.items()
    }
    yield readers
    run(server, "drop database stores with (force)")


@pytest.fixture(params=["public"])
def store(
    request: pytest.FixtureRequest, postgresql_server: str, stores: dict[str, str]
) -> Iterator[tuple[Engine, str]]:
    """A filled store in a database of its own, because rights on a database are
    everybody's; and its URL.
    """
    server = as_role(postgresql_server, "postgres")
    run(server, "drop database if exists readers", "create database readers template stores")
    engine = open_engine(stores[request.param])
    yield engine, stores[request.param]
    engine.dispose()
    run(
        server,
        "drop database readers with (force)",
        *(f'drop role if exists "{each}"' for each in (NAME, "owner")),
    )


@pytest.fixture
def analyst(store: tuple[Engine, str]) -> Engine:
    """The store as the reader opens it."""
    engine, url = store
    assert grant_reader(engine, NAME)
    return as_role(url, NAME)
