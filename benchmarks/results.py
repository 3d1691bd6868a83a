"""Make the figures of the README.md beside this file again, a file each (`make results`).

`python -m benchmarks.results [NAME ...] [--list] [--again] [--folder results]`: what is named, or
all of it. Each writes what its commands print to `results/NAME.md`, below the machine, the day, the
code and the minutes; what is there already is left unless `--again` is given. Stores and models of
a figure lie in `results/NAME`, and the user's own are not touched.
"""

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.shared_data import SHARED

ROOT = Path(__file__).parents[1]
PROGRAMS = {"dtml": str(Path(sys.executable).with_name("dtml")), "python": sys.executable}


@dataclass(frozen=True)
class Result:
    """Figures `of` something: the commands that make them, and their minutes on four cores."""

    name: str
    of: str
    minutes: int
    commands: tuple[str, ...]

    @property
    def needs_shared_data(self) -> bool:
        """Return whether a command reads the shared data."""
        return any(str(SHARED) in command for command in self.commands)


def prices(file: str, index: str = "GSPC") -> str:
    """Return the options that name the files of a public set."""
    return f"--prices {SHARED}/prices/{file}.parquet --index {SHARED}/index/{index}.parquet"


KDD17 = f"dtml nightly kdd17 --source files {prices('kdd17')}"
FIRST_OF_KDD17 = f"{KDD17} --as-of 2016-06-30"
FLAT_COSTS = "--commission 1 --half-spread 2 --sale-tax 0 --borrow 50 --workers 2"
RANKING = f"dtml benchmark ranking --prices {SHARED}/prices --markdown"
MEMBERS = f"{SHARED}/prices/csi300_asof_members.csv"
BANDS = """dtml query "select kind, level, sum(covered) * 1.0 / sum(n) as covered,
    sum(decided) * 1.0 / sum(n) as decided,
    sum(decided_correct) * 1.0 / sum(decided) as correct_of_those
    from coverage group by kind, level"
"""


def checked(market: str, file: str, index: str = "GSPC") -> str:
    """Return the command that prints what the checks find in a public set."""
    return f"dtml fetch {market} --source files {prices(file, index)} --universe source"


RESULTS = (
    Result(
        "kdd17-nights",
        "127 nights beside the naive rules",
        12,
        (FIRST_OF_KDD17, f"{KDD17} --as-of 2016-12-30 --nights 127", "dtml score kdd17"),
    ),
    Result(
        "acl18",
        "the published table, ACL18",
        30,
        (f"dtml benchmark acl18 {prices('acl18')} --markdown",),
    ),
    Result(
        "kdd17",
        "the published table, KDD17",
        50,
        (f"dtml benchmark kdd17 {prices('kdd17')} --markdown",),
    ),
    Result(
        "ndx100",
        "NDX100, shorter",
        20,
        (f"dtml benchmark ndx100 {prices('ndx100', 'NDX')} --seeds 5 --epochs 30 --markdown",),
    ),
    Result(
        "csi300-paper",
        "the published table, CSI300, 3 seeds",
        40,
        (f"dtml benchmark csi300-paper {prices('csi300_asof', 'SH000300')} --seeds 3 --markdown",),
    ),
    Result(
        "ni225-paper",
        "the published table, NI225",
        30,
        (f"dtml benchmark ni225-paper {prices('ni225_paper', 'N225')} --markdown",),
    ),
    Result(
        "ftse100-paper",
        "the published table, FTSE100, and three other draws of its stocks",
        40,
        (
            f"dtml benchmark ftse100-paper {prices('ftse100', 'FTSE')} --markdown",
            "python -m benchmarks.ftse100_draws",
        ),
    ),
    Result("data-axis", "the simulated market", 20, ("python -m benchmarks.data_axis",)),
    Result(
        "ranking",
        "the ranking of a day's stocks",
        90,
        (f"{RANKING} --with dtml --with alstm --seeds 3", f"{RANKING} --leg open_to_open"),
    ),
    Result(
        "csi300",
        "Qlib's table of CSI 300",
        10,
        (
            f"dtml benchmark csi300 {prices('csi300_asof', 'SH000300')} --members {MEMBERS}"
            " --markdown",
            "python -m benchmarks.dropout",
        ),
    ),
    Result(
        "sp500-backtest",
        "a backtest of 483 stocks",
        60,
        (
            f"dtml backtest sp500 {prices('sp500')} --from 2018-01-02 --to 2022-12-28"
            f" --train-sessions 504 --universe source {FLAT_COSTS}",
        ),
    ),
    Result(
        "kospi200-backtest",
        "a backtest of 192 stocks",
        8,
        (
            f"dtml backtest kospi200 {prices('kospi200_2020', 'KS11')} --from 2021-03-02"
            f" --to 2022-12-28 --train-sessions 252 --universe source {FLAT_COSTS}",
        ),
    ),
    Result(
        "kdd17-backtest",
        "a backtest of KDD17",
        20,
        (
            f"dtml backtest kdd17 {prices('kdd17')} --from 2015-01-02 --to 2016-12-29"
            " --retrain-every 63",
            BANDS,
        ),
    ),
    Result(
        "calibration",
        "how the abstention bands hold",
        4,
        ("dtml nightly simulated --nights 120 --as-of 2026-11-19", BANDS),
    ),
    Result(
        "explanations",
        "whether attention explains anything",
        12,
        (
            "dtml nightly simulated",
            "python -m benchmarks.explanations simulated",
            FIRST_OF_KDD17,
            "python -m benchmarks.explanations kdd17",
        ),
    ),
    Result(
        "bars",
        "what the checks find in public sets",
        2,
        (
            checked("kdd17", "kdd17"),
            checked("acl18", "acl18"),
            checked("ndx100", "ndx100", "NDX"),
            checked("sp500", "sp500"),
            checked("ftse100", "ftse30", "FTSE"),
            checked("kospi200", "kospi200_2020", "KS11"),
        ),
    ),
    Result("chaos", "365 nights of trouble", 30, ("python -m benchmarks.chaos",)),
)


def main() -> None:
    """Make the figures asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of those that --list shows")
    parser.add_argument("--list", action="store_true", help="names, minutes and contents")
    parser.add_argument("--again", action="store_true", help="what is there already too")
    parser.add_argument("--folder", type=Path, default=Path("results"))
    options = parser.parse_args()
    if options.list:
        for result in RESULTS:
            print(f"{result.name:<20}{result.minutes:>4} min  {result.of}")
        return
    unknown = set(options.names) - {result.name for result in RESULTS}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}: --list shows what there is")
    wanted = [result for result in RESULTS if not options.names or result.name in options.names]
    failed = [result.name for result in wanted if not make(result, options)]
    if failed:
        sys.exit(f"these failed: {', '.join(failed)}")


def make(result: Result, options: argparse.Namespace) -> bool:
    """Run a result's commands and write their output; return whether all succeeded."""
    file = options.folder.absolute() / f"{result.name}.md"
    if file.exists() and not options.again:
        print(f"{result.name}: {file} is there; --again makes it anew", flush=True)
        return True
    if result.needs_shared_data and not SHARED.is_dir():
        print(f"{result.name}: no shared data at {SHARED}", flush=True)
        return True
    print(f"{result.name}: {result.of}, about {result.minutes} min", flush=True)
    start = time.monotonic()
    outputs = []
    succeeded = True
    for command in result.commands:
        process = run(command, file.with_suffix(""))
        outputs.append(f"$ {command.replace(f'{SHARED}/', '')}\n{process.stdout.strip()}")
        if process.returncode:
            outputs.append(process.stderr.strip())
            succeeded = False
    minutes = (time.monotonic() - start) / 60
    text = "\n".join([f"# {result.of}", made_with(minutes), "", "```", *outputs, "```", ""])
    written_file = file if succeeded else file.with_suffix(".failed.md")
    written_file.write_text(text, encoding="utf-8")
    print(f"{result.name}: {written_file}", flush=True)
    return succeeded


def run(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command with a store, models and pages in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "DTML_DATA": str(folder / "data"),
        "DTML_REPORTS": str(folder / "reports"),
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("DTML_DATABASE_URL", None)
    program, *words = shlex.split(command)
    return subprocess.run(
        [PROGRAMS[program], *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def made_with(minutes: float) -> str:
    """Return the day, the machine, the code and the minutes of figures."""
    describe = ["git", "describe", "--always", "--dirty"]
    process = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    return (
        f"{datetime.now(UTC).date()}, {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}, torch {version('torch')}; "
        f"{version('dtml-nightshift')} {process.stdout.strip()}; {minutes:.1f} min"
    )


if __name__ == "__main__":
    main()
