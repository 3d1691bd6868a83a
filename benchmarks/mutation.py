"""Measure whether tests fail when a module has one thing changed, by mutmut's operators.

`make mutation`, or `make mutation ONLY="dtml/evaluation/metrics.py
db/connection/differences.py:differ"` for modules or functions. A mutant that no test fails on
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
    """A module, the test files that state its laws, and words of tests that are
    too slow to be asked of each mutant.
    """

    module: str
    files: tuple[str, ...]
    left_out: str = "postgresql processes"


def _trial(module: str, tests: str, left_out: str = "postgresql processes") -> Trial:
    named = (name.split("/") for name in tests.split())
    return Trial(
        f"{module}.py", tuple(f"tests/{room}/test_{name}.py" for room, name in named), left_out
    )


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
    _trial("dtml/evaluation/calibration_curve", "models/calibration models/calibration_exact"),
    _trial("dtml/prices/returns", "models/windows models/features"),
    _trial("dtml/backtest/portfolio", "backtests/portfolio backtests/portfolio_edges"),
    _trial("dtml/features", "models/features"),
    _trial("dtml/windows", "models/windows models/features"),
    _trial("db/rows/markets", "stores/price_rows stores/writes"),
    _trial("db/rows/prices", "stores/price_rows stores/writes"),
    _trial("db/rows/predictions", "stores/prediction_rows stores/evidence_rows stores/writes"),
    _trial("db/rows/nights", "stores/night_rows stores/writes"),
    _trial(
        "db/connection/differences",
        "stores/price_rows stores/prediction_rows stores/benchmark_rows stores/writes",
    ),
    _trial(
        "db/connection/bulk",
        "stores/price_rows stores/prediction_rows stores/writes",
        left_out="processes",
    ),  # its COPY is PostgreSQL's
    _trial("db/rows/calibration", "stores/evidence_rows stores/backtest_rows"),
    _trial("db/rows/attention", "stores/evidence_rows"),
    _trial("db/rows/backtests", "stores/backtest_rows"),
    _trial("db/rows/benchmarks", "stores/benchmark_rows"),
    _trial("db/rows/translations", "stores/translation_rows"),
    _trial("db/rows/translation_queue", "stores/translation_queue stores/translation_queue_rows"),
    _trial("db/rows/fetches", "stores/service_rows"),
)


@dataclass
class Tally:
    """What came of a module's mutants."""

    module: str
    mutants: int = 0
    killed: int = 0
    equivalent: int = 0

    @property
    def score(self) -> float:
        """Return the share killed of those that are not listed as equivalent."""
        return self.killed / max(self.mutants - self.equivalent, 1)


def main(only: Iterable[str]) -> int:
    """Try all mutants, or those of modules and functions named; say which
    survive, then the table.
    """
    wanted = set(only)
    unknown = {each.split(":")[0] for each in wanted} - {each.module for each in TRIALS}
    if unknown:
        raise SystemExit(
            f"no such module: {', '.join(sorted(unknown))}; known: "
            f"{', '.join(t.module for t in TRIALS)}"
        )
    mutation_tests.prepare()
    known = _equivalent()
    tallies = [
        _tried(each, wanted, known)
        for each in TRIALS
        if not wanted or any(name.split(":")[0] == each.module for name in wanted)
    ]
    print(
        "\n| module | mutants | killed | survived | of these equivalent | killed of all | score |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for each in tallies:
        survived = each.mutants - each.killed
        share = each.killed / max(each.mutants, 1)
        print(
            f"| {each.module} | {each.mutants} | {each.killed} | {survived} | {each.equivalent} | "
            f"{share:.1%} |"
            f" {each.score:.1%} |"
        )
    return int(any(each.score < LEAST for each in tallies))


def _tried(trial: Trial, wanted: set[str], known: set[tuple[str, ...]]) -> Tally:
    tally, begun = Tally(trial.module), perf_counter()
    found = mutants(trial.module, Path(trial.module).read_text())
    if wanted and trial.module not in wanted:
        found = [each for each in found if f"{trial.module}:{each.function}" in wanted]

    def noticed(mutant: Mutant, killed: bool) -> None:
        listed = (mutant.module, mutant.function, mutant.before, mutant.after) in known
        tally.mutants += 1
        tally.killed += killed
        tally.equivalent += listed and not killed
        if listed == killed:
            what = "is listed as equivalent, and noticed" if listed else "survives"
            where = f"{mutant.module}:{mutant.lines.start} {mutant.function}"
            print(f"{where} {what}\n  - {mutant.before}\n  + {mutant.after}", flush=True)

    mutation_tests.run(found, trial.files, trial.left_out, noticed)
    print(
        f"{trial.module}: {tally.killed} of {tally.mutants} in {perf_counter() - begun:.0f} s",
        flush=True,
    )
    return tally


def _equivalent() -> set[tuple[str, ...]]:
    """What is listed: module, function, the line before and after.

    ValueError for one without a reason.
    """
    listed = tomllib.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    return {
        (module, each["function"], each["before"], after)
        for module, entries in listed.items()
        for each in entries
        for after in each["after"]
        if each["reason"]
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
