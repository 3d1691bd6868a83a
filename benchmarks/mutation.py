"""Measure whether tests fail when a module has one thing changed, by mutmut's operators.

`make mutation`, or `make mutation ONLY="dtml/evaluation/metrics.py
db/connection/differences.py:is_changed"` for modules or functions. A mutant that no test fails on
either shows a law that no test states, or changes nothing that can be seen: then it stands with its
reason in mutation_equivalent.toml, and counts for nothing. Ends with 1 where a module's score is
below 90 %.
"""

import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks import mutation_tests
from benchmarks.mutants import Mutant, mutants

LEAST = 0.9
EQUIVALENT = Path(__file__).with_name("mutation_equivalent.toml")


@dataclass(frozen=True)
class Trial:
    """A module, the test files that state its laws, and words of tests to leave out.

    A test whose name has one of those words is too slow to run on each mutant.
    """

    module: str
    files: tuple[str, ...]
    left_out: str = "postgresql processes"


def _trial(module: str, tests: str, left_out: str = "postgresql processes") -> Trial:
    files = []
    for test in tests.split():
        room, name = test.split("/")
        files.append(f"tests/{room}/test_{name}.py")
    return Trial(module=f"{module}.py", files=tuple(files), left_out=left_out)


TRIALS = (
    _trial(
        "dtml/evaluation/metrics",
        "models/metrics models/calibration models/scoreboard pages/night_page pages/night_charts",
        left_out="95_percent fresh_days needs_no",
    ),
    _trial(
        "dtml/evaluation/calibration",
        "models/calibration models/calibration_exact",
        "fresh_days needs_no days_coverage better_on_days",
    ),
    _trial("dtml/prices/returns", "models/windows models/features"),
    _trial("dtml/backtest/portfolio", "backtests/portfolio backtests/portfolio_edges"),
    _trial("dtml/backtest/quotes", "backtests/portfolio backtests/portfolio_edges"),
    _trial("dtml/features", "models/features"),
    _trial("dtml/windows", "models/windows models/features"),
    _trial("db/read", "stores/night_rows stores/rows"),
    _trial("db/save", "stores/prediction_rows stores/backtest_rows stores/rows"),
    _trial("db/rows/markets", "stores/price_rows stores/rows"),
    _trial("db/rows/prices", "stores/price_rows stores/rows"),
    _trial("db/rows/predictions", "stores/prediction_rows stores/rows"),
    _trial("db/rows/nights", "stores/night_rows stores/rows"),
    _trial(
        "db/connection/differences",
        "stores/price_rows stores/prediction_rows stores/benchmark_rows stores/rows",
    ),
    # Not without the tests of PostgreSQL, whose COPY it uses.
    _trial(
        "db/connection/bulk",
        "stores/price_rows stores/prediction_rows stores/rows",
        left_out="processes",
    ),
    _trial("db/rows/calibration", "stores/rows stores/backtest_rows nights/evidence"),
    _trial("db/rows/attention", "stores/rows nights/evidence"),
    _trial("db/rows/backtests", "stores/backtest_rows"),
    _trial("db/rows/backtests", "stores/benchmark_rows"),
    _trial(
        "db/rows/translations",
        "stores/translation_rows stores/translation_queue stores/translation_queue_rows",
    ),
    _trial("db/rows/fetches", "stores/service_rows"),
)


@dataclass
class Tally:
    """The numbers of a module's mutants, of those killed, and of those listed as equivalent."""

    module: str
    mutants: int = 0
    killed: int = 0
    equivalent: int = 0

    @property
    def score(self) -> float:
        """Return the share killed of those that are not listed as equivalent."""
        return self.killed / max(self.mutants - self.equivalent, 1)


def main(only: Iterable[str]) -> int:
    """Try the mutants of the named modules and functions, or all; print the survivors and a table.

    Returns 1 where a module's score is below `LEAST`, else 0.
    """
    wanted = set(only)
    wanted_modules = {name.split(":")[0] for name in wanted}
    modules = [trial.module for trial in TRIALS]
    unknown = wanted_modules - set(modules)
    if unknown:
        raise SystemExit(
            f"no such module: {', '.join(sorted(unknown))}; known: {', '.join(modules)}"
        )
    mutation_tests.prepare()
    equivalent = _equivalent()
    tallies = [
        _tally_of(trial, wanted, equivalent)
        for trial in TRIALS
        if not wanted or trial.module in wanted_modules
    ]
    print(
        "\n| module | mutants | killed | survived | of these equivalent | killed of all | score |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for tally in tallies:
        survived = tally.mutants - tally.killed
        share = tally.killed / max(tally.mutants, 1)
        print(
            f"| {tally.module} | {tally.mutants} | {tally.killed} | {survived} | "
            f"{tally.equivalent} | {share:.1%} | {tally.score:.1%} |"
        )
    return int(any(tally.score < LEAST for tally in tallies))


def _tally_of(trial: Trial, wanted: set[str], equivalent: set[tuple[str, ...]]) -> Tally:
    """Run a module's tests on its mutants; print those that survive, and return their numbers."""
    start = perf_counter()
    tally = Tally(trial.module)
    tried = mutants(trial.module, Path(trial.module).read_text())
    if wanted and trial.module not in wanted:
        tried = [mutant for mutant in tried if f"{trial.module}:{mutant.function}" in wanted]

    def noticed(mutant: Mutant, killed: bool) -> None:
        listed = (mutant.module, mutant.function, mutant.before, mutant.after) in equivalent
        tally.mutants += 1
        tally.killed += killed
        tally.equivalent += listed and not killed
        if listed == killed:
            what = "is listed as equivalent, and noticed" if listed else "survives"
            where = f"{mutant.module}:{mutant.lines.start} {mutant.function}"
            print(f"{where} {what}\n  - {mutant.before}\n  + {mutant.after}", flush=True)

    mutation_tests.run(tried, trial.files, trial.left_out, noticed)
    seconds = perf_counter() - start
    print(f"{trial.module}: {tally.killed} of {tally.mutants} in {seconds:.0f} s", flush=True)
    return tally


def _equivalent() -> set[tuple[str, ...]]:
    """Return the mutants listed as equivalent: module, function, statement before and after.

    One without a reason does not count.
    """
    if not EQUIVALENT.exists():
        return set()
    listed: set[tuple[str, ...]] = set()
    for module, entries in tomllib.loads(EQUIVALENT.read_text()).items():
        for entry in entries:
            if entry["reason"]:
                for after in entry["after"]:
                    listed.add((module, entry["function"], entry["before"], after))
    return listed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
