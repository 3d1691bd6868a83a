"""The program that runs a user's own feed: it reads a task in a folder and leaves an answer there.

Tasks: `describe` (its stocks and its last session), `fetch` (bars). Environment variables that the
market's file names are set for this process alone, and their values are blotted out in errors and
in the details of outcomes, as an address with its key often stands in an error.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import date
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, quote_plus

import numpy as np
import pandas as pd

from dtml.markets import Market, load_market, load_market_file
from dtml.own.confinement import FORBIDDEN, Answer, leave_answer, serve
from dtml.prices.bars import BAR_COLUMNS
from dtml.sources import Status
from dtml.sources.own_feed.answers import fetched_of, last_session_of, stocks_of
from dtml.sources.own_feed.code import FeedError

MODULE = "own_feed"  # the name under which a file is imported
SOURCE = "SOURCE"  # the name in a file of a feed that is an object or a class
LONGEST = 500  # characters of an error
LONGEST_DETAIL = 200  # characters of an outcome's detail
# A shorter value of a variable is no secret, and would be blotted out of ordinary words.
SHORTEST_SECRET = 4
BLOT = "***"
TOO_MANY_REQUESTS = 429
Task = Mapping[str, Any]
Arrays = dict[str, np.ndarray]


def main(folder: Path) -> None:
    """Do the task of a folder, and leave the answer there.

    `task.json` holds the task, `answer.json` and `answer.npz` the answer. An exception becomes the
    answer's `error`. The code runs in an empty folder, under the limits of `leave_answer`.
    """
    task = json.loads((folder / "task.json").read_text())

    def answer() -> Answer:
        try:
            description, arrays = _answer(task)
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises is reported
            description = _failure(error, task)
            arrays = {}
        return _blotted(description, _secrets(task)), arrays

    leave_answer(folder, task["memory"], answer)


def _answer(task: Task) -> tuple[Task, Arrays]:
    """Return the answer of a task as JSON holds it, and the bars as arrays by column.

    `describe` is answered by `symbols`, `last_session` and `code` (the text that is recorded of the
    feed) and without arrays; `fetch` by `outcomes`, an object for each symbol, and the bars.
    """
    feed, code = load(task)
    if task["task"] == "describe":
        last = last_session_of(_asked(feed, "last_session"))
        description = {
            "symbols": stocks_of(_asked(feed, "symbols")),
            "last_session": None if last is None else last.isoformat(),
            "code": code,
        }
        return description, {}
    first = {symbol: date.fromisoformat(day) for symbol, day in task["first"].items()}
    last_asked = date.fromisoformat(task["last"])
    # A copy, so that a feed that changes what it is given changes no check.
    fetched = fetched_of(feed.fetch(dict(first), last_asked), first, last_asked)
    return {"outcomes": fetched.outcomes.to_dict("records")}, arrays_of(fetched.bars)


def arrays_of(bars: pd.DataFrame) -> Arrays:
    """Return a bars frame as arrays that can be read without running anything."""
    arrays = {name: bars[name].to_numpy() for name in BAR_COLUMNS[2:]}
    arrays["symbol"] = bars["symbol"].to_numpy(dtype=np.str_)
    arrays["session"] = bars["session"].to_numpy("datetime64[ns]")
    return arrays


def load(task: Task) -> tuple[Any, str]:
    """Run the code of a feed, and return the feed with the text that is recorded of it.

    The feed is the object `SOURCE` of a file, or else the file itself with its functions. An entry
    point names an object or a module. A class is called with the market. Raises FeedError where
    there is no `fetch`, and whatever the code raises.
    """
    feed: Any
    if task["entry"]:
        entry = EntryPoint(name=task["name"], value=task["entry"], group="")
        feed = entry.load()
        code = _text_of_package(entry)
    else:
        feed = _run(task)
        feed = getattr(feed, SOURCE, feed)
        code = task["text"]
    if isinstance(feed, type):
        feed = feed(_market(task))
    if not callable(getattr(feed, "fetch", None)):
        if task["entry"]:
            raise FeedError(
                f"the entry point {task['entry']} has no fetch: let it name an object, a class or "
                "a module that has `fetch(first, last)`"
            )
        raise FeedError(
            "it has no fetch: write a function `fetch(first, last)`, or assign an object that has "
            f"one to the name {SOURCE}"
        )
    return feed, code


def _run(task: Task) -> ModuleType:
    """Run the text of a file in a new module, which knows the file's path."""
    module = ModuleType(MODULE)
    module.__file__ = task["path"]
    sys.modules[MODULE] = module  # where `dataclass`, for one, looks up the module of a class
    exec(compile(task["text"], task["name"], "exec"), module.__dict__)  # noqa: S102 - it is what the user asks for
    return module


def _text_of_package(entry: EntryPoint) -> str:
    """Return the text of the module of an entry point, below a line with its package's version."""
    package = entry.module.partition(".")[0]
    try:
        number = version(package)
    except PackageNotFoundError:  # the distribution has another name than its package
        number = "of unknown version"
    file = getattr(sys.modules[entry.module], "__file__", None)
    text = Path(file).read_text(encoding="utf-8") if file else ""
    return f"# {package} {number}, {entry.value}\n{text}"


def _market(task: Task) -> Market:
    """Return the market as its file describes it, for a feed that needs more than symbols."""
    if task["market_file"]:
        return load_market_file(Path(task["market_file"]), task["market_text"])
    return load_market(task["market"])


def _asked(feed: Any, name: str) -> object:
    """Return the answer of a method that a feed may lack; None where it does."""
    method = getattr(feed, name, None)
    return method() if callable(method) else None


def _failure(error: Exception, task: Task) -> Task:
    """Describe an exception: in words, and with a status where the feed could not be reached."""
    words = _in_words(error, task)
    status = _status_of(error)
    return {"error": words} if status is None else {"error": words, "status": status}


def _status_of(error: Exception) -> Status | None:
    """Return the status of an error after which the feed may answer later; None for a fault."""
    response = getattr(error, "response", None)  # of the packages requests and httpx
    numbers = (getattr(error, "code", None), getattr(response, "status_code", None))
    if TOO_MANY_REQUESTS in numbers:
        return "rate_limited"
    # Of the network, of a file that is not there yet, and of the package requests.
    if isinstance(error, OSError) and error.errno not in FORBIDDEN:
        return "unreachable"
    return None


def _in_words(error: Exception, task: Task) -> str:
    """Say what went wrong, and in which line of the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == task["name"]]
    place = f"{task['name']}, line {lines[-1]}: " if lines else f"{task['name']}: "
    kind = "" if isinstance(error, FeedError) else f"{type(error).__name__}: "
    message = f"{place}{kind}{' '.join(str(error).split())}"
    if isinstance(error, OSError) and error.errno in FORBIDDEN:
        gigabytes = task["memory"] / 2**30
        return (
            f"{message} (a feed may write only in its working folder, which is then deleted, and "
            f"no file above {gigabytes:g} GiB, nor any where Linux's Landlock is missing; it may "
            "read only what your user may read)"
        )
    return message


def _secrets(task: Task) -> list[str]:
    """Return the values of the variables that the market's file names, the longest first.

    Each is there in all the forms in which an error may show it: as it is, as Python's repr writes
    it, and as an address does. Those shorter than `SHORTEST_SECRET` are left out.
    """
    values = {os.environ.get(name, "") for name in task["environment"]}
    forms = {form(value) for value in values for form in (str, repr, _quoted, quote_plus)}
    long_enough = [form for form in forms if len(form) >= SHORTEST_SECRET]
    return sorted(long_enough, key=len, reverse=True)


def _quoted(value: str) -> str:
    return quote(value, safe="")


def _blotted(description: Task, secrets: list[str]) -> Task:
    """Return a description whose error and details hold no secrets and are not too long.

    Other texts, such as the feed's code, are unchanged.
    """

    def blot(text: str, longest: int) -> str:
        # First the secrets: cut in two, one would no longer be found.
        for secret in secrets:
            text = text.replace(secret, BLOT)
        return text[:longest]

    blotted = dict(description)
    if "error" in blotted:
        blotted["error"] = blot(blotted["error"], LONGEST)
    if "outcomes" in blotted:
        blotted["outcomes"] = [
            {**outcome, "detail": blot(outcome["detail"], LONGEST_DETAIL)}
            for outcome in blotted["outcomes"]
        ]
    return blotted


if __name__ == "__main__":
    serve(main)
