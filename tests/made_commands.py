"""The command `dtml` run in a test's own process."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.main import get_command

from flows.cli import MODULES, app, load
from flows.failures import run_command

Command = Callable[..., tuple[int, str, str]]


def whole_command() -> Any:
    """The command line with the options of every command."""
    group: Any = get_command(app)
    group.commands |= {name: load(name) for name in MODULES}
    return group


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command, or a part of it: exit code, standard output, standard error."""

    def run(*arguments: str, of: typer.Typer = app) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dtml", *arguments])
        code = run_command(of)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run
