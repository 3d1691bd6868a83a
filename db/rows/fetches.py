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

# A clock that is wrong by more is an error, and nothing is fetched. Less is made up for silently:
# the next fetch is dated just after the last one.
AHEAD = timedelta(days=1)


def save_fetch(conn: Connection, fetch: Mapping[str, object]) -> int:
    """Store what a fetch brought, every column of price_fetch by name.

    `code` may be left out. Return 1, or 0 where it is stored already.
    """
    return save_row(conn, tables.price_fetch, fetch)


def next_known_at(conn: Connection, market: str) -> datetime:
    """Return the `known_at` for the bars of a fetch: now, or just after the newest one so far.

    Call it inside the `transaction` that stores the bars. Then what was known at a moment never
    changes afterwards, whatever the clocks of several machines say and whichever of two fetches
    began first. Raises StoreError for a clock that `require_clocks_agree` refuses.
    """
    now = datetime.now(UTC)
    newest = _checked_newest(conn, market, now)
    return now if newest is None else max(now, newest + timedelta(microseconds=1))


def newest_known_at(conn: Connection, market: str, as_of: date) -> datetime | None:
    """Return the newest `known_at` of a market's fetches up to a session; None without any."""
    table = tables.price_fetch
    newest = sa.select(sa.func.max(table.c.known_at))
    newest = newest.where(table.c.market == market, table.c.as_of <= as_of)
    moment: datetime | None = conn.execute(newest).scalar_one()
    return moment


def newest_code(conn: Connection, market: str, source: str) -> str | None:
    """Return the code of a user's own feed that fetched last; None where it never did."""
    table = tables.price_fetch
    newest = sa.select(table.c.code).where(table.c.market == market, table.c.source == source)
    newest = newest.where(table.c.code.is_not(None)).order_by(table.c.known_at.desc()).limit(1)
    code: str | None = conn.execute(newest).scalar_one_or_none()
    return code


def require_clocks_agree(conn: Connection, market: str) -> None:
    """Raise StoreError when this machine's clock is more than a day off.

    It is compared with the clock of the database's server, and with the newest fetch, which cannot
    be later. A fetch under a clock a year ahead would date all later ones a year ahead too, because
    they must come after it.
    """
    _checked_newest(conn, market, datetime.now(UTC))


def dated_ahead(conn: Connection) -> pd.DataFrame:
    """Return the fetches dated more than a day after now: market, source, known_at."""
    table = tables.price_fetch
    ahead = sa.select(table.c.market, table.c.source, table.c.known_at)
    ahead = ahead.where(table.c.known_at > datetime.now(UTC) + AHEAD)
    return frame(conn, ahead.order_by(table.c.market, table.c.known_at))


def _checked_newest(conn: Connection, market: str, now: datetime) -> datetime | None:
    """Return the newest `known_at` of a market; None before its first fetch.

    Raises StoreError where `now` differs from the server's clock, or lies behind the newest fetch,
    by more than AHEAD.
    """
    if conn.dialect.name == "postgresql":
        server = conn.execute(sa.text("select clock_timestamp()")).scalar_one()
        if abs(now - server) > AHEAD:
            raise StoreError(
                f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC and the server's "
                f"{server:%Y-%m-%d %H:%M}: correct the wrong clock; nothing was fetched"
            )
    fetch = tables.price_fetch.c
    price = tables.price
    stock = tables.instrument
    last = sa.select(sa.func.max(fetch.known_at)).where(fetch.market == market)
    newest: datetime | None = conn.execute(last).scalar_one()
    if newest is None:  # A store that was filled before it recorded fetches has only their bars.
        bars = (
            sa.select(sa.func.max(price.c.known_at))
            .join_from(price, stock)
            .where(stock.c.market == market)
        )
        newest = conn.execute(bars).scalar_one()
    if newest is not None and newest > now + AHEAD:
        raise StoreError(
            f"the newest fetch of {market} is dated {newest:%Y-%m-%d %H:%M} UTC, "
            f"{(newest - now).days} days after this machine's clock, {now:%Y-%m-%d %H:%M} UTC: one "
            "of the two clocks was wrong, so nothing was fetched. Correct this machine's clock; "
            f"or, if it is right, make a backup and run `dtml db redate {market}`"
        )
    return newest
