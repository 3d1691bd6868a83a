"""Ends that leave nothing behind: signals, and Prefect's temporary server."""

import atexit
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread
from types import FrameType
from typing import Any

GO_ON = "interrupted: run the same command again to go on"


@contextmanager
def signals_of(attended: bool) -> Iterator[None]:
    """End an attended run on the first interrupt or termination, with Prefect's temporary server.

    Left to itself Prefect would spend minutes telling a server that the same signal has ended. Nothing is lost by
    leaving: what is stored is whole, and a training continues from its last epoch. Entered inside a flow, because
    Prefect takes SIGTERM for itself when it starts one.
    """
    if not attended:
        yield
        return

    _end_temporary_servers_with_us()

    def stop(number: int, _frame: FrameType | None) -> None:
        _stop_temporary_servers()
        print(GO_ON, file=sys.stderr)  # noqa: T201
        os._exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def share_temporary_server() -> None:
    """Let processes that this one starts use its server; each would start one of its own."""
    for server in _temporary_servers():
        os.environ.setdefault("PREFECT_API_URL", server.api_url)


def _end_temporary_servers_with_us() -> None:
    """Let Prefect's temporary server end when this process does, killed or not: it would run for ever."""
    for server in _temporary_servers():
        if server.server_process is not None:
            watch = f"read -r _; kill {server.server_process.pid} 2>/dev/null"
            keeper = subprocess.Popen(  # noqa: S603 - a constant and a number
                ["/bin/sh", "-c", watch], stdin=subprocess.PIPE, start_new_session=True
            )
            atexit.register(keeper.kill)  # before Prefect ends the server: its number is nobody else's yet


def _stop_temporary_servers() -> None:
    for server in _temporary_servers():
        server.stop()


def _temporary_servers() -> list[Any]:
    """Those that Prefect started in this process: none unless it imported them, which takes two seconds."""
    module = sys.modules.get("prefect.server.api.server")
    return [] if module is None else list(module.SubprocessASGIServer._instances.values())


@cache
def end_with_parent() -> None:
    """End this process when the one that started it ends, however that was: a pool's worker would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        _stop_temporary_servers()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
