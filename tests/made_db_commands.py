"""Fixtures: `dtml db` run in a test's own process, and what it is run on. A test file names it in pytest_plugins."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_stores import Command, fill, keep_weights
from sqlalchemy import Engine

from db.engine import open_engine, upgrade
from flows.cli import app
from flows.failures import run_command


@pytest.fixture
def dtml(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process on the store of a URL: exit code, standard output, standard error."""

    def run_it(url: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("DTML_DATABASE_URL", url)
        monkeypatch.setattr(sys, "argv", ["dtml", "db", *arguments])
        code = run_command(app)
        said = capsys.readouterr()
        return code, said.out, said.err

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
