"""Let only such code of a model run as this user once gave in a market's file.

A model carries the text of the own code that it was trained with, and a store or a backup may be a
stranger's. The texts that this user's nights trained lie in a folder of the user, outside of the
data folder: no store, backup or cloned working folder brings files there.
"""

import hashlib
import logging
import os
from pathlib import Path

from dtml.own.code import OwnCode, OwnCodeError
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)


def trusted_folder() -> Path:
    """Return the folder of the texts that may run: below `XDG_STATE_HOME`, or `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state else Path.home() / ".local" / "state"
    return home / "dtml" / "own_code"


def trust(code: OwnCode) -> None:
    """Keep a text that came from this user's own file, so that its models may run it later.

    Where the folder cannot be written, a warning says so: the text then runs as long as the
    market's file names it.
    """
    try:
        _keep(code, trusted_folder())
    except OSError as error:
        log.warning(
            "%s cannot be kept in %s (%s): past nights that used it cannot be replayed once the "
            "file has changed",
            code.name,
            trusted_folder(),
            error.strerror,
        )


def require_trusted(code: OwnCode) -> None:
    """Raise OwnCodeError for a text that no file of this user's ever held.

    The text is then written beside the trusted ones, to be read.
    """
    trusted = trusted_folder() / _file_name(code)
    if trusted.is_file() and hashlib.sha256(trusted.read_bytes()).hexdigest() == code.sha256:
        return
    refused = trusted_folder() / "refused"
    try:
        _keep(code, refused)
    except OSError as error:
        raise OwnCodeError(
            f"{code.name} came with the store, was never run from a file of yours, and does not "
            f"run; it cannot be shown, as {refused} cannot be written ({error.strerror})"
        ) from error
    raise OwnCodeError(
        f"{code.name} came with the store, was never run from a file of yours, and does not run: "
        f"read {refused / trusted.name}, and move it to {trusted} to let it run"
    )


def _keep(code: OwnCode, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _file_name(code), lambda partial: partial.write_bytes(code.text.encode()))


def _file_name(code: OwnCode) -> str:
    return f"{code.sha256}.py"
