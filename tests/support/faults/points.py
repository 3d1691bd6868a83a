"""Every write, commit and rename of a process below a folder, numbered, and a fault at one of them.

    watch = Watch(home, Fault("kill", 7)) with watch_files(watch), watch_drivers(watch):
        work()
    watch.end()

`fault_files` watches files, `fault_sql` stores. A process meets its fault before the effect of its
point: what it finds after an effect is what it finds before the next one, and after the last there
is a point of its own, `end`.
"""

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal[
    "kill",
    "power cut",
    "short write",
    "kill in a write",
    "no space",
    "I/O error",
    "lost",
    "lost after",
]

FILE = {"open", "write", "mkdir", "rename", "unlink", "rmdir", "sync", "truncate"}
SQL = {"statement", "commit"}
APPLIES: dict[Kind, set[str]] = {
    "kill": FILE | SQL | {"end"},
    "power cut": FILE | SQL | {"end"},  # where a file that was not synced is lost
    "short write": {"write"},  # half of it, then no space
    "kill in a write": {"write"},  # half of it, then dead
    "no space": {"open", "write", "mkdir", "rename", "statement", "commit"},  # from there on
    "I/O error": FILE | SQL,  # once
    "lost": SQL,  # the connection to PostgreSQL, before the effect
    "lost after": {"commit"},  # the same, after it: nobody is told that it was committed
}
POSTGRESQL_ALONE = {"lost", "lost after"}
GROWING = APPLIES["no space"]
TRUNCATE = os.truncate  # before it is watched


@dataclass(frozen=True)
class Fault:
    """What goes wrong at which point, the first being 1."""

    kind: Kind
    point: int

    def __str__(self) -> str:
        return f"{self.kind} at {self.point}"


@dataclass(frozen=True)
class Point:
    """An effect: its kind, what of, and whether a power cut before it would
    lose something that a kill would not.
    """

    kind: str
    what: str
    unsynced: bool

    def suffers(self, kind: Kind) -> bool:
        """Whether such a fault can happen here."""
        return self.kind in APPLIES[kind] and (kind != "power cut" or self.unsynced)


@dataclass(frozen=True)
class Effect:
    """How to do something, half of it, and what it raises on a full and on a broken disk."""

    act: Callable[[], Any]
    half: Callable[[], object] = lambda: None
    error: Callable[[int], Exception] = lambda number: OSError(number, os.strerror(number))
    lose: Callable[[], object] = lambda: None


def die() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)
    while True:  # another thread may be the one that the signal finds
        time.sleep(1)


class Watch:
    """Counts the points of a process, and does its fault."""

    def __init__(self, home: Path, fault: Fault | None) -> None:
        self.home, self.fault = f"{home}{os.sep}", fault
        self.points: list[Point] = []
        self.unsynced: set[str] = set()
        self.seen: set[str] = set()
        self.unseen: set[str] = set()  # whose writes passed this watch by
        self.before = set(_files(home))
        self.struck = self.full = False
        self.lock = threading.RLock()

    def reach(self, kind: str, what: str, effect: Effect) -> Any:
        """Count a point and let its effect happen, or the fault."""
        with self.lock:
            said = re.sub(rf"\b{os.getpid()}\b", "PID", what.removeprefix(self.home))
            self.points.append(Point(kind, said, bool(self._lost_by_power())))
            if self.full and kind in GROWING:
                raise effect.error(errno.ENOSPC)
            if self._is_due():
                self.struck = True
                self._strike(self.fault.kind, effect)
            return effect.act()

    def _is_due(self) -> bool:
        """Whether the fault is to be here: at its point, or at the next one
        that can have such a fault.
        """
        if self.fault is None or self.struck or len(self.points) < self.fault.point:
            return False
        return self.points[-1].suffers(self.fault.kind)

    def end(self) -> None:
        """Count the point after the last effect."""
        self.unseen |= {
            file for file in _files(Path(self.home)) if file not in self.seen | self.before
        }
        self.reach("end", "", Effect(lambda: None))

    def _strike(self, kind: Kind, effect: Effect) -> None:
        if kind == "power cut":
            for file in self._lost_by_power():
                TRUNCATE(file, 0)
        if kind in ("kill in a write", "short write"):
            effect.half()
        if kind in ("kill", "power cut", "kill in a write"):
            die()
        if kind in ("no space", "short write"):
            self.full = True
            raise effect.error(errno.ENOSPC)
        if kind == "I/O error":
            raise effect.error(errno.EIO)
        if kind == "lost after":
            effect.act()
        effect.lose()

    def _lost_by_power(self) -> list[str]:
        return [file for file in self.unsynced if Path(file).is_file()]

    def of(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The absolute path of a file below the home, None of any other."""
        if isinstance(path, int):
            found = str(Path(f"/proc/self/fd/{path}").readlink())
        else:
            folder = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")  # noqa: PTH109, PTH115
            found = os.path.normpath(os.path.join(folder, os.fsdecode(path)))  # noqa: PTH118
        return found if found.startswith(self.home) else None

    def wrote(self, path: str) -> None:
        """Note that what a file holds is not on the disk yet."""
        self.unsynced.add(path)
        self.seen.add(path)

    def moved(self, source: str, target: str) -> None:
        """Let what is known of a file, or of those in a folder, go with its name."""
        if os.path.isfile(target) and source not in self.seen | self.before:  # noqa: PTH113
            self.unseen.add(source)
        for known in (self.unsynced, self.seen):
            for each in [
                each for each in known if each == source or each.startswith(f"{source}{os.sep}")
            ]:
                known.add(target + each.removeprefix(source))
        self.unsynced = {each for each in self.unsynced if os.path.exists(each)}  # noqa: PTH110


def _files(home: Path) -> list[str]:
    """The files of a folder, without those that a store's own engine writes."""
    return [str(file) for file in home.rglob("*") if file.is_file() and ".sqlite" not in file.name]
