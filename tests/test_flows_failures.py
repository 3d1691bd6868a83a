"""What a command says when the Prefect server that it needs does not answer, answers late or sends it away."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer
from made_service import needs_proc, processes_of

from dtml.errors import DtmlError
from flows import server
from flows.failures import run_command
from flows.server import LOGIN, REMEDY, Server


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a server that takes connections and never answers, as one of a starved machine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/api"


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, failing: httpx.Request) -> str:
    """What is printed when a request fails inside a command, behind an error of Prefect's own."""
    app = typer.Typer()

    @app.command()
    def command() -> None:
        try:
            with httpx.Client(timeout=0.2, trust_env=False) as client:
                client.send(failing).raise_for_status()
        except httpx.HTTPError as error:
            raise RuntimeError(f"Failed to reach API at {failing.url}") from error

    monkeypatch.setattr(sys, "argv", ["command"])
    assert run_command(app) == 1
    return capsys.readouterr().err


def test_a_time_out_of_prefects_client_is_named_with_what_to_do(
    deaf: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", deaf)
    line = said(capsys, monkeypatch, httpx.Request("GET", f"{deaf}/health"))
    assert line == f"error: Prefect's server at {deaf} did not answer (ReadTimeout): {REMEDY}\n"


def test_a_server_that_is_gone_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    line = said(capsys, monkeypatch, httpx.Request("GET", "http://127.0.0.1:1/api/health"))
    assert line == f"error: Prefect's server at http://127.0.0.1:1/api did not answer (ConnectError): {REMEDY}\n"


def test_a_server_that_wants_a_login_is_named_with_the_variable_for_it(
    prefect_api: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    line = said(capsys, monkeypatch, httpx.Request("POST", f"{prefect_api}/deployments/filter", json={}))
    assert line == f"error: Prefect's server at {prefect_api} asks for a login: set {LOGIN} to its USER:PASSWORD\n"


def test_a_server_that_starts_too_slowly_is_waited_for_with_a_word_and_then_named(
    deaf: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("PATIENCE_S", 0), ("ANSWER_S", 0.1), ("START_LIMIT_S", 1)):
        monkeypatch.setattr(server, name, seconds)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(DtmlError) as ended:
            server._wait(Server(process, deaf, "login", socket.socket()), lambda: "its last words")
        process.kill()
    assert str(ended.value) == f"Prefect's server did not answer at {deaf} within 1 s (its last words): {REMEDY}"
    assert "waiting for Prefect's server" in capsys.readouterr().err


@needs_proc
def test_an_interrupted_start_leaves_no_server(tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("DTML_", "PREFECT_"))}
    code = "from flows import server; server._wait = lambda *_: exit(7); server.require_server()"
    environment = plain | {"DTML_DATA": str(tmp_path / "data"), "PREFECT_HOME": str(tmp_path / "data" / "prefect")}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=550)
    assert ended.returncode == 7
    assert processes_of(tmp_path) == []
