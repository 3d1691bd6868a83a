"""Run a user's own code, a feature, a model or a feed, in a process of its own.

It has only named variables, and limits on time and memory: against mistakes, not attacks.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory

from dtml.errors import DtmlError
from dtml.own.confinement import Answer, Arrays, Question, packed, unpacked

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
    """How one kind of own code is run; its faults are raised as `error`.

    `limits` begins the names of the variables of its limits, such as DTML_CODE_SECONDS and
    DTML_CODE_GIGABYTES. With `stays`, a server waits for the next question, one a thread.
    """

    program: str
    limits: str
    seconds: str
    error: type[DtmlError]
    stays: bool = False
    idle: "list[Server]" = field(default_factory=list, compare=False)

    def ask(
        self, name: str, question: Question, arrays: Arrays, variables: Sequence[str] = ()
    ) -> Answer:
        """Let a fresh process answer a question, which must fit into JSON, about arrays.

        `name` is that of the code, in errors. The process has the environment variables named too.
        An answer with a `status` tells its error itself.
        """
        seconds = self.limit("SECONDS", self.seconds)
        memory = int(self.limit("GIGABYTES", GIGABYTES) * 2**30)
        server = self._server(variables)
        try:
            with TemporaryDirectory(prefix="dtml-own-", ignore_cleanup_errors=True) as folder:
                task = {**question, "name": name, "memory": memory, "folder": folder}
                server.control.settimeout(seconds)  # for the end of a process that gave no answer
                with server.fork(task) as process:
                    answer = self._answer(name, server, process, arrays, seconds)
                server.exit_status()
        except TimeoutError:
            server.end()
            raise self.error(
                f"{name} took more than {seconds:g} s: make it faster, or raise the environment "
                f"variable {self.limits}_SECONDS"
            ) from None
        except BaseException:  # the caller may have stopped asking
            server.end()
            raise
        if self.stays:
            self.idle.append(server)
        else:
            server.end()
        description, _ = answer
        if "error" in description and "status" not in description:
            message = description["error"]
            if "MemoryError" in message:
                message += f" (to allow more, raise {self._allowed})"
            raise self.error(message)
        return answer

    def _answer(
        self, name: str, server: "Server", process: Connection, arrays: Arrays, seconds: float
    ) -> Answer:
        try:
            process.recv_bytes()  # it is ready: its time begins after the imports of its server
            process.send_bytes(packed({}, arrays))
            if process.poll(seconds):
                return unpacked(process.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._ended(name, server.exit_status()) from error
        raise TimeoutError

    def _ended(self, name: str, exit_status: int | None) -> DtmlError:
        """Say why a process gave no answer, by its exit status; None where its server was killed.

        The exit status is minus the number of the signal that killed the process, if one did.
        """
        if exit_status is None:
            return self.error(f"the server of {name} was killed: run it again")
        if exit_status < 0:
            return self.error(
                f"the process of {name} was killed by {signal.Signals(-exit_status).name} before "
                "it answered, probably because memory ran out or a library crashed: use less "
                f"memory or raise {self._allowed}; if that does not help, look for the library "
                "call that crashes"
            )
        return self.error(
            f"the process of {name} ended with exit status {exit_status} before it answered: check "
            "that its code does not end the process, as sys.exit does, that the folder for "
            f"temporary files has free space, and that the answer fits into {self._allowed}"
        )

    @property
    def _allowed(self) -> str:
        gigabytes = self.limit("GIGABYTES", GIGABYTES)
        return f"the environment variable {self.limits}_GIGABYTES, now {gigabytes:g} GiB"

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

    def _server(self, variables: Sequence[str]) -> "Server":
        """Return a server that waits, or a new one."""
        with suppress(IndexError):  # none is idle: other threads take them too
            while True:
                server = self.idle.pop()
                if server.process.poll() is None:
                    return server
        return Server(self.program, variables)


class Server:
    """A process that runs a program of own code, such as `dtml.own.work`, ready to be asked.

    It forks a child for each question. Its environment has PASSED_ON_VARIABLES and `variables`.
    """

    def __init__(self, program: str, variables: Sequence[str] = ()) -> None:
        passed_on = {
            key: value
            for key, value in os.environ.items()
            # Those of coverage, so that a measurement of the tests includes this process.
            if key in (*PASSED_ON_VARIABLES, *variables) or key.startswith("COVERAGE_")
        }
        self.control, of_server = socket.socketpair()
        with of_server:
            self.process = Popen(  # noqa: S603 - our own program
                # With -P, no module is imported from the working folder.
                [sys.executable, "-P", "-m", program, str(of_server.fileno())],
                env={**FIXED_VARIABLES, **passed_on},
                pass_fds=[of_server.fileno()],
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,  # Ctrl-C does not reach it
            )

    def fork(self, question: Question) -> Connection:
        """Start a process for a question, and return the connection to it; closed, it ends."""
        connection, of_process = Pipe()
        with of_process, suppress(OSError):  # a server that was killed shows when it is asked
            socket.send_fds(self.control, [b"\0"], [of_process.fileno()])
            connection.send_bytes(json.dumps(question).encode())
        return connection

    def exit_status(self) -> int | None:
        """Wait for the process of a question to end; None where the server itself was killed.

        Raises TimeoutError for a process that goes on for longer than the limit on `control`.
        """
        try:
            return int(self.control.recv(99))
        except TimeoutError:
            raise
        except (OSError, ValueError):  # of no answer
            return None

    def end(self) -> None:
        """End the server, and with it the process of its question."""
        self.control.close()
        self.process.wait()
