"""End runs on signals, and when their parent process ends, without leaving processes behind."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread
from types import FrameType

from translation.environment import exit_with_parent

SERVICE = "DTML_SERVICE"  # a variable: the number of the process of `dtml serve`, for its runs
GO_ON = "interrupted: run the same command again to resume"


@contextmanager
def signals_of(attended: bool) -> Iterator[None]:
    """End an attended run on the first SIGINT or SIGTERM, with its temporary server.

    By default Prefect would spend minutes reporting to a server that the same signal has ended. A
    sudden exit loses nothing: what is stored is complete, and a training resumes after its last
    epoch. Enter this inside a flow: Prefect sets its own handler of SIGTERM when it starts a flow.
    Runs that are not attended keep that handler.
    """
    if not attended:
        yield
        return

    from flows.service.prefect_server import stop_temporary_servers  # late: few commands start one

    def stop(number: int, _frame: FrameType | None) -> None:
        stop_temporary_servers()
        print(GO_ON, file=sys.stderr)  # noqa: T201
        os._exit(128 + number)

    handlers_before = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)


def end_with_service() -> None:
    """End a run that `dtml serve` started when the service ends, even when it is killed."""
    service = os.environ.get(SERVICE)
    if service:
        exit_with_parent(int(service))


@cache
def end_with_parent() -> None:
    """End this process when the one that started it ends, even when it is killed.

    A worker of a pool would otherwise wait for ever. `multiprocessing` knows the process that
    started this one; the parent for the system is the fork server. A second call does nothing,
    because of `cache`.
    """
    parent = multiprocessing.parent_process()
    if parent is None:  # this is the main process
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
