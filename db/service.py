"""Every write and read of what a service keeps beside predictions: fetches and alerts.

Writes as in db/repositories.py, reads as in db/queries.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import schema
from db.bulk import insert_missing
from db.frames import frame


def next_known_at(conn: Connection, market: str) -> datetime:
    """The moment as known at which a fetch that is being stored comes: now, and later than every one before it.

    Asked inside the `transaction` that stores the bars. So what was known at a moment never changes afterwards,
    whatever the clocks of several machines say and whichever of two fetches began first.
    """
    now, before = datetime.now(UTC), _last_fetch(conn, market) or _last_price(conn, market)
    return now if before is None else max(now, before + timedelta(microseconds=1))


def save_fetch(conn: Connection, fetch: Mapping[str, object]) -> int:
    """Store what a fetch brought: every column of price_fetch by name. The first row of a market and moment stands."""
    return insert_missing(conn, schema.price_fetch, [dict(fetch)])


def raise_alert(conn: Connection, market: str, as_of: date, kind: str, *, message: str, raised_at: datetime) -> bool:
    """Note what somebody should know of a night, 'refused', 'late' or 'below_rule'; whether it is new."""
    said = {"market": market, "as_of": as_of, "kind": kind, "message": message, "raised_at": raised_at}
    return insert_missing(conn, schema.alert, [said]) == 1


def mark_sent(conn: Connection, market: str, as_of: date, kind: str, *, sent_at: datetime) -> None:
    """Note that an alert reached whom it was for."""
    table = schema.alert
    mine = (table.c.market == market, table.c.as_of == as_of, table.c.kind == kind)
    conn.execute(sa.update(table).where(*mine).values(sent_at=sent_at))


def alerts(conn: Connection, market: str | None = None, *, unsent: bool = False) -> pd.DataFrame:
    """Alerts by moment: the columns of alert; `unsent` keeps those that no webhook took."""
    table = schema.alert
    statement = sa.select(table).order_by(table.c.raised_at, table.c.market, table.c.as_of, table.c.kind)
    if market is not None:
        statement = statement.where(table.c.market == market)
    return frame(conn, statement.where(table.c.sent_at.is_(None)) if unsent else statement)


def _last_fetch(conn: Connection, market: str) -> datetime | None:
    table = schema.price_fetch
    newest = sa.select(table.c.known_at).where(table.c.market == market).order_by(table.c.known_at.desc()).limit(1)
    return conn.execute(newest).scalar_one_or_none()


def _last_price(conn: Connection, market: str) -> datetime | None:
    """The newest version of any bar: for a store filled before it kept its fetches."""
    price, named = schema.price, schema.instrument
    newest = sa.select(sa.func.max(price.c.known_at)).join_from(price, named).where(named.c.market == market)
    return conn.execute(newest).scalar_one_or_none()
