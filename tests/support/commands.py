"""The command `dtml` run in a test's own process."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from flows.cli import MODULES, app, load
from flows.failures import run_command
from flows.settings import PREFECT_DEFAULTS

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def served(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands, also those in this process, use the tests' Prefect server; each
    would take ten seconds for its own.
    """
    with as_served(prefect_api, monkeypatch):
        yield


@contextmanager
def as_served(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As the fixture `served`, for a fixture of a longer life."""
    from prefect import settings  # late: it takes seconds
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    told = {  # as the variables tell a command; here they were read when Prefect was imported
        settings.PREFECT_API_URL: prefect_api,
        # or a pool's workers may start one each, and leave it
        settings.PREFECT_SERVER_EPHEMERAL_ENABLED: False,
        settings.PREFECT_API_REQUEST_TIMEOUT: float(
            PREFECT_DEFAULTS["PREFECT_API_REQUEST_TIMEOUT"]
        ),
    }
    try:
        with settings.temporary_settings(told):
            yield
    finally:  # they would go on to send to this server, also what is of the next one
        for worker in (APILogWorker, EventsWorker):
            worker.drain_all()


def whole_command() -> Any:
    """The command line with the options of every command."""
    group: Any = get_command(app)
    group.commands |= {name: load(name) for name in MODULES}
    return group


def options_of_commands() -> dict[str, set[str]]:
    """The options of each command, by its words."""
    found = {}
    waiting = list(whole_command().commands.items())
    while waiting:
        words, command = waiting.pop()
        below = getattr(command, "commands", {})
        waiting += [(f"{words} {name}", each) for name, each in below.items()]
        if not below:
            found[words] = {option for each in command.params for option in each.opts}
    return found


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command, or a part of it: exit code, standard output, standard error."""

    def run(*arguments: str, of: typer.Typer = app) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dtml", *arguments])
        code = run_command(of)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def shorten_audits(patch: pytest.MonkeyPatch) -> None:
    """Let an audit be of few stocks, and of one date, epoch and member."""
    patch.setattr("flows.audit.STOCKS", 11)
    for setting in ("DATES", "EPOCHS", "MEMBERS"):
        patch.setattr(f"dtml.lookahead.audit.{setting}", 1)
    patch.setattr("dtml.lookahead.pipeline.LOOK_BACK", 2)


def run_in(
    folder: Path, environment: Mapping[str, str], prefect_api: str, *arguments: str
) -> tuple[int, str, str]:
    """Run the command in a folder with these variables, as `command` does, for
    a fixture of a longer life.
    """
    said, complained = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, as_served(prefect_api, patch):
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["dtml", *arguments])
        with redirect_stdout(said), redirect_stderr(complained):
            code = run_command(app)
    return code, said.getvalue(), complained.getvalue()
