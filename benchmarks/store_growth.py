"""Measure what a night adds to a store and its folders, for 30 and 500 stocks on both engines.

`python -m benchmarks.store_growth [--nights 12] [--stocks 30 500]`: some nights of a simulated
market each, as Prefect flows, then a training and a day of the hourly watch. A night's bytes are
the mean of the nights after the second; for a table of many rows, its new rows times the mean bytes
of all its rows, as pages have room for some nights. A year has 252 nights. Prints a table for each
number of stocks, in thousands of bytes a night and millions a year.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from benchmarks.stores import ENGINES, database_on, settle
from db.admin.copying import table_counts
from db.admin.pruning import table_bytes
from db.engine import open_engine, reading
from dtml.prices.sessions import sessions_between
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows.markets.opened import RunRequest
from flows.settings import data_folder, export_folder, prepare_prefect, reports_folder

FIRST_PRICES = date(2023, 1, 3)
FIRST_NIGHT = date(2025, 6, 2)
LAST_PRICES = date(2025, 12, 31)
YEAR = 252
HOURS = 24
FLUSH_S = 4  # in which Prefect's server records what it was sent
FOLLOWERS = 4
TABLE = "table "
ROWS = "rows of "
MANY_ROWS = 1000
MEASURED = "MEASURED "  # before the line with the result of a child
MARKET = """title = "A simulated market"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
source = "files"
returns = "adj_close"
z_close = "adjusted"
retrain = "missing"
[index]
symbol = "SIMX"
name = "Index"
[checks]
max_return = 0.35
max_missing = 0.2
stale_share = 0.3
[model]
epochs = 1
first_kept_epoch = 1
"""
Sizes = dict[str, int]


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table for each number of stocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stocks", type=int, nargs="+", default=[30, 500])
    parser.add_argument("--nights", type=int, default=12)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        result = measure(Path(options.child), options.nights)
        print(f"{MEASURED}{json.dumps(result)}")
        return
    for stocks in options.stocks:
        growth = {engine: _measure_apart(engine, stocks, options.nights) for engine in ENGINES}
        print_table(stocks, growth)


def measure(folder: Path, nights: int) -> dict[str, Sizes]:
    """Run nights of the market in a folder; return the bytes before and after each kind of work."""
    prepare_prefect(quiet=True)
    from flows.service.prefect_server import require_server

    require_server()
    from flows.service import flows

    request = RunRequest(
        "growing",
        market_file=folder / "growing.toml",
        prices=folder / "prices.parquet",
        universe="source",
        device="cpu",
    )
    days = [
        session.date() for session in sessions_between("XNYS", FIRST_NIGHT, LAST_PRICES)[:nights]
    ]
    flows.nightly(request, days[0])
    flows.nightly(request, days[1])  # the first that scores
    engine = open_engine()
    second_night = sizes(engine)
    for day in days[2:]:
        flows.nightly(request, day)
    last_night = sizes(engine)
    flows.train(replace(request, prices=None), days[-1])
    training = sizes(engine)
    for _ in range(HOURS):
        flows.watch(["growing"], [folder / "growing.toml"])
    watched = sizes(engine)
    return {
        "second night": second_night,
        "last night": last_night,
        "training": training,
        "a day of watching": watched,
    }


def sizes(engine: Engine) -> Sizes:
    """Return the bytes and rows of each table, and the bytes of what lies in folders."""
    time.sleep(FLUSH_S)
    settle(engine)
    found: Sizes = {}
    with reading(engine) as conn:
        for table, rows in table_counts(conn).items():
            found[f"{TABLE}{table}"] = table_bytes(conn, table) or 0
            found[f"{ROWS}{table}"] = rows
    export = export_folder()
    assert export is not None
    folders = {
        "models": data_folder() / "models",
        "states": data_folder() / "training",
        "reports": reports_folder(),
        "exports": export,
    }
    for name, folder in folders.items():
        files = [file for file in folder.rglob("*") if file.is_file()]
        found[name] = sum(file.stat().st_size for file in files)
    found["Prefect"] = _prefect_bytes()
    return found


def _prefect_bytes() -> int:
    """Return the bytes of the pages that Prefect's database uses: its file grows in leaps."""
    database = data_folder() / "prefect" / "prefect.db"
    with closing(sqlite3.connect(database)) as conn:
        (pages,) = conn.execute("pragma page_count").fetchone()
        (free_pages,) = conn.execute("pragma freelist_count").fetchone()
        (page_bytes,) = conn.execute("pragma page_size").fetchone()
    return int((pages - free_pages) * page_bytes)


def print_table(stocks: int, growth: Mapping[str, Mapping[str, Sizes]]) -> None:
    """Print what a night and a year add, a line for each table and folder that grows."""
    nights = growth["sqlite"]["nights"]["run"]
    print(
        f"\n| {stocks} stocks | kB a night, SQLite | PostgreSQL | MB a year, SQLite | PostgreSQL |"
    )
    print("| --- | --- | --- | --- | --- |")
    added = {engine: _added(of_engine, nights) for engine, of_engine in growth.items()}
    names = sorted(added["sqlite"], key=lambda name: -added["sqlite"][name])
    for name in names:
        a_night = {engine: of_engine[name] for engine, of_engine in added.items()}
        if max(a_night.values()) >= 50:
            print(_line(name, a_night))
    of_tables = [name for name in names if name.startswith(TABLE)]
    print(_line("all tables", _total(added, of_tables)))
    print(_line("everything", _total(added, names)))
    _print_once(growth["sqlite"])


def _print_once(of_engine: Mapping[str, Sizes]) -> None:
    """Print what a training and a day of the hourly watch add."""
    trained = _difference(of_engine["last night"], of_engine["training"])
    watched = _difference(of_engine["training"], of_engine["a day of watching"])
    models = trained["models"] / 1e6
    rows = (trained["table run"] + trained["table abstention_band"]) / 1e6
    prefect = watched["Prefect"] / 1e6
    print(
        f"a training: {models:.2f} MB of weights, {rows:.2f} MB of rows; "
        f"52 of them: {52 * (models + rows):.1f} MB a year"
    )
    print(
        f"{HOURS} runs of the watch: {prefect:.2f} MB of Prefect's, {365 * prefect:.0f} MB a year"
    )


def _added(of_engine: Mapping[str, Sizes], nights: int) -> dict[str, float]:
    """Return the bytes that one night adds to each table and folder."""
    last = of_engine["last night"]
    added: dict[str, float] = {}
    for name, size in _difference(of_engine["second night"], last).items():
        if name.startswith(ROWS):
            table = name.removeprefix(ROWS)
            if last[name] >= MANY_ROWS:
                added[f"{TABLE}{table}"] = (
                    size / (nights - 2) * last[f"{TABLE}{table}"] / last[name]
                )
        else:
            added[name] = size / (nights - 2)
    return added


def _difference(before: Sizes, after: Sizes) -> Sizes:
    return {name: after[name] - before[name] for name in after}


def _total(added: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    return {engine: sum(of_engine[name] for name in names) for engine, of_engine in added.items()}


def _line(name: str, a_night: Mapping[str, float]) -> str:
    """Return a line of the table."""
    label = name.removeprefix(TABLE)
    if label != name:
        label = f"`{label}`"
    sqlite = a_night["sqlite"]
    postgres = a_night["postgresql"]
    return (
        f"| {label} | {sqlite / 1e3:.1f} | {postgres / 1e3:.1f} "
        f"| {YEAR * sqlite / 1e6:.1f} | {YEAR * postgres / 1e6:.1f} |"
    )


def _measure_apart(engine: str, stocks: int, nights: int) -> dict[str, Any]:
    """Return what `measure` gives in a process and a store of their own."""
    with tempfile.TemporaryDirectory() as name, database_on(engine) as url:
        folder = Path(name)
        _write_market(folder, stocks)
        environment = os.environ | {
            "DTML_DATABASE_URL": url,
            "DTML_DATA": str(folder / "data"),
            "DTML_REPORTS": str(folder / "reports"),
            "DTML_EXPORT": str(folder / "exports"),
        }
        command = [sys.executable, "-m", "benchmarks.store_growth"]
        command += ["--nights", str(nights), "--child", str(folder)]
        start = time.perf_counter()
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        seconds = time.perf_counter() - start
        print(f"{stocks} stocks, {engine}: {nights} nights in {seconds:.0f} s", flush=True)
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith(MEASURED)]
    return json.loads(line.removeprefix(MEASURED)) | {"nights": {"run": nights}}


def _write_market(folder: Path, stocks: int) -> None:
    """Write the prices of so many stocks, and the market's file."""
    market = SimulatedMarket(
        leaders=stocks // (1 + FOLLOWERS), followers=FOLLOWERS, start=FIRST_PRICES
    )
    bars = SimulatedSource(market=market).bars(LAST_PRICES)
    bars.rename(columns={"session": "date"}).to_parquet(folder / "prices.parquet", index=False)
    (folder / "growing.toml").write_text(MARKET, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
