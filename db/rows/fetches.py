"""Fetches: what each brought, when its bars are known, how a second source differs."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables, where
from db.connection.bulk import insert_frame
from db.connection.differences import is_changed, is_stored, require_distinct, stored_counterparts
from db.connection.frames import frame
from db.errors import StoreError
from db.read import read, read_row, read_value
from db.rows.prices import PRICE_TOLERANCE
from db.save import identified

# A clock that is wrong by more is an error, and nothing is fetched. Less is made up for silently:
# the next fetch is dated just after the last one.
AHEAD = timedelta(days=1)
DISAGREEMENT_KEY = ["instrument_id", "session", "field"]


def next_known_at(conn: Connection, market: str) -> datetime:
    """Return the `known_at` for the bars of a fetch: now, or just after the newest one so far.

    Call it inside the `transaction` that stores the bars. Then what was known at a moment never
    changes afterwards, whatever the clocks of several machines say and whichever of two fetches
    began first. Raises StoreError for a clock that `require_clocks_agree` refuses.
    """
    now = datetime.now(UTC)
    newest = _checked_newest(conn, market, now)
    return now if newest is None else max(now, newest + timedelta(microseconds=1))


def require_clocks_agree(conn: Connection, market: str) -> None:
    """Raise StoreError when this machine's clock is more than a day off.

    It is compared with the clock of a PostgreSQL server, and with the newest fetch, which cannot be
    later. A fetch under a clock a year ahead would date all later ones a year ahead too, because
    they must come after it.
    """
    _checked_newest(conn, market, datetime.now(UTC))


def _checked_newest(conn: Connection, market: str, now: datetime) -> datetime | None:
    """Return the newest `known_at` of a market's fetches, else of its bars; None without any.

    Raises StoreError where `now` differs from the clock of a PostgreSQL server, or lies behind the
    newest `known_at`, by more than AHEAD.
    """
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


def next_compared_at(conn: Connection, market: str) -> datetime:
    """Return the `known_at` of a comparison: now, or just after every fetch and comparison.

    Call it inside the `transaction` that stores what the comparison found.
    """
    later = [datetime.now(UTC)]
    for table in ("price_fetch", "price_comparison"):
        newest = read_value(conn, table, "known_at", market=market, order="-known_at")
        if newest is not None:
            later.append(newest + timedelta(microseconds=1))
    return max(later)


def comparison(
    conn: Connection, market: str, *, since: date | None = None, before: datetime | None = None
) -> dict[str, Any] | None:
    """Return one comparison of a market, a row of the view comparison_log; None without any.

    By default it is the newest. With `since`, it is the newest of the first session from `since` on
    that was compared. With `before`, only comparisons known before that moment count.
    """
    return read_row(
        conn,
        "comparison_log",
        market=market,
        as_of=where.between(since, None),
        known_at=where.given(None) if before is None else where.before(before),
        order="-known_at" if since is None else "as_of, -known_at",
    )


def disagreements(
    conn: Connection, market: str, first: date | None = None, last: date | None = None
) -> pd.DataFrame:
    """Return the rows of the view price_disagreement that differ still, sessions first..last."""
    return read(
        conn,
        "price_disagreement",
        market=market,
        session=where.between(first, last),
        known_until=None,
        settled_by=None,
        order="session, symbol, field",
    )


def disagreements_found(conn: Connection, market: str, known_at: datetime) -> pd.DataFrame:
    """Return the rows of the view price_disagreement that the comparison of a moment found."""
    return read(
        conn,
        "price_disagreement",
        market=market,
        known_at=known_at,
        settled_by=None,
        order="session, symbol, field",
    )


def append_disagreements(
    conn: Connection, market: str, rows: pd.DataFrame, *, source: str, known_at: datetime
) -> int:
    """Store values of bars in which two sources differ, or agree again; return how many were new.

    `rows` has symbol, session, field, first_value, second_value, difference (a missing one is NaN)
    and settled_by (None while the values differ). Each is stored as a version of its value, known
    at `known_at`, unless the version in force says the same: if each of the two values is the
    stored one, but for a relative `PRICE_TOLERANCE`, and if both rows are settled or neither is.
    Raises StoreError for two rows of one session, symbol and field, and for a symbol that is not
    stored.
    """
    if rows.empty:
        return 0
    require_distinct(rows, ["symbol", "session", "field"])
    numbers = ["first_value", "second_value", "difference"]
    fresh = identified(conn, market, rows).astype(dict.fromkeys(numbers, "float64"))
    c = tables.bar_disagreement.c
    later = tables.bar_disagreement.alias("later")
    is_superseded = sa.exists().where(
        later.c.instrument_id == c.instrument_id,
        later.c.session == c.session,
        later.c.field == c.field,
        later.c.known_at > c.known_at,
    )
    stored_columns = [column for column in c if column.name not in ("known_at", "source")]
    ids = fresh["instrument_id"].unique().tolist()
    stored = frame(conn, sa.select(*stored_columns).where(c.instrument_id.in_(ids), ~is_superseded))
    counterparts = stored_counterparts(fresh, stored, DISAGREEMENT_KEY)
    has_other_values = is_changed(
        fresh, counterparts, ["first_value", "second_value"], PRICE_TOLERANCE
    )
    settled_now = fresh["settled_by"].notna().to_numpy()
    settled_before = counterparts["settled_by"].notna().to_numpy()
    is_new = ~is_stored(counterparts) | has_other_values | (settled_now != settled_before)
    columns = [*DISAGREEMENT_KEY, *numbers, "settled_by"]
    versions = fresh.loc[is_new, columns].assign(known_at=known_at, source=source)
    return insert_frame(conn, tables.bar_disagreement, versions.sort_values(DISAGREEMENT_KEY))
