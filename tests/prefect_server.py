"""A Prefect server of one test alone, for commands that would each start their own."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flows.service.prefect_server import LOGIN, SERVER_LOGIN
from flows.settings import PREFECT_DEFAULTS

PATIENCE_S = 600.0


@contextmanager
def prefect_server() -> Iterator[str]:
    """The address of its API, on this machine; its login is in this process's environment, drawn if there was none."""
    login = os.environ.setdefault(LOGIN, f"tests:{secrets.token_urlsafe(32)}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tempfile.mkdtemp(prefix="prefect-")
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("DTML_", "PREFECT_"))}
    environment = plain | PREFECT_DEFAULTS | {"PREFECT_HOME": home, SERVER_LOGIN: login}
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
