"""Try every fault at every write, rename, statement and commit of the product's commands.

`python -m benchmarks.faults [--engine sqlite postgresql] [--work NAME ...] [--share N]`: a command
stops there (killed, without power, without space, with half a write or an I/O error; on PostgreSQL
with its connection lost, before or after), runs again undisturbed, and what it leaves is compared
with what nobody disturbed. `--share` tries one fault in so many.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Read only at import, so it is set before: a process with threads must not fork.
os.environ["OMP_NUM_THREADS"] = "1"

from benchmarks.stores import ENGINES, database_on
from tests.support.faults.runs import Bench
from tests.support.faults.trials import Tally, Trials
from tests.support.faults.works import WORKS

HEAD = (
    f"{'work':28} {'engine':10} {'points':>6} {'faults':>6} {'rows lost':>9} {'rows more':>9} "
    f"{'other weights':>13} {'other files':>11} {'leftovers':>9} {'s':>6}"
)


def main() -> None:
    """Try the faults, print a line for each work, and fail if any left a difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--work", choices=list(WORKS), nargs="+", default=list(WORKS))
    parser.add_argument("--share", type=int, default=1)
    options = parser.parse_args()
    broken: list[str] = []
    print(HEAD)
    for engine in options.engine:
        for name in options.work:
            with _bench(engine) as bench:
                trials = Trials(bench, WORKS[name])
                tally = trials.try_each(trials.faults()[:: options.share])
            _print(tally)
            broken += tally.broken
    for complaint in broken:
        print(complaint)
    sys.exit(bool(broken))


@contextmanager
def _bench(engine: str) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder, database_on(engine) as url:
        yield Bench(Path(folder), None if engine == "sqlite" else url)


def _print(tally: Tally) -> None:
    faults = sum(tally.tried.values())
    print(
        f"{tally.work:28} {tally.engine:10} {tally.points:6} {faults:6} {tally.rows_lost:9} "
        f"{tally.rows_more:9} {tally.other_weights:13} {tally.other_files:11} "
        f"{tally.leftovers:9} {tally.seconds:6.0f}",
        flush=True,
    )
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.tried.items()))
    print(f"  {kinds}", flush=True)


if __name__ == "__main__":
    main()
