"""Works run with a fault, run again, and held to an undisturbed run.

Each try is a fork of this process, which runs nothing of its own: it has imported what a work
needs, so that a fork begins at once. Its folder has the same path each time.
"""

import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psycopg

from dtml.pages import charts
from tests.support.faults.files import watch_files
from tests.support.faults.points import Fault, Point, Watch
from tests.support.faults.sql import watch_drivers
from tests.support.faults.states import State, state_of

PATIENCE_S = 300.0  # a try that takes as long hangs


@dataclass(frozen=True)
class Work:
    """What is run: `step` is a command, in a process of its own, in a folder that `prepare` made.

    `sound` says what is wrong with a folder between a fault and the next try; `again` is said by a
    step that finds itself done. `warm` is run in this process, so that forks find its caches
    filled: it may train nothing, as torch does not let a fork train after that.
    """

    name: str
    prepare: Callable[[Path], object]
    step: Callable[[Path], object]
    sound: Callable[[Path], list[str]] = lambda _home: []
    again: str | None = None
    warm: Callable[[Path], object] = lambda _home: None
    engines: Sequence[str] = ("sqlite", "postgresql")


@dataclass(frozen=True)
class Attempt:
    """How a try ended: "done", "killed", or the error's words; its points,
    unless it was killed; what it imported.
    """

    ended: str
    points: Sequence[Point] = ()
    struck: bool = False
    modules: frozenset[str] = frozenset()
    unseen: Sequence[str] = ()


@dataclass
class Bench:
    """A place to try works in; `server` is the libpq address of a PostgreSQL, None for SQLite."""

    folder: Path
    server: str | None = None

    @property
    def home(self) -> Path:
        """The folder of every try."""
        return self.folder / "home"

    @property
    def engine(self) -> str:
        """The engine of the stores."""
        return "sqlite" if self.server is None else "postgresql"

    def prepare(self, work: Work) -> None:
        """Make what every try of a work starts from."""
        self._new_database("template1", "faults")
        for folder in (self.home, self._template):
            shutil.rmtree(folder, ignore_errors=True)
        self.home.mkdir(parents=True)
        ended = self.attempt(work.prepare).ended
        assert ended == "done", f"{work.name} cannot be prepared: {ended}"
        self.home.rename(self._template)
        self._new_database("faults", "faults_template")

    def renew(self) -> None:
        """Put the folder and the store back to where every try starts from."""
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self._template, self.home, symlinks=True)
        self._new_database("faults_template", "faults")

    def state(self) -> State:
        """What is there now."""
        return state_of(self.home, self._address("faults"))

    def attempt(self, step: Callable[[Path], object], fault: Fault | None = None) -> Attempt:
        """Run a step in a process of its own."""
        reads, writes = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reads)
            _child(self, step, fault, writes)
        os.close(writes)
        said = _read(reads, child)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            is_killed = os.WTERMSIG(status) == signal.SIGKILL and said is not None
            return Attempt(
                "killed" if is_killed else f"died of signal {os.WTERMSIG(status)}", struck=is_killed
            )
        return pickle.loads(said) if said else Attempt(f"ended with {status} and said nothing")

    @property
    def environment(self) -> dict[str, str]:
        """Of every try."""
        folders = {
            "DTML_DATA": self.home / "data",
            "DTML_REPORTS": self.home / "reports",
            "TMPDIR": self.home / "tmp",
        }
        # which torch makes when it is imported
        folders["TORCHINDUCTOR_CACHE_DIR"] = self.folder / "torch"
        return {name: str(folder) for name, folder in folders.items()} | {
            "DTML_DATABASE_URL": self.url
        }

    @property
    def url(self) -> str:
        """The store's, for the program."""
        address = self._address("faults")
        return f"sqlite:///{self.home}/data/dtml.sqlite" if address is None else address

    @property
    def _template(self) -> Path:
        return self.folder / "template"

    def _address(self, name: str) -> str | None:
        return None if self.server is None else self.server.replace("/postgres?", f"/{name}?")

    def _new_database(self, template: str, name: str) -> None:
        if self.server is None:
            return
        with psycopg.connect(self.server, autocommit=True) as conn:
            conn.execute(f"drop database if exists {name} with (force)")
            conn.execute(f"create database {name} template {template} strategy file_copy")


def _child(bench: Bench, step: Callable[[Path], object], fault: Fault | None, pipe: int) -> None:
    """Run a step, tell of it through a pipe, and be gone: nothing of this
    process may run on in the child.
    """
    said = Attempt("it did not end")
    try:
        _hushed()
        with standing_in(bench):
            said = _watched(bench, step, fault)
    finally:
        with suppress(OSError), os.fdopen(pipe, "wb") as stream:
            stream.write(pickle.dumps(said))
        os._exit(0)


def _watched(bench: Bench, step: Callable[[Path], object], fault: Fault | None) -> Attempt:
    watch, ended = Watch(bench.home, fault), "done"
    with watch_files(watch), watch_drivers(watch):
        try:
            step(bench.home)
        except Exception as error:  # noqa: BLE001 - whatever a fault brings about is a result
            ended = f"{type(error).__name__}: {error}"
        watch.end()
    return Attempt(ended, watch.points, watch.struck, frozenset(sys.modules), sorted(watch.unseen))


@contextmanager
def standing_in(bench: Bench) -> Iterator[None]:
    """Let this process be a command in the home, that draws no chart: what
    draws them does not survive a fork.
    """
    (bench.home / "tmp").mkdir(exist_ok=True)
    before = Path.cwd(), tempfile.tempdir
    os.chdir(bench.home)
    # told, or the first to ask would try it by a file there
    tempfile.tempdir = str(bench.home / "tmp")
    with (
        mock.patch.dict(os.environ, bench.environment),
        mock.patch.object(charts, "_drawn", return_value="<svg></svg>"),
    ):
        yield
    os.chdir(before[0])
    tempfile.tempdir = before[1]


def _hushed() -> None:
    """Let this process say nothing."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)


def _read(pipe: int, child: int) -> bytes | None:
    """All that a child says; None when it had to be ended."""
    blocks, deadline = [], time.monotonic() + PATIENCE_S
    with os.fdopen(pipe, "rb", 0) as stream:
        while select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not (block := stream.read(2**20)):
                return b"".join(blocks)
            blocks.append(block)
    os.kill(child, signal.SIGKILL)
    return None
