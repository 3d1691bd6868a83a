"""Time features and windows of the largest set, in memory.

It has 851,046 bars of 483 stocks over 1,762 sessions.
"""

import resource
from datetime import date
from pathlib import Path

import pandas as pd

from benchmarks.shared_data import SHARED
from benchmarks.timing import median_seconds
from dtml.prices.sessions import sessions_between
from dtml.windows import WindowConfig, Windows, build_windows

REPEATS = 5


def read_bars(prices: Path, index: Path) -> pd.DataFrame:
    """Read a prices file and its index file as one bars frame."""
    bars = pd.concat([pd.read_parquet(prices), pd.read_parquet(index)], ignore_index=True)
    bars = bars.rename(columns={"date": "session"})
    bars = bars.astype({"symbol": "str", "session": "datetime64[ns]"})
    first, last = pd.read_parquet(prices, columns=["date"])["date"].agg(["min", "max"])
    return bars[bars["session"].between(first, last)].reset_index(drop=True)


def build(bars: pd.DataFrame) -> Windows:
    """Build windows of 15 sessions for every stock and day."""
    symbols = tuple(sorted(set(bars["symbol"]) - {"^GSPC"}))
    return build_windows(
        bars,
        sessions=sessions_between("XNYS", date(2016, 1, 4), date(2023, 1, 3)),
        symbols=symbols,
        index_symbol="^GSPC",
        config=WindowConfig(window=15, returns="close", max_return=0.35),
    )


def main() -> None:
    """Print the median seconds and the peak memory of the process."""
    bars = read_bars(SHARED / "prices" / "sp500.parquet", SHARED / "index" / "GSPC.parquet")
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    windows = build(bars)
    seconds = median_seconds(lambda: build(bars), REPEATS)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"features and windows of sp500 {tuple(windows.stocks.shape)}: {seconds:.2f} s")
    print(
        f"peak memory of the process {peak_kb / 2**20:.2f} GiB, of which "
        f"{before_kb / 2**20:.2f} GiB before"
    )


if __name__ == "__main__":
    main()
