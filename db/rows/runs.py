"""Trained models: a row of run each, which the view run_log shows."""

from collections.abc import Mapping
from datetime import date, datetime
from functools import partial
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import save_row
from db.connection.frames import Statement, frame, matching, row, shown, within
from db.errors import StoreError, StoreUsageError
from db.views import view


def save_run(conn: Connection, run: Mapping[str, object]) -> int:
    """Store a trained model, every column of run by name. The first row of a name stands.

    A model that keeps no weights has None for its checkpoint's path and hash. Raises StoreError
    when that name is stored with another checkpoint.
    """
    stored = row(conn, sa.select(tables.run.c.checkpoint_hash).where(tables.run.c.id == run["id"]))
    if stored is not None and stored["checkpoint_hash"] != run["checkpoint_hash"]:
        raise StoreError(
            f"run {run['id']} is stored with another checkpoint: give the new one another name"
        )
    return save_row(tables.run, conn, run)


def runs(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Return trained models, oldest first: the columns of run but its losses and its universe."""
    table = tables.run
    columns = [each for each in table.c if each.name not in ("losses", "universe")]
    statement = sa.select(*columns).where(*matching(table, market=market))
    return frame(conn, statement.order_by(table.c.created_at, table.c.id))


def run(conn: Connection, run_id: str) -> dict[str, Any]:
    """Return one trained model: every column of run.

    Raises StoreUsageError when there is none of that name.
    """
    found = row(conn, sa.select(tables.run).where(tables.run.c.id == run_id))
    if found is None:
        raise StoreUsageError(f"no run {run_id!r} in the store: dtml runs lists them")
    return found


def latest_trained(
    table: sa.Table,
    conn: Connection,
    market: str,
    *,
    on_or_before: date | None = None,
    known_by: datetime | None = None,
    **more: str,
) -> dict[str, Any] | None:
    """Return the row trained on a market's latest sessions, `more` its values in columns; None when
    there is none.

    None of its sessions lies after `on_or_before`, and each of its prices was known at `known_by`.
    """
    mine = within(table.c.train_last, None, on_or_before) + within(
        table.c.data_watermark, None, known_by
    )
    mine += matching(table, market=market, **more)
    newest = (table.c.train_last.desc(), table.c.created_at.desc(), table.c.id.desc())
    return row(conn, sa.select(table).where(*mine).order_by(*newest).limit(1))


latest_run = partial(latest_trained, tables.run, kind="nightly")


def models(market: str | None = None) -> Statement:
    """Return trained models, of one market or of all, the newest first."""
    found = view("run_log")
    columns = (each for each in found.c if each.name != "losses")
    statement = sa.select(*columns).where(*matching(found, market=market))
    return statement.order_by(found.c.created_at.desc(), found.c.run_id)


def model(conn: Connection, run_id: str) -> dict[str, Any] | None:
    """Return one trained model; None when there is none of that name."""
    return row(conn, shown("run_log", run_id=run_id))


def latest_model(conn: Connection, market: str) -> dict[str, Any] | None:
    """Return the model that predicts a market's nights: the nightly one of the
    latest sessions; None without one.
    """
    newest = ("-train_last", "-created_at", "-run_id")
    return row(conn, shown("run_log", *newest, market=market, kind="nightly").limit(1))


def predicted_span(conn: Connection, run_id: str) -> tuple[date, date] | None:
    """Return the first and the last session that a model predicted; None when it predicted none."""
    made = view("prediction_history").c
    mine = sa.select(made.target).where(made.run_id == run_id)
    first = conn.execute(mine.order_by(made.target).limit(1)).scalar()
    last = conn.execute(mine.order_by(made.target.desc()).limit(1)).scalar()
    return None if first is None or last is None else (first, last)
