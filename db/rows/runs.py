"""Trained models: each is a row of the table run, which the view run_log shows."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import save_row
from db.connection.frames import Statement, frame, row, row_of, select_rows, within
from db.errors import StoreError, StoreUsageError
from db.views import view


def save_run(conn: Connection, run: Mapping[str, object]) -> int:
    """Store a trained model, every column of run by name; return 0 where its name is stored.

    A model without stored weights has None for its checkpoint's path and hash. Raises StoreError
    when that name is stored with another checkpoint.
    """
    stored = row(conn, sa.select(tables.run.c.checkpoint_hash).where(tables.run.c.id == run["id"]))
    if stored is not None and stored["checkpoint_hash"] != run["checkpoint_hash"]:
        raise StoreError(
            f"the run {run['id']} is already stored with weights of SHA-256 "
            f"{_beginning(stored['checkpoint_hash'])}, but this training gave "
            f"{_beginning(run['checkpoint_hash'])}: the stored run stays; train with the version "
            "of dtml and on the kind of machine that stored it, or restore its weights from a "
            "backup"
        )
    return save_row(conn, tables.run, run)


def _beginning(sha: object) -> str:
    return f"{str(sha)[:12]}..." if sha else "none"


def runs(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Return trained models, the oldest first: the columns of run but losses and universe."""
    order, without = ("created_at", "id"), ("losses", "universe")
    return frame(conn, select_rows(tables.run, *order, without=without, market=market))


def run(conn: Connection, run_id: str) -> dict[str, Any]:
    """Return one trained model: every column of run.

    Raises StoreUsageError when there is none of this name.
    """
    stored = row_of(conn, tables.run, "id", run_id)
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
        conn,
        tables.run,
        market,
        on_or_before=on_or_before,
        known_by=known_by,
        kind="nightly",
    )


def latest_trained(
    conn: Connection,
    table: sa.Table,
    market: str,
    *,
    on_or_before: date | None = None,
    known_by: datetime | None = None,
    **more: str,
) -> dict[str, Any] | None:
    """Return the model of a table, run or ranker, trained on the latest sessions of a market.

    Its sessions end on or before `on_or_before`, its prices were known at `known_by` (None: no
    limit), and its columns have the values `more`. Of several trained up to the same session, it is
    the one trained last. None when there is no such model.
    """
    bounds = ("train_last", None, on_or_before)
    newest_first = ("-train_last", "-created_at", "-id")
    statement = select_rows(table, *newest_first, bounds=bounds, market=market, **more)
    return row(conn, statement.where(*within(table.c.data_watermark, None, known_by)).limit(1))


def models(market: str | None = None) -> Statement:
    """Return trained models, of one market or of all, the newest first."""
    return select_rows("run_log", "-created_at", "run_id", without=["losses"], market=market)


def model(conn: Connection, run_id: str) -> dict[str, Any] | None:
    """Return one trained model; None when there is none of this name."""
    return row(conn, select_rows("run_log", run_id=run_id))


def latest_model(conn: Connection, market: str) -> dict[str, Any] | None:
    """Return the nightly model of a market that was trained on the latest sessions; None without.

    It is the model that predicts the market's nights: the row of run_log that `latest_run` returns
    from the table run.
    """
    models_of_nights = select_rows(
        "run_log", "-train_last", "-created_at", "-run_id", market=market, kind="nightly"
    )
    return row(conn, models_of_nights.limit(1))


def predicted_span(conn: Connection, run_id: str) -> tuple[date, date] | None:
    """Return the first and the last session that a model predicted; None when it predicted none."""
    history = view("prediction_history").c
    targets = sa.select(history.target).where(history.run_id == run_id)
    first = conn.execute(targets.order_by(history.target).limit(1)).scalar()
    last = conn.execute(targets.order_by(history.target.desc()).limit(1)).scalar()
    if first is None or last is None:
        return None
    return first, last
