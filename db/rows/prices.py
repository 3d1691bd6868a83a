"""Prices: every version of every bar, and the bars that were rejected."""

from collections.abc import Collection
from datetime import date, datetime
from typing import cast

import numpy as np
import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame, insert_missing, records
from db.connection.differences import alongside, differ, is_stored, named, require_distinct
from db.connection.frames import Statement, bars, frame, shown, within
from db.errors import StoreError
from db.rows.markets import identified, instrument_ids
from db.tables import BAR_VALUES

# A source's rounding is not a restatement.
PRICE_TOLERANCE = 1e-9
# A factor between the stored bar and one that failed a check: closer than this they are of the same
# level.
SAME_LEVEL = 1.5


def append_prices(
    conn: Connection, market: str, bars: pd.DataFrame, *, source: str, known_at: datetime
) -> int:
    """Store the bars that differ from the version in force at `known_at`, as versions known since
    then.

    `bars` is the bars frame: one row per symbol and session; missing is NaN, close is not. Prices
    within 1e-9 of each other, relatively, are equal. Raises StoreError for a price that is missing
    or not above 0, naming its symbol and session, and for two versions of one bar with the same
    `known_at`.
    """
    if bars.empty:
        return 0
    key = ["symbol", "session"]
    require_distinct(bars, key)
    unsound = bars[
        bars["close"].isna()
        | (bars[["open", "high", "low", "close", "adj_close"]] <= 0).any(axis=1)
    ]
    if len(unsound):
        raise StoreError(f"{named(unsound, key)}: a price is missing or not above 0")
    rows = identified(conn, market, bars).sort_values(["instrument_id", "session"])
    before = alongside(rows, _versions_in_force(conn, market, bars, known_at), key)
    restated = differ(rows, before, BAR_VALUES, PRICE_TOLERANCE)
    clash = rows[restated & (before["known_at"] == known_at).to_numpy()]
    if len(clash):
        raise StoreError(
            f"{named(clash, key)}: two versions were fetched at {known_at.isoformat()}: fetch again"
        )
    versions = rows.loc[~is_stored(before) | restated, ["instrument_id", "session", *BAR_VALUES]]
    return insert_frame(conn, tables.price, versions.assign(known_at=known_at, source=source))


def withdraw(conn: Connection, market: str, rejected: pd.DataFrame, *, known_at: datetime) -> int:
    """Store that bars in force at `known_at` are no prices since then, and return how many.

    `rejected` has symbol, session, close, adj_close as a source has them now and `reason`, the
    check they fail. A stored bar of another level than that is another bar, and stays. Reads as
    known earlier find what they found.
    """
    if rejected.empty:
        return 0
    key = ["symbol", "session"]
    before = _versions_in_force(conn, market, rejected, known_at).rename(
        columns={"known_at": "known_before"}
    )
    both = rejected[[*key, "close", "adj_close", "reason"]].merge(
        before, on=key, suffixes=("_now", "")
    )
    apart = [np.abs(np.log(both[f"{name}_now"] / both[name])) for name in ("close", "adj_close")]
    same = both[~np.logical_or.reduce([each > np.log(SAME_LEVEL) for each in apart])]
    rows = identified(conn, market, same)[["instrument_id", "session", *BAR_VALUES, "reason"]]
    rows = rows.rename(columns={"reason": "withdrawn"})
    return insert_frame(conn, tables.price, rows.assign(known_at=known_at, source="checks"))


def record_rejected(
    conn: Connection, market: str, rejected: pd.DataFrame, *, source: str, known_at: datetime
) -> int:
    """Store rejected bars: symbol, session, reason, value in words. The first finding stands."""
    rows = identified(conn, market, rejected)[["instrument_id", "session", "reason", "value"]]
    rows = rows.assign(source=source, first_known_at=known_at)
    return insert_missing(conn, tables.rejected_bar, records(tables.rejected_bar, rows))


def record_warnings(
    conn: Connection,
    market: str,
    judged: Collection[str],
    warnings: pd.DataFrame,
    *,
    known_at: datetime,
) -> None:
    """Store what is doubtful: symbol, reason, value in words.

    Of the `judged` symbols, whose whole history was looked at, what was found before goes; of
    others the same reason.
    """
    table, ids = tables.symbol_warning, instrument_ids(conn, market)
    conn.execute(
        sa.delete(table).where(
            table.c.instrument_id.in_(ids[ids.index.isin(list(judged))].tolist())
        )
    )
    rows = identified(conn, market, warnings)[["instrument_id", "reason", "value"]]
    for instrument_id, reason in rows[["instrument_id", "reason"]].itertuples(index=False):
        conn.execute(
            sa.delete(table).where(table.c.instrument_id == instrument_id, table.c.reason == reason)
        )
    insert_frame(conn, table, rows.assign(known_at=known_at))


def price_warnings(conn: Connection, market: str) -> pd.DataFrame:
    """Return the view price_warning of a market, by symbol and reason."""
    return frame(conn, shown("price_warning", "symbol", "reason", market=market))


def prices(
    conn: Connection,
    market: str,
    first: date,
    last: date,
    *,
    known_at: datetime | None = None,
    symbols: Collection[str] | None = None,
) -> pd.DataFrame:
    """Return the bars of first..last, both included, in the newest version known at `known_at`
    (default: newest).

    A bar that was withdrawn by then is left out, and the bar before it counts as known since that
    moment: a read as known at the newest `known_at` finds the same bars. Columns: symbol, session,
    open, high, low, close, adj_close, volume, dividend, split, known_at; missing is NaN. Sorted by
    symbol and session. `symbols` leaves out the others.
    """
    ids = instrument_ids(conn, market)
    if symbols is not None:
        ids = ids[ids.index.isin(list(symbols))]
    price = tables.price
    columns = [
        price.c.instrument_id,
        price.c.session,
        price.c.known_at,
        *(price.c[n] for n in BAR_VALUES),
    ]
    mine = (price.c.instrument_id.in_(ids.tolist()), price.c.session.between(first, last))
    current = (~_restated(known_at), price.c.withdrawn.is_(None))
    statement = sa.select(*(sa.type_coerce(each, sa.types.NullType()) for each in columns)).where(
        *mine, *current
    )
    found = bars(conn.execute(statement.where(*within(price.c.known_at, None, known_at))), ids)
    return _known_since_withdrawal(found, _withdrawn(conn, ids, first, last, known_at))


def _withdrawn(
    conn: Connection, ids: "pd.Series[int]", first: date, last: date, known_at: datetime | None
) -> pd.DataFrame:
    """Return the few bars of first..last that were withdrawn: symbol, session,
    withdrawn_at, by session.
    """
    price, named = tables.price, tables.instrument
    columns = (named.c.symbol, price.c.session, price.c.known_at.label("withdrawn_at"))
    mine = (price.c.instrument_id.in_(ids.tolist()), price.c.session.between(first, last))
    gone = sa.select(*columns).join_from(price, named).where(price.c.withdrawn.is_not(None), *mine)
    return frame(
        conn, gone.where(*within(price.c.known_at, None, known_at)).order_by(price.c.session)
    )


def _known_since_withdrawal(found: pd.DataFrame, withdrawn: pd.DataFrame) -> pd.DataFrame:
    """Date the bar before each withdrawn one, or else the one after it, to the withdrawal."""
    if withdrawn.empty:
        return found
    rows = found.loc[found["symbol"].isin(withdrawn["symbol"]), ["symbol", "session"]].sort_values(
        "session"
    )
    rows = rows.reset_index(names="row")
    before, after = (
        pd.merge_asof(withdrawn, rows, on="session", by="symbol", direction=direction)["row"]
        for direction in ("backward", "forward")
    )
    since = withdrawn.groupby(before.fillna(after))["withdrawn_at"].max()
    since = since.reindex(found.index).astype(found["known_at"].dtype)
    return found.assign(known_at=found["known_at"].where(~(since > found["known_at"]), since))


def last_sessions(conn: Connection, market: str) -> "pd.Series[pd.Timestamp]":
    """Return the last stored session of each symbol, by symbol; symbols without
    a bar are left out.
    """
    price, named = tables.price, tables.instrument
    last = (
        sa.select(sa.func.max(price.c.session))
        .where(price.c.instrument_id == named.c.id)
        .scalar_subquery()
    )
    statement = sa.select(named.c.symbol, last.label("last")).where(named.c.market == market)
    found = frame(conn, statement.order_by(named.c.symbol)).dropna()
    return cast("pd.Series[pd.Timestamp]", found.set_index("symbol")["last"])


def rejected_bars(conn: Connection, market: str, first: date, last: date) -> pd.DataFrame:
    """Return the view rejected of a market, sessions first..last."""
    return frame(conn, rejected(market, first, last))


def rejected(market: str, first: date, last: date) -> Statement:
    """Return the statement that selects a market's bars that failed a check, sessions
    first..last.
    """
    return shown(
        "rejected", "session", "symbol", "reason", span=("session", first, last), market=market
    )


def newest_prices(market: str, symbol: str, first: date | None, last: date | None) -> Statement:
    """Return the newest version of a stock's bars, sessions first..last, the newest first."""
    return shown(
        "price_latest", "-session", span=("session", first, last), market=market, symbol=symbol
    )


def _versions_in_force(
    conn: Connection, market: str, bars: pd.DataFrame, known_at: datetime
) -> pd.DataFrame:
    """Return the stored bars of each symbol from its first to its last new one;
    few spans differ.
    """
    spans = bars.groupby("symbol")["session"].agg(["min", "max"])
    parts = [
        prices(
            conn,
            market,
            same["min"].iloc[0],
            same["max"].iloc[0],
            known_at=known_at,
            symbols=same.index,
        )
        for _, same in spans.groupby(["min", "max"])
    ]
    return pd.concat(parts, ignore_index=True)


def _restated(known_at: datetime | None) -> sa.Exists:
    price, later = tables.price, tables.price.alias("later")
    same = (later.c.instrument_id == price.c.instrument_id, later.c.session == price.c.session)
    restated = sa.exists().where(*same, later.c.known_at > price.c.known_at)
    return restated.where(*within(later.c.known_at, None, known_at))
