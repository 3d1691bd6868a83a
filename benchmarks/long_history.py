"""Time four questions about all of ten years of predictions, asked of the store and of its Parquet
files, and export.

`python -m benchmarks.long_history`: fills an SQLite store with ten million predictions (4 minutes,
5 GB), exports it, asks; `--predictions 1000000 --engine postgresql` does a tenth of it on
PostgreSQL. Exit 1 when a limit is missed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.store_loading import postgresql
from benchmarks.ten_year_store import TenYears
from db.connection.parquet_sql import asked_of_parquet
from db.connection.user_sql import Answer, asked
from db.engine import open_engine, upgrade
from flows.upkeep.parquet_export import exported

DTML = str(Path(sys.executable).with_name("dtml"))
SECONDS_LIMIT, MEMORY_LIMIT_MB = 1.0, 200
YEAR = {
    "sqlite": "substr(target, 1, 4)",
    "postgresql": "extract(year from target)",
    "parquet": "year",
}
QUESTIONS = {
    "count(*)": "select count(*) from prediction_history",
    "accuracy by year": "select {year}, avg(correct), count(*) from prediction_history group by 1 "
    "order by 1",
    "accuracy by market": "select market, avg(correct), count(*) from prediction_history group by "
    "1 order by 1",
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
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if given.engine == "sqlite":
            url = f"sqlite:///{folder}/store.sqlite"
        else:
            url = stack.enter_context(postgresql()).render_as_string(hide_password=False)
        if not measure(url, TenYears.of(given.predictions), folder):
            sys.exit(1)


def measure(url: str, history: TenYears, folder: Path) -> bool:
    """Fill the store at a URL, export it, ask both; whether the limits hold."""
    began, engine = time.perf_counter(), open_engine(url)
    upgrade(engine)
    history.fill_predictions(engine)
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("vacuum (analyze)")  # as autovacuum does in time
            # a superuser's SQL is refused
            conn.exec_driver_sql("create role asking login in role pg_read_all_data")
        url = engine.url.set(username="asking").render_as_string(hide_password=False)
    print(f"{engine.dialect.name}: filled in {time.perf_counter() - began:.0f} s", flush=True)
    export = ("db", "export")
    _, least = run(url, *export, str(folder / "none"), "--view", "run_score")
    files = str(folder / "files")
    grown = [
        run(url, *export, files, told="the export")[1],
        run(url, *export, files, told="again")[1],
    ]
    sql = "select * from prediction_history"
    grown.append(
        run(url, "query", sql, "--parquet", str(folder / "all.parquet"), told="query --parquet")[1]
    )
    size = sum(file.stat().st_size for file in Path(files).rglob("*.parquet")) / 1e6
    growth = max(grown) - least
    print(
        f"{size:.0f} MB of Parquet; at most {growth:.0f} MB above the {least:.0f} MB of an export "
        "of no row",
        flush=True,
    )
    slowest = 0.0
    for name, sql in QUESTIONS.items():
        of_parquet = min(ask_parquet(Path(files), sql) for _ in range(3))
        print(
            f"{name}: {of_parquet:.2f} s on Parquet, {ask_store(url, sql):.1f} s on the store",
            flush=True,
        )
        slowest = max(slowest, of_parquet)
    print(f"each under {SECONDS_LIMIT} s, growth under {MEMORY_LIMIT_MB} MB: ", end="")
    print("yes" if (kept := slowest < SECONDS_LIMIT and growth < MEMORY_LIMIT_MB) else "no")
    return kept


def run(url: str, *arguments: str, told: str = "") -> tuple[float, float]:
    """Run a command on the store; return its seconds and the most MB that it
    had, and print both where it is told.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        [DTML, *arguments], env=os.environ | {"DTML_DATABASE_URL": url}, stdout=subprocess.PIPE
    )
    said = (process.stdout.read() if process.stdout else b"").decode().strip()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{arguments} ended with {status}: {said}")
    seconds, most = time.perf_counter() - began, used.ru_maxrss / 1024
    if told:
        print(f"{told}: {seconds:.0f} s, {most:.0f} MB at most: {said}", flush=True)
    return seconds, most


def ask_parquet(folder: Path, sql: str) -> float:
    """Return the seconds of a question, with the opening of the files."""
    began = time.perf_counter()
    with asked_of_parquet(exported(folder), sql.format(year=YEAR["parquet"])) as found:
        _read(found)
    return time.perf_counter() - began


def ask_store(url: str, sql: str) -> float:
    """Return the seconds of a question that no limit ends."""
    engine, began = open_engine(url, read_only=True), time.perf_counter()
    with asked(engine, sql.format(year=YEAR[engine.dialect.name]), own=True, ends=False) as found:
        _read(found)
    return time.perf_counter() - began


def _read(found: Answer) -> int:
    return sum(len(batch) for batch in found.batches)


if __name__ == "__main__":
    main(sys.argv[1:])
