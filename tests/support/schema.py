"""What a revision makes: the statements of its tables and views, and their digest."""

from hashlib import sha256
from importlib import import_module
from typing import Any

import sqlalchemy as sa

from db import tables
from db.migrations import REVISION
from db.views import views

URLS = ("sqlite://", "postgresql+psycopg://")


def newest() -> Any:
    """The newest revision, whose file's name is no identifier."""
    return import_module(f"db.migrations.versions.{REVISION}")


def table_statements(url: str) -> list[str]:
    """What creates every table on an engine, in an order in which it can run."""
    said: list[str] = []
    engine = sa.create_mock_engine(
        url, lambda made, *_: said.append(str(made.compile(dialect=engine.dialect)))
    )
    tables.metadata.create_all(engine, checkfirst=False)
    return said


def schema_of_today() -> str:
    """The digest of all tables and views, as a revision names it.

    A set orders the indexes, so the statements are sorted.
    """
    digest = sha256()
    for url in URLS:
        views_of_today = [view.sql for view in views().values()]
        digest.update("\n".join(sorted(table_statements(url)) + views_of_today).encode())
    return digest.hexdigest()
