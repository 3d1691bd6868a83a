"""Time the process of a night of 483 stocks against one that runs an empty Prefect flow.

The nights after the first train nothing: their time beyond Prefect's own start is the pipeline's.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.shared_data import SHARED

FIRST = "2022-06-01"
NIGHTS = ("2022-06-02", "2022-06-03", "2022-06-06", "2022-06-07", "2022-06-08")
EMPTY_FLOW = """
from flows.settings import prepare_prefect
prepare_prefect(quiet=True)
from flows.service.prefect_server import require_server
require_server()
from prefect import flow
@flow
def nothing():
    return 1
nothing()
"""


def seconds_of(command: list[str], folder: Path) -> float:
    """Return the wall time of a process that must succeed."""
    environment = os.environ | {
        "DTML_DATABASE_URL": f"sqlite:///{folder}/store.sqlite",
        "DTML_DATA": str(folder),
    }
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def night_command(as_of: str) -> list[str]:
    """Return the command of one night; a single epoch trains the model of the first."""
    prices = str(SHARED / "prices" / "sp500.parquet")
    index = str(SHARED / "index" / "GSPC.parquet")
    command = str(Path(sys.executable).with_name("dtml"))
    files = ["--source", "files", "--prices", prices, "--index", index, "--universe", "source"]
    return [command, "nightly", "sp500", *files, "--as-of", as_of, "--epochs", "1", "--seeds", "1"]


def main() -> None:
    """Print medians of whole processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = seconds_of(night_command(FIRST), folder)
        print(f"first night, history stored and one epoch trained: {first:.1f} s")
        empty_seconds = []
        night_seconds = []
        for day in NIGHTS:
            empty_seconds.append(seconds_of([sys.executable, "-c", EMPTY_FLOW], folder))
            night_seconds.append(seconds_of(night_command(day), folder))
    differences = [night - empty for empty, night in zip(empty_seconds, night_seconds, strict=True)]
    print(
        f"an empty Prefect flow: {statistics.median(empty_seconds):.1f} s; "
        f"a night of 483 stocks: {statistics.median(night_seconds):.1f} s; "
        f"beyond Prefect: {statistics.median(differences):.1f} s"
    )


if __name__ == "__main__":
    main()
