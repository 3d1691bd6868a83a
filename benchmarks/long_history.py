"""Time four questions about ten years of predictions, to the store and to its Parquet files.

`python -m benchmarks.long_history`: fills an SQLite store with ten million predictions (4 minutes,
5 GB), exports it, which is timed too, and asks the questions; `--predictions 1000000 --engine
postgresql` does a tenth of it on PostgreSQL. Exit 1 when a limit is missed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb

from benchmarks.store_loading import postgresql
from benchmarks.ten_year_store import TenYears
from db.connection.user_sql import open_answer
from db.engine import open_engine, upgrade

DTML = str(Path(sys.executable).with_name("dtml"))
SECONDS_LIMIT = 1.0
MEMORY_LIMIT_MB = 200
YEAR = {
    "sqlite": "substr(target, 1, 4)",
    "postgresql": "extract(year from target)",
    "parquet": "year",
}
QUESTIONS = {
    "count(*)": "select count(*) from prediction_history",
    "accuracy by year": (
        "select {year}, avg(correct), count(*) from prediction_history group by 1 order by 1"
    ),
    "accuracy by market": (
        "select market, avg(correct), count(*) from prediction_history group by 1 order by 1"
    ),
    "deciles by day": """
        select target, decile, avg(realised_return), count(*) from (
            select target, realised_return,
                ntile(10) over (partition by target order by probability) as decile
            from prediction_history
        ) as ranked group by 1, 2 order by 1, 2
    """,
}


def main(arguments: Sequence[str] = ()) -> None:
    """Print what each question and each export took, and whether the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictions", type=int, default=10_000_000)
    parser.add_argument("--engine", choices=["sqlite", "postgresql"], default="sqlite")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.engine == "sqlite":
            url = f"sqlite:///{folder}/store.sqlite"
        else:
            url = stack.enter_context(postgresql()).render_as_string(hide_password=False)
        if not measure(url, TenYears.of(options.predictions), folder):
            sys.exit(1)


def measure(url: str, history: TenYears, folder: Path) -> bool:
    """Fill the store at a URL, export it, and query both; return whether the limits hold."""
    url = _fill(url, history)
    files = folder / "files"
    growth = _export(url, folder, files)
    slowest = 0.0
    for name, sql in QUESTIONS.items():
        parquet_seconds = min(ask_parquet(files, sql) for _ in range(3))
        print(
            f"{name}: {parquet_seconds:.2f} s on Parquet, {ask_store(url, sql):.1f} s on the store",
            flush=True,
        )
        slowest = max(slowest, parquet_seconds)
    holds = slowest < SECONDS_LIMIT and growth < MEMORY_LIMIT_MB
    print(
        f"each under {SECONDS_LIMIT} s, growth under {MEMORY_LIMIT_MB} MB: "
        f"{'yes' if holds else 'no'}"
    )
    return holds


def _fill(url: str, history: TenYears) -> str:
    """Fill the store at a URL; return the URL of a role that may read it."""
    start = time.perf_counter()
    engine = open_engine(url)
    upgrade(engine)
    history.fill_predictions(engine)
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("vacuum (analyze)")  # as autovacuum does after a while
            # The SQL of a superuser is refused.
            conn.exec_driver_sql("create role asking login in role pg_read_all_data")
        url = engine.url.set(username="asking").render_as_string(hide_password=False)
    print(f"{engine.dialect.name}: filled in {time.perf_counter() - start:.0f} s", flush=True)
    return url


def _export(url: str, folder: Path, files: Path) -> float:
    """Export the store into a folder of files, and its history into one file.

    Returns the MB of memory that this takes at most above an export without a row.
    """
    export = ("db", "export")
    query = ("query", "select * from prediction_history", "--parquet", str(folder / "all.parquet"))
    least_mb = run(url, *export, str(folder / "none"), "--view", "run_score")
    most_mb = max(
        run(url, *export, str(files), title="the export"),
        run(url, *query, title="query --parquet"),
    )
    size = sum(file.stat().st_size for file in files.rglob("*.parquet")) / 1e6
    growth = most_mb - least_mb
    print(
        f"{size:.0f} MB of Parquet; at most {growth:.0f} MB above the {least_mb:.0f} MB of an "
        "export of no row",
        flush=True,
    )
    return growth


def run(url: str, *arguments: str, title: str = "") -> float:
    """Run a command on the store, and return the most MB of memory that it had.

    With a `title`, print that, its seconds and its output.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        [DTML, *arguments], env=os.environ | {"DTML_DATABASE_URL": url}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    output = process.stdout.read().decode().strip()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{arguments} ended with {status}: {output}")
    seconds = time.perf_counter() - start
    most_mb = usage.ru_maxrss / 1024
    if title:
        print(f"{title}: {seconds:.0f} s, {most_mb:.0f} MB at most: {output}", flush=True)
    return most_mb


def ask_parquet(folder: Path, sql: str) -> float:
    """Return the seconds of a question to Parquet files, with the opening of the files."""
    start = time.perf_counter()
    files = f"read_parquet('{folder}/prediction_history/*/*/*.parquet', hive_partitioning = true)"
    with duckdb.connect() as conn:
        conn.execute(f"create view prediction_history as select * from {files}")  # noqa: S608
        conn.execute(sql.format(year=YEAR["parquet"])).fetchall()
    return time.perf_counter() - start


def ask_store(url: str, sql: str) -> float:
    """Return the seconds of a question to the store, without a time limit."""
    engine = open_engine(url, read_only=True)
    start = time.perf_counter()
    query = sql.format(year=YEAR[engine.dialect.name])
    with open_answer(engine, query, is_trusted=True, is_time_limited=False) as answer:
        deque(answer.rows, maxlen=0)
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1:])
