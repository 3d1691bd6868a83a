"""A Prefect server for commands that would each start their own: one a test
run, or one of a test alone.
"""

import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from flows.service.prefect_server import LOGIN, SERVER_LOGIN
from flows.settings import PREFECT_DEFAULTS
from tests.support.run_folder import RUN_FOLDER, made_once

PATIENCE_S = 600.0
SHARED = "prefect-server"
LOG = "server.log"


def give_tables(home: Path) -> None:
    """Give a folder of Prefect's the tables that a first start makes, which
    costs half of it; at most once a run.
    """
    tables = made_once("prefect-tables", _make_tables)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        closing(sqlite3.connect(tables / "prefect.db")) as made,
        closing(sqlite3.connect(home / "prefect.db")) as own,
    ):
        made.backup(own)


def _make_tables(folder: Path) -> None:
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
    subprocess.run(
        command, env=_environment(str(folder)), check=True, capture_output=True, timeout=PATIENCE_S
    )


def plain_environment() -> dict[str, str]:
    """The variables of this process, without ours and Prefect's."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DTML_", "PREFECT_"))
    }


def _environment(home: str) -> dict[str, str]:
    return plain_environment() | PREFECT_DEFAULTS | {"PREFECT_HOME": home}


def shared_server() -> str:
    """Return the address of the Prefect server of this test run, which the first process that asks
    starts.

    `end_shared_server` ends it.
    """
    return (made_once(SHARED, _share) / "address").read_text()


def _share(folder: Path) -> None:
    # Beside `folder`, which is renamed when it is complete: the server opens its database by path.
    address, server = _start(RUN_FOLDER / f"{SHARED}-home")
    (folder / "pid").write_text(str(server.pid))
    (folder / "address").write_text(address)


def end_shared_server() -> None:
    """End the server that `shared_server` started, if it did."""
    file = RUN_FOLDER / SHARED / "pid"
    if not file.exists():
        return
    pid = int(file.read_text())
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # a child of another process of this run, which has ended
        os.waitpid(pid, 0)


@contextmanager
def prefect_server(folder: Path | None = None) -> Iterator[str]:
    """The address of the API of a server of its own; its login is in this process's environment.

    Its database stays in a folder that is given; else it goes with the server.
    """
    home = folder or Path(tempfile.mkdtemp(prefix="prefect-"))
    address, server = _start(home)
    try:
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)


def _start(home: Path) -> tuple[str, "subprocess.Popen[bytes]"]:
    """Start a server on a free port of this machine, with a login that is drawn
    if the environment has none.
    """
    login = os.environ.setdefault(LOGIN, f"tests:{secrets.token_urlsafe(32)}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    give_tables(home)
    log = (home / LOG).open("ab")
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "prefect",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        env=_environment(str(home)) | {SERVER_LOGIN: login},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    log.close()  # the server has its own
    _wait_for(f"http://127.0.0.1:{port}/api/health")
    return f"http://127.0.0.1:{port}/api", server


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer from {address} after {PATIENCE_S:.0f} s")
        time.sleep(0.2)
