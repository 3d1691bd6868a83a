"""Run a whole exchange through the pipeline, and measure seconds, processor time and memory.

`python -m benchmarks.large_universe [--stocks 2400] [--from 2016-01-04] [--epochs 1] [--database
URL]`: fetch, training, nights and pages of a simulated market of that many stocks and ten years, in
a parquet file like a user's. A line for each command: its seconds, its processor time, and the
memory of its largest process.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path

from dtml.sources.simulated import SimulatedMarket, SimulatedSource

FOLLOWERS = 2
LAST = "2025-12-29"
NEXT = ("2025-12-30", "2025-12-31")
MARKET = """title = "A whole exchange, simulated"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
source = "files"
returns = "adj_close"
z_close = "adjusted"
[index]
symbol = "SIMX"
name = "Index"
[checks]
max_return = 0.35
max_missing = 0.2
stale_share = 0.3
[model]
window = 15
normalisation = "shared"
protocol = "all"
stocks_a_step = 300
seeds = 1
"""


def write_market(folder: Path, stocks: int, first: date) -> int:
    """Write the prices and the market's file; return how many bars there are."""
    market = SimulatedMarket(leaders=stocks // (1 + FOLLOWERS), followers=FOLLOWERS, start=first)
    bars = SimulatedSource(market=market).bars(date.fromisoformat(NEXT[-1]))
    bars.rename(columns={"session": "date"}).to_parquet(folder / "prices.parquet", index=False)
    (folder / "exchange.toml").write_text(MARKET, encoding="utf-8")
    return len(bars)


def run(folder: Path, database: str, words: Sequence[str]) -> None:
    """Run a command of dtml; print its seconds, processor time and memory."""
    command = [str(Path(sys.executable).with_name("dtml")), *words]
    environment = os.environ | {"DTML_DATABASE_URL": database, "DTML_DATA": str(folder / "data")}
    start = time.perf_counter()
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    processor_seconds = usage.ru_utime + usage.ru_stime
    failure = "" if process.returncode == 0 else f", ended with {process.returncode}"
    print(
        f"dtml {' '.join(words[:2])}: {seconds:.0f} s, processor {processor_seconds:.1f} s, "
        f"{usage.ru_maxrss / 2**20:.2f} GiB{failure}",
        flush=True,
    )


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stocks", type=int, default=2400)
    parser.add_argument("--from", dest="first", type=date.fromisoformat, default=date(2016, 1, 4))
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--database", help="An empty store; by default a new file of SQLite.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a process of its own: the memory of this one would count for the commands it starts.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            bars = pool.submit(write_market, folder, options.stocks, options.first).result()
        database = options.database or f"sqlite:///{folder}/store.sqlite"
        print(f"{options.stocks} stocks, {bars:,} bars", flush=True)
        files = ["--source", "files", "--prices", "prices.parquet", "--universe", "source"]
        market = ["--market-file", "exchange.toml", *files, "--epochs", str(options.epochs)]
        run(folder, database, ["fetch", *market[:-2], "--as-of", LAST])
        for day in (LAST, *NEXT):
            run(folder, database, ["nightly", *market, "--as-of", day])


if __name__ == "__main__":
    main()
