"""The program that runs a user's own code: it reads a task in a folder and leaves an answer there.

Tasks: `describe` (what the file holds), `values` (the features of the last session of each window
that is sent, one after the other), `fold` (fits a model and scores days) and `night` (scores a
day). A model runs in another process than the features: it sees ranks, never a price, and no
outcome of a day that it scores.
"""

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dtml.own import code as own
from dtml.own.confinement import NEEDED, Answer, described, leave_answer, serve
from dtml.own.sandbox import ANSWERS, MESSAGES, receive, send
from dtml.ranking.panel import Panel

DEFAULT_MODEL_LIBRARY = "sklearn.ensemble"
LONGEST = 500  # characters of an error
Task = Mapping[str, Any]
# The server imports those that a task's text names.
LIBRARIES = (DEFAULT_MODEL_LIBRARY, "sklearn.linear_model", "torch", "scipy.stats")


def main(folder: Path) -> None:
    """Do the task of a folder, and leave the answer there.

    `task.json` and `task.npz` hold the task, `answer.json` and `answer.npz` the answer. An
    exception becomes the answer's `error`, with the line of the user's file. The text runs in an
    empty folder, under the limits of `leave_answer`.
    """
    task = json.loads((folder / "task.json").read_text())
    given: dict[str, Any]
    if task["task"] == "values":  # opened now: the code may write into no file but its own
        given = {
            ANSWERS: os.open(folder / ANSWERS, os.O_WRONLY),
            MESSAGES: os.open(folder / MESSAGES, os.O_RDONLY),
        }
    else:
        given = dict(np.load(folder / "task.npz"))
    code = own.OwnCode(task["name"], task["text"])

    def answer() -> Answer:
        try:
            loaded = own.load(code)
            description = {
                "features": list(loaded.features),
                "history": loaded.history,
                "model": loaded.model is not None,
            }
            do_task = TASKS[task["task"]]
            return description, do_task(code, loaded, task, given)
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises is reported to the night
            return {"error": described(error, code.name, own.OwnCodeError)[:LONGEST]}, {}

    # A feature must not keep what it saw of a session for another pass, not even in shared memory.
    needed = NEEDED[:1] if task["task"] == "values" else NEEDED
    leave_answer(folder, task["memory"], answer, needed)


def _values(code: own.OwnCode, _: own.Loaded, task: Task, pipes: Any) -> own.Arrays:
    """Answer each window before the next one is read."""
    while (arrays := receive(pipes[MESSAGES])) is not None:
        sessions = pd.DatetimeIndex(arrays.pop("sessions"))
        window = Panel(sessions=sessions, symbols=tuple(task["symbols"]), **arrays)
        # Loaded anew, so that the file keeps nothing of what it saw of another session.
        send(pipes[ANSWERS], {"values": own.values_of(own.load(code), window)})
    return {}


def _fold(code: own.OwnCode, loaded: own.Loaded, _: Task, arrays: own.Arrays) -> own.Arrays:
    """Return the `scores` of a fold's days, and the arrays of its model, named "own.…".

    The prefix tells the model's arrays from the scores here, and in a checkpoint from the arrays of
    other rankers.
    """
    learnt = arrays["learnt"], arrays["relative"], slice(None)
    model = own.fit(loaded.model, *learnt)
    own.seed(code)  # as each night begins
    scores = own.scored(model, arrays["ranks"], arrays["there"])
    of_model = {f"own.{name}": array for name, array in own.kept(model, *learnt).items()}
    return {"scores": scores, **of_model}


def _night(code: own.OwnCode, loaded: own.Loaded, _: Task, arrays: own.Arrays) -> own.Arrays:
    learnt_arrays = {
        name.removeprefix("own."): array
        for name, array in arrays.items()
        if name.startswith("own.")
    }
    model = own.restored(loaded, learnt_arrays)
    own.seed(code)
    return {"scores": own.scored(model, arrays["ranks"], arrays["there"])}


MODEL_TASKS = ("fold", "night")
TASKS = {"describe": lambda *_: {}, "values": _values, "fold": _fold, "night": _night}


def _import_libraries(folder: Path) -> None:
    """Import, of `LIBRARIES`, those that a task's text names, and the default model's if used.

    The server keeps them, so that every later child has them without importing them again.
    """
    task = json.loads((folder / "task.json").read_text())
    for name in LIBRARIES:
        if name in task["text"] or (name == DEFAULT_MODEL_LIBRARY and task["task"] in MODEL_TASKS):
            importlib.import_module(name)


if __name__ == "__main__":
    serve(main, _import_libraries)
