"""Calibration: the bands of each model, and nightly counts of what its probabilities came to."""

from collections.abc import Collection
from datetime import date
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame
from db.connection.differences import save_figures
from db.connection.frames import frame, row, rows_of
from db.rows.outcomes import of_fold
from db.views import view


def save_bands(
    conn: Connection, run_id: str, bands: pd.DataFrame, *, default: float | None = None
) -> int:
    """Store the bands of a run: level, threshold, days, n; the market's own level is its `default`.

    What is stored stands: raises StoreError when it differs.
    """
    marked = bands.assign(is_default=bands["level"] == default)
    return save_figures(
        conn,
        tables.abstention_band,
        "run_id",
        run_id,
        marked,
        why="a model is calibrated only once",
    )


def bands(conn: Connection, run_id: str) -> pd.DataFrame:
    """Return the bands of a run by level: level, threshold, days, n; no rows
    for a run that was not calibrated.
    """
    return rows_of(conn, tables.abstention_band, "run_id", run_id).drop(columns="is_default")


def default_level(conn: Connection, run_id: str) -> float | None:
    """Return the level at which a run's directions are given, the market's own;
    None where it has no band of it.
    """
    found = view("band_direction").c
    return conn.execute(
        sa.select(found.level).where(found.run_id == run_id, found.is_default == 1).limit(1)
    ).scalar()


def save_bins(conn: Connection, counts: pd.DataFrame) -> int:
    """Store the columns of calibration_bin in place of what is stored of these runs and targets."""
    return _save_counts(conn, tables.calibration_bin, counts)


def save_band_counts(conn: Connection, counts: pd.DataFrame) -> int:
    """Store the columns of abstention_count in place of what is stored of these runs and
    targets.
    """
    return _save_counts(conn, tables.abstention_count, counts)


def calibration_bins(conn: Connection, market: str, last: date) -> pd.DataFrame:
    """Return calibration_bin of a market's nightly runs, targets up to `last`."""
    return _counts(conn, tables.calibration_bin, market, last)


def band_counts(conn: Connection, market: str, last: date) -> pd.DataFrame:
    """Return abstention_count of a market's nightly runs, targets up to `last`."""
    return _counts(conn, tables.abstention_count, market, last)


def _save_counts(conn: Connection, table: sa.Table, counts: pd.DataFrame) -> int:
    if counts.empty:
        return 0
    for run_id, targets in counts.groupby("run_id")["target"]:
        days = [day.date() for day in pd.DatetimeIndex(targets.unique())]
        conn.execute(sa.delete(table).where(table.c.run_id == run_id, table.c.target.in_(days)))
    return insert_frame(conn, table, counts[[column.name for column in table.c]])


def _counts(conn: Connection, table: sa.Table, market: str, last: date) -> pd.DataFrame:
    """Return the counts of a market's nightly runs by target, run and the rest of the key."""
    joined = table.join(tables.run, tables.run.c.id == table.c.run_id)
    mine = (tables.run.c.market == market, tables.run.c.kind == "nightly", table.c.target <= last)
    keys = [each for each in table.primary_key if each.name not in ("run_id", "target")]
    statement = sa.select(table).select_from(joined).where(*mine)
    return frame(conn, statement.order_by(table.c.target, table.c.run_id, *keys))


def fold_counts(conn: Connection, backtest_id: str) -> pd.DataFrame:
    """Return the columns of abstention_count for every fold of a backtest that
    is done, by target and level.
    """
    table, fold = tables.abstention_count, tables.backtest_fold
    statement = (
        sa.select(table)
        .select_from(fold.join(table, of_fold(table)))
        .where(fold.c.backtest_id == backtest_id)
    )
    return frame(conn, statement.order_by(table.c.target, table.c.level))


def bands_of(conn: Connection, run_ids: Collection[str]) -> pd.DataFrame:
    """Return the bands of several runs: run_id, level, threshold."""
    table = tables.abstention_band
    statement = sa.select(table.c.run_id, table.c.level, table.c.threshold).where(
        table.c.run_id.in_(run_ids)
    )
    return frame(conn, statement.order_by(table.c.run_id, table.c.level))


def coverage(conn: Connection, market: str, level: float, last: date) -> dict[str, Any]:
    """Return nightly sums at a level, targets up to `last`: n, covered,
    decided, decided_correct; each None if none.
    """
    found = view("coverage")
    sums = (
        sa.func.sum(found.c[name]).label(name)
        for name in ("n", "covered", "decided", "decided_correct")
    )
    mine = (
        found.c.market == market,
        found.c.kind == "nightly",
        found.c.level == level,
        found.c.target <= last,
    )
    counted = row(conn, sa.select(*sums).where(*mine))
    assert counted is not None
    return counted
