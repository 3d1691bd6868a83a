"""Run a user's own code in a process of its own, end all that it started, and limit what it writes.

It may write in its own empty folder, which no later process sees. Otherwise a feature could store
its values in a file when it sees all days, and return them when it should see only some of them.
Landlock (Linux 5.13) forbids a process and all its children to write elsewhere, but for what
libraries need, and asks for no privilege. Without Landlock, no file may grow at all.
"""

import ctypes
import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy import ndarray

from dtml.errors import one_line

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

NOWHERE = Path("/dev/null")  # where libraries discard output
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - no file is made here

POLL_S = 0.002  # between two looks at a process
LONGEST = 500  # characters of an error

Question = Mapping[str, Any]
Description = Mapping[str, Any]
Arrays = dict[str, ndarray]
Answer = tuple[Description, Arrays]


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _Rule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # the layout that `_pack_` meant before Python 3.14, which asks for its name
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def packed(description: Description, arrays: Arrays) -> bytes:
    """Return a description, which must fit into JSON, and arrays as one message."""
    content = BytesIO()
    np.savez(content, description=json.dumps(description), **cast(Any, arrays))
    return content.getvalue()


def unpacked(message: bytes) -> Answer:
    """Return what `packed` was given; nothing in a message is run."""
    arrays = dict(np.load(BytesIO(message)))
    return json.loads(str(arrays.pop("description"))), arrays


def serve(
    answer: Callable[[Question, Arrays], Answer],
    failed: Callable[[Exception, Question], Description],
    prepare: Callable[[Question], None] = lambda _: None,
) -> None:
    """Fork a process for each question of the `dtml.own.sandbox.Server` that started this program.

    The question comes through a connection of its own, which the process gets, after this one has
    called `prepare`. The arrays come to that process alone: what is sent of a session stays in no
    other. Where `answer` fails, the answer is what `failed` says. Once the process has ended, or
    the other side is closed, all that it started is killed, whatever its group or session, which
    only Linux can tell; its exit status goes to the other side.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    system = ctypes.CDLL(None)
    if hasattr(system, "prctl"):
        system.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        with Connection(descriptors[0]) as connection:
            question = json.loads(connection.recv_bytes())
            prepare(question)
            gc.freeze()  # otherwise a collection in the child copies every page that holds objects
            child = os.fork()
            if child == 0:
                control.close()
                os.setsid()  # a group of its own, which is killed as a whole
                exit_status = 1
                try:
                    confine(question)
                    connection.send_bytes(b"ready")
                    _, arrays = unpacked(connection.recv_bytes())
                    try:
                        message = packed(*answer(question, arrays))
                    except Exception as error:  # noqa: BLE001 - whatever a user's code raises is reported
                        message = packed(failed(error, question), {})
                    connection.send_bytes(message)
                    exit_status = 0
                finally:
                    # Whatever is raised, the child ends here, with the threads that the code left.
                    # Otherwise it would go on with the loop, which is the server's.
                    os._exit(exit_status)
        control.send(str(_exit_status(child, control)).encode())


def _exit_status(child: int, control: socket.socket) -> int:
    """Wait for a child to end or `control` to be closed, kill what is left, return the status."""
    ended, status = os.waitpid(child, os.WNOHANG)
    is_alone = False
    while not (ended or is_alone):
        # Nothing more is asked before the answer: what can be read is the end.
        is_alone = bool(select.select([control], [], [], POLL_S)[0])
        ended, status = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(child, 0)
    # Killed parents leave their children to this process, until none is left.
    while children := [
        int(orphan)
        for file in Path("/proc/self/task").glob("*/children")
        for orphan in file.read_text().split()
    ]:
        for orphan in children:
            os.kill(orphan, signal.SIGKILL)
        os.wait()
    return os.waitstatus_to_exitcode(status)


def described(error: Exception, name: str, own: type[Exception]) -> str:
    """Say what went wrong in a user's file, and where; an `own` error is said without its kind."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == name]
    place = f"{name}, line {lines[-1]}: " if lines else f"{name}: "
    kind = "" if isinstance(error, own) else f"{type(error).__name__}: "
    message = f"{place}{kind}{one_line(error)}"
    if isinstance(error, OSError) and error.errno in FORBIDDEN:
        message += (
            " (own code may write only in its working folder, which is emptied, and no file where "
            "Linux's Landlock is missing; it may read only what your user may read)"
        )
    return message


def confine(question: Question) -> None:
    """Set all limits of a question for the rest of this process's life.

    `memory`, in bytes, bounds its memory and the size of each file that it writes. It may write as
    `write_only_in` says, in the empty `folder`, and in memory that it shares with its own
    processes, as libraries do, unless `shares_memory` is false.
    """
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (question["memory"], question["memory"]))
    # A crash must not write the memory to a file: it may hold secrets of the environment.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    shared = [SHARED_MEMORY] if question.get("shares_memory", True) else []
    write_only_in(Path(question["folder"]), *shared)


def write_only_in(folder: Path, *needed: Path) -> None:
    """Restrict this process for good to writing in one folder, which becomes its working folder.

    Temporary files go there too. Files that are open already, `NOWHERE` and what else is `needed`
    can still be written. Where the system has no Landlock, the folder does not matter: no file of
    the process can grow.
    """
    tempfile.tempdir = str(folder)
    os.environ["TMPDIR"] = str(folder)
    os.chdir(folder)
    if not _landlocked(folder, NOWHERE, *needed):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _landlocked(*writable: Path) -> bool:
    """Forbid all writing but beneath these paths; return whether the system can.

    Landlock before `TRUNCATE_SINCE` cannot forbid cutting files. No process gains privileges
    afterwards. It is called through the C library.
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
    for path in filter(Path.exists, writable):
        descriptor = os.open(path, os.O_RDONLY)
        # For a file, only those that apply to files.
        allowed = rights if path.is_dir() else rights & ~CHANGE_FOLDERS
        rule = _Rule(allowed_access=allowed, parent_fd=descriptor)
        system.syscall(ADD_RULE, ruleset, BENEATH_PATH, ctypes.byref(rule), 0)
        os.close(descriptor)
    # Without this, Landlock refuses to restrict a process that has no privilege.
    system.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    is_restricted = system.syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return bool(is_restricted)
