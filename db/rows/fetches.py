"""Fetches: what each brought, and the moment at which its bars are known."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import save_row
from db.connection.frames import frame
from db.errors import StoreError

# No clock that is looked after is wrong by so much; less is made up for in silence.
AHEAD = timedelta(days=1)


def save_fetch(conn: Connection, fetch: Mapping[str, object]) -> int:
    """Store what a fetch brought, every column of price_fetch by name; 0 where it is stored."""
    return save_row(conn, tables.price_fetch, fetch)


def next_known_at(conn: Connection, market: str) -> datetime:
    """Return the moment as known at which a fetch that is being stored comes: now, and later than
    every one before it.

    Asked inside the `transaction` that stores the bars. So what was known at a moment never changes
    afterwards, whatever the clocks of several machines say and whichever of two fetches began
    first. Raises StoreError for a clock that `require_clocks_agree` refuses.
    """
    now = datetime.now(UTC)
    before = _newest(conn, market, now)
    return now if before is None else max(now, before + timedelta(microseconds=1))


def newest_known_at(conn: Connection, market: str, as_of: date) -> datetime | None:
    """Return when the newest of a market's fetches up to a session is known; None without any."""
    table = tables.price_fetch
    newest = sa.select(sa.func.max(table.c.known_at))
    newest = newest.where(table.c.market == market, table.c.as_of <= as_of)
    moment: datetime | None = conn.execute(newest).scalar_one()
    return moment


def require_clocks_agree(conn: Connection, market: str) -> None:
    """Raise StoreError when this machine's clock is a day or more from its server's, or behind the
    newest fetch.

    One fetch under a clock a year ahead would date all that follow it a year ahead: they have to
    come after it.
    """
    _newest(conn, market, datetime.now(UTC))


def dated_ahead(conn: Connection) -> pd.DataFrame:
    """Return the fetches that a clock a day or more ahead of this one dated:
    market, source, known_at.
    """
    table = tables.price_fetch
    ahead = sa.select(table.c.market, table.c.source, table.c.known_at)
    ahead = ahead.where(table.c.known_at > datetime.now(UTC) + AHEAD)
    return frame(conn, ahead.order_by(table.c.market, table.c.known_at))


def _newest(conn: Connection, market: str, now: datetime) -> datetime | None:
    if conn.dialect.name == "postgresql":
        server = conn.execute(sa.text("select clock_timestamp()")).scalar_one()
        if abs(now - server) > AHEAD:
            clocks = f"clock says {now:%Y-%m-%d %H:%M} UTC and the server's {server:%Y-%m-%d %H:%M}"
            raise StoreError(
                f"this machine's {clocks}: correct the wrong clock; nothing was fetched"
            )
    fetched, price, named = tables.price_fetch.c, tables.price, tables.instrument
    last = sa.select(sa.func.max(fetched.known_at)).where(fetched.market == market)
    newest: datetime | None = conn.execute(last).scalar_one()
    if newest is None:  # a store filled before it kept its fetches
        bars = (
            sa.select(sa.func.max(price.c.known_at))
            .join_from(price, named)
            .where(named.c.market == market)
        )
        newest = conn.execute(bars).scalar_one()
    if newest is not None and newest > now + AHEAD:
        raise StoreError(
            f"the newest fetch of {market} is dated {newest:%Y-%m-%d %H:%M} UTC, "
            f"{(newest - now).days} days after this"
            f" machine's clock, {now:%Y-%m-%d %H:%M}: one of the two clocks was wrong, so nothing "
            "was fetched. Correct"
            f" this one; or, if it is right, make a backup and run `dtml db redate {market}`"
        )
    return newest
