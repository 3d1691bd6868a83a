"""What a command says of a Prefect server that does not answer or start, sends
it away, or lets everybody in.
"""

import io
import os
import re
import subprocess
import sys
from unittest.mock import patch

import httpx
import pytest
import typer

from db.engine import open_store
from dtml.errors import DtmlError
from flows.failures import run_command
from flows.service import prefect_server as server
from flows.service.prefect_server import (
    LOGIN,
    REMEDY,
    SERVER_LOGIN,
    warning_of_open_server,
)
from flows.settings import prefect_folder, prepare_prefect
from tests.support.service import BIN, answering, failed_service


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (httpx.ReadTimeout(""), f"did not answer (ReadTimeout): {REMEDY}"),
        (httpx.ConnectError(""), f"did not answer (ConnectError): {REMEDY}"),
        (httpx.Response(401), f"requires another login than it got: set {LOGIN} to its USER:PASS"),
        (httpx.Response(503), f"answered with the HTTP status 503: {REMEDY}"),
    ],
)
def test_a_request_that_fails_behind_an_error_of_prefects_own_is_named_with_what_to_do(
    cause,
    words,
    capsys,
    monkeypatch,
):
    app, address = typer.Typer(), "http://127.0.0.1:1/api"

    @app.command()
    def command():
        try:
            if isinstance(cause, Exception):
                raise cause
            cause.request = httpx.Request("GET", address)
            cause.raise_for_status()
        except httpx.HTTPError as error:
            raise RuntimeError("Failed to reach API") from error

    monkeypatch.setenv("PREFECT_API_URL", address)
    monkeypatch.setattr(sys, "argv", ["command"])
    assert run_command(app) == 1
    assert f"error: Prefect's server at {address} {words}" in capsys.readouterr().err


@pytest.mark.soak
def test_a_port_that_another_server_has_is_an_error_that_names_it(tmp_path):
    with answering(lambda _: (200, b'"3.8.8"')) as port:
        ended = failed_service(tmp_path, PREFECT_SERVER_API_PORT=str(port))
    assert ended.returncode == 1
    taken = rf"error:.*127\.0\.0\.1, port {port}:.*in use;.*PREFECT_SERVER_API_PORT"
    assert re.search(taken, ended.stdout)
    assert "ended\n" not in ended.stdout


@pytest.mark.soak
def test_a_server_that_dies_at_its_start_is_an_error(tmp_path):
    ended = failed_service(tmp_path, PREFECT_API_DATABASE_CONNECTION_URL="nothing://at/all")
    assert ended.returncode == 1
    assert re.search(
        r"error:.*exit code \d+ .*start:.*\S+server\.log;.*PREFECT_API_URL",
        ended.stdout,
    )


def test_a_folder_of_prefects_that_others_may_write_to_is_refused():
    prefect_folder().chmod(0o770)
    with pytest.raises(DtmlError, match=r"written to by others.*DTML_DATA"):
        prefect_folder()


@pytest.mark.soak
def test_a_server_without_a_login_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert warning_of_open_server() is None
    with answering(lambda _: (200, b'"3.8.8"')) as port:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        said = warning_of_open_server()
        assert said is not None
        assert f"127.0.0.1:{port}/api requires no login" in said
        assert SERVER_LOGIN in said
        monkeypatch.setenv("DTML_DATA", str(tmp_path))
        open_store().dispose()
        ended = subprocess.run(
            [BIN / "dtml", "status"], capture_output=True, text=True, check=False
        )
        assert said in ended.stderr
    assert warning_of_open_server() is None  # it does not answer any more


@pytest.mark.parametrize(
    ("given", "then"), [("", "127.0.0.1"), ("a.example", "a.example,127.0.0.1"), ("*", "*")]
)
def test_a_login_is_shown_to_no_proxy(given, then, monkeypatch):
    for name in ("NO_PROXY", "no_proxy", "PREFECT_API_URL", LOGIN):
        monkeypatch.setenv(name, given)
    monkeypatch.setattr(server.subprocess, "Popen", lambda *_, **__: None)
    with server._listen(0) as listening:
        server._start(listening, io.BytesIO(), {})
    server._running.clear()
    assert [os.environ[name] for name in ("NO_PROXY", "no_proxy")] == [then, then]


def test_the_runs_in_a_folder_of_the_users_own_stay(tmp_path):
    """Other programs may have made them."""
    name = "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"
    with patch.dict(os.environ, {"PREFECT_HOME": str(tmp_path)}):
        os.environ.pop(name, None)
        prepare_prefect(quiet=True)
        assert name not in os.environ
        del os.environ["PREFECT_HOME"]
        prepare_prefect(quiet=True)
        assert "flow_runs" in os.environ[name]
