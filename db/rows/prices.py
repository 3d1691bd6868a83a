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
    """Store the bars that differ from the version in force, as versions known at `known_at`.

    Return how many were stored. `bars` has symbol, session and BAR_VALUES, one row per symbol and
    session; a missing value is NaN. Values that differ by at most `PRICE_TOLERANCE`, relatively,
    are equal. Raises StoreError, naming symbol and session, for two rows of one bar; naming the
    symbol, for one that is not stored; and for a missing close, a price that is not above 0, and a
    second version of a bar with the same `known_at`, which the database refuses.
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
    """Withdraw stored bars that a source now gives as bad; return how many were withdrawn.

    Reads as known at `known_at` or later leave them out; reads as known earlier still return them.
    `rejected` has symbol, session, close and adj_close as the source gives them now, and `reason`,
    the check that they fail. A stored bar with prices of another level (`SAME_LEVEL`) is not the
    bar that fails now, so it stays; a price that either of the two lacks is not compared.
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

    Earlier warnings of the `judged` symbols, whose whole history was checked, are deleted; with
    `reason`, only those with that reason. Of other symbols, only warnings with the same reason are
    replaced.
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
    """The bars of some sessions as known at one moment, and those that were withdrawn by then.

    `versions` has the columns of `prices`, sorted by symbol and session. Each bar has its own
    `known_at` there; `between` adds the moments of withdrawals. `withdrawn` has symbol, session and
    withdrawn_at, sorted by session.
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
    """Return the bars of first..last, both included, as known at `known_at`.

    `KnownBars.between` selects some of them without another read. By default the bars are the
    newest versions, and those of all symbols.
    """
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
    """Select the columns that `frame_of_bars` reads from the versions of bars.

    Without a type SQLAlchemy converts no value: `frame_of_bars` converts the driver's values much
    faster.
    """
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
    """Return the bars of first..last, both included, in the newest version known at `known_at`.

    Without `known_at` they are the newest versions stored, and without `symbols` the bars of all
    symbols. A bar that was withdrawn by then is left out. The symbol's bar before it, or else the
    one after it, gets the moment of the withdrawal as its `known_at`, if its own is earlier: so a
    read as known at the newest `known_at` of the result returns the same bars, unless a symbol has
    no bar left. Columns: symbol, session, open, high, low, close, adj_close, volume, dividend,
    split, known_at; missing is NaN. Sorted by symbol and session.
    """
    known = known_bars(conn, market, first, last, known_at=known_at, symbols=symbols)
    return _known_since_withdrawal(known.versions, known.withdrawn)


def versions_known(
    conn: Connection, market: str, after: datetime | None, until: datetime
) -> pd.DataFrame:
    """Return all versions of a market's bars that became known after `after`, up to `until`.

    An `after` of None sets no bound. Columns: symbol, session, BAR_VALUES, known_at; NaN is
    missing. Sorted by symbol, session and known_at. A withdrawal is a version too, with the values
    of the bar that it withdraws; no column tells it from a bar, but `withdrawals_known` lists it.
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
    """Return the withdrawals of a market's bars that became known after `after`, up to `until`.

    An `after` of None sets no bound. Columns: symbol, session, withdrawn (the check that the bar
    failed), known_at. Sorted by symbol, session and known_at.
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

    A withdrawn bar has no row of its own. So that a read as known at the newest `known_at` of these
    rows leaves it out too, the bar just before it, of the same symbol, takes over the moment of the
    withdrawal; where there is none before, the bar just after it does. A bar that was stored again
    after its withdrawal counts as the bar before, and keeps its own `known_at`, which is later.
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
    """Return the last stored session of each symbol that has one, by symbol.

    The session counts even if its bar was withdrawn.
    """
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
    """Return the bars as known at `known_at`, of each symbol from its first to its last in `bars`.

    Symbols with the same first and last session are read together: there are few such spans. `bars`
    has at least one row.
    """
    spans = bars.groupby("symbol")["session"].agg(["min", "max"])
    parts = []
    for _, span in spans.groupby(["min", "max"]):
        first = span["min"].iloc[0]
        last = span["max"].iloc[0]
        stored = prices(conn, market, first, last, known_at=known_at, symbols=span.index)
        parts.append(stored)
    return pd.concat(parts, ignore_index=True)
