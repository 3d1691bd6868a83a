"""Measure what a user's own code costs a night: python -m benchmarks.own_code.

Runs each day's night of the simulated market twice, without and with a file of two features, in
turns that change; the nights train nothing. Prints the median seconds of both, by the clock and of
the processor with child processes, and those of the call of the file.
"""

import gc
import os
import resource
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dtml.experiments import vary
from dtml.prices.sessions import sessions_between
from flows.markets.opened import RunRequest
from flows.nightly import order
from flows.nightly.context import MarketContext, open_context
from flows.nightly.night import run_night

NIGHTS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
FIRST = date(2026, 9, 1)
MINE = """def near_high(bars):
    return bars.close / bars.high.rolling(60).max() - 1


def reversal(bars):
    return -bars.close.pct_change(fill_method=None)
"""


def opened(folder: Path, code: Path | None) -> MarketContext:
    """Return the simulated market with a store of its own, trained once for few epochs."""
    os.environ |= {"DTML_DATA": str(folder), "DTML_REPORTS": str(folder / "reports")}
    context = open_context(RunRequest("simulated"))
    context = replace(context, experiment=vary(context.experiment, {"epochs": 2, "seeds": 2}))
    return replace(context, market=replace(context.market, code=code))


def processor() -> float:
    """Return the processor seconds that this process and its ended children used."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@contextmanager
def timed(seconds: list[float], name: str) -> Any:
    """Add the seconds of each call of a function of the module `order` to a list."""
    function: Callable[..., Any] = getattr(order, name)

    def timed_function(*arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            seconds.append(time.perf_counter() - start)

    setattr(order, name, timed_function)
    try:
        yield
    finally:
        setattr(order, name, function)


def time_nights(folder: Path) -> dict[str, list[float]]:
    """Run each day's night without and with the file; return the seconds of each kind of night."""
    code_file = folder / "mine.py"
    code_file.write_text(MINE)
    seconds: dict[str, list[float]] = defaultdict(list)
    turns = [("without", None), ("with", code_file)]
    sessions = sessions_between("XNYS", FIRST, date(2026, 10, 30))
    for session in sessions[: NIGHTS + 1]:
        # The second night of a day has the prices in memory that the first one simulated.
        turns.reverse()
        for name, code in turns:
            home = folder / name
            home.mkdir(exist_ok=True)
            context = opened(home, code)
            gc.collect()  # Otherwise whole collections, of .2 s, fall on the nights of one side.
            start = time.perf_counter()
            processor_start = processor()
            run_night(context, session.date())
            seconds[name].append(time.perf_counter() - start)
            seconds[f"{name}, processor"].append(processor() - processor_start)
    return seconds


def median_of_pairs(seconds: list[float]) -> float:
    """Return the median of the means of two nights in a row, without the first night.

    One of two nights in a row was the first of its day, so that every pair had the same share of
    its prices in memory.
    """
    pairs = zip(seconds[1::2], seconds[2::2], strict=False)
    return statistics.median((one + other) / 2 for one, other in pairs)


def main() -> None:
    """Print the medians."""
    own_seconds: list[float] = []
    with TemporaryDirectory() as folder, timed(own_seconds, "ask_own"):
        seconds = time_nights(Path(folder))
    medians = {name: median_of_pairs(times) for name, times in seconds.items()}
    first_nights = {name: round(times[0], 1) for name, times in seconds.items()}
    print(f"nights: {NIGHTS}, first nights {first_nights}")
    print(
        {name: round(median, 3) for name, median in medians.items()},
        f"own code asked {statistics.median(own_seconds[1:]):.3f} s",
    )
    for clock in ("", ", processor"):
        overhead = medians[f"with{clock}"] / medians[f"without{clock}"] - 1
        print(f"overhead {100 * overhead:.1f} % of a night that trains nothing{clock}")


if __name__ == "__main__":
    main()
