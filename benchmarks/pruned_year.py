"""Prune a store of a year, and compare its bytes and the replays of all its nights.

`python -m benchmarks.pruned_year [--nights 252] [--keep 60]`: nights of a simulated market of 30
stocks, each month a model that is replaced before its first night. Exit 1 if a night replays
otherwise than before, or if a table changed that no pruning touches.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Engine

from benchmarks.store_growth import FIRST_PRICES, MARKET
from db import tables
from db.admin.pruning import compact
from db.engine import reading, transaction
from dtml.prices.sessions import sessions_between
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows.markets.opened import RunRequest
from flows.nightly.context import MarketContext, Tonight, open_context
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from flows.nightly.train import train_model
from flows.replay import Archive, replay_of
from flows.settings import data_folder, reports_folder
from flows.upkeep.pruning import prune

MONTH = 21  # sessions
FIRST = datetime(2024, 12, 2, tzinfo=UTC).date()
LAST = datetime(2025, 12, 31, tzinfo=UTC).date()
TOUCHED = ("attention_weight", "run", "abstention_band", "ranker")
REQUEST = RunRequest(
    "growing",
    market_file=Path("growing.toml"),
    prices=Path("prices.parquet"),
    universe="source",
    device="cpu",
)


def main(arguments: Sequence[str] = ()) -> None:
    """Print bytes and replays before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=252)
    parser.add_argument("--keep", type=int, default=60)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["DTML_DATA"] = str(Path(folder) / "data")
        os.environ["DTML_REPORTS"] = str(Path(folder) / "reports")
        os.environ.pop("DTML_DATABASE_URL", None)
        start = time.perf_counter()
        engine = _fill(options.nights)
        print(f"{options.nights} nights in {time.perf_counter() - start:.0f} s", flush=True)
        is_well = measure(engine, options.keep)
        os.chdir("/")
    if not is_well:
        sys.exit(1)


def measure(engine: Engine, keep: int) -> bool:
    """Prune, and print what was and is; return whether every night replays as before."""
    bytes_before = _bytes_by_folder()
    rows_before = _digests(engine)
    replays_before = _replays()
    start = time.perf_counter()
    planned = prune(engine, keep)
    compact(engine)
    seconds = time.perf_counter() - start
    for removal in planned.removals:
        size = "" if removal.megabytes is None else f", {removal.megabytes:.1f} MB"
        print(f"removed: {removal.what}, {removal.count:,}{size}")
    bytes_after = _bytes_by_folder()
    for name, size in bytes_before.items():
        print(f"{name}: {size / 1e6:.1f} MB before, {bytes_after[name] / 1e6:.1f} MB after")
    replays_after = _replays()
    equal = [night for night in replays_before if night in replays_after]
    sound = [night for night in replays_before if not night[1]]
    rows_after = _digests(engine)
    changed = [name for name, digest in rows_before.items() if rows_after[name] != digest]
    print(f"pruned in {seconds:.1f} s; tables that changed: {', '.join(changed)}")
    print(f"of {len(replays_before)} nights, {len(sound)} replayed to the last bit before")
    print(f"and {len(equal)} give the same after as before")
    return len(equal) == len(replays_before) and set(changed) <= set(TOUCHED)


def _fill(nights: int) -> Engine:
    """Make a year of nights and models, dated as of their sessions."""
    market = SimulatedMarket(start=FIRST_PRICES)
    bars = SimulatedSource(market=market).bars(LAST)
    bars.rename(columns={"session": "date"}).to_parquet("prices.parquet", index=False)
    Path("growing.toml").write_text(MARKET, encoding="utf-8")
    context = open_context(REQUEST)
    sessions = sessions_between("XNYS", FIRST, LAST)
    for place, session in enumerate(sessions[:nights]):
        if place and place % MONTH == 0:
            fetch_bars(context, session.date())
            _train(context, sessions[place - 1])
            _train(context, session)
        run_night(context, session.date())
    return context.engine


def _train(context: MarketContext, session: pd.Timestamp) -> None:
    """Train a model, and let it look as old as its last session."""
    model = train_model(Tonight(context, session.date()))
    made = session.to_pydatetime().replace(tzinfo=UTC)
    with transaction(context.engine) as conn:
        of_model = tables.run.c.id == model.run_id
        conn.execute(sa.update(tables.run).where(of_model).values(created_at=made))


def _replays() -> list[tuple[str, str, str]]:
    """Return day, differences, and a digest of the figures of each night as it replays now."""
    archive = Archive.open(REQUEST)
    replays = []
    for night in archive.nights():
        replay = replay_of(archive, night)
        figures = replay.predictions.to_csv(index=False).encode()
        digest = hashlib.sha256(figures).hexdigest()
        replays.append((str(night["as_of"]), "; ".join(replay.reasons), digest))
    return replays


def _digests(engine: Engine) -> dict[str, str]:
    """Return a digest of the rows of each table."""
    digests = {}
    with reading(engine) as conn:
        for table in tables.metadata.sorted_tables:
            digest = hashlib.sha256()
            for row in conn.execute(sa.select(table).order_by(*table.primary_key)):
                digest.update(repr(tuple(row)).encode())
            digests[table.name] = digest.hexdigest()
    return digests


def _bytes_by_folder() -> dict[str, int]:
    """Return the bytes of the store, and of each folder."""
    places = {
        "store": [data_folder() / "dtml.sqlite"],
        "models": sorted((data_folder() / "models").glob("*")),
        "pages": sorted(reports_folder().rglob("*.html")),
    }
    return {name: sum(file.stat().st_size for file in files) for name, files in places.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
