"""Calibration: the abstention bands of each model, and counts of its outcomes by probability."""

from datetime import date

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.frames import frame
from db.read import read
from db.rows.outcomes import of_fold
from db.save import save


def save_bands(
    conn: Connection, run_id: str, bands: pd.DataFrame, *, default: float | None = None
) -> int:
    """Store the bands of a run: level, threshold, days, n; return how many were new.

    `default` is the level by which the market decides its directions; None marks no band as the
    default. A stored band never changes: raises StoreError when its threshold, days or n differ.
    Another `default` is not noticed, and changes nothing.
    """
    marked = bands.assign(is_default=bands["level"] == default)
    return save(conn, "abstention_band", marked, run_id=run_id)


def bands(conn: Connection, run_id: str) -> pd.DataFrame:
    """Return the bands of a run by level: level, threshold, days, n.

    There are no rows for a run that was not calibrated.
    """
    return read(conn, "abstention_band", columns="level, threshold, days, n", run_id=run_id)


def calibration_bins(conn: Connection, market: str, last: date) -> pd.DataFrame:
    """Return the rows of calibration_bin of a market's nightly runs, targets up to `last`."""
    return _counts(conn, tables.calibration_bin, market, last)


def band_counts(conn: Connection, market: str, last: date) -> pd.DataFrame:
    """Return the rows of abstention_count of a market's nightly runs, targets up to `last`."""
    return _counts(conn, tables.abstention_count, market, last)


def _counts(conn: Connection, table: sa.Table, market: str, last: date) -> pd.DataFrame:
    joined = table.join(tables.run, tables.run.c.id == table.c.run_id)
    keys = [column for column in table.primary_key if column.name not in ("run_id", "target")]
    statement = (
        sa.select(table)
        .select_from(joined)
        .where(
            tables.run.c.market == market,
            tables.run.c.kind == "nightly",
            table.c.target <= last,
        )
        .order_by(table.c.target, table.c.run_id, *keys)
    )
    return frame(conn, statement)


def fold_counts(conn: Connection, backtest_id: str) -> pd.DataFrame:
    """Return the rows of abstention_count of a backtest's finished folds, by target and level."""
    table = tables.abstention_count
    fold = tables.backtest_fold
    return frame(
        conn,
        sa.select(table)
        .select_from(fold.join(table, of_fold(table)))
        .where(fold.c.backtest_id == backtest_id)
        .order_by(table.c.target, table.c.level),
    )
