"""Fixtures: `dtml db` run in a test's own process, and what it is run on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from db.engine import open_engine, upgrade
from tests.support.commands import Command
from tests.support.stores import fill, keep_weights


@pytest.fixture
def dtml(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`dtml db` on the store of a URL."""

    def run_it(url: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("DTML_DATABASE_URL", url)
        return command("db", *arguments)

    return run_it


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Engine]:
    """An SQLite store with rows in every table and its checkpoint."""
    engine = open_engine(f"sqlite:///{tmp_path}/filled.sqlite")
    upgrade(engine)
    fill(engine)
    keep_weights(tmp_path / "data")
    yield engine
    engine.dispose()
