"""A user's own code, which runs in a separate process.

That process has no variable of this one, and limits on time and memory. This protects the night
from mistakes, but not from attacks: the process may read whatever its user may read.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from dtml.errors import DtmlError
from dtml.own.code import PRICES, Arrays, OwnCode, OwnCodeError, cut, ranks_of
from dtml.ranking.panel import Features, Grid, Panel, There

# What the code says of itself: its `features`, a list of names; its `history`, the number of
# sessions that a feature may read; and `model`, whether it has one of its own.
Description = Mapping[str, Any]
# Limits per question; the environment variables DTML_CODE_SECONDS and DTML_CODE_GIGABYTES change
# them.
SECONDS = "600"
GIGABYTES = "4"
PASSED_ON_VARIABLES = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR")
# So that results are the same to the last bit every time.
FIXED_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


@dataclass(frozen=True)
class Fitted:
    """A fitted model of a user's code: the code, its description, and the arrays that it learnt.

    The names of the arrays begin with `own.`, as they are stored beside those of other rankers.
    """

    code: OwnCode
    description: Description
    arrays: Arrays


@dataclass(frozen=True)
class IsolatedCode:
    """A user's code that runs apart: each method asks a new process, and returns its answer.

    Every method raises an OwnCodeError that says why the code failed.
    """

    code: OwnCode

    def values(
        self, panel: Panel, days: Sequence[int] | None = None
    ) -> tuple[Description, Features]:
        """Return the description of the code, and its features: [days stocks features].

        `days` are positions in the panel, all of which features may read; None stands for all days.
        """
        rows = None if days is None else list(days)
        description, arrays = self._ask("values", panel, days=rows)
        return description, arrays["values"]

    def nights(self, panel: Panel, days: Sequence[int], windows: Mapping[str, int]) -> Features:
        """Return the features that nights would have seen: [days stocks features].

        A day's features are computed from the sessions up to that day alone, as many as `windows`
        gives each feature. Rows are in the order of `days`; a feature not in `windows` is NaN.
        """
        _, arrays = self._ask("nights", panel, days=list(days), windows=windows)
        return arrays["values"]

    def walk(
        self, panel: Panel, there: There, relative: Grid, folds: Sequence[tuple[slice, slice]]
    ) -> tuple[Grid, Fitted]:
        """Compute the features of a panel, then fit and score its `folds` as `fits` does."""
        return self.fits(self.ranks(panel, there), there, relative, folds)

    def ranks(self, panel: Panel, there: There) -> Features:
        """Return the rank of each feature within its day: [sessions stocks features]."""
        _, arrays = self._ask("ranks", panel, {"there": there})
        return arrays["ranks"]

    def fits(
        self,
        ranks: Features,
        there: There,
        relative: Grid,
        folds: Sequence[tuple[slice, slice]],
        *,
        backwards: bool = False,
    ) -> tuple[Grid, Fitted]:
        """Fit a model for each fold, a pair of the days to train on and the days to score.

        `ranks` are [sessions stocks features]; `relative` are the ranks of the outcomes, [sessions
        stocks]. Returns the scores, [sessions stocks], NaN on days that no fold scores and where
        `there` is false, and the model of the last fold. With `backwards`, the days of a fold are
        scored from the last to the first; a model that keeps no state gives the same scores. The
        process sees ranks alone: no model can look up a price.
        """
        spans = [[learnt.start, learnt.stop, scored.start, scored.stop] for learnt, scored in folds]
        arrays = {"ranks": ranks, "there": there, "relative": relative}
        description, answers = self._ask("fits", None, arrays, folds=spans, backwards=backwards)
        scores = answers.pop("scores")  # what is left are the arrays of the model
        return scores, Fitted(self.code, description, answers)

    def night(self, panel: Panel, there: There, fitted: Fitted) -> Grid:
        """Return the scores of the last day of a panel, [1 stocks]; NaN where `there` is false.

        `there` is [sessions stocks], of which only the last row is read. The features and the model
        run in two processes, so that no model can look up a price.
        """
        history = int(fitted.description["history"])
        recent = cut(panel, slice(-history, None))
        last_day = len(recent.sessions) - 1
        _, values = self.values(recent, [last_day])
        there = there[-1:]
        arrays = {"ranks": ranks_of(values, there), "there": there, **fitted.arrays}
        _, answers = self._ask("night", None, arrays)
        return answers["scores"]

    def _ask(
        self, task: str, panel: Panel | None, inputs: Arrays | None = None, **details: Any
    ) -> tuple[Description, Arrays]:
        """Let a fresh process do a task of `dtml.own.work`; raise OwnCodeError where it fails.

        The process is given the panel, if any, the arrays `inputs`, and `details`, which must fit
        into JSON. Returns the description of the code and the arrays that answer the task.
        """
        seconds = limit_of("DTML_CODE_SECONDS", SECONDS, OwnCodeError)
        gigabytes = limit_of("DTML_CODE_GIGABYTES", GIGABYTES, OwnCodeError)
        question = {
            **details,
            "task": task,
            "name": self.code.name,
            "text": self.code.text,
            "memory": int(gigabytes * 2**30),
        }
        arrays = dict(inputs or {})
        if panel is not None:
            question["symbols"] = panel.symbols
            question["sessions"] = panel.sessions.astype(str).tolist()
            for name in PRICES:
                arrays[name] = getattr(panel, name)
        with TemporaryDirectory(prefix="dtml-own-") as temporary:
            folder = Path(temporary)
            # `default=int` is for numpy's whole numbers, such as positions of days.
            (folder / "task.json").write_text(json.dumps(question, default=int))
            np.savez(folder / "task.npz", **cast(Any, arrays))
            server = _idle.pop() if _idle else Server()
            try:
                exit_status = server.run(folder, seconds)
            except (OSError, ValueError):
                # The server was killed after its last question: the pipe to it is broken, or an
                # empty line is read where an exit status should be. A new server does the task.
                server = Server()
                exit_status = server.run(folder, seconds)
            _idle.append(server)
            if exit_status is None:
                raise OwnCodeError(
                    f"{self.code.name} took more than {seconds:g} s: make it faster, or raise the "
                    "environment variable DTML_CODE_SECONDS"
                )
            return self._answer(folder, exit_status, gigabytes)

    def _answer(
        self, folder: Path, exit_status: int, gigabytes: float
    ) -> tuple[Description, Arrays]:
        """Read the answer that a process left in a folder.

        Raises OwnCodeError if the process was killed, ended without an answer, or answered with an
        error. The exit status is minus the number of the signal that killed the process, if one
        did. `gigabytes` is the limit on memory that the errors name.
        """
        file = folder / "answer.json"
        answer_text = file.read_text() if file.exists() else ""
        if exit_status < 0:
            killer = signal.Signals(-exit_status).name
            raise OwnCodeError(
                f"the process of {self.code.name} was killed by {killer} before it answered, "
                "probably because memory ran out or a library crashed: use less memory or raise "
                f"the environment variable DTML_CODE_GIGABYTES, now {gigabytes:g}; if that does "
                "not help, remove features one by one to find the library call that crashes"
            )
        if exit_status or not answer_text:
            raise OwnCodeError(
                f"the process of {self.code.name} ended with exit status {exit_status} before it "
                "answered: check that its code does not end the process, as sys.exit does, that "
                "the folder for temporary files has free space, and that the answer fits into the "
                f"{gigabytes:g} GiB that the environment variable DTML_CODE_GIGABYTES allows"
            )
        answer = json.loads(answer_text)
        if "error" in answer:
            error = answer["error"]
            if "MemoryError" in error:
                error = (
                    f"{error} (it may use {gigabytes:g} GiB: raise the environment variable "
                    "DTML_CODE_GIGABYTES to allow more)"
                )
            raise OwnCodeError(error)
        return answer, dict(np.load(folder / "answer.npz"))


def limit_of(name: str, default: str, error: type[DtmlError]) -> float:
    """Return a limit from the environment variable `name`, by default `default`.

    Raises `error` if the variable is set to anything but a number above 0.
    """
    value = os.environ.get(name, default)
    try:
        limit = float(value)
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise error(f"{name}={value}: set this variable to a finite number above 0, or unset it")
    return limit


class Server:
    """A process that runs a program of own code, such as `dtml.own.work`, ready to be asked.

    It forks a child for each question (`dtml.own.confinement.serve`). Its environment has
    PASSED_ON_VARIABLES and the `variables` named.
    """

    def __init__(self, program: str = "dtml.own.work", variables: Sequence[str] = ()) -> None:
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


# Servers that have answered and wait. Threads that ask at the same time use one each.
_idle: list[Server] = []


def warm() -> None:
    """Start the server now, so that its imports are done before the first question."""
    if not _idle:
        _idle.append(Server())
