"""Fetches: what each brought, when its bars are known, how a second source differs."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.errors import StoreError
from db.read import read_value
from db.save import save

# A clock that is wrong by more is an error, and nothing is fetched. Less is made up for silently:
# the next fetch is dated just after the last one.
AHEAD = timedelta(days=1)


def next_known_at(conn: Connection, market: str) -> datetime:
    """Return the `known_at` for the bars of a fetch: now, or just after the newest one so far.

    Inside the `transaction` that stores them, so that what was known at a moment never changes.
    Raises StoreError as `require_clocks_agree`.
    """
    now = datetime.now(UTC)
    newest = _checked_newest(conn, market, now)
    return now if newest is None else max(now, newest + timedelta(microseconds=1))


def require_clocks_agree(conn: Connection, market: str) -> None:
    """Raise StoreError when this machine's clock is a day off PostgreSQL's, or behind the newest
    fetch.

    A fetch dated ahead would date all later ones ahead, because they must come after it.
    """
    _checked_newest(conn, market, datetime.now(UTC))


def _checked_newest(conn: Connection, market: str, now: datetime) -> datetime | None:
    """Return the newest `known_at` of fetches, else bars, else None; raises for a wrong `now`."""
    if conn.dialect.name == "postgresql":
        server = conn.execute(sa.text("select clock_timestamp()")).scalar_one()
        if abs(now - server) > AHEAD:
            raise StoreError(
                f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC and the database server's "
                f"{server:%Y-%m-%d %H:%M}, so nothing was stored: correct the wrong clock"
            )
    newest: datetime | None = read_value(
        conn, "price_fetch", "known_at", market=market, order="-known_at"
    ) or read_value(  # a store that was filled before it recorded fetches has only their bars
        conn, "price", "known_at", market=market, order="-known_at"
    )
    if newest is not None and newest > now + AHEAD:
        raise StoreError(
            f"the newest fetch of {market} is dated {newest:%Y-%m-%d %H:%M} UTC, but this "
            f"machine's clock says {now:%Y-%m-%d %H:%M} UTC: one of the two is wrong, so nothing "
            "was stored. Correct this machine's clock or, if it is right, restore a backup from "
            "before that fetch"
        )
    return newest


def save_comparison(conn: Connection, row: Mapping[str, Any], differing: pd.DataFrame) -> None:
    """Store a comparison with a second source, in place of an earlier one up to the same session.

    `differing`: symbol, session, field, first_value, second_value, difference. Raises StoreError
    for two rows of one value, and for an unknown symbol.
    """
    market, as_of = row["market"], row["as_of"]
    of_market = sa.select(tables.instrument.c.id).filter_by(market=market)
    value = tables.bar_disagreement.c
    earlier = (value.as_of == as_of, value.instrument_id.in_(of_market))
    conn.execute(sa.delete(tables.bar_disagreement).where(*earlier))
    save(conn, "price_comparison", row)
    save(conn, "bar_disagreement", differing, market=market, as_of=as_of)
