"""The command `dtml` run in a test's own process."""

import sys
from collections.abc import Callable

import pytest
import typer

from flows.cli import app
from flows.failures import run_command

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command, or a part of it: exit code, standard output, standard error."""

    def run(*arguments: str, of: typer.Typer = app) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dtml", *arguments])
        code = run_command(of)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run
