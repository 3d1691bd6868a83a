"""Run a user's own code, a feature, a model or a feed, in a process of its own.

That process has no variable of this one but those named, and limits on time and memory. This
protects the night from mistakes, but not from attacks: it may read whatever its user may read.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy import ndarray

from dtml.errors import DtmlError

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
        gigabytes = self.limit("GIGABYTES", GIGABYTES)
        task = {**question, "name": name, "memory": int(gigabytes * 2**30)}
        with TemporaryDirectory(prefix="dtml-own-", ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            (folder / "task.json").write_text(json.dumps(task))
            np.savez(folder / "task.npz", **cast(Any, arrays))
            exit_status = self._run(folder, seconds, variables)
            if exit_status is None:
                raise self.error(
                    f"{name} took more than {seconds:g} s: make it faster, or raise the "
                    f"environment variable {self.limits}_SECONDS"
                )
            return self._answer(folder, exit_status, name, gigabytes)

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

    def _run(self, folder: Path, seconds: float, variables: Sequence[str]) -> int | None:
        """Return the exit status of the process that did a task; None where it was late."""
        server = self.idle.pop() if self.idle else Server(self.program, variables)
        try:
            exit_status = server.run(folder, seconds)
        except (OSError, ValueError):
            # The server was killed since its last question: the pipe to it is broken, or an empty
            # line is read where an exit status should be. A new server does the task.
            server = Server(self.program, variables)
            exit_status = server.run(folder, seconds)
        if self.stays:
            self.idle.append(server)
        else:
            server.end()
        return exit_status

    def _answer(
        self, folder: Path, exit_status: int, name: str, gigabytes: float
    ) -> tuple[Mapping[str, Any], dict[str, ndarray]]:
        """Read the answer that a process left in a folder.

        The exit status is minus the number of the signal that killed the process, if one did. An
        answer with a `status` tells its error itself.
        """
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
