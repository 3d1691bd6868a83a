"""Time work and take the median of several runs."""

import statistics
import time
from collections.abc import Callable


def seconds_of(work: Callable[[], object]) -> float:
    """Return the wall time of one run, in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of so many runs, in seconds."""
    return statistics.median(seconds_of(work) for _ in range(repeats))
