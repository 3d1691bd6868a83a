"""The program that runs a user's own code: it reads a task in a folder and leaves an answer there.

Tasks: `values` (the features of a panel), `nights` (the features that nights would have computed
for some days), `ranks` (the features' ranks), `fits` (fits and scores by folds, from ranks),
`night` (scores of the last day, from ranks). A model runs in another process than the features, and
never sees a price.
"""

import importlib
import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dtml.own import code as own
from dtml.own.confinement import FORBIDDEN, Answer, leave_answer, serve
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
    arrays = dict(np.load(folder / "task.npz"))
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
            return description, do_task(code, loaded, task, arrays)
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises is reported to the night
            return {"error": _error_in_words(error, code)}, {}

    leave_answer(folder, task["memory"], answer)


def _error_in_words(error: Exception, code: own.OwnCode) -> str:
    """Say what went wrong, and in which line of the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == code.name]
    place = f"{code.name}, line {lines[-1]}: " if lines else f"{code.name}: "
    kind = "" if isinstance(error, own.OwnCodeError) else f"{type(error).__name__}: "
    message = f"{place}{kind}{' '.join(str(error).split())}"[:LONGEST]
    if isinstance(error, OSError) and error.errno in FORBIDDEN:
        return (
            f"{message} (own code may write only in its working folder, which is emptied, and "
            "read only what your user may read)"
        )
    return message


def _panel(task: Task, arrays: own.Arrays) -> Panel:
    return Panel(
        sessions=pd.DatetimeIndex(task["sessions"]),
        symbols=tuple(task["symbols"]),
        open=arrays["open"],
        high=arrays["high"],
        low=arrays["low"],
        close=arrays["close"],
        volume=arrays["volume"],
        value=arrays["value"],
    )


def _values(_: own.OwnCode, loaded: own.Loaded, task: Task, arrays: own.Arrays) -> own.Arrays:
    return {"values": own.values_of(loaded, _panel(task, arrays), task["days"])}


def _nights(_: own.OwnCode, loaded: own.Loaded, task: Task, arrays: own.Arrays) -> own.Arrays:
    panel = _panel(task, arrays)
    return {"values": own.nights_of(loaded, panel, task["days"], task["windows"])}


def _ranks(_: own.OwnCode, loaded: own.Loaded, task: Task, arrays: own.Arrays) -> own.Arrays:
    values = own.values_of(loaded, _panel(task, arrays))
    return {"ranks": own.ranks_of(values, arrays["there"])}


def _fits(code: own.OwnCode, loaded: own.Loaded, task: Task, arrays: own.Arrays) -> own.Arrays:
    """Fit and score each fold; return all `scores`, and the arrays of the last fold's model.

    A fold is four positions: the first day trained on and the one after the last, then the same of
    the days scored. Ranks are [sessions stocks features], `there` and `relative` [sessions stocks].
    Scores are NaN on the days that no fold scores. The names of the model's arrays begin with
    "own.". The task's `backwards` says whether the last day of a fold is scored first.
    """
    ranks = arrays["ranks"]
    there = arrays["there"]
    relative = arrays["relative"]
    scores = np.full(there.shape, np.nan)
    learnt_arrays: own.Arrays = {}
    for train_start, train_stop, start, stop in task["folds"]:
        own.seed(code)  # a fold's model must not depend on what was fitted before it
        trained = slice(train_start, train_stop)
        days = slice(start, stop)
        model = own.fit(loaded.model, ranks, relative, trained)
        scores[days] = own.scored(model, ranks[days], there[days], backwards=task["backwards"])
        learnt_arrays = own.kept(model, ranks, relative, trained)  # of the last fold, in the end
    # The prefix tells the model's arrays from the scores here, and in a checkpoint from the arrays
    # of other rankers.
    answers = {"scores": scores}
    for name, array in learnt_arrays.items():
        answers[f"own.{name}"] = array
    return answers


def _night(code: own.OwnCode, loaded: own.Loaded, _: Task, arrays: own.Arrays) -> own.Arrays:
    own.seed(code)  # as each fold of a walk begins
    learnt_arrays = {
        name.removeprefix("own."): array
        for name, array in arrays.items()
        if name.startswith("own.")
    }
    model = own.restored(loaded, learnt_arrays)
    return {"scores": own.scored(model, arrays["ranks"], arrays["there"])}


TASKS = {"values": _values, "nights": _nights, "ranks": _ranks, "fits": _fits, "night": _night}


def _import_libraries(folder: Path) -> None:
    """Import, of `LIBRARIES`, that of the default model and those that a task's text names.

    The server keeps them, so that every later child has them without importing them again.
    """
    text = json.loads((folder / "task.json").read_text())["text"]
    for name in LIBRARIES:
        if name in text or name == DEFAULT_MODEL_LIBRARY:
            importlib.import_module(name)


if __name__ == "__main__":
    serve(main, _import_libraries)
