"""A Prefect server of our own: a child process on loopback that ends with the command that started it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from urllib.error import URLError
from urllib.request import urlopen

from dtml.errors import DtmlError

HOST = "127.0.0.1"
USUAL_PORT = 4200
START_LIMIT_S = 300  # a first start makes Prefect's tables, which a busy machine takes minutes for
END_LIMIT_S = 10


@contextmanager
def own_server(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a server, wait until it answers, and let this process and its children use it; end it afterwards.

    It listens on PREFECT_SERVER_API_PORT, else on 4200 or any free port, keeps its words in `folder`, and ends when
    this process ends, however that is. Raises DtmlError when it does not start.
    """
    port = int(os.environ.get("PREFECT_SERVER_API_PORT") or _free_port())
    url, words = f"http://{HOST}:{port}/api", folder / "server.log"
    environment = os.environ | {"PREFECT_SERVER_API_PORT": str(port), "PREFECT_UI_API_URL": url}
    command = [sys.executable, "-m", "flows.server", "--host", HOST, "--port", str(port)]
    with words.open("wb") as log:
        # In a session of its own: Ctrl-C is for the command, which ends the server last.
        server = subprocess.Popen(  # noqa: S603 - of ourselves
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait(server, url, words)
        os.environ["PREFECT_API_URL"] = url
        yield server
    finally:
        server.terminate()
        try:
            server.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _free_port() -> int:
    for port in (USUAL_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DtmlError(f"no free port on {HOST} for Prefect's server: set PREFECT_SERVER_API_PORT to one")


def _wait(server: "subprocess.Popen[bytes]", url: str, words: Path) -> None:
    """Return when the server answers; raises DtmlError when it ended or takes too long."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise DtmlError(f"Prefect's server ended with {server.returncode} at its start: see {words}")
        try:
            with urlopen(f"{url}/health", timeout=5):  # noqa: S310 - of our own server
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise DtmlError(f"Prefect's server did not answer at {url} within {START_LIMIT_S} s: see {words}")


def _end_with_parent() -> None:
    """End when the other end of standard input is closed, which only the death of the parent does."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_LIMIT_S)
    os._exit(1)


def main() -> None:
    """Be the server."""
    from prefect.cli import app

    Thread(target=_end_with_parent, daemon=True).start()
    sys.argv[:] = ["prefect", "server", "start", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
