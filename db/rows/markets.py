"""Markets: their stocks and index, who was a constituent when, and the number of each symbol."""

from collections.abc import Mapping
from datetime import date

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables, where
from db.errors import StoreUsageError, did_you_mean
from db.read import read, read_value
from db.save import identified, save
from db.views import view


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
    """Store the whole list of a market's constituents, deleting others; return how many were new.

    Columns: symbol, valid_from (NaT: unknown), valid_to (NaT: it lasts), source.
    """
    stays = constituents.sort_values("valid_from", na_position="first")
    # The stays of a stock are numbered from 1 in the order of time: an unknown start comes first.
    stays = stays.assign(spell=stays.groupby("symbol").cumcount() + 1)
    key = ["symbol", "spell"]
    stored = read(conn, "constituent", columns="symbol, spell", market=market)
    is_listed = pd.MultiIndex.from_frame(stored).isin(pd.MultiIndex.from_frame(stays[key]))
    c = tables.constituent.c
    unlisted = identified(conn, market, stored[~is_listed])
    for instrument_id, spell in unlisted[["instrument_id", "spell"]].itertuples(index=False):
        is_stay = (c.instrument_id == instrument_id, c.spell == spell)
        conn.execute(sa.delete(tables.constituent).where(*is_stay))
    return save(conn, "constituent", stays, market=market)


def markets(conn: Connection) -> list[str]:
    """Return the markets with a night or a fetch, sorted."""
    names = sa.union(
        sa.select(tables.night.c.market),
        sa.select(tables.price_fetch.c.market),
    )
    return sorted(conn.execute(names).scalars())


def all_markets(conn: Connection) -> list[str]:
    """Return the markets with a night, a fetch or a model, sorted, from documented views alone."""
    names = sa.union(
        sa.select(view("night_log").c.market),
        sa.select(view("fetch_log").c.market),
        sa.select(view("run_log").c.market),
    )
    return sorted(conn.execute(names).scalars())


def is_known(conn: Connection, market: str, symbol: str) -> bool:
    """Return whether the store has a prediction, a bar or a rejected bar of a symbol."""
    return any(
        read_value(conn, view, "symbol", market=market, symbol=symbol)
        for view in ("prediction_history", "price_latest", "rejected")
    )


def require_symbol(conn: Connection, symbol: str, market: str | None) -> None:
    """Raise StoreUsageError for a symbol that is not stored for a market; None: for any."""
    symbols = read(conn, "instrument", columns="symbol", market=where.given(market))["symbol"]
    if symbol not in symbols.tolist():
        place = f" for market {market}" if market else ""
        spelling = "the spelling of both" if market else "its spelling"
        meant = did_you_mean(symbol, sorted(symbols.unique()))
        raise StoreUsageError(
            f"no symbol {symbol!r} in the store{place}: {meant}check {spelling}, or run "
            f"`dtml fetch {market or 'MARKET'}` first, with --prices FILE if its prices come from "
            "files"
        )
