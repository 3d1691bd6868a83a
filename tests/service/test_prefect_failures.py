"""What a command says of a Prefect server that does not answer or start, sends
it away, or lets everybody in.
"""

import io
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

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
    Server,
    is_open,
    warning_of_open_server,
)
from flows.settings import prefect_folder
from tests.support.service import BIN, answering, failed_service, needs_proc, processes_of

pytestmark = pytest.mark.slow


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a server that takes connections and never answers, as one
    of a starved machine.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/api"


def said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, failing: httpx.Request
) -> str:
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
    assert re.fullmatch(rf"error:.* {deaf} .*\(ReadTimeout\): {re.escape(REMEDY)}\n", line)


def test_a_server_that_is_gone_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    line = said(capsys, monkeypatch, httpx.Request("GET", "http://127.0.0.1:1/api/health"))
    assert re.fullmatch(
        rf"error:.* http://127\.0\.0\.1:1/api .*\(ConnectError\): {re.escape(REMEDY)}\n", line
    )


@pytest.mark.parametrize("login", ["", "a:b"])
def test_a_server_that_wants_a_login_is_named_with_the_variable_for_it(
    login: str,
    prefect_api: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    monkeypatch.setenv(LOGIN, login)
    line = said(
        capsys, monkeypatch, httpx.Request("POST", f"{prefect_api}/deployments/filter", json={})
    )
    assert re.fullmatch(f"error:.* {prefect_api} requires .*{LOGIN} .*USER:PASSWORD.*\n", line)


def test_a_server_that_starts_too_slowly_is_named(
    deaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("ANSWER_S", 0.1), ("START_LIMIT_S", 1)):
        monkeypatch.setattr(server, name, seconds)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(DtmlError) as ended:
            server._wait(Server(process, deaf, "login", socket.socket()), lambda: "its last words")
        process.kill()
    assert re.search(rf" {deaf} .* 1 s \(its last words\): {re.escape(REMEDY)}$", str(ended.value))


@pytest.mark.soak
@needs_proc
def test_an_interrupted_start_leaves_no_server(tmp_path: Path) -> None:
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DTML_", "PREFECT_"))
    }
    # Prefect is not imported while the server starts: it takes seconds, and this one never asks it.
    code = (
        "import sys; from types import ModuleType as Module; "
        "sys.modules |= {name: Module(name) for name in ('prefect', 'prefect.flow_engine')}; "
        "from flows.service import prefect_server as server; server._wait = lambda *_: "
        "exit(7); "
        "server.require_server()"
    )
    environment = plain | {
        "DTML_DATA": str(tmp_path / "data"),
        "PREFECT_HOME": str(tmp_path / "data" / "prefect"),
    }
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=550)
    assert ended.returncode == 7
    assert processes_of(tmp_path) == []


@pytest.mark.soak
@pytest.mark.parametrize("foreign", [b'"3.8.8"', b"<html>"])
def test_a_port_that_another_server_has_is_an_error_that_names_it(
    tmp_path: Path, foreign: bytes
) -> None:
    with answering(lambda _: (200, foreign)) as port:
        ended = failed_service(tmp_path, PREFECT_SERVER_API_PORT=str(port))
    assert ended.returncode == 1
    taken = rf"error:.*127\.0\.0\.1, port {port}:.*in use;.*PREFECT_SERVER_API_PORT"
    assert re.search(taken, ended.stdout)
    assert "ended\n" not in ended.stdout


@pytest.mark.soak
def test_a_server_that_dies_at_its_start_is_an_error(tmp_path: Path) -> None:
    ended = failed_service(tmp_path, PREFECT_API_DATABASE_CONNECTION_URL="nothing://at/all")
    assert ended.returncode == 1
    assert re.search(
        r"error:.*exit code \d+ .*start:.*\S+server\.log;.*PREFECT_API_URL",
        ended.stdout,
    )


@pytest.fixture
def start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[int, str]]:
    """Ask for the server of a service inside a command, in this process: the
    exit code, and what is printed.
    """
    app = typer.Typer()

    @app.command()
    def command() -> None:
        with server.own_server(prefect_folder()):
            pytest.fail("a server was started")

    def started() -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["command"])
        code = run_command(app)
        return code, capsys.readouterr().err

    return started


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_of_prefects_that_others_may_write_to_is_refused(
    mode: int, tmp_path: Path, start: Callable[[], tuple[int, str]]
) -> None:
    (tmp_path / "data" / "prefect").mkdir(parents=True)
    (tmp_path / "data" / "prefect").chmod(mode)
    code, said = start()
    assert code == 1
    assert re.search("written to by others.*DTML_DATA", said)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PREFECT_SERVER_API_PORT", "abc", "'abc' is not"),
        ("PREFECT_SERVER_API_PORT", "65536", "'65536' is not"),
        (SERVER_LOGIN, "dtml:pässwörd", "use only ASCII"),
    ],
)
def test_a_variable_that_is_no_use_is_a_mistake_of_the_caller(
    name: str,
    value: str,
    said: str,
    start: Callable[[], tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", "0")
    monkeypatch.setenv(name, value)
    code, printed = start()
    assert (code, said in printed) == (2, True), printed


@pytest.mark.soak
def test_a_server_without_a_login_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with answering(lambda _: (401, b"{}")) as port:
        assert not is_open(f"http://127.0.0.1:{port}/api/")
    with socket.create_server(("127.0.0.1", 0)) as listening:  # of another kind
        threading.Thread(target=greet, args=(listening,), daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{listening.getsockname()[1]}/api")
        assert warning_of_open_server() is None


def greet(listening: socket.socket) -> None:
    with listening.accept()[0] as connection:
        connection.sendall(b"SSH-2.0-other\r\n")


@pytest.mark.parametrize(
    ("given", "then"), [("", "127.0.0.1"), ("a.example", "a.example,127.0.0.1"), ("*", "*")]
)
def test_a_login_is_shown_to_no_proxy(
    given: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "PREFECT_API_URL", LOGIN):
        monkeypatch.setenv(name, given)
    monkeypatch.setattr(server.subprocess, "Popen", lambda *_, **__: None)
    with server._listen(0) as listening:
        server._start(listening, io.BytesIO(), {})
    server._running.clear()
    assert [os.environ[name] for name in ("NO_PROXY", "no_proxy")] == [then, then]


@pytest.mark.parametrize(
    ("failing", "remedy"),
    [
        (
            (Path.mkdir, "a file/reports"),
            "(DTML_DATA and DTML_REPORTS",
        ),
        ((Path.write_text, "/dev/full"), "free some space"),
    ],
)
def test_a_folder_that_cannot_be_written_and_a_full_disk_say_what_to_do(
    failing: tuple[Callable[..., object], str],
    remedy: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "a file").touch()
    write, place = failing
    app = typer.Typer()

    @app.command()
    def command() -> None:
        write(tmp_path / place, *(["some text"] if write is Path.write_text else []))

    monkeypatch.setattr(sys, "argv", ["command"])
    assert run_command(app) == 1
    assert remedy in capsys.readouterr().err
