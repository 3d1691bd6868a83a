"""Run a user's own code in a process of its own, end all that it started, and limit what it writes.

It may write in its own empty folder, which no later process sees. Otherwise a feature could store
its values in a file when it sees all days, and return them when it should see only some of them.
Landlock (Linux 5.13) forbids a process and all its children to write elsewhere, but for what
libraries need (`NEEDED`), and asks for no privilege. Without Landlock, no file may grow at all.
"""

import ctypes
import errno
import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

# Landlock's system calls have these numbers on every architecture of Linux but Alpha.
CREATE_RULESET = 444
ADD_RULE = 445
RESTRICT_SELF = 446
GET_VERSION = 1  # a flag of CREATE_RULESET
BENEATH_PATH = 1  # a type of rule
SET_NO_NEW_PRIVILEGES = 38  # of prctl, which Landlock asks for
SET_CHILD_SUBREAPER = 36  # of prctl: orphans below this process become its children

# Rights of linux/landlock.h: the bits of all rights to change a file or a folder.
WRITE_FILE = 1 << 1
CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))  # remove and make whatever a folder holds
TRUNCATE = 1 << 14
TRUNCATE_SINCE = 3  # the first version of Landlock that knows it

# What the system answers to a write that is not allowed.
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EFBIG, errno.EROFS)

# Libraries discard output in one, and share memory between their processes in the other.
NEEDED = (Path("/dev/null"), Path("/dev/shm"))  # noqa: S108 - no file is made here


POLL_S = 0.002  # between two looks at a process

Answer = tuple[Mapping[str, Any], Mapping[str, np.ndarray]]


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _Rule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # the layout that `_pack_` meant before Python 3.14, which asks for its name
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def serve(do: Callable[[Path], None], prepare: Callable[[Path], None] | None = None) -> None:
    """Fork a process for each folder that standard input names, one on a line after its seconds.

    The process calls `do`, after this one has called `prepare`. It is killed after the seconds, or
    once standard input ends because the process that asked has ended; all that it started is then
    killed too, whatever its group or session, which only Linux can tell. A line is printed when it
    has ended: its exit status, or "late".
    """
    system = ctypes.CDLL(None)
    if hasattr(system, "prctl"):
        system.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        seconds, _, path = line.rstrip("\n").partition(" ")
        if prepare is not None:
            prepare(Path(path))
        gc.freeze()  # otherwise a collection in the child copies every page that holds an object
        child = os.fork()
        if child == 0:
            os.setsid()  # a group of its own, which is killed as a whole
            # What the code prints must not be read as the server's lines.
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(nowhere, stream)
            exit_status = 1
            try:
                do(Path(path))
                exit_status = 0
            finally:
                # Whatever is raised, the child ends here, with the threads that the code left.
                # Otherwise it would go on with the loop, which is the server's.
                os._exit(exit_status)
        print(_exit_status(child, float(seconds)), flush=True)  # noqa: T201


def _exit_status(child: int, seconds: float) -> int | str:
    """Wait for a child to end, kill what it leaves, and return its exit status or "late"."""
    deadline = time.monotonic() + seconds
    ended, status = os.waitpid(child, os.WNOHANG)
    is_alone = False
    while not (ended or is_alone or time.monotonic() > deadline):
        # Nothing more is asked before the answer: what can be read is the end of the input.
        is_alone = bool(select.select([sys.stdin], [], [], POLL_S)[0])
        ended, status = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
    # Killed parents leave their children to this process, until none is left.
    while children := [
        int(orphan)
        for file in Path("/proc/self/task").glob("*/children")
        for orphan in file.read_text().split()
    ]:
        for orphan in children:
            os.kill(orphan, signal.SIGKILL)
        os.wait()
    return os.waitstatus_to_exitcode(status) if ended else "late"


def described(error: Exception, name: str, own: type[Exception]) -> str:
    """Say what went wrong in a user's file, and where; an `own` error is said without its kind."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == name]
    place = f"{name}, line {lines[-1]}: " if lines else f"{name}: "
    kind = "" if isinstance(error, own) else f"{type(error).__name__}: "
    message = f"{place}{kind}{' '.join(str(error).split())}"
    if isinstance(error, OSError) and error.errno in FORBIDDEN:
        message += (
            " (own code may write only in its working folder, which is emptied, and no file where "
            "Linux's Landlock is missing; it may read only what your user may read)"
        )
    return message


def leave_answer(
    folder: Path, memory: int, answer: Callable[[], Answer], needed: Sequence[Path] = NEEDED
) -> None:
    """Compute an answer in this process under all limits, and leave it in a folder.

    `answer` returns a description, which must fit into JSON, and arrays: they are written to
    `answer.json` and `answer.npz`. It runs in the empty folder `empty` beside these, and may write
    only as `write_only_in` says. `memory`, in bytes, bounds its memory and the size of each file
    that it writes, for the rest of its life.
    """
    workplace = folder / "empty"
    workplace.mkdir()
    # Both files are opened first: `write_only_in` forbids opening any file outside `empty` for
    # writing, but not writing into one that is open.
    with (
        (folder / "answer.npz").open("wb") as answer_arrays,
        (folder / "answer.json").open("w") as answer_text,
    ):
        for limit in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
            resource.setrlimit(limit, (memory, memory))
        # A crash must not write the memory to a file: it may hold secrets of the environment.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        write_only_in(workplace, needed)
        description, arrays = answer()
        allow_writing()  # without Landlock, the answers could not be written either
        np.savez(answer_arrays, **cast(Any, arrays))
        answer_text.write(json.dumps(description))


def write_only_in(folder: Path, needed: Sequence[Path] = NEEDED) -> None:
    """Restrict this process for good to writing in one folder, which becomes its working folder.

    Temporary files go there too. Files that are open already, and `needed`, can still be written.
    Where the system has no Landlock, the folder does not matter: no file of the process can grow
    until `allow_writing` is called.
    """
    tempfile.tempdir = str(folder)
    os.environ["TMPDIR"] = str(folder)
    os.chdir(folder)
    if not _landlocked(folder, needed):
        _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        # The hard limit stays, as a lowered one could not be raised again.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard_limit))


def allow_writing() -> None:
    """Undo the ban on growing files that `write_only_in` sets where there is no Landlock.

    Files may then grow up to the hard limit of the process. Landlock's ban stays.
    """
    _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))


def _landlocked(folder: Path, needed: Sequence[Path] = NEEDED) -> bool:
    """Forbid all writing but in a folder and what is `needed`; return whether the system can.

    A Landlock before version `TRUNCATE_SINCE` cannot forbid cutting a file short. Where the system
    has Landlock, this process and its children can gain no privileges from then on, such as by
    sudo. Landlock is called through the C library, as Python has no function for it.
    """
    system = ctypes.CDLL(None, use_errno=True)
    if not hasattr(system, "prctl"):  # not Linux
        return False
    version = system.syscall(CREATE_RULESET, None, 0, GET_VERSION)
    if version < 1:  # -1 where the kernel has no Landlock, or it is switched off
        return False
    rights = WRITE_FILE | CHANGE_FOLDERS
    if version >= TRUNCATE_SINCE:
        rights |= TRUNCATE
    # The rights that a ruleset handles are denied everywhere except where a rule allows them. The
    # last argument of each of Landlock's calls is its flags, of which 0 sets none.
    handled = _Ruleset(handled_access_fs=rights)
    ruleset = system.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    if ruleset < 0:
        return False
    for path in (folder, *(path for path in needed if path.exists())):
        _allow(system, ruleset, path, rights)
    # Without this, Landlock refuses to restrict a process that has no privilege.
    system.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    is_restricted = system.syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return bool(is_restricted)


def _allow(system: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    """Allow these rights beneath a path; for a file, only those that apply to files."""
    descriptor = os.open(path, os.O_RDONLY)
    allowed = rights if path.is_dir() else rights & ~CHANGE_FOLDERS
    rule = _Rule(allowed_access=allowed, parent_fd=descriptor)
    system.syscall(ADD_RULE, ruleset, BENEATH_PATH, ctypes.byref(rule), 0)
    os.close(descriptor)
