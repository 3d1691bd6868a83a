"""Run a user's own code, a feature, a model or a feed, in a process of its own.

That process has no variable of this one but those named, and limits on time and memory. This
protects the night from mistakes, but not from attacks: it may read whatever its user may read.
"""

import errno
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy import ndarray

from dtml.errors import DtmlError

POLL_S = 0.002  # between two tries
GIGABYTES = "4"  # of memory, for each question
PASSED_ON_VARIABLES = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR")
# So that results are the same to the last bit every time.
FIXED_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


@dataclass(frozen=True)
class Sandbox:
    """Hold how one kind of own code is run.

    `limits` begins the names of the environment variables that change its limits, such as
    DTML_CODE_SECONDS and DTML_CODE_GIGABYTES; `seconds` is its usual time for a question. Its
    faults are raised as `error`. With `stays`, a server that has answered waits for the next
    question; threads that ask at the same time use one each.
    """

    program: str
    limits: str
    seconds: str
    error: type[DtmlError]
    stays: bool = False
    idle: "list[Server]" = field(default_factory=list, compare=False)

    def ask(
        self,
        name: str,
        question: Mapping[str, Any],
        arrays: Mapping[str, ndarray],
        variables: Sequence[str] = (),
    ) -> tuple[Mapping[str, Any], dict[str, ndarray]]:
        """Let a fresh process answer a question, which must fit into JSON, and return its answer.

        `name` is that of the code, in errors. The process has the environment variables named too.
        """
        seconds = self.limit("SECONDS", self.seconds)
        with self._task(name, question) as folder:
            np.savez(folder / "task.npz", **cast(Any, arrays))
            server = self._server(variables)
            exit_status = self._ending(name, lambda: server.run(folder, seconds))
            if self.stays:
                self.idle.append(server)
            else:
                server.end()
            if exit_status is None:
                raise self._late(name, seconds)
            return self._answer(folder, exit_status, name)

    def converse(
        self, name: str, question: Mapping[str, Any], messages: Iterable[Mapping[str, ndarray]]
    ) -> Iterator[dict[str, ndarray]]:
        """Yield the answers of one fresh process to messages, each of which follows an answer.

        So the process answers a message before it is given a later one.
        """
        seconds = self.limit("SECONDS", self.seconds)
        with self._task(name, question) as folder, ThreadPoolExecutor(1) as thread:
            for pipe in PIPES:
                os.mkfifo(folder / pipe)
            server = self._server()
            ending = thread.submit(server.run, folder, float("inf"))
            # The process opens its answers first, and its messages wait for that.
            answers = os.open(folder / ANSWERS, os.O_RDONLY | os.O_NONBLOCK)
            sent = _opened(folder / MESSAGES, ending)
            try:
                try:
                    with suppress(BrokenPipeError):  # the process has ended: its answer says why
                        for message in messages:
                            send(sent, message, seconds)
                            answer = receive(answers, seconds)
                            if answer is None:
                                break
                            yield answer
                finally:
                    os.close(sent)
                    os.close(answers)
                exit_status = self._ending(name, ending.result)
            except TimeoutError as error:
                server.end()  # and with it the process, which does not end by itself
                raise self._late(name, seconds) from error
            except BaseException:  # the caller may have stopped asking
                server.end()
                raise
            self.idle.append(server)
            self._answer(folder, cast(int, exit_status), name)

    def limit(self, name: str, default: str) -> float:
        """Return a limit from its variable; raise `error` if that is no finite number above 0."""
        variable = f"{self.limits}_{name}"
        value = os.environ.get(variable, default)
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if not 0 < limit < float("inf"):
            raise self.error(
                f"{variable}={value}: set this variable to a finite number above 0, or unset it"
            )
        return limit

    def warm(self) -> None:
        """Start a server now, so that its imports are done before the first question."""
        if not self.idle:
            self.idle.append(Server(self.program))

    @contextmanager
    def _task(self, name: str, question: Mapping[str, Any]) -> Iterator[Path]:
        """Yield a folder with a task, which is then removed."""
        task = {**question, "name": name, "memory": int(self._gigabytes * 2**30)}
        with TemporaryDirectory(prefix="dtml-own-", ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            (folder / "task.json").write_text(json.dumps(task))
            yield folder

    @property
    def _gigabytes(self) -> float:
        return self.limit("GIGABYTES", GIGABYTES)

    def _server(self, variables: Sequence[str] = ()) -> "Server":
        """Return a server that waits, or a new one."""
        while self.idle:
            server = self.idle.pop()
            if server.process.poll() is None:
                return server
        return Server(self.program, variables)

    def _ending(self, name: str, ended: Callable[[], int | None]) -> int | None:
        """Return the exit status of a process; raise `error` where its server was killed."""
        try:
            return ended()
        except (OSError, ValueError) as error:
            raise self.error(f"the server of {name} was killed: run it again") from error

    def _late(self, name: str, seconds: float) -> DtmlError:
        return self.error(
            f"{name} took more than {seconds:g} s: make it faster, or raise the environment "
            f"variable {self.limits}_SECONDS"
        )

    def _answer(
        self, folder: Path, exit_status: int, name: str
    ) -> tuple[Mapping[str, Any], dict[str, ndarray]]:
        """Read the answer that a process left in a folder.

        The exit status is minus the number of the signal that killed the process, if one did. An
        answer with a `status` tells its error itself.
        """
        gigabytes = self._gigabytes
        allowed = f"the environment variable {self.limits}_GIGABYTES, now {gigabytes:g}"
        file = folder / "answer.json"
        text = file.read_text() if file.exists() else ""
        if exit_status < 0:
            killer = signal.Signals(-exit_status).name
            raise self.error(
                f"the process of {name} was killed by {killer} before it answered, probably "
                f"because memory ran out or a library crashed: use less memory or raise {allowed}; "
                "if that does not help, look for the library call that crashes"
            )
        if exit_status or not text:
            raise self.error(
                f"the process of {name} ended with exit status {exit_status} before it answered: "
                "check that its code does not end the process, as sys.exit does, that the folder "
                f"for temporary files has free space, and that the answer fits into {allowed} GiB"
            )
        answer = json.loads(text)
        if "error" in answer and "status" not in answer:
            error = answer["error"]
            if "MemoryError" in error:
                error += (
                    f" (it may use {gigabytes:g} GiB: raise the environment variable "
                    f"{self.limits}_GIGABYTES to allow more)"
                )
            raise self.error(error)
        return answer, dict(np.load(folder / "answer.npz"))


MESSAGES, ANSWERS = PIPES = ("messages", "answers")
SIZE = 8  # bytes that say how many follow
CHUNK = 1 << 16  # bytes that a pipe takes at once


def send(pipe: int, arrays: Mapping[str, ndarray], seconds: float | None = None) -> None:
    """Send arrays; raise TimeoutError where they are not taken in so many seconds (None: ever)."""
    content = BytesIO()
    np.savez(content, **cast(Any, arrays))
    left = memoryview(content.tell().to_bytes(SIZE) + content.getvalue())
    deadline = None if seconds is None else time.monotonic() + seconds
    while left:
        _wait(deadline, writes=[pipe])
        left = left[os.write(pipe, left[:CHUNK]) :]


def receive(pipe: int, seconds: float | None = None) -> dict[str, ndarray] | None:
    """Return the arrays that `send` sent, or None at the end; raise TimeoutError as it does."""
    deadline = None if seconds is None else time.monotonic() + seconds
    size = int.from_bytes(_read(pipe, SIZE, deadline))
    content = _read(pipe, size, deadline)
    return dict(np.load(BytesIO(content))) if content and len(content) == size else None


def _read(pipe: int, size: int, deadline: float | None) -> bytes:
    content = b""
    while len(content) < size:
        _wait(deadline, reads=[pipe])
        part = os.read(pipe, size - len(content))
        if not part:
            break
        content += part
    return content


def _wait(deadline: float | None, reads: Sequence[int] = (), writes: Sequence[int] = ()) -> None:
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    if not any(select.select(reads, writes, [], left)):
        raise TimeoutError


def _opened(pipe: Path, ending: "Future[int | None]") -> int:
    """Open a pipe for writing once it is read; where its reader has ended, open nothing."""
    while not ending.done():
        try:
            opened = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            time.sleep(POLL_S)
        else:
            return opened
    return os.open(os.devnull, os.O_WRONLY)


class Server:
    """A process that runs a program of own code, such as `dtml.own.work`, ready to be asked.

    It forks a child for each question (`dtml.own.confinement.serve`). Its environment has
    PASSED_ON_VARIABLES and the `variables` named.
    """

    def __init__(self, program: str, variables: Sequence[str] = ()) -> None:
        passed_on = {
            key: value
            for key, value in os.environ.items()
            # Those of coverage, so that a measurement of the tests includes this process.
            if key in (*PASSED_ON_VARIABLES, *variables) or key.startswith("COVERAGE_")
        }
        self.process = Popen(  # noqa: S603 - our own program
            # With -P, no module is imported from the working folder.
            [sys.executable, "-P", "-m", program],
            env={**FIXED_VARIABLES, **passed_on},
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,  # Ctrl-C does not reach it
        )

    def run(self, folder: Path, seconds: float) -> int | None:
        """Do the task of a folder; return the exit status of its process, None where it was late.

        Raises OSError or ValueError where the server itself was killed.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{seconds} ".encode() + os.fsencode(folder) + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        return None if answer == b"late" else int(answer)

    def end(self) -> None:
        """End the server."""
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
