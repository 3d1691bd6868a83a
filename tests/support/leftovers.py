"""What a test run leaves behind: processes that it started, temporary files,
and files in the repository.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.places import ROOT
from tests.support.run_folder import RUN_FOLDER

RUN = "TESTS_OF_RUN"  # in the environment of every process that descends from a test run
CALM_S = 10.0  # what was told to end may take so long
TEMPORARY = RUN_FOLDER / "t"  # a short name: paths of sockets have about 100 characters
CACHES = {
    ".pytest_cache",
    ".hypothesis",
    ".ruff_cache",
    ".mypy_cache",
    ".import_linter_cache",
    ".venv",
    "__pycache__",
}
# Of the PostgreSQL wheel, Dask and torch, which remove none; of multiprocessing and torchrun where
# a test kills them.
KEPT_BY_OTHERS = (".lockfile", "dask-scratch-space", "torchinductor_", "pymp-", "torchelastic_")
before: set[str] = set()


def begin_run() -> None:
    """Let every process of this run be known, and write its temporary files
    where no other program does.
    """
    os.environ[RUN] = str(os.getpid())
    # where `tmp_path` lies, and may stay
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    RUN_FOLDER.mkdir(mode=0o711, exist_ok=True)  # PostgreSQL, another user, passes through
    TEMPORARY.mkdir(mode=0o1777, exist_ok=True)
    os.environ["TMPDIR"] = str(TEMPORARY)
    tempfile.tempdir = None
    before.update(_in_the_repository())


def left_behind() -> list[str]:
    """Return what is still there when all tests of the run have ended."""
    deadline = time.monotonic() + CALM_S
    while (processes := list(processes_of(os.getpid()))) and time.monotonic() < deadline:
        time.sleep(0.2)
    files = [
        f"temporary file {entry.name}"
        for entry in sorted(TEMPORARY.iterdir())
        if not entry.name.startswith(KEPT_BY_OTHERS)
    ]
    written = [f"{name} in the repository" for name in sorted(_in_the_repository() - before)]
    return processes + files + written


def processes_of(run: int) -> Iterator[str]:
    """Yield the processes that a run left, each with its command; a socket that is open belongs to
    one.

    Children of the first process are not left while it lives: they end with it.
    """
    mine = f"{RUN}={run}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if int(folder.name) == run or parent == run:
                continue
            if mine in (folder / "environ").read_bytes().split(b"\0"):
                command = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                yield f"process {folder.name}: {command.strip()[:200]}"
        except OSError:  # it has ended, or is another user's
            continue


def _in_the_repository() -> set[str]:
    return {entry.name for entry in ROOT.iterdir()} - CACHES
