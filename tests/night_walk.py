"""The way of a night through the files of the product: `python -m tests.night_walk` prints it.

A small market's second night runs under Python's own profiler hook, so real calls are counted and
not imports. A file passes the session on if one of its functions takes the night's `as_of` as an
argument. A climb is a call of a file that waits for the caller: the reader goes back to a file
further up. A return is the end of a call that came from another file. Each pair of files counts
once, however often one calls the other. A hop is a step from a file to another one on the way of
calls from `run_night` to the equations of the model.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from types import FrameType
from typing import Any
from unittest.mock import patch

from dtml.model import DTML
from tests.house_measures import PACKAGES, ROOT

STAGES = {"train": "flows/nightly/train.py", "predict": "flows/nightly/predict.py"}


@dataclass
class Walk:
    """The files entered, and the pairs of files between which calls climbed or returned."""

    session: date
    files: set[str] = field(default_factory=set)
    passing: set[str] = field(default_factory=set)
    climbs: set[tuple[str, str]] = field(default_factory=set)
    returns: set[tuple[str, str]] = field(default_factory=set)
    waiting: list[str] = field(default_factory=list)

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """Take a call or a return from the profiler hook."""
        file = product_file(frame)
        if file is None:
            return
        if event == "call":
            self._enter(file)
            if self.session in arguments_of(frame):
                self.passing.add(file)
        elif event == "return" and self.waiting:
            left = self.waiting.pop()
            if self.waiting and self.waiting[-1] != left:
                self.returns.add((left, self.waiting[-1]))

    def _enter(self, file: str) -> None:
        self.files.add(file)
        if self.waiting and file != self.waiting[-1] and file in self.waiting:
            self.climbs.add((self.waiting[-1], file))
        self.waiting.append(file)


def product_file(frame: FrameType) -> str | None:
    """Return the Python file of the product that a frame runs, relative to the root.

    None for other files.
    """
    name = frame.f_code.co_filename
    if not name.startswith(str(ROOT)):
        return None
    relative = name.removeprefix(f"{ROOT}/")
    is_product = relative.startswith(PACKAGES) and relative.endswith(".py")
    return relative if is_product else None


def arguments_of(frame: FrameType) -> list[date]:
    """Return the dates among the arguments of a call."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = (frame.f_locals.get(name) for name in names)
    return [value for value in values if type(value) is date]


@contextmanager
def ways_to_the_equations() -> Iterator[dict[str, list[str]]]:
    """Record the files on the way of the first call of the model in each of `STAGES`.

    They are in the order of the calls, a file again where a call comes back to it. A call in
    another thread is taken to come from where the main thread waits for it.
    """
    ways: dict[str, list[str]] = {}
    forward = DTML.forward

    def recorded(*inputs: Any, **settings: Any) -> Any:
        way = _files_on(sys._getframe(1))
        if threading.current_thread() is not threading.main_thread():
            main = threading.main_thread().ident
            assert main is not None
            way = _files_on(sys._current_frames()[main]) + way
        way.append("dtml/model.py")
        for stage, file in STAGES.items():
            if file in way:
                ways.setdefault(stage, _without_repeats(way))
        return forward(*inputs, **settings)

    with patch.object(DTML, "forward", recorded):
        yield ways


def _files_on(frame: FrameType | None) -> list[str]:
    """Return the files of the product on the stack of a frame, the outermost first."""
    files: list[str] = []
    while frame is not None:
        file = product_file(frame)
        if file is not None:
            files.append(file)
        frame = frame.f_back
    return files[::-1]


def _without_repeats(way: list[str]) -> list[str]:
    """Return a way on which each file is left for another one."""
    return [file for place, file in enumerate(way) if place == 0 or way[place - 1] != file]


def walk_of(session: date, work: Callable[[], Any]) -> Walk:
    """Return the way of some work as of a session."""
    walk = Walk(session)
    sys.setprofile(walk.watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return walk


def walks_of_two_nights() -> tuple[dict[str, list[str]], Walk]:
    """Run two nights of a small simulated market, in a folder of its own.

    Return the ways to the equations in the first, which trains, and the whole way of the second.
    """
    from db.engine import open_engine, upgrade
    from dtml.experiments import nightly_of, vary
    from dtml.markets import load_market
    from dtml.prices.sessions import next_session
    from flows.nightly.context import MarketContext
    from flows.nightly.night import run_night
    from tests.support.nights import AS_OF, BARS, SIMULATED, SMALL, FrameSource

    with tempfile.TemporaryDirectory() as folder:
        os.environ["DTML_DATA"] = f"{folder}/data"
        os.environ["DTML_REPORTS"] = f"{folder}/reports"
        engine = open_engine(f"sqlite:///{folder}/store.sqlite")
        upgrade(engine)
        market = load_market("simulated").with_symbols(sorted(SIMULATED.market.symbols))
        experiment = nightly_of(
            market.model, z_close="adjusted", returns="adj_close", max_return=0.35
        )
        context = MarketContext(market, FrameSource(BARS), engine, vary(experiment, SMALL), "cpu")
        with ways_to_the_equations() as ways:
            run_night(context, AS_OF)
        as_of = next_session("XNYS", AS_OF)
        walk = walk_of(as_of, lambda: run_night(context, as_of))
        engine.dispose()
    return ways, walk


if __name__ == "__main__":
    ways, night = walks_of_two_nights()
    nightly = [file for file in night.files if file.startswith("flows/")]
    print(  # noqa: T201 - it is what is asked for
        f"{len(night.files)} files, {len(nightly)} of them in flows; "
        f"{len(night.passing)} pass the session on; "
        f"{len(night.climbs)} climbs, {len(night.returns)} returns"
    )
    for file in sorted(night.passing):
        print(f"  {file} passes the session on")  # noqa: T201
    for caller, callee in sorted(night.climbs):
        print(f"  {caller} climbs to {callee}")  # noqa: T201
    for stage, way in ways.items():
        print(f"  {len(way) - 1} hops to the equations, {stage}: {' > '.join(way)}")  # noqa: T201
