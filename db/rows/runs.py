"""Trained models: each is a row of the table run, which the view run_log shows."""

from datetime import date, datetime
from typing import Any, Literal

from sqlalchemy import Connection

from db import where
from db.errors import StoreUsageError
from db.read import read_row


def run(conn: Connection, run_id: str) -> dict[str, Any]:
    """Return a trained model, every column; raises StoreUsageError when there is none."""
    stored = read_row(conn, "run", id=run_id)
    if stored is None:
        raise StoreUsageError(f"no run {run_id!r} in the store: `dtml runs` lists the runs")
    return stored


def latest_trained(
    conn: Connection,
    relation: Literal["run", "ranker"],
    market: str,
    *,
    on_or_before: date | None = None,
    known_by: datetime | None = None,
) -> dict[str, Any] | None:
    """Return the newest nightly model or rankers of a market, by last session, then by training.

    Sessions end by `on_or_before`, prices were known at `known_by` (None: no limit).
    """
    return read_row(
        conn,
        relation,
        market=market,
        train_last=where.between(None, on_or_before),
        data_watermark=where.between(None, known_by),
        order="-train_last, -created_at, -id",
        **({"kind": "nightly"} if relation == "run" else {}),
    )
