"""Remember, by its text, what this user let run here: own code, and paths of markets' files.

A store or a backup may come from somebody else, so what it holds or names is no permission. This
folder of the user's is outside the data folder, where no store, backup or cloned working folder
brings files.
"""

import hashlib
import os
from pathlib import Path

from translation.atomic_files import write_whole


def trusted_folder() -> Path:
    """Return the folder of what may run.

    It is `dtml/own_code` below `XDG_STATE_HOME`, or below `~/.local/state`.
    """
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state else Path.home() / ".local" / "state"
    return home / "dtml" / "own_code"


def file_of(text: str, kind: str) -> Path:
    """Return the file of a text of a kind, `py` or `path`, in the trusted folder."""
    return trusted_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.{kind}"


def is_trusted(text: str, kind: str) -> bool:
    """Return whether the trusted folder has this text."""
    file = file_of(text, kind)
    return file.is_file() and file.read_bytes() == text.encode()


def keep(text: str, file: Path) -> None:
    """Write a text, whole, and its folder where needed; raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, lambda partial: partial.write_bytes(text.encode()))
