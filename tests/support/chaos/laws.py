"""What must hold of a store and its folder after every night, whatever happened during it."""

import sqlite3
import time
from collections.abc import Collection
from contextlib import closing
from datetime import date
from pathlib import Path

from sqlalchemy import Engine

from db.connection.locks import market_lock
from db.engine import reading
from db.errors import StoreBusyError
from db.read import read
from tests.support.price_history import STOCKS

MARKET = "made"
KEPT = {  # rows that may only become more
    "prediction": "select receipt, probability, made_at from prediction_history",
    "price": "select * from price",
    "night": "select as_of, status, run_id, inputs_hash, gaps from night where status not in "
    "('running', 'refused')",
    "run": "select id, checkpoint_hash, data_watermark from run",
    "rejected_bar": "select * from rejected_bar",
    "price_fetch": "select market, known_at, asked, fetched, stored, rejected from price_fetch",
}
MARK = "CHAOS_FOLDER"  # in the environment of every command of a folder, and of what it starts
LETTING_GO_S = 60.0  # a server takes a moment to see that a connection has died
LEFTOVERS = ("*.partial", "*.tmp", "*-journal", "training/*")

Snapshot = dict[str, set[str]]


def snapshot(reader: Engine) -> Snapshot:
    """Every row that may never change or vanish, by table."""
    return {name: {repr(row) for row in _rows(reader, sql)} for name, sql in KEPT.items()}


def rows_lost(before: Snapshot, after: Snapshot) -> list[str]:
    """Rows that were there and are not, or not as they were."""
    return [f"{name}: {row}" for name, rows in before.items() for row in rows - after[name]]


def rows_twice(reader: Engine) -> int:
    """Predictions beyond the first of a session and stock."""
    with reading(reader) as conn:
        return int(read(conn, "prediction", market=MARKET).duplicated(["target", "symbol"]).sum())


def night_faults(reader: Engine, days: Collection[date]) -> list[str]:
    """What is wrong with the nights of these days: each complete for all stocks, or refused with a
    reason.
    """
    with reading(reader) as conn:
        nights = read(conn, "night", market=MARKET).to_dict("records")
        made = read(conn, "prediction", market=MARKET)
    ran = {row["as_of"].date() for row in nights}
    targets = {row["target"] for row in nights}
    faults = [f"{day}: no night" for day in set(days) - ran]
    faults += [f"{day}: a night that nobody ran" for day in ran - set(days)]
    faults += [f"predictions of {day} without a night" for day in set(made["target"]) - targets]
    for row in nights:
        of_night = made[made["target"] == row["target"]]
        gaps = [gap["symbol"] for gap in row["gaps"] or []]
        if row["status"] == "refused":
            is_whole = bool(row["reason"]) and of_night.empty
        else:
            is_whole = (
                row["status"] == ("complete_with_gaps" if gaps else "complete")
                and sorted([*of_night["symbol"], *gaps]) == list(STOCKS)
                and set(of_night["run_id"]) == {row["run_id"]}
                and row["predictions"] == len(of_night)
            )
        if not is_whole:
            faults.append(
                f"{row['as_of']:%Y-%m-%d}: {row['status']}, reason {row['reason']}, "
                f"{len(of_night)} predictions, gaps {gaps}"
            )
    return faults


def held_locks(engine: Engine) -> list[str]:
    """Locks that somebody still holds, though every process of the night has ended."""
    deadline, held = time.monotonic() + LETTING_GO_S, ["?"]
    while held and time.monotonic() < deadline:
        held = _held(engine)
        if held:
            time.sleep(0.05)
    return held


def _held(engine: Engine) -> list[str]:
    held = []
    try:
        with market_lock(engine, MARKET):
            pass
    except StoreBusyError as error:
        held.append(str(error))
    if engine.dialect.name == "postgresql":
        locks = _rows(engine, "select count(*) from pg_locks where locktype = 'advisory'")
        return held + [f"{count} advisory locks" for (count,) in locks if count != "0"]
    with closing(
        sqlite3.connect(str(engine.url.database), timeout=0, isolation_level=None)
    ) as conn:
        try:
            conn.execute("begin immediate")
        except sqlite3.OperationalError as error:
            held.append(str(error))
    return held


def leftovers(folder: Path) -> list[str]:
    """Processes of the folder's nights that still run, and temporary files that they left."""
    files = [
        file
        for room in ("data", "reports")
        for pattern in LEFTOVERS
        for file in (folder / room).rglob(pattern)
    ]
    return [str(file) for file in files if "prefect" not in file.parts] + _processes(
        f"{MARK}={folder}"
    )


def _processes(mark: str) -> list[str]:
    """Processes with this in their environment; none where the system does not show it."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes().decode(errors="replace").split("\0"):
                found.append(
                    f"process {file.parent.name}: {(file.parent / 'cmdline').read_text()!r}"
                )
        except OSError:  # it has ended, or is another user's
            continue
    return found


def _rows(engine: Engine, sql: str) -> list[tuple[str, ...]]:
    """The rows of a query as text, the same on both engines from one night to the next."""
    with reading(engine) as conn:
        return [tuple(str(value) for value in row) for row in conn.exec_driver_sql(sql).all()]
