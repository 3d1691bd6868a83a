"""Turn every failure of a command into one line and an exit code."""

import os
import signal
import sys
import traceback

import typer

from db.errors import StoreError
from dtml.errors import DtmlError
from flows.interrupts import GO_ON
from translation.errors import TranslationError

FAILED = 1
INTERRUPTED = 128 + signal.SIGINT


def run_command(app: typer.Typer) -> int:
    """Run the command line and return its exit code; `--debug` shows the traceback as well."""
    try:
        app()
    except SystemExit as ended:  # how typer leaves, its own usage errors included
        if ended.code == INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would break into what ends with the process
            print(GO_ON, file=sys.stderr)  # noqa: T201
        return ended.code if isinstance(ended.code, int) else FAILED
    except (DtmlError, StoreError, TranslationError) as error:
        return _say(str(error), error.exit_code)
    except OSError as error:
        return _say(f"{error.filename or 'the system'}: {error.strerror or error}", FAILED)
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback reaches a user unasked
        return _say(f"unexpected {type(error).__name__}: {error}; run again with --debug to see where", FAILED)
    return 0


def _say(message: str, code: int) -> int:
    if os.environ.get("DTML_DEBUG"):
        traceback.print_exc()
    print(f"error: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return code
