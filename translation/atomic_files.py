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


def write_folder_whole(folder: Path, fill: Callable[[Path], object], *, replaces: bool = False) -> None:
    """Let `fill` make a folder, as `write_whole` does a file.

    `fill` gets an empty folder beside it, .NAME.partial. One of its name that is not empty gives way in the same step
    where it `replaces` one; else that raises OSError.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    held = [_locked(partial, bound(_made, partial))]
    try:
        _clear(partial)
        fill(partial)
        sync(partial)
        if replaces and folder.exists():
            held.append(_lock(os.open(folder, os.O_RDONLY)))  # it is beside, and the next writer's, after the exchange
            _exchange(partial, folder)
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.replace(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        for each in held:
            os.close(each)


def _locked(partial: Path, open_it: Callable[[], int]) -> int:
    """A descriptor of what is under way, made if it is not there, that no other process holds."""
    while True:
        held = _lock(open_it())
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), partial.stat()):
                return held
        os.close(held)  # who held it has put it into its place


def _lock(opened: int) -> int:
    """Wait until no other process holds a file, and hold it; it is closed where that fails."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
    except BaseException:
        os.close(opened)
        raise
    return opened


def _made(folder: Path) -> int:
    while True:
        with suppress(FileExistsError):
            folder.mkdir()
        with suppress(FileNotFoundError):  # who made it has put it into its place
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def sync(folder: Path) -> None:
    """Wait until every file of a folder is on the disk, from where a power cut takes none."""
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())


def _clear(folder: Path) -> None:
    for left in folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _exchange(one: Path, other: Path) -> None:
    """Put a folder in the place of another, which goes to the place of the first, or is removed.

    It is one step where the system can, else there is a moment in which neither is there.
    """
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
    shutil.rmtree(aside, ignore_errors=True)
