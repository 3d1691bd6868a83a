"""Nights: begun, finished, how each ended, and the alerts about them."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_missing, records
from db.connection.frames import Statement, frame, matching, row, shown
from db.errors import StoreError
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
    """Open a night: status running; without a target where the calendar does not know it yet.

    One that is already complete, with gaps or without, stays as it is.
    """
    begun = {"target": target, "source": source, "started_at": started_at, "status": "running"}
    table = tables.night
    new = insert_missing(conn, table, [{"market": market, "as_of": as_of, **begun}])
    mine = (
        table.c.market == market,
        table.c.as_of == as_of,
        table.c.status.in_(["running", "refused"]),
    )
    conn.execute(
        sa.update(table)
        .where(*mine)
        .values({**{each.name: sa.null() for each in table.c if each.nullable}, **begun})
    )
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
) -> None:
    """Close a night that was started: complete, complete_with_gaps, or refused with its reason.

    `counts` holds fetched, stored, rejected, predictions; `gaps` symbol and reason of each stock
    left out.
    """
    table = tables.night
    statement = sa.update(table).where(table.c.market == market, table.c.as_of == as_of)
    values: dict[str, Any] = {
        name: counts[name] for name in ("fetched", "stored", "rejected", "predictions")
    }
    values |= {"status": status, "finished_at": finished_at, "gaps": [dict(each) for each in gaps]}
    values |= {"reason": reason, "run_id": run_id, "known_at": known_at, "inputs_hash": inputs_hash}
    if conn.execute(statement.values(values)).rowcount != 1:
        raise StoreError(f"the night of {market}, {as_of} was never started")


def nights(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Return nights by market and as_of: the columns of night."""
    table = tables.night
    return frame(
        conn,
        sa.select(table)
        .where(*matching(table, market=market))
        .order_by(table.c.market, table.c.as_of),
    )


def night(
    conn: Connection, market: str, as_of: date | None = None, *, complete: bool = False
) -> dict[str, Any] | None:
    """Return a night of a market, by default its last, or its last one with
    predictions; None when there is none.
    """
    found = view("night_log")
    mine = matching(found, market=market, as_of=as_of) + (
        [found.c.status.in_(COMPLETE)] if complete else []
    )
    return row(conn, sa.select(found).where(*mine).order_by(found.c.as_of.desc()).limit(1))


def neighbours(conn: Connection, market: str, as_of: date) -> tuple[date | None, date | None]:
    """Return the nights before and after a day; None where there is none."""
    seen = view("night_log").c
    mine = sa.select(seen.as_of).where(seen.market == market)
    before = mine.where(seen.as_of < as_of).order_by(seen.as_of.desc()).limit(1)
    after = mine.where(seen.as_of > as_of).order_by(seen.as_of).limit(1)
    return conn.execute(before).scalar(), conn.execute(after).scalar()


def night_log(market: str, last: date | None = None) -> Statement:
    """Return the nights of a market up to one, the newest first."""
    return shown("night_log", "-as_of", span=("as_of", None, last), market=market)


def raise_alert(
    conn: Connection, market: str, as_of: date, kind: str, *, message: str, raised_at: datetime
) -> bool:
    """Note what somebody should know of a night, of a kind that `tables.alert`
    lists; return whether it is new.
    """
    said = {
        "market": market,
        "as_of": as_of,
        "kind": kind,
        "message": message,
        "raised_at": raised_at,
    }
    return insert_missing(conn, tables.alert, [said]) == 1


def mark_sent(conn: Connection, market: str, as_of: date, kind: str, *, sent_at: datetime) -> None:
    """Note that an alert reached whom it was for."""
    table = tables.alert
    mine = matching(table, market=market, as_of=as_of, kind=kind)
    conn.execute(sa.update(table).where(*mine).values(sent_at=sent_at))


def alerts(conn: Connection, market: str | None = None, *, unsent: bool = False) -> pd.DataFrame:
    """Return alerts by moment: the columns of alert; `unsent` keeps those that nobody took."""
    table = tables.alert
    mine = matching(table, market=market) + ([table.c.sent_at.is_(None)] if unsent else [])
    order = (table.c.raised_at, table.c.market, table.c.as_of, table.c.kind)
    return frame(conn, sa.select(table).where(*mine).order_by(*order))


def save_drift(conn: Connection, market: str, as_of: date, rows: pd.DataFrame) -> int:
    """Store the measures of a night's drift, the columns of night_drift but its
    key; what was stored stands.
    """
    table = tables.night_drift
    return insert_missing(
        conn, table, records(table, rows.assign(market=market, as_of=pd.Timestamp(as_of)))
    )


def drift(conn: Connection, market: str, as_of: date) -> pd.DataFrame:
    """Return the measures of a night's drift: the columns of the view drift; maybe no rows."""
    return frame(conn, shown("drift", "measure", market=market, as_of=as_of))
