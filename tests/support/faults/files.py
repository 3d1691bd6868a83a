"""What a process writes into files below a folder, as points of `faults`; no
product code writes past Python.
"""

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.support.faults.points import Effect, Watch

MOVES = ("replace", "rename", "link", "symlink")
SINGLE = {
    "mkdir": "mkdir",
    "unlink": "unlink",
    "remove": "unlink",
    "rmdir": "rmdir",
    "truncate": "truncate",
}
REAL: dict[str, Callable[..., Any]] = {
    name: getattr(os, name) for name in ("write", "open", "fsync", "sendfile", *MOVES, *SINGLE)
} | {"opened": io.open}


class Raw(io.FileIO):
    """A file whose writes are points."""

    watch: Watch
    path: str

    def write(self, data: Any) -> int:
        block = memoryview(data).cast("B")
        self.watch.wrote(self.path)
        act, half = (
            lambda: super(Raw, self).write(block),
            lambda: super(Raw, self).write(block[: len(block) // 2]),
        )
        return int(self.watch.reach("write", self.path, Effect(act, half)))


def _open(watch: Watch) -> Callable[..., Any]:
    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        path = watch.of(file) if set(mode) & set("wxa+") else None
        if path is None:
            return REAL["opened"](file, mode, buffering, encoding, errors, newline, closefd, opener)
        kind = "".join(each for each in mode if each in "rwxa+")
        raw = watch.reach("open", path, Effect(lambda: Raw(file, kind, closefd, opener)))
        raw.watch, raw.path = watch, path
        watch.wrote(path)
        if buffering == 0:
            return raw
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)

    return opened


def _low_open(watch: Watch) -> Callable[..., int]:
    def opened(file: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        path = watch.of(file, dir_fd)
        act = lambda: REAL["open"](file, flags, mode, dir_fd=dir_fd)  # noqa: E731
        if path is None or not flags & os.O_CREAT or os.path.exists(path):  # noqa: PTH110
            return int(act())
        watch.wrote(path)
        return int(watch.reach("open", path, Effect(act)))

    return opened


def _low_write(watch: Watch) -> Callable[..., int]:
    def write(fd: int, data: Any) -> int:
        if (path := watch.of(fd)) is None:
            return int(REAL["write"](fd, data))
        watch.wrote(path)
        half = lambda: REAL["write"](fd, data[: len(data) // 2])  # noqa: E731
        return int(watch.reach("write", path, Effect(lambda: REAL["write"](fd, data), half)))

    return write


def _sendfile(watch: Watch) -> Callable[..., int]:
    def sendfile(out: int, source: int, offset: int, count: int) -> int:
        path, left = watch.of(out), os.fstat(source).st_size - offset
        if path is None or left <= 0:
            return int(REAL["sendfile"](out, source, offset, count))
        watch.wrote(path)
        half = lambda: REAL["sendfile"](out, source, offset, left // 2)  # noqa: E731
        return int(
            watch.reach(
                "write", path, Effect(lambda: REAL["sendfile"](out, source, offset, count), half)
            )
        )

    return sendfile


def _fsync(watch: Watch) -> Callable[[Any], None]:
    def fsync(fd: Any) -> None:
        path = watch.of(fd if isinstance(fd, int) else fd.fileno())
        if path is not None:
            watch.reach("sync", path, Effect(lambda: REAL["fsync"](fd)))
            watch.unsynced.discard(path)

    return fsync


def _single(watch: Watch, kind: str, name: str) -> Callable[..., Any]:
    def direction(path: Any, *rest: Any, dir_fd: int | None = None, **named: Any) -> Any:
        found = watch.of(path, dir_fd)
        more = named if dir_fd is None else named | {"dir_fd": dir_fd}
        act = lambda: REAL[name](path, *rest, **more)  # noqa: E731
        if found is None or os.path.lexists(found) == (kind == "mkdir"):
            return act()  # nothing is changed by it
        return watch.reach(kind, found, Effect(act))

    return direction


def _change(watch: Watch, name: str) -> Callable[..., Any]:
    def direction(source: Any, target: Any, **named: Any) -> Any:
        ours, to = watch.of(source), watch.of(target)
        if to is None:
            return REAL[name](source, target, **named)
        done = watch.reach("rename", to, Effect(lambda: REAL[name](source, target, **named)))
        watch.moved(str(ours), to)
        return done

    return direction


@contextmanager
def watch_files(watch: Watch) -> Iterator[None]:
    """Let every write, rename and removal be a point, until the end of the block."""
    named: dict[str, Callable[..., Any]] = {"open": _low_open(watch), "write": _low_write(watch)}
    named |= {"sendfile": _sendfile(watch), "fsync": _fsync(watch)}
    named |= {name: _single(watch, kind, name) for name, kind in SINGLE.items()}
    named |= {name: _change(watch, name) for name in MOVES}
    hooks = [(os, name, hook) for name, hook in named.items()]
    hooks += [(module, "open", _open(watch)) for module in (builtins, io)]
    with ExitStack() as stack:
        for owner, name, hook in hooks:
            stack.enter_context(mock.patch.object(owner, name, hook))
        yield
