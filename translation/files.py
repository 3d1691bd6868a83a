"""Files that are there whole or not at all."""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file, which is then there whole or not at all, whoever else writes it, after a power cut too.

    `write` gets the path of an empty file beside it and fills that very file. It is locked meanwhile: who writes the
    same file waits, and what a killed process left of it the next one writes over.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    held = _locked(partial)
    try:
        write(partial)
        os.fsync(held)
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(held)


def _locked(partial: Path) -> int:
    """A descriptor of the file, made if it is not there, that no other process holds."""
    while True:
        held = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o666)
        fcntl.flock(held, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), partial.stat()):
                return held
        os.close(held)  # who held it has put it into its place
