"""What the process of a user's own code does: it reads a task in a folder and leaves an answer.

Tasks: `values` (the features of several panels), `walk` (fits and scores by folds), `night` (scores of the last day).
"""

import importlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from dtml.own import code as own
from dtml.ranking.panel import Panel

USUAL = "sklearn.ensemble"  # of the model without another
LIBRARIES = (USUAL, "sklearn.linear_model", "torch", "scipy.stats")


def main(folder: Path) -> None:
    """Do the task of a folder; what goes wrong becomes the answer's `error`, with the line of the user's file."""
    os.chdir(folder)
    task = json.loads((folder / "task.json").read_text())
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (task["memory"], task["memory"]))
    code = own.OwnCode(task["name"], task["text"])
    try:
        told, arrays = _done(code, task, dict(np.load(folder / "task.npz")))
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is told to the night
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == code.name]
        place = f"{code.name}, line {lines[-1]}: " if lines else f"{code.name}: "
        place += "" if isinstance(error, own.OwnCodeError) else f"{type(error).__name__}: "
        told, arrays = {"error": f"{place}{' '.join(str(error).split())}"[:500]}, {}
    np.savez(folder / "answer.npz", **cast(Any, arrays))
    (folder / "answer.json").write_text(json.dumps(told))


def _done(code: own.OwnCode, task: Mapping[str, Any], arrays: own.Arrays) -> tuple[Mapping[str, Any], own.Arrays]:
    panels = [
        Panel(pd.DatetimeIndex(sessions), tuple(task["symbols"]), *(arrays[f"{at}.{name}"] for name in own.PRICES))
        for at, sessions in enumerate(task["sessions"])
    ]
    loaded = own.load(code)
    told = {"features": list(loaded.features), "history": loaded.history}
    if task["task"] == "values":  # each from a file that has seen no other
        return told, {str(at): own.values_of(own.load(code), each) for at, each in enumerate(panels)}
    there, last = arrays["there"], slice(-loaded.history if task["task"] == "night" else None, None)
    ranks = own.ranks_of(own.values_of(loaded, own.cut(panels[0], last)), there[last])
    if task["task"] == "night":
        model = own.restored(loaded, {name[4:]: each for name, each in arrays.items() if name.startswith("own.")})
        return told, {"scores": own.scored(model, ranks[-1:], there[-1:])}
    scores, kept = np.full(there.shape, np.nan), own.Arrays()
    for first, stop, begin, end in task["folds"]:
        own.seed(code)  # so that a fold's model is the same whatever was fitted before it
        model = own.fit(loaded.model, ranks, arrays["relative"], slice(first, stop))
        scores[begin:end] = own.scored(model, ranks[begin:end], there[begin:end])
        kept = own.kept(model, ranks, arrays["relative"], slice(first, stop))
    return told, {"scores": scores} | {f"own.{name}": each for name, each in kept.items()}


def serve() -> None:
    """Fork a process for each folder that standard input names, a line each; print its id, and how it ended.

    What a task's text imports is imported before the fork, so that the next question finds it there.
    """
    for line in sys.stdin:
        folder = Path(line.strip())
        text = json.loads((folder / "task.json").read_text())["text"]
        for name in LIBRARIES:
            if name in text or name == USUAL:
                importlib.import_module(name)
        if (child := os.fork()) == 0:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(nowhere, stream)
            code = 1
            try:
                main(folder)
                code = 0
            finally:
                os._exit(code)
        print(child, flush=True)  # noqa: T201
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
