"""Prices: every version of every bar, and the bars that were rejected."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, cast

import numpy as np
import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables, where
from db.connection.bulk import insert_frame
from db.connection.differences import (
    is_changed,
    is_stored,
    require_distinct,
    stored_counterparts,
)
from db.connection.frames import bars as frame_of_bars
from db.read import query, read
from db.save import identified, instrument_ids
from db.tables import BAR_VALUES

# Prices that differ by less, relatively, are the same: a source's rounding is not a restatement.
PRICE_TOLERANCE = 1e-9
# The price of a stored bar, and that of a bar that failed a check, are of the same level if neither
# is more than this many times the other.
SAME_LEVEL = 1.5


def append_prices(
    conn: Connection, market: str, bars: pd.DataFrame, *, source: str, known_at: datetime
) -> int:
    """Store the bars that differ from the version in force, known at `known_at`; return how many.

    `bars` has symbol, session and BAR_VALUES, NaN missing; within `PRICE_TOLERANCE`, relatively,
    values are equal. Raises StoreError for two rows of one bar, an unknown symbol, a missing close,
    a price not above 0, and a second version of one `known_at`.
    """
    if bars.empty:
        return 0
    key = ["symbol", "session"]
    require_distinct(bars, key)
    # In the order of the primary key, in which SQLite keeps the rows and inserts them fastest.
    rows = identified(conn, market, bars).sort_values(["instrument_id", "session"])
    counterparts = stored_counterparts(rows, _versions_in_force(conn, market, bars, known_at), key)
    is_restated = is_changed(rows, counterparts, BAR_VALUES, PRICE_TOLERANCE)
    is_new_version = ~is_stored(counterparts) | is_restated
    versions = rows.loc[is_new_version, ["instrument_id", "session", *BAR_VALUES]]
    return insert_frame(conn, tables.price, versions.assign(known_at=known_at, source=source))


def withdraw(conn: Connection, market: str, rejected: pd.DataFrame, *, known_at: datetime) -> int:
    """Withdraw stored bars that a source now gives as bad, from `known_at` on; return how many.

    `rejected`: symbol, session, close, adj_close, reason. A stored bar with prices of another level
    (`SAME_LEVEL`) is another bar, and stays.
    """
    if rejected.empty:
        return 0
    key = ["symbol", "session"]
    stored = _versions_in_force(conn, market, rejected, known_at)
    bad_bars = rejected[[*key, "close", "adj_close", "reason"]]
    pairs = bad_bars.merge(stored, on=key, suffixes=("_now", ""))
    withdrawn = pairs[~_is_other_level(pairs, "close") & ~_is_other_level(pairs, "adj_close")]
    rows = identified(conn, market, withdrawn)[["instrument_id", "session", *BAR_VALUES, "reason"]]
    rows = rows.rename(columns={"reason": "withdrawn"})
    return insert_frame(conn, tables.price, rows.assign(known_at=known_at, source="checks"))


def record_warnings(
    conn: Connection,
    market: str,
    judged: Collection[str],
    warnings: pd.DataFrame,
    *,
    known_at: datetime,
    reason: str | None = None,
) -> None:
    """Store what is doubtful about prices: symbol, reason, value in words.

    They replace the warnings of `judged` symbols, whose whole history was checked, with `reason`
    only those of that reason; of other symbols, those of the same reason.
    """
    table = tables.symbol_warning
    ids = instrument_ids(conn, market)
    judged_ids = ids[ids.index.isin(list(judged))].tolist()
    of_reason = [] if reason is None else [table.c.reason == reason]
    conn.execute(sa.delete(table).where(table.c.instrument_id.in_(judged_ids), *of_reason))
    rows = identified(conn, market, warnings)[["instrument_id", "reason", "value"]]
    for instrument_id, new in rows[["instrument_id", "reason"]].itertuples(index=False):
        is_same = (table.c.instrument_id == instrument_id, table.c.reason == new)
        conn.execute(sa.delete(table).where(*is_same))
    insert_frame(conn, table, rows.assign(known_at=known_at))


@dataclass(frozen=True)
class KnownBars:
    """The bars of some sessions as known at one moment, and those withdrawn by then.

    `versions`: as `prices`, but `known_at` without withdrawals, which `between` adds. `withdrawn`:
    symbol, session, withdrawn_at; sorted by session.
    """

    versions: pd.DataFrame
    withdrawn: pd.DataFrame

    def between(
        self, first: date, last: date, symbols: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the bars of first..last, of these symbols or of all, as `prices` does."""
        versions = _cut(self.versions, first, last, symbols)
        return _known_since_withdrawal(versions, _cut(self.withdrawn, first, last, symbols))


def _cut(
    rows: pd.DataFrame, first: date, last: date, symbols: Collection[str] | None
) -> pd.DataFrame:
    is_inside = rows["session"].between(pd.Timestamp(first), pd.Timestamp(last))
    if symbols is not None:
        is_inside &= rows["symbol"].isin(list(symbols))
    return rows[is_inside].reset_index(drop=True)


def known_bars(
    conn: Connection,
    market: str,
    first: date,
    last: date,
    *,
    known_at: datetime | None = None,
    symbols: Collection[str] | None = None,
) -> KnownBars:
    """Return the bars of first..last, by default the newest, to be cut by `between`."""
    ids = instrument_ids(conn, market)
    if symbols is not None:
        ids = ids[ids.index.isin(list(symbols))]
    price = tables.price.c
    # A withdrawal is a version too: it supersedes the bar before it, and is no bar itself.
    later = tables.price.alias("later")
    is_known = where.between(None, known_at)
    statement = _select_versions().where(
        price.instrument_id.in_(ids.tolist()),
        price.session.between(first, last),
        ~sa.exists().where(
            later.c.instrument_id == price.instrument_id,
            later.c.session == price.session,
            later.c.known_at > price.known_at,
            is_known(later.c.known_at),
        ),
        price.withdrawn.is_(None),
        is_known(price.known_at),
    )
    withdrawn = read(
        conn,
        "price",
        columns="symbol, session, known_at",
        withdrawn=where.stored,
        market=market,
        symbol=ids.index.tolist(),
        session=where.between(first, last),
        known_at=is_known,
        order="session",  # as `merge_asof` needs them
    )
    return KnownBars(
        frame_of_bars(conn.execute(statement), ids),
        withdrawn.rename(columns={"known_at": "withdrawn_at"}),
    )


def _select_versions() -> sa.Select[Any]:
    """Select the columns that `frame_of_bars` reads, untyped: SQLAlchemy converts none."""
    price = tables.price.c
    columns = [
        price.instrument_id,
        price.session,
        price.known_at,
        *[price[name] for name in BAR_VALUES],
    ]
    return sa.select(*[sa.type_coerce(column, sa.types.NullType()) for column in columns])


def prices(
    conn: Connection,
    market: str,
    first: date,
    last: date,
    *,
    known_at: datetime | None = None,
    symbols: Collection[str] | None = None,
) -> pd.DataFrame:
    """Return the bars of first..last in the newest version known at `known_at`, by default stored.

    Columns: symbol, session, open, high, low, close, adj_close, volume, dividend, split, known_at;
    NaN is missing; sorted by symbol and session. A withdrawn bar is left out; its symbol's bar
    before it, or else after it, gets the moment of the withdrawal as `known_at`, so that a read as
    known at the newest `known_at` returns the same bars.
    """
    known = known_bars(conn, market, first, last, known_at=known_at, symbols=symbols)
    return _known_since_withdrawal(known.versions, known.withdrawn)


def versions_known(
    conn: Connection, market: str, after: datetime | None, until: datetime
) -> pd.DataFrame:
    """Return all versions of a market's bars that became known after `after` (None: ever), up to
    `until`.

    Columns: symbol, session, BAR_VALUES, known_at; NaN is missing; sorted by symbol, session,
    known_at. A withdrawal counts, with the values of its bar: see `withdrawals_known`.
    """
    ids = instrument_ids(conn, market)
    price = tables.price
    statement = _select_versions().where(
        price.c.instrument_id.in_(ids.tolist()), _became_known(after, until)(price.c.known_at)
    )
    return frame_of_bars(conn.execute(statement), ids).sort_values(
        ["symbol", "session", "known_at"], kind="stable", ignore_index=True
    )


def withdrawals_known(
    conn: Connection, market: str, after: datetime | None, until: datetime
) -> pd.DataFrame:
    """Return the withdrawals of a market's bars known after `after` (None: ever), up to `until`.

    Columns: symbol, session, withdrawn (the check that failed), known_at; sorted by symbol,
    session, known_at.
    """
    return read(
        conn,
        "price",
        columns="symbol, session, withdrawn, known_at",
        market=market,
        withdrawn=where.stored,
        known_at=_became_known(after, until),
        order="symbol, session, known_at",
    )


def _became_known(after: datetime | None, until: datetime) -> where.Condition:
    is_after = where.given(None) if after is None else where.after(after)
    return lambda known_at: sa.and_(known_at <= until, is_after(known_at))


def _is_other_level(pairs: pd.DataFrame, name: str) -> "pd.Series[bool]":
    distance = np.abs(np.log(pairs[f"{name}_now"] / pairs[name]))
    return cast("pd.Series[bool]", distance > np.log(SAME_LEVEL))


def _known_since_withdrawal(versions: pd.DataFrame, withdrawn: pd.DataFrame) -> pd.DataFrame:
    """Return the versions, with the moment of each withdrawal as the `known_at` of a bar beside it.

    It is the symbol's bar before, or else after it: a read as known at the newest `known_at` then
    leaves the withdrawn bar out too. A bar stored again keeps its own, later `known_at`.
    """
    if withdrawn.empty:
        return versions
    is_affected = versions["symbol"].isin(withdrawn["symbol"])
    # `merge_asof` needs both frames sorted by session.
    places = versions.loc[is_affected, ["symbol", "session"]].sort_values("session")
    places = places.reset_index(names="row")
    # Row by row of `withdrawn`: the position in `versions` of the bar before, and of the one after.
    before = pd.merge_asof(withdrawn, places, on="session", by="symbol", direction="backward")
    after = pd.merge_asof(withdrawn, places, on="session", by="symbol", direction="forward")
    # NaN for a withdrawn bar whose symbol has no other bar: `groupby` leaves it out.
    neighbours = before["row"].fillna(after["row"])
    known_at = versions["known_at"]
    # The last withdrawal beside each bar; NaT for a bar beside none, which keeps its own moment.
    withdrawn_at = withdrawn.groupby(neighbours)["withdrawn_at"].max()
    withdrawn_at = withdrawn_at.reindex(versions.index).astype(known_at.dtype)
    is_withdrawn_later = withdrawn_at > known_at  # False for NaT
    return versions.assign(known_at=known_at.where(~is_withdrawn_later, withdrawn_at))


def last_sessions(conn: Connection, market: str) -> "pd.Series[pd.Timestamp]":
    """Return the last stored session of each symbol, by symbol, even of a withdrawn bar."""
    sessions = query(conn, "last_sessions", market=market).dropna()
    return cast("pd.Series[pd.Timestamp]", sessions.set_index("symbol")["last"])


def rejected_bars(conn: Connection, market: str, first: date, last: date) -> pd.DataFrame:
    """Return the rows of the view rejected of a market, sessions first..last."""
    return read(
        conn,
        "rejected",
        market=market,
        session=where.between(first, last),
        order="session, symbol, reason",
    )


def _versions_in_force(
    conn: Connection, market: str, bars: pd.DataFrame, known_at: datetime
) -> pd.DataFrame:
    """Return the bars as known at `known_at`, of each symbol's first to last in `bars`."""
    spans = bars.groupby("symbol")["session"].agg(["min", "max"])
    parts = []
    for _, span in spans.groupby(["min", "max"]):
        first = span["min"].iloc[0]
        last = span["max"].iloc[0]
        stored = prices(conn, market, first, last, known_at=known_at, symbols=span.index)
        parts.append(stored)
    return pd.concat(parts, ignore_index=True)
