"""Write files and folders atomically: readers see the old one or the new one, never a part."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Write `file` atomically, even with several writers or a power cut.

    `write` fills a temporary file beside it, which then replaces `file`, even a symbolic link;
    other writers wait. If `write` raises, `file` stays. Folders above are made.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")

    def open_partial() -> int:
        return os.open(partial, os.O_WRONLY | os.O_CREAT, 0o666)

    descriptor = _open_locked(partial, open_partial)
    try:
        write(partial)
        os.fsync(descriptor)  # what `write` has written, before it replaces `file`
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def write_folder_whole(folder: Path, fill: Callable[[Path], object]) -> None:
    """Write `folder` atomically, as `write_whole` does a file.

    `fill` gets an empty folder beside it, .NAME.partial. If `folder` has files, OSError is raised,
    after `fill`. A symbolic link stays.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")

    def open_partial() -> int:
        while True:
            with suppress(FileExistsError):
                partial.mkdir()
            with suppress(FileNotFoundError):  # another writer has renamed it into place
                return os.open(partial, os.O_RDONLY | os.O_DIRECTORY)

    descriptor = _open_locked(partial, open_partial)
    try:
        for path in partial.iterdir():  # a writer that was killed may have left files there
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        fill(partial)
        sync(partial)
        partial.replace(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _open_locked(partial: Path, open_partial: Callable[[], int]) -> int:
    """Return a descriptor of `partial`, opened by `open_partial`, once it is locked."""
    while True:
        descriptor = _lock(open_partial())
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), partial.stat()):
                return descriptor
        # The previous holder of the lock has renamed what was locked, so it is no longer at this
        # path: open the path again.
        os.close(descriptor)


def _lock(descriptor: int) -> int:
    """Lock a descriptor once no other process holds it, and return it; close it if that fails."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sha256(file: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(folder: Path) -> None:
    """Flush every file of a folder to the disk, so that a power cut loses none."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
