"""A Prefect server of one test alone, for commands that would each start their own, and the tables of a first start."""

import atexit
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

from filelock import FileLock

from flows.service.prefect_server import LOGIN, SERVER_LOGIN
from flows.settings import PREFECT_DEFAULTS

PATIENCE_S = 600.0
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
TABLES = Path(tempfile.gettempdir()) / f"prefect-{os.getppid() if IS_WORKER else os.getpid()}"  # shared by all workers


def give_tables(home: Path) -> None:
    """Give a folder of Prefect's the tables that a first start makes, which costs half of it; at most once a run."""
    with FileLock(f"{TABLES}.lock"):
        if not TABLES.exists():
            making = tempfile.mkdtemp(prefix="prefect-tables-")
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
            subprocess.run(command, env=_environment(making), check=True, capture_output=True, timeout=PATIENCE_S)
            Path(making).rename(TABLES)
            if not IS_WORKER:
                atexit.register(remove_tables)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(sqlite3.connect(TABLES / "prefect.db")) as made, closing(sqlite3.connect(home / "prefect.db")) as own:
        made.backup(own)


def remove_tables() -> None:
    """Remove what `give_tables` shared, when no worker needs it any more."""
    shutil.rmtree(TABLES, ignore_errors=True)
    Path(f"{TABLES}.lock").unlink(missing_ok=True)


def _environment(home: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("DTML_", "PREFECT_"))}
    return plain | PREFECT_DEFAULTS | {"PREFECT_HOME": home}


@contextmanager
def prefect_server() -> Iterator[str]:
    """The address of its API, on this machine; its login is in this process's environment, drawn if there was none."""
    login = os.environ.setdefault(LOGIN, f"tests:{secrets.token_urlsafe(32)}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tempfile.mkdtemp(prefix="prefect-")
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    give_tables(Path(home))
    environment = _environment(home) | {SERVER_LOGIN: login}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=environment, start_new_session=True, **quiet)  # type: ignore[call-overload]
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/health")
        yield f"http://127.0.0.1:{port}/api"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        shutil.rmtree(home, ignore_errors=True)


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer from {address} after {PATIENCE_S:.0f} s")
        time.sleep(0.2)
