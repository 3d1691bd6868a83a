"""Markets: their stocks and index, who was a constituent when, and the number of each symbol."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import cast

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import records, upsert
from db.connection.frames import frame, matching, row, row_of, select_rows
from db.errors import StoreUsageError, did_you_mean
from db.views import view


def save_instruments(conn: Connection, market: str, instruments: pd.DataFrame) -> int:
    """Store or update instruments: symbol, kind, source_symbol, name, sector.

    The name and the sector may be missing. Return how many are new.
    """
    columns = ["symbol", "kind", "source_symbol", "name", "sector"]
    rows = records(tables.instrument, instruments[columns].assign(market=market))
    return upsert(conn, tables.instrument, rows, key=("market", "symbol"))


def save_file(conn: Connection, market: str, path: str, text: str, *, saved_at: datetime) -> None:
    """Store the file that describes a user's own market, in place of its earlier version."""
    file = {"market": market, "path": path, "text": text, "saved_at": saved_at}
    upsert(conn, tables.market_file, [file], stamps=("saved_at",))


def file_of(conn: Connection, market: str) -> tuple[str, str] | None:
    """Return the path and the text of the file that describes a user's own market.

    None for one never stored.
    """
    file = row_of(conn, tables.market_file, "market", market)
    return None if file is None else (file["path"], file["text"])


def note_asked(conn: Connection, market: str, first: Mapping[str, date]) -> None:
    """Store the first session requested of each symbol, unless an earlier one is stored."""
    table = tables.instrument
    for symbol, day in first.items():
        is_first = sa.or_(table.c.asked_from.is_(None), table.c.asked_from > day)
        conn.execute(
            sa.update(table)
            .where(table.c.market == market, table.c.symbol == symbol, is_first)
            .values(asked_from=day)
        )


def save_constituents(conn: Connection, market: str, constituents: pd.DataFrame) -> int:
    """Store the whole list of a market's constituents; return how many rows were new.

    Each row is a stay: a span in which a stock was a constituent. Columns: symbol, valid_from (NaT:
    unknown), valid_to (NaT: it lasts), source. A stored stay that is no longer listed is deleted:
    the list is the market file's statement of the past.
    """
    c = tables.constituent.c
    stays = identified(conn, market, constituents).sort_values("valid_from", na_position="first")
    # The stays of a stock are numbered from 1 in the order of time: an unknown start comes first.
    stays["spell"] = stays.groupby("instrument_id").cumcount() + 1
    rows = records(
        tables.constituent, stays[["instrument_id", "spell", "valid_from", "valid_to", "source"]]
    )
    listed_keys = {(stay["instrument_id"], stay["spell"]) for stay in rows}

    ids = instrument_ids(conn, market).tolist()
    is_of_market = c.instrument_id.in_(ids)
    stored = conn.execute(sa.select(c.instrument_id, c.spell).where(is_of_market))
    stored_keys = {(instrument_id, spell) for instrument_id, spell in stored}
    for instrument_id, spell in stored_keys - listed_keys:
        conn.execute(
            sa.delete(tables.constituent).where(
                c.instrument_id == instrument_id,
                c.spell == spell,
            )
        )
    return upsert(conn, tables.constituent, rows)


def identified(conn: Connection, market: str, frame: pd.DataFrame, **more: str) -> pd.DataFrame:
    """Return the frame with a column instrument_id, from its column symbol.

    `more` names further columns of ids, each with the column of symbols that it comes from. Raises
    StoreUsageError, naming up to 5, for symbols that are not stored.
    """
    known_ids = instrument_ids(conn, market)
    columns = {"instrument_id": "symbol"} | more
    ids = {}
    unknown: set[str] = set()
    for id_column, symbol_column in columns.items():
        symbols = frame[symbol_column]
        ids[id_column] = symbols.map(known_ids)
        unknown.update(symbols[ids[id_column].isna()])
    if unknown:
        some = ", ".join(sorted(unknown)[:5])
        others = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise StoreUsageError(
            f"symbols not stored for market {market}: {some}{others}; check their spelling, or run "
            f"`dtml fetch {market}` first"
        )
    return frame.assign(**{name: column.astype("int64") for name, column in ids.items()})


def instruments(conn: Connection, market: str) -> pd.DataFrame:
    """Return a market's stocks and its index, by symbol.

    Columns: symbol, kind, source_symbol, name, sector, asked_from (NaT: never).
    """
    without = ("id", "market")
    return frame(conn, select_rows(tables.instrument, "symbol", without=without, market=market))


def constituents(conn: Connection, market: str) -> pd.DataFrame:
    """Return the stays of a market's constituents, by symbol and spell.

    A stay is a span in which a stock was a constituent; `spell` numbers a stock's stays from 1.
    Columns: symbol, spell, valid_from (NaT: unknown), valid_to (NaT: it lasts), source.
    """
    stay = tables.constituent.c
    instrument = tables.instrument.c
    return frame(
        conn,
        sa.select(
            instrument.symbol,
            stay.spell,
            stay.valid_from,
            stay.valid_to,
            stay.source,
        )
        .join_from(tables.constituent, tables.instrument)
        .where(instrument.market == market)
        .order_by(instrument.symbol, stay.spell),
    )


def instrument_ids(conn: Connection, market: str) -> "pd.Series[int]":
    """Return the instrument_id of each symbol of a market, index included, by symbol."""
    c = tables.instrument.c
    statement = sa.select(c.symbol, c.id).where(c.market == market).order_by(c.symbol)
    return cast("pd.Series[int]", frame(conn, statement).set_index("symbol")["id"])


def markets(conn: Connection) -> list[str]:
    """Return the markets with a night or a fetch, sorted."""
    names = sa.union(
        sa.select(tables.night.c.market),
        sa.select(tables.price_fetch.c.market),
    )
    return sorted(conn.execute(names).scalars())


def own_markets(conn: Connection) -> list[str]:
    """Return the names of users' own markets, whose files are stored."""
    name = tables.market_file.c.market
    return list(conn.execute(sa.select(name).order_by(name)).scalars())


def owner_of(table: sa.FromClause) -> sa.FromClause:
    """Return the table whose column `market` says of which market a row of `table` is.

    It is the table itself, or one that its primary key refers to, such as run or instrument.
    """
    owners = [key.column.table for column in table.primary_key for key in column.foreign_keys]
    return next(owner for owner in (table, *owners) if "market" in owner.c)


def of_market(table: sa.FromClause, market: str) -> sa.ColumnElement[bool]:
    """Return the condition that a row of a table belongs to a market."""
    owner = owner_of(table)
    if owner is table:
        return table.c.market == market
    key = next(column for column in table.primary_key if column.references(owner.c.id))
    return key.in_(sa.select(owner.c.id).where(owner.c.market == market))


def all_markets(conn: Connection) -> list[str]:
    """Return the markets with a night, a fetch or a model, sorted.

    Unlike `markets` it reads only the documented views, which a role that only reads may read.
    """
    names = sa.union(
        sa.select(view("night_log").c.market),
        sa.select(view("fetch_log").c.market),
        sa.select(view("run_log").c.market),
    )
    return sorted(conn.execute(names).scalars())


def is_known(conn: Connection, market: str, symbol: str) -> bool:
    """Return whether the store has a prediction, a bar or a rejected bar of a symbol."""
    for name in ("prediction_history", "price_latest", "rejected"):
        shown = view(name)
        of_symbol = matching(shown, market=market, symbol=symbol)
        first = conn.execute(sa.select(shown.c.symbol).where(*of_symbol).limit(1)).first()
        if first is not None:
            return True
    return False


def symbols(conn: Connection, market: str | None) -> list[str]:
    """Return the symbols stored for a market, or for any market where it is None, sorted."""
    table = tables.instrument
    statement = sa.select(table.c.symbol).distinct().where(*matching(table, market=market))
    return sorted(conn.execute(statement).scalars())


def require_symbol(conn: Connection, symbol: str, market: str | None) -> None:
    """Raise StoreUsageError for a symbol that is not stored for a market; None: for any."""
    table = tables.instrument
    of_symbol = matching(table, symbol=symbol, market=market)
    if row(conn, sa.select(table.c.id).where(*of_symbol)) is None:
        where = f" for market {market}" if market else ""
        spelling = "the spelling of both" if market else "its spelling"
        meant = did_you_mean(symbol, symbols(conn, market))
        raise StoreUsageError(
            f"no symbol {symbol!r} in the store{where}: {meant}check {spelling}, or run "
            f"`dtml fetch {market or 'MARKET'}` first, with --prices FILE if its prices come from "
            "files"
        )
