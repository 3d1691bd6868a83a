"""Rows of nights, as a night leaves them."""

from datetime import date, datetime

from sqlalchemy import Connection

from db.rows import nights

NOTHING = dict.fromkeys(("fetched", "stored", "rejected", "predictions"), 0)


def store_night(
    conn: Connection,
    market: str,
    as_of: date,
    *,
    at: datetime,
    target: date | None = None,
    source: str = "files",
    status: str = "complete",
    counts: dict[str, int] = NOTHING,
    **ended: object,
) -> None:
    """A night that began at a moment, and ended then unless `finished_at` says otherwise."""
    nights.start_night(conn, market, as_of, target=target, source=source, started_at=at)
    told = {"finished_at": at, "gaps": []} | ended
    nights.finish_night(conn, market, as_of, status=status, counts=NOTHING | counts, **told)
