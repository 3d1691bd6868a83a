"""Alerts: what somebody should know of a night, and whether it reached them."""

from __future__ import annotations

from datetime import date, datetime

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_missing
from db.connection.frames import frame


def raise_alert(conn: Connection, market: str, as_of: date, kind: str, *, message: str, raised_at: datetime) -> bool:
    """Note what somebody should know of a night, 'refused', 'late' or 'below_rule'; return whether it is new."""
    said = {"market": market, "as_of": as_of, "kind": kind, "message": message, "raised_at": raised_at}
    return insert_missing(conn, tables.alert, [said]) == 1


def mark_sent(conn: Connection, market: str, as_of: date, kind: str, *, sent_at: datetime) -> None:
    """Note that an alert reached whom it was for."""
    table = tables.alert
    mine = (table.c.market == market, table.c.as_of == as_of, table.c.kind == kind)
    conn.execute(sa.update(table).where(*mine).values(sent_at=sent_at))


def alerts(conn: Connection, market: str | None = None, *, unsent: bool = False) -> pd.DataFrame:
    """Return alerts by moment: the columns of alert; `unsent` keeps those that no webhook took."""
    table = tables.alert
    statement = sa.select(table).order_by(table.c.raised_at, table.c.market, table.c.as_of, table.c.kind)
    if market is not None:
        statement = statement.where(table.c.market == market)
    return frame(conn, statement.where(table.c.sent_at.is_(None)) if unsent else statement)
