"""A real `dtml serve` of a small market, the processes that belong to it, and
the nights in its store.
"""

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from db.engine import open_engine, reading
from db.read import read
from tests.support.nights import small_market
from tests.support.prefect_server import give_tables, plain_environment

BIN = Path(sys.executable).parent
PATIENCE_S = 900.0  # for a machine that is busy with other tests


@dataclass
class Serving:
    """A `dtml serve` that is on: its process and what it has said."""

    process: "subprocess.Popen[bytes]"
    words: Path

    @property
    def said(self) -> str:
        return self.words.read_text()

    @property
    def login(self) -> str:
        """Of its own server."""
        return (self.words.parent / "data" / "prefect" / "login").read_text().strip()

    def wait_for(self, pattern: str | re.Pattern[str]) -> "re.Match[str]":
        return waited(
            lambda: re.search(pattern, self.said), lambda: f"{pattern!r} in:\n{self.said}"
        )


def asked(
    url: str, login: str | None, body: Any = None, method: str = "POST", **headers: str
) -> Any:
    """What an API answers to a holder of its login, or to one without; raises
    HTTPError for a refusal.
    """
    shown = (
        {} if login is None else {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}
    )
    plain = {"Content-Type": "application/json"} | shown | headers
    data = None if method == "GET" else json.dumps({} if body is None else body).encode()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urlopen(Request(url, data, plain, method=method), timeout=550) as answer:
                return json.loads(answer.read() or b"null")
        except HTTPError as error:
            if (
                error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline
            ):  # its store is busy
                raise
        time.sleep(1)


def waited(look: Callable[[], Any], what: Callable[[], str]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited in vain for {what()}"
        time.sleep(0.2)
    return found


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[Serving]:
    """Serve a small market every minute, with all of it below a folder."""
    folder.mkdir(exist_ok=True)
    give_tables(folder / "data" / "prefect")
    (folder / "small.toml").write_text(small_market())
    own = {
        "DTML_DATA": str(folder / "data"),
        "PREFECT_SERVER_API_PORT": "0",
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    }
    command = [
        str(BIN / "dtml"),
        "serve",
        "--market-file",
        "small.toml",
        "--cron",
        "* * * * *",
        *arguments,
    ]
    told = {
        name: value for name, value in (plain_environment() | own | environment).items() if value
    }
    words = folder / "said"
    with words.open("wb") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=told, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield Serving(process, words)
    finally:
        for pid in processes_of(folder):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def processes_of(folder: Path) -> list[int]:
    """Every process whose data folder lies here: the command, its server, its runs."""
    data = folder / "data"
    mine = {f"DTML_DATA={data}".encode(), f"PREFECT_HOME={data / 'prefect'}".encode()}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mine & set((process / "environ").read_bytes().split(b"\0")):
                found.append(int(process.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def nights(folder: Path) -> list[dict[str, Any]]:
    engine = open_engine(f"sqlite:///{folder / 'data' / 'dtml.sqlite'}", read_only=True)
    with reading(engine) as conn:
        return read(conn, "night").to_dict("records")  # type: ignore[return-value]


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def runs_of(folder: Path) -> list[int]:
    """Every run of the service, which Prefect's runner has started."""
    found = []
    for pid in processes_of(folder):
        with suppress(OSError):  # it has ended
            if b"prefect.engine" in cmdline(pid):
                found.append(pid)
    return found


@contextmanager
def answering(answer: Any) -> Iterator[int]:
    """A server of somebody else's, which gives one answer to all."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self)
            self.send_response(status)
            self.send_header(
                "Content-Type", "text/html" if body.startswith(b"<") else "application/json"
            )
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def failed_service(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command, own = (
        [BIN / "dtml", "serve", "simulated"],
        {"DTML_DATA": str(folder / "data")} | environment,
    )
    return subprocess.run(
        command,
        cwd=folder,
        env=plain_environment() | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found in /proc"
)
