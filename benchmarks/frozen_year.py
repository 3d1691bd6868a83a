"""Time the check of a frozen year, and of one changed bit: `python -m benchmarks.frozen_year`.

A made store has 365 nights of one market with 400 stocks: predictions, the rankings of four rankers
and a bar of each stock a night. It is frozen and checked.
"""

import argparse
import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from benchmarks.ten_year_rows import (
    moment,
    night_grid,
    run_row,
    write_bars,
    write_log,
    write_predictions,
    write_rankings,
    write_stocks,
)
from db import tables
from db.engine import open_engine, transaction, upgrade
from db.save import instrument_ids, save
from flows.freezing import begin, check
from flows.settings import chain_file

NIGHTS = 365
MARKET = "made"
WEIGHTS = b"weights " * 500_000  # 4 MB

T = TypeVar("T")


def fill(engine: Engine, nights: int) -> pd.DatetimeIndex:
    """Write the nights into an empty store, and the files of weights; return the sessions."""
    days = pd.bdate_range(end="2025-06-30", periods=nights + 1)
    file = Path(os.environ["DTML_DATA"]) / "models" / "made.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(WEIGHTS)
    checkpoint = {
        "checkpoint_path": "models/made.safetensors",
        "checkpoint_hash": sha256(WEIGHTS).hexdigest(),
    }
    with transaction(engine) as conn:
        write_stocks(conn, MARKET)
        save(conn, "run", run_row("made-run", MARKET, "nightly", days[0]) | checkpoint)
        ids = instrument_ids(conn, MARKET).drop("INDEX")
        grid = night_grid(days[:-1], days[1:], ids)
        write_predictions(conn, grid, "made-run")
        write_bars(conn, grid, days[-2])
        write_rankings(conn, MARKET, grid, days[0], is_newest=True)
        conn.execute(sa.update(tables.ranker).values(checkpoint))
        write_log(conn, MARKET, "made-run", days[:-1], days[1:], ids)
    return days


def timed(what: str, work: Callable[[], T]) -> T:
    """Do some work, print how long it took and its time on processors, and return its result."""
    begun = time.perf_counter()
    begun_on_processors = time.process_time()
    result = work()
    seconds = time.perf_counter() - begun
    on_processors = time.process_time() - begun_on_processors
    print(f"{what:24s}{seconds:7.1f} s, {on_processors:.1f} s of processors", flush=True)
    return result


def change_a_bit(conn: Connection, day: pd.Timestamp) -> None:
    """Change the last digits of one stored close."""
    price = tables.price
    is_changed = (price.c.session == day.date(), price.c.instrument_id == 7)
    conn.execute(sa.update(price).where(*is_changed).values(close=price.c.close * (1 + 2e-16)))


def main() -> None:
    """Print the times, and what a changed bit is called."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=NIGHTS)
    nights = parser.parse_args().nights
    with TemporaryDirectory() as folder:
        os.environ["DTML_DATA"] = f"{folder}/data"
        os.environ["DTML_REPORTS"] = f"{folder}/reports"
        engine = open_engine(f"sqlite:///{folder}/store.sqlite")
        upgrade(engine)
        days = fill(engine, nights)
        timed("freeze all nights", lambda: begin(engine, MARKET, days[0].date()))
        links, changes = timed("check them", lambda: check(engine, MARKET))
        megabytes = chain_file(MARKET).stat().st_size / 1e6
        print(f"{len(links)} links, {len(changes)} changes, file of {megabytes:.0f} MB")
        with transaction(engine) as conn:
            change_a_bit(conn, days[nights // 2])
        for change in timed("check them again", lambda: check(engine, MARKET))[1]:
            print(change)
        print(f"the night of the bar: {moment(days[nights // 2], 0):%Y-%m-%d}")


if __name__ == "__main__":
    main()
