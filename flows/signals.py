"""End runs on signals, and when their parent process ends, without leaving processes behind."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from flows.log_lines import set_up_logging
from translation.environment import exit_with_parent, prepare_output

SERVICE = "DTML_SERVICE"  # a variable: the number of the process of `dtml serve`, for its runs
FOLDER = "DTML_FOLDER"  # a variable: the working folder of `dtml serve`, for its runs
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

    from flows.service.prefect_server import stop_servers  # late: few commands start one

    def stop(number: int, _frame: FrameType | None) -> None:
        stop_servers()
        print(GO_ON, file=sys.stderr)  # noqa: T201
        os._exit(128 + number)

    with handled_by(stop):
        yield


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a function handle SIGINT and SIGTERM inside."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def begin_run() -> None:
    """Begin a run that `dtml serve` started, in the process that Prefect made for it.

    The run ends when the service ends, even when that is killed; it works in the service's folder,
    and has its own lines on standard error. A run of another process is left as it is.
    """
    service = os.environ.get(SERVICE)
    if not service:
        return
    exit_with_parent(int(service))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends its runs
    os.chdir(os.environ[FOLDER])
    prepare_output()
    set_up_logging(debug=bool(os.environ.get("DTML_DEBUG")), attended=False)
