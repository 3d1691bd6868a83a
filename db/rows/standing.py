"""How each market stands now: reads that stay small however long the history is."""

from __future__ import annotations

from datetime import date
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db.connection.frames import frame, row
from db.tables import schema

COMPLETE = ("complete", "complete_with_gaps")


def markets(conn: Connection) -> list[str]:
    """The markets with a night or a fetch, sorted."""
    named = sa.union(sa.select(schema.night.c.market), sa.select(schema.price_fetch.c.market))
    return sorted(conn.execute(named).scalars())


def last_night(conn: Connection, market: str, *, complete: bool = False) -> dict[str, Any] | None:
    """The last night of a market, or the last one with predictions; None when there is none."""
    table = schema.night
    statement = sa.select(table).where(table.c.market == market)
    if complete:
        statement = statement.where(table.c.status.in_(COMPLETE))
    return row(conn, statement.order_by(table.c.as_of.desc()).limit(1))


def running_scores(conn: Connection, market: str, *, targets: int = 1, last: date | None = None) -> pd.DataFrame:
    """Running scores over every stock-day at the last `targets` targets up to a session: the columns of score."""
    table = schema.score
    mine = [table.c.market == market, table.c.span == "running", table.c.protocol == "all"]
    if last is not None:
        mine.append(table.c.target <= last)
    newest = sa.select(table.c.target).where(*mine).distinct().order_by(table.c.target.desc()).limit(targets)
    found = conn.execute(newest).scalars().all()
    return frame(conn, sa.select(table).where(*mine, table.c.target.in_(found)).order_by(table.c.target))
