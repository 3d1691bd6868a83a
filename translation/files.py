"""Files and folders that are there whole or not at all."""

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial as bound
from pathlib import Path

# Of <fcntl.h> and <linux/fs.h>: paths are relative to the current folder; two of them change places.
AT_FDCWD, RENAME_EXCHANGE = -100, 2
CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # a system, or a disk, that has no such step


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file, which is then there whole or not at all, whoever else writes it, after a power cut too.

    `write` gets the path of an empty file beside it and fills that very file. It is locked meanwhile: who writes the
    same file waits, and what a killed process left of it the next one writes over.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    held = _locked(partial, bound(os.open, partial, os.O_WRONLY | os.O_CREAT, 0o666))
    try:
        write(partial)
        os.fsync(held)
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(held)


def write_folder_whole(folder: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` make a folder, as `write_whole` does a file; one of its name gives way to it in the same step.

    `fill` gets an empty folder beside it, .NAME.partial.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    held = _locked(partial, bound(_made, partial))
    try:
        _clear(partial)
        fill(partial)
        sync(partial)
        if is_there := folder.exists():
            _exchange(partial, folder)
        else:
            partial.replace(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(held)
    if is_there:
        shutil.rmtree(partial, ignore_errors=True)


def sync(folder: Path) -> None:
    """Wait until every file of a folder is on the disk, from where a power cut takes none."""
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())


def _locked(partial: Path, open_it: Callable[[], int]) -> int:
    """A descriptor of what is under way, made if it is not there, that no other process holds."""
    while True:
        held = open_it()
        fcntl.flock(held, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), partial.stat()):
                return held
        os.close(held)  # who held it has put it into its place


def _made(folder: Path) -> int:
    folder.mkdir(exist_ok=True)
    return os.open(folder, os.O_RDONLY)


def _clear(folder: Path) -> None:
    for left in folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _exchange(one: Path, other: Path) -> None:
    """Let two folders change places: in one step where the system can, else with a moment in which `other` is gone."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
            return
        if (number := ctypes.get_errno()) not in CANNOT:
            raise OSError(number, os.strerror(number), str(other))
    aside = one.with_name(f"{one.name}.before")
    shutil.rmtree(aside, ignore_errors=True)
    other.rename(aside)
    one.rename(other)
    aside.rename(one)
