"""Trained models: each is a row of the table run, which the view run_log shows."""

from datetime import date, datetime
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.errors import StoreUsageError
from db.read import read, read_row


def runs(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Return trained models, the oldest first."""
    return read(conn, "run", market=where.given(market), order="created_at, id")


def run(conn: Connection, run_id: str) -> dict[str, Any]:
    """Return one trained model: every column of run.

    Raises StoreUsageError when there is none of this name.
    """
    stored = read_row(conn, "run", id=run_id)
    if stored is None:
        raise StoreUsageError(f"no run {run_id!r} in the store: `dtml runs` lists the runs")
    return stored


def latest_run(
    conn: Connection,
    market: str,
    *,
    on_or_before: date | None = None,
    known_by: datetime | None = None,
) -> dict[str, Any] | None:
    """Return the nightly run that was trained on a market's latest sessions; None without one.

    Its sessions end on or before `on_or_before`, and its prices were known at `known_by`. None
    sets no limit.
    """
    return latest_trained(
        conn, "run", market, on_or_before=on_or_before, known_by=known_by, kind="nightly"
    )


def latest_trained(
    conn: Connection,
    relation: str,
    market: str,
    *,
    on_or_before: date | None = None,
    known_by: datetime | None = None,
    **more: Any,
) -> dict[str, Any] | None:
    """Return the row of run or ranker that was trained on the latest sessions of a market.

    Its sessions end on or before `on_or_before`, its prices were known at `known_by` (None: no
    limit), and its columns have the values `more`. Of several trained up to the same session, it is
    the one trained last. None when there is no such model.
    """
    return read_row(
        conn,
        relation,
        market=market,
        train_last=where.between(None, on_or_before),
        data_watermark=where.between(None, known_by),
        order="-train_last, -created_at, -id",
        **more,
    )
