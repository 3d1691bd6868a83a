"""Turn every failure of a command into one line on standard error and an exit code."""

import errno
import os
import signal
import sys
import traceback

import typer

from db.errors import StoreError
from dtml.errors import DtmlError
from flows.settings import shown
from flows.signals import GO_ON
from translation.errors import TranslationError

FAILED = 1  # the exit code of all failures but our own errors, which have theirs
ELSEWHERE = (
    "; choose a file or folder that you may read and write (DTML_DATA and DTML_REPORTS set where "
    "dtml keeps its files)"
)
MAKE_ROOM = "; free some space and run the same command again"
IN_THE_WAY = (
    "; move it away, or choose another place (DTML_DATA and DTML_REPORTS set where dtml keeps its "
    "files)"
)
REMEDIES = {
    errno.EEXIST: IN_THE_WAY,
    errno.EACCES: ELSEWHERE,
    errno.EPERM: ELSEWHERE,
    errno.EROFS: ELSEWHERE,
    errno.ENOTDIR: ELSEWHERE,
    errno.EFBIG: MAKE_ROOM,
    errno.ENOSPC: MAKE_ROOM,
    errno.EDQUOT: MAKE_ROOM,
}
INTERRUPTED = 128 + signal.SIGINT


def run_command(app: typer.Typer) -> int:
    """Run the command line and return its exit code; print a failure in one line on standard error.

    `--debug` shows the traceback as well.
    """
    try:
        app()
    except SystemExit as ended:  # Typer ends every command with it, also after usage errors
        if ended.code == INTERRUPTED:
            # The process still cleans up at its exit: a second interrupt would end that.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print(GO_ON, file=sys.stderr)  # noqa: T201
        return ended.code if isinstance(ended.code, int) else FAILED
    except (DtmlError, StoreError, TranslationError) as error:
        return _say(str(error), error.exit_code)
    except OSError as error:
        where = error.filename or "the system"
        remedy = REMEDIES.get(error.errno or 0, "")
        return _say(f"{where}: {error.strerror or error}{remedy}", FAILED)
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback reaches a user unasked
        message = _trouble_with_prefect(error)
        if not message:
            kind = type(error).__name__
            message = (
                f"unexpected {kind}: {error}; run the command again as `dtml --debug ...` to see "
                "where"
            )
        return _say(message, FAILED)
    return 0


def _trouble_with_prefect(error: BaseException) -> str | None:
    """Return the message for a Prefect server that was not reached or answered with an error."""
    # Prefect's client imports httpx and raises its errors: without the import, it is none of them.
    if "httpx" not in sys.modules:
        return None
    from httpx import HTTPError, HTTPStatusError

    from flows.service.prefect_server import LOGIN, REMEDY  # late: most commands start no server

    # Prefect may raise an error of its own from that of httpx: look along the chain of causes.
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, HTTPError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    problem, remedy = f"did not answer ({type(cause).__name__})", REMEDY
    if isinstance(cause, HTTPStatusError):
        status = cause.response.status_code
        problem = f"answered with the HTTP status {status}"
        if status in (401, 403):
            problem = "requires another login than it got"
            remedy = f"set {LOGIN} to its USER:PASSWORD"
    return f"Prefect's server at {os.environ.get('PREFECT_API_URL')} {problem}: {remedy}"


def _say(message: str, code: int) -> int:
    if os.environ.get("DTML_DEBUG"):
        traceback.print_exc()
    print(f"error: {shown(' '.join(message.split()))}", file=sys.stderr)  # noqa: T201
    return code


def innermost_lines(error: BaseException) -> str:
    """Return an error's innermost `file:line function`, six at most, the failing one last."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return ", ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
