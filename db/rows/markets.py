"""Markets: their stocks and index, who was a constituent when, and the number
of each symbol in the store.
"""

from collections.abc import Mapping
from datetime import date, datetime
from typing import cast

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import records, upsert
from db.connection.frames import frame, matching, row
from db.errors import StoreUsageError
from db.views import view


def save_instruments(conn: Connection, market: str, instruments: pd.DataFrame) -> int:
    """Store symbol, kind, source_symbol, name, sector (the last two may be
    missing); others are updated.
    """
    columns = ["symbol", "kind", "source_symbol", "name", "sector"]
    rows = records(tables.instrument, instruments[columns].assign(market=market))
    return upsert(conn, tables.instrument, rows, key=("market", "symbol"))


def save_file(conn: Connection, market: str, path: str, text: str, *, saved_at: datetime) -> None:
    """Store the file that describes a user's own market, in place of what it said before."""
    rows = [{"market": market, "path": path, "text": text, "saved_at": saved_at}]
    upsert(conn, tables.market_file, rows, stamps=("saved_at",))


def file_of(conn: Connection, market: str) -> tuple[str, str] | None:
    """Return the path and the text of the file that describes a user's own
    market; None for one never stored.
    """
    found = row(conn, sa.select(tables.market_file).where(tables.market_file.c.market == market))
    return None if found is None else (found["path"], found["text"])


def note_asked(conn: Connection, market: str, first: Mapping[str, date]) -> None:
    """Store, for each symbol that a source answered for, the earliest session
    it was ever asked from.
    """
    table = tables.instrument
    for symbol, day in first.items():
        earlier = sa.or_(table.c.asked_from.is_(None), table.c.asked_from > day)
        mine = sa.and_(table.c.market == market, table.c.symbol == symbol, earlier)
        conn.execute(sa.update(table).where(mine).values(asked_from=day))


def save_memberships(conn: Connection, market: str, memberships: pd.DataFrame) -> int:
    """Store a market's whole list: symbol, valid_from, valid_to (NaT: unknown, lasting), source.

    A stored stay that is no longer listed goes: the list is the market file's statement of the
    past.
    """
    stays = identified(conn, market, memberships).sort_values("valid_from", na_position="first")
    stays["spell"] = stays.groupby("instrument_id").cumcount() + 1
    rows = records(
        tables.membership, stays[["instrument_id", "spell", "valid_from", "valid_to", "source"]]
    )
    listed = {(each["instrument_id"], each["spell"]) for each in rows}
    table, ids = tables.membership, instrument_ids(conn, market).tolist()
    stored = conn.execute(
        sa.select(table.c.instrument_id, table.c.spell).where(table.c.instrument_id.in_(ids))
    )
    for instrument_id, spell in {tuple(each) for each in stored} - listed:
        conn.execute(
            sa.delete(table).where(table.c.instrument_id == instrument_id, table.c.spell == spell)
        )
    return upsert(conn, table, rows)


def identified(conn: Connection, market: str, frame: pd.DataFrame, **more: str) -> pd.DataFrame:
    """Return the frame with the instrument_id of each symbol; `more` names another such column and
    its symbols.

    Raises StoreUsageError, naming some, for symbols that are not stored.
    """
    known = instrument_ids(conn, market)
    columns = {"instrument_id": "symbol"} | more
    ids = {name: frame[symbols].map(known) for name, symbols in columns.items()}
    unknown = sorted(
        {symbol for name, found in ids.items() for symbol in frame[columns[name]][found.isna()]}
    )
    if unknown:
        raise StoreUsageError(f"symbols not stored for market {market}: {', '.join(unknown[:5])}")
    return frame.assign(**{name: found.astype("int64") for name, found in ids.items()})


def instruments(conn: Connection, market: str) -> pd.DataFrame:
    """Return a market's stocks and its index: symbol, kind, source_symbol,
    name, sector, asked_from (NaT: never).
    """
    named = tables.instrument
    columns = (each for each in named.c if each.name not in ("id", "market"))
    return frame(conn, sa.select(*columns).where(named.c.market == market).order_by(named.c.symbol))


def memberships(conn: Connection, market: str) -> pd.DataFrame:
    """Return stays in a market: symbol, spell, valid_from (NaT: unknown),
    valid_to (NaT: it lasts), source.
    """
    stay, named = tables.membership, tables.instrument
    columns = (named.c.symbol, stay.c.spell, stay.c.valid_from, stay.c.valid_to, stay.c.source)
    statement = sa.select(*columns).join_from(stay, named).where(named.c.market == market)
    return frame(conn, statement.order_by(named.c.symbol, stay.c.spell))


def instrument_ids(conn: Connection, market: str) -> "pd.Series[int]":
    """Return the store's number of each symbol of a market, index included, by symbol."""
    named = tables.instrument
    statement = (
        sa.select(named.c.symbol, named.c.id)
        .where(named.c.market == market)
        .order_by(named.c.symbol)
    )
    return cast("pd.Series[int]", frame(conn, statement).set_index("symbol")["id"])


def markets(conn: Connection) -> list[str]:
    """Return the markets with a night or a fetch, sorted."""
    named = sa.union(sa.select(tables.night.c.market), sa.select(tables.price_fetch.c.market))
    return sorted(conn.execute(named).scalars())


def own_markets(conn: Connection) -> list[str]:
    """Return the names of the markets whose file, a user's own, is kept."""
    kept = tables.market_file.c.market
    return list(conn.execute(sa.select(kept).order_by(kept)).scalars())


def owner_of(table: sa.FromClause) -> sa.FromClause:
    """Return the table that says of which market a row of a table is: itself,
    or one that its key leads to.
    """
    owners = (key.column.table for column in table.primary_key for key in column.foreign_keys)
    return next(each for each in (table, *owners) if "market" in each.c)


def of_market(table: sa.FromClause, market: str) -> sa.ColumnElement[bool]:
    """Return whether a row of a table is of a market."""
    owner = owner_of(table)
    if owner is table:
        return table.c.market == market
    key = next(each for each in table.primary_key if each.references(owner.c.id))
    return key.in_(sa.select(owner.c.id).where(owner.c.market == market))


def all_markets(conn: Connection) -> list[str]:
    """Return the markets with a night, a fetch or a model, sorted."""
    named = (sa.select(view(name).c.market) for name in ("night_log", "fetch_log", "run_log"))
    return sorted(conn.execute(sa.union(*named)).scalars())


def is_known(conn: Connection, market: str, symbol: str) -> bool:
    """Return whether the store has a prediction or a bar of a symbol, a rejected one too."""
    for name in ("prediction_history", "price_latest", "rejected"):
        found = view(name)
        mine = sa.select(found.c.symbol).where(*matching(found, market=market, symbol=symbol))
        if conn.execute(mine.limit(1)).first() is not None:
            return True
    return False


def require_symbol(conn: Connection, symbol: str, market: str | None) -> None:
    """Raise StoreUsageError for a symbol that is not stored, of a market or of any."""
    mine = matching(tables.instrument, symbol=symbol, market=market)
    if row(conn, sa.select(tables.instrument.c.id).where(*mine)) is None:
        where = f" for market {market}" if market else ""
        raise StoreUsageError(
            f"no symbol {symbol!r} in the store{where}: check its spelling, or fetch it first"
        )
