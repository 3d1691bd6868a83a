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

    Prefect would spend minutes reporting to it; what is stored is complete. Enter inside a flow,
    which sets Prefect's own handler, that unattended runs keep.
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
    """Begin a run of `dtml serve` in Prefect's process: its folder, its lines, and its end.

    A run of another process is left as it is.
    """
    service = os.environ.get(SERVICE)
    if not service:
        return
    exit_with_parent(int(service))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends its runs
    os.chdir(os.environ[FOLDER])
    prepare_output()
    set_up_logging(debug=bool(os.environ.get("DTML_DEBUG")), attended=False)
