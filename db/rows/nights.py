"""Nights: their beginning and end, stages, alerts, drift, and the links of frozen ones."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables, where
from db.connection.bulk import insert_missing
from db.connection.frames import Statement, matching
from db.errors import StoreError
from db.read import read, read_row, read_value, selection
from db.save import save
from db.views import view

COMPLETE = ("complete", "complete_with_gaps")


def start_night(
    conn: Connection,
    market: str,
    as_of: date,
    *,
    target: date | None,
    source: str,
    started_at: datetime,
) -> int:
    """Open a night with the status running; return 1 when it is new, else 0.

    `target` is None where the calendar does not know it yet. A complete night, with gaps or
    without, stays as it is. A refused or interrupted one begins again: every column that may be
    NULL is cleared, and its stages are deleted.
    """
    c = tables.night.c
    start = {"target": target, "source": source, "started_at": started_at, "status": "running"}
    new = insert_missing(conn, tables.night, [{"market": market, "as_of": as_of, **start}])
    cleared = {column.name: sa.null() for column in c if column.nullable}
    # This matches a new night too, which it leaves as it was just inserted.
    reopened = conn.execute(
        sa.update(tables.night)
        .where(
            c.market == market,
            c.as_of == as_of,
            c.status.in_(["running", "refused"]),
        )
        .values({**cleared, **start})  # `start` last: it has columns that may be NULL too
    )
    if reopened.rowcount:
        stage = tables.night_stage
        conn.execute(sa.delete(stage).where(*matching(stage, market=market, as_of=as_of)))
    return new


def count_hindsight(conn: Connection, market: str) -> tuple[int, int]:
    """Return how many complete nights a market has, and how many of them ended too late to trade.

    These ended on a later day, in UTC, than the session that they predict.
    """
    log = view("night_log").c
    is_late = sa.func.date(log.finished_at) > log.target
    late_nights = sa.func.coalesce(sa.func.sum(sa.case((is_late, 1), else_=0)), 0)
    counts = sa.select(sa.func.count(), late_nights)
    counts = counts.where(log.market == market, log.status.in_(COMPLETE))
    complete, late = conn.execute(counts).one()
    return int(complete), int(late)


def finish_night(
    conn: Connection,
    market: str,
    as_of: date,
    *,
    status: str,
    finished_at: datetime,
    counts: Mapping[str, int],
    gaps: Sequence[Mapping[str, str]],
    reason: str | None = None,
    run_id: str | None = None,
    known_at: datetime | None = None,
    inputs_hash: str | None = None,
    computed_by: str | None = None,
) -> None:
    """Close a night that was started: complete, complete_with_gaps, or refused with its reason.

    `counts` holds fetched, stored, rejected and predictions; `gaps` holds the symbol and the reason
    of each stock left out. The `reason` is why the night was refused, or a note about a complete
    one. The arguments from `run_id` on are None for a refused night. A night that is closed already
    is overwritten. Raises StoreError for a night that was never started.
    """
    table = tables.night
    values: dict[str, Any] = {
        "status": status,
        "finished_at": finished_at,
        "fetched": counts["fetched"],
        "stored": counts["stored"],
        "rejected": counts["rejected"],
        "predictions": counts["predictions"],
        "gaps": [dict(gap) for gap in gaps],
        "reason": reason,
        "run_id": run_id,
        "known_at": known_at,
        "inputs_hash": inputs_hash,
        "computed_by": computed_by,
    }
    statement = sa.update(table).where(table.c.market == market, table.c.as_of == as_of)
    if conn.execute(statement.values(values)).rowcount != 1:
        raise StoreError(
            f"the store has no night of {market} as of {as_of} to finish: run that night again"
        )


def start_stage(
    conn: Connection, market: str, as_of: date, stage: str, *, started_at: datetime
) -> None:
    """Store that a stage of a night began, in place of what an earlier run of the stage stored."""
    stage_row = {
        "market": market,
        "as_of": as_of,
        "stage": stage,
        "status": "running",
        "started_at": started_at,
        "seconds": None,
    }
    save(conn, "night_stage", stage_row)


def finish_stage(
    conn: Connection,
    market: str,
    as_of: date,
    stage: str,
    *,
    status: Literal["done", "failed"],
    seconds: float,
) -> None:
    """Store how a stage of a night ended, and how many seconds it took."""
    table = tables.night_stage
    is_stage = matching(table, market=market, as_of=as_of, stage=stage)
    conn.execute(sa.update(table).where(*is_stage).values(status=status, seconds=seconds))


def nights(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Return nights by market and as_of: the columns of night."""
    return read(conn, "night", market=where.given(market))


def night(
    conn: Connection, market: str, as_of: date | None = None, *, complete: bool = False
) -> dict[str, Any] | None:
    """Return a market's night of a day, by default its last; None when there is none.

    The columns are those of the view night_log. With `complete`, other nights are left out.
    """
    status: dict[str, Any] = {"status": COMPLETE} if complete else {}
    return read_row(
        conn, "night_log", market=market, as_of=where.given(as_of), order="-as_of", **status
    )


def complete_nights(conn: Connection, market: str) -> list[dict[str, Any]]:
    """Return the complete nights of a market by as_of: every column of night."""
    complete = selection("night", market=market, status=COMPLETE)
    return [dict(night) for night in conn.execute(complete).mappings()]


def neighbours(conn: Connection, market: str, as_of: date) -> tuple[date | None, date | None]:
    """Return the as_of of the nights next before and after a day; None where there is none."""
    before, after = where.before(as_of), where.after(as_of)
    return (
        read_value(conn, "night_log", "as_of", market=market, as_of=before, order="-as_of"),
        read_value(conn, "night_log", "as_of", market=market, as_of=after, order="as_of"),
    )


def night_log(market: str, last: date | None = None) -> Statement:
    """Return the nights of a market up to the day `last`, the newest first."""
    return selection("night_log", market=market, as_of=where.between(None, last), order="-as_of")


def mark_sent(conn: Connection, market: str, as_of: date, kind: str, *, sent_at: datetime) -> None:
    """Store when an alert reached its recipient."""
    table = tables.alert
    is_alert = matching(table, market=market, as_of=as_of, kind=kind)
    conn.execute(sa.update(table).where(*is_alert).values(sent_at=sent_at))


def drift(conn: Connection, market: str, as_of: date) -> pd.DataFrame:
    """Return the measures of a night's drift."""
    return read(conn, "drift", market=market, as_of=as_of, order="measure")
