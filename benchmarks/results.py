"""Make every figure of the README.md beside this file again, a file each (`make results`).

`python -m benchmarks.results [NAME ...] [--list] [--again] [--folder results]`: what is named, or
all of it, the quick ones first. Each writes what its commands print to `results/NAME.md`, below the
machine, the day, the code and the minutes; what is there already is left, so that an interrupted
evening goes on, unless `--again` is given. Stores and models of a figure lie in `results/NAME`, and
the user's own are not touched. What needs the shared data says so when it is not there.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.shared_data import SHARED

DTML = str(Path(sys.executable).with_name("dtml"))
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Result:
    """Figures `of` something: the commands that make them, and about how many minutes they take.

    The minutes are those of a machine with four cores.
    """

    name: str
    of: str
    minutes: int
    commands: tuple[tuple[str, ...], ...]
    shared: bool = True  # it needs the shared data


def prices(market: str, index: str = "GSPC") -> tuple[str, ...]:
    """Return the options that name a market's files."""
    prices_file = SHARED / "prices" / f"{market}.parquet"
    index_file = SHARED / "index" / f"{index}.parquet"
    return "--prices", str(prices_file), "--index", str(index_file)


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a benchmark of this folder."""
    return sys.executable, "-m", f"benchmarks.{name}", *arguments


def dtml(*arguments: str) -> tuple[str, ...]:
    """Return a `dtml` command."""
    return DTML, *arguments


CSI300 = dtml(
    "benchmark",
    "csi300",
    *prices("csi300_asof", "SH000300"),
    "--members",
    str(SHARED / "prices" / "csi300_asof_members.csv"),
    "--markdown",
)
KDD17 = dtml("nightly", "kdd17", "--source", "files", *prices("kdd17"))
FIRST = (*KDD17, "--as-of", "2016-06-30")
REST = (*KDD17, "--as-of", "2016-12-30", "--nights", "127")
SPAN = ("--from", "2015-01-02", "--to", "2016-12-29", "--retrain-every", "63")
FIVE_YEARS = (
    "--from",
    "2018-01-02",
    "--to",
    "2022-12-28",
    "--train-sessions",
    "504",
    "--universe",
    "source",
)
TWO_YEARS = (
    "--from",
    "2021-03-02",
    "--to",
    "2022-12-28",
    "--train-sessions",
    "252",
    "--universe",
    "source",
)
MANY_NIGHTS = dtml("nightly", "simulated", "--nights", "120", "--as-of", "2026-11-19")
BAND = "sum(covered) * 1.0 / sum(n) as covered, sum(decided) * 1.0 / sum(n) as decided"
RIGHT = "sum(decided_correct) * 1.0 / sum(decided) as correct_of_those"
BANDS = dtml("query", f"select kind, level, {BAND}, {RIGHT} from coverage group by kind, level")  # noqa: S608
SP500 = (*prices("sp500"), *FIVE_YEARS)
KOSPI = (*prices("kospi200_2020", "KS11"), *TWO_YEARS)
TWO = ("--workers", "2")
FLAT = ("--commission", "1", "--half-spread", "2", "--sale-tax", "0", "--borrow", "50")
SHORTER = ("--seeds", "5", "--epochs", "30", "--markdown")
ALONE = ("--rounds", "3", "--threads", "1")
TRANSLATION = (module("translation_training_speed", *ALONE), module("translation_search_speed"))
MULTI30K = "runs/data/translation/multi30k-en-de"
BLEU = (
    module("translation_quality", "--folder", "runs"),
    module("translation_engines", *ALONE, "--model", MULTI30K),
)
EVERY_SET = (
    "ranking",
    "--prices",
    str(SHARED / "prices"),
    "--with",
    "dtml",
    "--with",
    "alstm",
    "--seeds",
    "3",
    "--markdown",
)
RANKINGS = (
    dtml("benchmark", *EVERY_SET),
    dtml("benchmark", *EVERY_SET[:3], "--leg", "open_to_open", "--markdown"),
)
NIGHTS = (dtml("nightly", "simulated", "--nights", "6"),)
EXPLAINED = (
    dtml("nightly", "simulated"),
    module("explanations", "simulated"),
    FIRST,
    module("explanations", "kdd17"),
)


def checked(market: str, file: str, index: str = "GSPC") -> tuple[str, ...]:
    """Return the command that prints what the checks find in a public set."""
    return dtml("fetch", market, "--source", "files", *prices(file, index), "--universe", "source")


BARS = (
    checked("kdd17", "kdd17"),
    checked("acl18", "acl18"),
    checked("ndx100", "ndx100", "NDX"),
    checked("sp500", "sp500"),
    checked("ftse100", "ftse30", "FTSE"),
    checked("kospi200", "kospi200_2020", "KS11"),
)
RESULTS = (
    Result("simulated", "six nights of the simulated market", 2, NIGHTS, shared=False),
    Result(
        "speed",
        "bars, windows, a night",
        5,
        (module("store_loading"), module("feature_windows"), module("nightly_overhead")),
    ),
    Result(
        "training",
        "seeds trained, against plain programs",
        10,
        (module("training_speed"),),
        shared=False,
    ),
    Result("resampling", "day-resamples", 2, (module("bootstrap_speed"),), shared=False),
    Result("bars", "what the checks find in public sets", 2, BARS),
    Result("layers", "cost per layer against length", 3, (module("layer_cost"),), shared=False),
    Result("pages", "pages of 500 stocks", 5, (module("pages"),), shared=False),
    Result(
        "dashboard-load",
        "200 requests a second, with hang-ups",
        4,
        (module("dashboard_load"),),
        shared=False,
    ),
    Result(
        "dashboard-siege",
        "endless SQL of other sites",
        4,
        (module("dashboard_siege"),),
        shared=False,
    ),
    Result("kills", "backtests that are killed", 10, (module("backtest_kills"),), shared=False),
    Result("backtest-folds", "time against folds", 5, (module("backtest_folds"),)),
    Result("audit", "the audit and its planted leaks", 5, (FIRST, dtml("audit", "kdd17"))),
    Result(
        "kdd17-nights",
        "127 nights beside the naive rules",
        12,
        (FIRST, REST, dtml("score", "kdd17")),
    ),
    Result("calibration", "how the abstention bands hold", 4, (MANY_NIGHTS, BANDS), shared=False),
    Result("explanations", "whether attention explains anything", 12, EXPLAINED),
    Result("data-axis", "the simulated market's ceiling", 20, (module("data_axis"),), shared=False),
    Result(
        "coverage", "intervals against the truth", 10, (module("interval_coverage"),), shared=False
    ),
    Result(
        "overlapping",
        "intervals of returns that overlap",
        5,
        (module("overlapping_coverage"),),
        shared=False,
    ),
    Result("family", "ten models without skill", 5, (module("family_wise_error"),), shared=False),
    Result("frozen", "a frozen year, checked", 3, (module("frozen_year"),), shared=False),
    Result("controls", "what the ACL18 figures hang on", 25, (module("acl18_controls"),)),
    Result(
        "acl18",
        "the published table, ACL18",
        30,
        (dtml("benchmark", "acl18", *prices("acl18"), "--markdown"),),
    ),
    Result(
        "kdd17",
        "the published table, KDD17",
        50,
        (dtml("benchmark", "kdd17", *prices("kdd17"), "--markdown"),),
    ),
    Result(
        "ndx100",
        "NDX100, shorter",
        20,
        (dtml("benchmark", "ndx100", *prices("ndx100", "NDX"), *SHORTER),),
    ),
    Result(
        "ni225",
        "the published table, NI225",
        15,
        (dtml("benchmark", "ni225-paper", *prices("ni225_paper", "N225"), "--markdown"),),
    ),
    Result(
        "ftse100",
        "the published table, FTSE100",
        40,
        (dtml("benchmark", "ftse100-paper", *prices("ftse100", "FTSE"), "--markdown"),),
    ),
    Result(
        "csi300-table",
        "the published table, CSI300, three seeds",
        30,
        (
            dtml(
                "benchmark",
                "csi300-paper",
                *prices("csi300_asof", "SH000300"),
                "--seeds=3",
                "--markdown",
            ),
        ),
    ),
    Result(
        "kdd17-backtest",
        "a walk through KDD17",
        20,
        (dtml("backtest", "kdd17", *prices("kdd17"), *SPAN), BANDS),
    ),
    Result(
        "kospi200-backtest",
        "a walk through 192 stocks",
        8,
        (dtml("backtest", "kospi200", *KOSPI, *TWO, *FLAT),),
    ),
    Result(
        "sp500-backtest",
        "a walk through 483 stocks",
        60,
        (dtml("backtest", "sp500", *SP500, *TWO, *FLAT),),
    ),
    Result("members", "what survivors add", 5, (module("members_of_the_day"),)),
    Result("csi300", "Qlib's table of CSI 300", 10, (CSI300, module("dropout"))),
    Result("ranking", "the ranking of a day's stocks", 90, RANKINGS),
    Result("history", "ten years in one store", 25, (module("view_latency"),), shared=False),
    Result(
        "long-history", "questions about all of it", 12, (module("long_history"),), shared=False
    ),
    Result(
        "growth",
        "what a night adds, and a pruned year",
        25,
        (module("store_growth"), module("pruned_year")),
        shared=False,
    ),
    Result(
        "translation-speed", "training and search against others", 15, TRANSLATION, shared=False
    ),
    Result(
        "translation-kills",
        "trainings and jobs that are killed",
        20,
        (module("translation_kills"),),
        shared=False,
    ),
    Result(
        "faults",
        "every write of a command, with each fault",
        60,
        (module("faults", "--histories", "20"),),
        shared=False,
    ),
    Result("chaos", "365 nights of trouble", 30, (module("chaos"),), shared=False),
    Result("serve", "an hour of schedules", 62, (module("service_schedules", "60"),), shared=False),
    Result("translation", "BLEU of Multi30k and Tatoeba", 420, BLEU),
)


def main() -> None:
    """Make the figures asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of those that --list shows")
    parser.add_argument(
        "--list", action="store_true", help="what there is, with about how many minutes each takes"
    )
    parser.add_argument("--again", action="store_true", help="what is there already too")
    parser.add_argument("--folder", type=Path, default=Path("results"))
    options = parser.parse_args()
    if options.list:
        for result in RESULTS:
            print(f"{result.name:<20}{result.minutes:>4} min  {result.of}")
        return
    known_names = {result.name for result in RESULTS}
    unknown = sorted(set(options.names) - known_names)
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}: --list shows what there is")
    failed = []
    for result in RESULTS:
        is_wanted = not options.names or result.name in options.names
        if is_wanted and not make(result, options):
            failed.append(result.name)
    if failed:
        sys.exit(f"these failed: {', '.join(failed)}")


def make(result: Result, options: argparse.Namespace) -> bool:
    """Run a result's commands and write their output, unless it exists.

    Returns whether all of them succeeded.
    """
    file = options.folder.absolute() / f"{result.name}.md"
    if file.exists() and not options.again:
        print(f"{result.name}: {file} is there; --again makes it anew", flush=True)
        return True
    if result.shared and not SHARED.is_dir():
        print(f"{result.name}: no shared data at {SHARED}", flush=True)
        return True
    print(f"{result.name}: {result.of}, about {result.minutes} min", flush=True)
    start = time.monotonic()
    outputs = []
    succeeded = True
    for command in result.commands:
        code, output = output_of(command, file.with_suffix(""))
        outputs.append(f"$ {shown(command)}\n{output}")
        succeeded = succeeded and code == 0
    minutes = (time.monotonic() - start) / 60
    lines = [*heading(result, minutes), "```", *outputs, "```", ""]
    written_file = file if succeeded else file.with_suffix(".failed.md")
    written_file.write_text("\n".join(lines), encoding="utf-8")
    print(f"{result.name}: {written_file}", flush=True)
    return succeeded


def output_of(command: tuple[str, ...], folder: Path) -> tuple[int, str]:
    """Run a command in a result's own folder; return its exit code and its output.

    The output of a command that failed includes its stderr.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "DTML_DATA": str(folder / "data"),
        "DTML_REPORTS": str(folder / "reports"),
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("DTML_DATABASE_URL", None)
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    output = process.stdout.strip()
    if process.returncode != 0:
        output += f"\n{process.stderr.strip()}"
    return process.returncode, output


def shown(command: tuple[str, ...]) -> str:
    """Return a command as a user types it."""
    words = [Path(word).name if word.startswith("/") else word for word in command]
    return " ".join(words)


def heading(result: Result, minutes: float) -> list[str]:
    """Return what a reader must know of figures: by which code, when and on what machine."""
    process = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    code = process.stdout.strip()
    day = datetime.now(UTC).date()
    python = platform.python_version()
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {python}, torch {version('torch')}"
    )
    return [
        f"# {result.of}",
        f"{day}, {machine}; {version('dtml-nightshift')} {code}; {minutes:.1f} min",
        "",
    ]


if __name__ == "__main__":
    main()
