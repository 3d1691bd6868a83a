"""Nights: their beginning and end, stages, alerts, drift, and the links of frozen ones."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables, where
from db.connection.bulk import insert_missing
from db.errors import StoreError
from db.read import read_row, read_value, selection
from db.save import save

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

    A complete night stays; a refused or interrupted one begins again, without its stages. `target`
    is None where the calendar does not know it yet.
    """
    c = tables.night.c
    start = {"target": target, "source": source, "started_at": started_at, "status": "running"}
    new = insert_missing(conn, tables.night, [{"market": market, "as_of": as_of, **start}])
    cleared = {column.name: sa.null() for column in c if column.nullable}
    # This matches a new night too, which it leaves as it was just inserted.
    reopened = conn.execute(
        sa.update(tables.night)
        .filter_by(market=market, as_of=as_of)
        .where(c.status.in_(["running", "refused"]))
        .values({**cleared, **start})  # `start` last: it has columns that may be NULL too
    )
    if reopened.rowcount:
        conn.execute(sa.delete(tables.night_stage).filter_by(market=market, as_of=as_of))
    return new


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
    """Close a night: complete, complete_with_gaps, or refused with its reason.

    `counts`: fetched, stored, rejected, predictions. `gaps`: symbol and reason of each stock left
    out. Raises StoreError for a night that was never started.
    """
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
    statement = sa.update(tables.night).filter_by(market=market, as_of=as_of)
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
    row = sa.update(tables.night_stage).filter_by(market=market, as_of=as_of, stage=stage)
    conn.execute(row.values(status=status, seconds=seconds))


def night(
    conn: Connection, market: str, as_of: date | None = None, *, complete: bool = False
) -> dict[str, Any] | None:
    """Return a market's night of a day, by default its last, as night_log; else None."""
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


def mark_sent(conn: Connection, market: str, as_of: date, kind: str, *, sent_at: datetime) -> None:
    """Store when an alert reached its recipient."""
    row = sa.update(tables.alert).filter_by(market=market, as_of=as_of, kind=kind)
    conn.execute(row.values(sent_at=sent_at))
