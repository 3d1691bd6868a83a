"""Start Prefect servers of our own: child processes on loopback, which require a login."""

import atexit
import base64
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Thread, Timer
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from filelock import FileLock, Timeout

from dtml.errors import DtmlError, UsageError
from flows.settings import err, import_prefect, prefect_folder

HOST = "127.0.0.1"
USUAL_PORT = 4200
START_LIMIT_S = 600  # a first start makes Prefect's tables: minutes on a busy machine
PATIENCE_S = 20  # after this, the user is told what the command waits for
ANSWER_S = 30  # that a request may take
END_LIMIT_S = 10  # for a server to end by itself
LOGIN = "PREFECT_API_AUTH_STRING"  # what a client sends
SERVER_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"  # what a server expects: user:password
WAITING = "waiting for Prefect's server, which can take minutes to start on a busy machine"
REMEDY = (
    "run the same command again when the machine is less busy, or set PREFECT_API_URL to the "
    "API of a running server, such as http://127.0.0.1:4200/api"
)
# A server for one command starts no runs and serves no pages.
FOR_ONE_COMMAND = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_UI_ENABLED": "false",
}

_running: list["Server"] = []  # those of this process


@dataclass(frozen=True)
class Server:
    """A server that this process started, its login, and its socket.

    The socket stays open: after the server's death another program could listen and receive the
    login.
    """

    process: "subprocess.Popen[bytes]"
    url: str
    login: str
    listening: socket.socket


def require_server() -> None:
    """Import Prefect, and use the server of PREFECT_API_URL, or one that ends with this process.

    Call this before the first import of prefect, which reads the environment once. Raises DtmlError
    when the server does not start.
    """
    folder = prefect_folder()  # made also for flows on another server
    if os.environ.get("PREFECT_API_URL"):
        import_prefect()
        return

    def last_line() -> str:
        log.seek(0)
        text = log.read().decode(errors="replace")
        return text.strip().rpartition("\n")[-1] or "it said nothing"

    atexit.register(stop_servers)
    with tempfile.TemporaryFile() as log:
        _serve(folder, lambda: _listen(0), log, FOR_ONE_COMMAND, last_line)


def stop_servers() -> None:
    """End the servers of this process; kill those that do not end within END_LIMIT_S."""
    while _running:
        server = _running.pop()
        with server.listening, server.process as process:  # waits, and closes the pipe
            process.terminate()
            try:
                process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def own_server(folder: Path) -> Iterator[None]:
    """Start a server that also runs schedules and serves pages, and end it afterwards.

    The environment has its address and login. It listens on PREFECT_SERVER_API_PORT, else 4200 or
    any free port; log and login are files in `folder`. The login is PREFECT_SERVER_API_AUTH_STRING,
    else random. Raises DtmlError when it does not start.
    """
    log_file = folder / "server.log"
    login_file = folder / "login"
    with log_file.open("wb") as log:
        try:
            server = _serve(folder, _usual_socket, log, {}, lambda: f"see {log_file}")
            login_file.unlink(missing_ok=True)  # an old file would keep its permissions
            login_file.touch(0o600)
            login_file.write_text(f"{server.login}\n")
            yield
        finally:
            login_file.unlink(missing_ok=True)
            stop_servers()


def _serve(
    folder: Path,
    listen: Callable[[], socket.socket],
    log: IO[bytes],
    settings: dict[str, str],
    reason: Callable[[], str],
) -> Server:
    """Start a server (`_start`) and wait for it (`_wait`); this process then ends if it does."""
    notice = Timer(PATIENCE_S, err.print, [WAITING])
    notice.start()
    try:
        # If two servers of a folder created Prefect's tables at once, one of them would fail.
        with FileLock(folder / "start.lock", timeout=START_LIMIT_S):
            server = _start(listen(), log, settings)
            import_prefect()  # takes as long as the server takes to start
            _wait(server, reason)
    except Timeout as error:
        raise DtmlError(
            f"another Prefect server has been starting for {START_LIMIT_S} s in {folder}: end the "
            f"process that starts it if it hangs; otherwise {REMEDY}"
        ) from error
    finally:
        notice.cancel()

    def watch() -> None:
        code = server.process.wait()
        if server in _running:
            err.print(
                f"error: Prefect's server ended with exit code {code}: run the same command again",
                soft_wrap=True,
            )
            os._exit(1)

    Thread(target=watch, daemon=True).start()
    return server


def _start(listening: socket.socket, log: IO[bytes], settings: dict[str, str]) -> Server:
    """Start a server on a socket that already listens, so that no other program can take its port.

    The environment then names it and its login. Raises UsageError for a login that is not ASCII.
    """
    login = os.environ.get(SERVER_LOGIN) or f"dtml:{secrets.token_urlsafe(32)}"
    if not login.isascii():
        listening.close()
        raise UsageError(
            f"{SERVER_LOGIN} has characters that Prefect's server cannot compare: use only ASCII"
        )
    url = f"http://{HOST}:{listening.getsockname()[1]}/api"
    # The variables of dtml and of PostgreSQL may hold secrets, and the server needs none of them.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("DTML_", "PG"))
    }
    environment |= settings | {
        SERVER_LOGIN: login,
        "PREFECT_UI_API_URL": url,
        "PYTHONSAFEPATH": "1",
    }
    process = subprocess.Popen(  # noqa: S603 - of ourselves
        [sys.executable, "-m", "flows.service.guarded_server", str(listening.fileno())],
        env=environment,
        cwd="/",  # Prefect takes settings and modules from its working folder
        stdin=subprocess.PIPE,  # closes when this process ends, by which the server notices it
        stdout=log,
        stderr=log,
        pass_fds=[listening.fileno()],
        # In a new session it does not get the Ctrl-C of the command, which ends its runs first.
        start_new_session=True,
    )
    os.environ["PREFECT_API_URL"] = url
    os.environ[LOGIN] = login
    # A proxy would see the login and ask its own host. Some programs read only one of the two.
    for name in ("NO_PROXY", "no_proxy"):
        hosts = os.environ.get(name)
        if hosts != "*":  # no host is reached through a proxy
            os.environ[name] = f"{hosts},{HOST}" if hosts else HOST
    server = Server(process=process, url=url, login=login, listening=listening)
    _running.append(server)
    return server


def _usual_socket() -> socket.socket:
    """Listen on PREFECT_SERVER_API_PORT or, where it is not set, on 4200 or any free port."""
    port = os.environ.get("PREFECT_SERVER_API_PORT")
    if not port:
        with suppress(DtmlError):
            return _listen(USUAL_PORT)
        return _listen(0)
    if not port.isdecimal() or int(port) >= 2**16:
        raise UsageError(
            f"PREFECT_SERVER_API_PORT {port!r} is not a port: set it to 1 to 65535, or to 0 for "
            "any free port"
        )
    return _listen(int(port))


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        # After " (while" Python repeats the address.
        reason = str(error.strerror or error).partition(" (while")[0]
        raise DtmlError(
            f"Prefect's server cannot listen on {HOST}, port {port}: {reason}; set "
            "PREFECT_SERVER_API_PORT to another port, or to 0 for any free port, or "
            "PREFECT_API_URL to a running server"
        ) from error


def _wait(server: Server, reason: Callable[[], str]) -> None:
    """Wait until the server answers requests with its login, and only those.

    Raises DtmlError, with `reason`, when it ends, takes START_LIMIT_S, or answers without a login.
    """
    start = time.monotonic()
    # How long a request may take; it doubles with each. The socket listens before the server runs,
    # so the first requests wait for an answer; after the death of the server they would for ever.
    answer_s = 1.0
    while time.monotonic() - start < START_LIMIT_S:
        code = server.process.poll()
        if code is not None:
            raise DtmlError(
                f"Prefect's server ended with exit code {code} at its start: {reason()}; remove "
                "the cause, or set PREFECT_API_URL to a running server"
            )
        with suppress(OSError, HTTPException):  # it does not answer yet
            answer_s = min(2 * answer_s, ANSWER_S)
            if is_open(server.url, answer_s):
                raise DtmlError(
                    f"another server, without a login, answers at {server.url}: stop it, and run "
                    "the same command again"
                )
            ask(server.url, server.login, answer_s)
            return  # the login was accepted
        time.sleep(0.2)
    raise DtmlError(
        f"Prefect's server did not answer at {server.url} within {START_LIMIT_S} s ({reason()}): "
        f"{REMEDY}"
    )


def warning_of_open_server() -> str | None:
    """Return a warning if the server of PREFECT_API_URL answers and requires no login."""
    url = os.environ.get("PREFECT_API_URL")
    with suppress(OSError, HTTPException, ValueError):
        if url and is_open(url):
            return (
                f"warning: the Prefect server at {url} requires no login: "
                "anyone who can reach it, including any web page in a browser on this machine, "
                "can run programs as you; "
                f"start it with {SERVER_LOGIN}=USER:PASSWORD, and set {LOGIN} to the same value"
            )
    return None


def is_open(url: str, answer_s: float = ANSWER_S) -> bool:
    """Return whether a Prefect API accepts requests without a login; raises as `ask`."""
    try:
        ask(url, None, answer_s)
    except HTTPError:
        return False
    return True


def ask(url: str, login: str | None, answer_s: float) -> None:
    """Request the version of a Prefect API.

    Raises OSError without an answer within `answer_s`, HTTPError for a refusal, HTTPException for
    another protocol, ValueError for no URL.
    """
    headers = {}
    if login is not None:
        encoded_login = base64.b64encode(login.encode()).decode()
        headers["Authorization"] = f"Basic {encoded_login}"
    version = f"{url.rstrip('/')}/admin/version"
    request = Request(version, headers=headers)  # noqa: S310 - of an API
    with urlopen(request, timeout=answer_s):  # noqa: S310 - of an API
        pass
