"""Which tests are quick: `make quick` runs them, and none of them starts a process or opens a
socket.

A test is quick unless it, or its file, is marked `slow` or `soak`, asks for a server, or for a
market to run nights of. A quick test that starts a process or opens a socket fails, also in `make
test`: mark it, or its file by `pytestmark = pytest.mark.slow`.
"""

import os
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any
from unittest.mock import patch

import pytest

SERVERS = {"postgresql_server", "postgresql_admin", "prefect_api"}
TRAINING = {
    "context",
    "run_request",
}  # what asks for a market to run nights or backtests of trains models
FORBIDDEN = {
    "subprocess.Popen",
    "os.fork",
    "os.posix_spawn",
    "os.system",
    "socket.bind",
    "socket.connect",
}
running: list[str] = []


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is marked neither slow nor soak, asks for no server and trains no nights."""
    asked = set(getattr(item, "fixturenames", ()))
    given = getattr(item, "callspec", None)
    on_postgresql = (
        "store_url" in asked and given is not None and given.params.get("store_url") != "sqlite"
    )
    long = item.get_closest_marker("slow") or item.get_closest_marker("soak")
    return not (long or asked & SERVERS or asks_for_training(item) or on_postgresql)


def asks_for_training(item: pytest.Item) -> bool:
    """Whether a test asks for a market to run nights or backtests of."""
    return bool(TRAINING & set(getattr(item, "fixturenames", ())))


def _refuse(event: str, _: tuple[Any, ...] = ()) -> None:
    if running and event in FORBIDDEN:
        raise AssertionError(
            f"{running[-1]} is quick, and no quick test does {event}: mark it slow"
        )


sys.addaudithook(_refuse)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test, and if it is quick, let it and its fixtures start no process
    and open no socket.
    """
    if not item.get_closest_marker("quick"):
        return (yield)
    running.append(item.nodeid)
    no_server = {
        name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"
    }  # of an earlier test
    try:
        with (
            patch.dict(os.environ, no_server, clear=True),
            patch.object(BaseProcess, "start", lambda _: _refuse("os.fork")),
        ):
            return (yield)
    finally:
        running.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Let the end of the last test, quick or not, stop the servers that the
    whole session shared.
    """
    if nextitem is None:
        running.clear()
    return (yield)
