"""The program that runs a user's own code and answers a question.

Tasks: `describe` (what the file holds), `values` (the features of the last session of a window),
`fold` (fits a model and scores days) and `night` (scores a day). A model runs in another process
than the features: it sees ranks, never a price, and no outcome of a day that it scores.
"""

import importlib
from typing import Any, cast

import pandas as pd

from dtml.own import code as own
from dtml.own.confinement import (
    LONGEST,
    Answer,
    Arrays,
    Description,
    Question,
    described,
    serve,
)
from dtml.ranking.panel import Panel

DEFAULT_MODEL_LIBRARY = "sklearn.ensemble"
# The server imports those that a question's text names.
LIBRARIES = (DEFAULT_MODEL_LIBRARY, "sklearn.linear_model", "torch", "scipy.stats")


def answer(question: Question, arrays: Arrays) -> Answer:
    """Run the text of a question, do its task, and say what the file holds."""
    code = own.OwnCode(question["name"], question["text"])
    loaded = own.load(code)
    description = {
        "features": list(loaded.features),
        "history": loaded.history,
        "model": loaded.model is not None,
    }
    return description, TASKS[question["task"]](code, loaded, question, arrays)


def failed(error: Exception, question: Question) -> Description:
    """Describe an exception with the line of the user's file."""
    return {"error": described(error, question["name"], own.OwnCodeError)[:LONGEST]}


def _values(_: own.OwnCode, loaded: own.Loaded, question: Question, arrays: Arrays) -> Arrays:
    sessions = pd.DatetimeIndex(arrays.pop("sessions"))
    window = Panel(sessions=sessions, symbols=tuple(question["symbols"]), **cast(Any, arrays))
    return {"values": own.values_of(loaded, window)}


def _fold(code: own.OwnCode, loaded: own.Loaded, _: Question, arrays: Arrays) -> Arrays:
    """Return the `scores` of a fold's days, and the arrays of its model, named "own.…"."""
    learnt = arrays["learnt"], arrays["relative"]
    model = own.fit(loaded.model, *learnt)
    own.seed(code)  # as each night begins
    scores = own.scored(model, arrays["ranks"], arrays["there"])
    of_model = {f"own.{name}": array for name, array in own.kept(model, *learnt).items()}
    return {"scores": scores, **of_model}


def _night(code: own.OwnCode, loaded: own.Loaded, _: Question, arrays: Arrays) -> Arrays:
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


def import_libraries(question: Question) -> None:
    """Import, of `LIBRARIES`, those that a question's text names, and the default model's if used.

    The server keeps them, so that every later child has them without importing them again.
    """
    uses_model = question["task"] in MODEL_TASKS
    for name in LIBRARIES:
        if name in question["text"] or (name == DEFAULT_MODEL_LIBRARY and uses_model):
            importlib.import_module(name)


if __name__ == "__main__":
    serve(answer, failed, import_libraries)
