"""What own code costs a night: nights with a file of two features beside nights without: python -m
benchmarks.own_code.

Prints the median seconds, of the clock and of the processor with its child processes, of nights of
the simulated market that train nothing, each day's night without and with the file, in turns that
change; and of the question to the file.
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
from flows.nightly import order
from flows.nightly.context import MarketContext, RunRequest, open_context
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
    """Return the seconds of the processor that this process and its ended children used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@contextmanager
def timed(into: list[float], name: str) -> Any:
    """Add what a function of the order takes to a list."""
    before: Callable[..., Any] = getattr(order, name)

    def asked(*given: Any) -> Any:
        begun = time.perf_counter()
        try:
            return before(*given)
        finally:
            into.append(time.perf_counter() - begun)

    setattr(order, name, asked)
    try:
        yield
    finally:
        setattr(order, name, before)


def main() -> None:
    """Print the medians."""
    days = [each.date() for each in sessions_between("XNYS", FIRST, date(2026, 10, 30))][
        : NIGHTS + 1
    ]
    seconds: dict[str, list[float]] = defaultdict(list)
    alone: list[float] = []
    with TemporaryDirectory() as kept, timed(alone, "ask_own"):
        (Path(kept) / "mine.py").write_text(MINE)
        turns = [("without", None), ("with", Path(kept) / "mine.py")]
        for day in days:
            # the second night of a day finds in memory the prices that the first one simulated
            turns.reverse()
            for name, code in turns:
                folder = Path(kept) / name
                folder.mkdir(exist_ok=True)
                context = opened(folder, code)
                gc.collect()  # else whole collections, of .2 s, fall on the nights of one side
                begun, used = time.perf_counter(), processor()
                run_night(context, day)
                seconds[name].append(time.perf_counter() - begun)
                seconds[f"{name}, processor"].append(processor() - used)
    # Two nights in a row, one of which came first on its day: only then do both have found as many
    # prices in memory.
    median = {
        name: statistics.median((a + b) / 2 for a, b in zip(each[1::2], each[2::2], strict=False))
        for name, each in seconds.items()
    }
    print(
        f"nights: {NIGHTS}, first nights "
        f"{ ({name: round(each[0], 1) for name, each in seconds.items()}) }"
    )
    print(
        {name: round(each, 3) for name, each in median.items()},
        f"own code asked {statistics.median(alone[1:]):.3f} s",
    )
    for of in ("", ", processor"):
        more = median[f"with{of}"] / median[f"without{of}"] - 1
        print(f"overhead {100 * more:.1f} % of a night that trains nothing{of}")


if __name__ == "__main__":
    main()
