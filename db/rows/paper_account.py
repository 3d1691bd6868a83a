"""The paper account: what to hold from each session's open, what was held, and what it earned."""

from datetime import date, datetime

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_missing, records
from db.connection.frames import (
    frame,
    matching,
    select_rows,
    within,
)
from db.rows.markets import identified
from db.views import view


def last_target(conn: Connection, market: str) -> date | None:
    """Return the newest session for which it was decided what to hold; None before the first."""
    position = tables.target_position.c
    statement = sa.select(sa.func.max(position.target)).where(position.market == market)
    return conn.execute(statement).scalar()


def targets(conn: Connection, market: str, first: date | None, last: date | None) -> pd.DataFrame:
    """Return what to hold from the open of each target of first..last on.

    The columns are those of target_position but market, with symbol in place of instrument_id.
    """
    return _positions(conn, tables.target_position, "target", market, first, last)


def paper_positions(
    conn: Connection, market: str, first: date | None, last: date | None
) -> pd.DataFrame:
    """Return what the paper account held after the open of each session of first..last.

    The columns are those of paper_position but market, with symbol in place of instrument_id.
    """
    return _positions(conn, tables.paper_position, "session", market, first, last)


def _positions(
    conn: Connection, table: sa.Table, day: str, market: str, first: date | None, last: date | None
) -> pd.DataFrame:
    stock = tables.instrument
    columns = [column for column in table.c if column.name not in ("market", "instrument_id")]
    return frame(
        conn,
        sa.select(*columns, stock.c.symbol)
        .join_from(table, stock)
        .where(table.c.market == market, *within(table.c[day], first, last))
        .order_by(table.c[day], stock.c.symbol),
    )


def paper_orders(conn: Connection, market: str, target: date) -> pd.DataFrame:
    """Return what a market's account is to hold from the open of a session: rows of paper_order.

    There are no rows for a session for which nothing was decided.
    """
    return frame(conn, select_rows("paper_order", "symbol", market=market, target=target))


def paper_returns(conn: Connection, market: str, last: date | None = None) -> pd.DataFrame:
    """Return the paper account up to a session: the columns of the view paper_account but holdings.

    The portfolios that it is compared with have rows too.
    """
    account = view("paper_account")
    # Left out, because the view counts the holdings again for each row.
    columns = [column for column in account.c if column.name != "holdings"]
    return frame(
        conn,
        sa.select(*columns)
        .where(*matching(account, market=market), *within(account.c.session, None, last))
        .order_by(account.c.session, account.c.portfolio),
    )


def last_booked(conn: Connection, market: str) -> dict[str, tuple[date, float]]:
    """Return the last booked session and its equity, by the name of the portfolio.

    Portfolios are the paper account and those that it is compared with; there may be none.
    """
    booked = tables.paper_return.c
    last_sessions = (
        sa.select(booked.portfolio, sa.func.max(booked.session).label("session"))
        .where(booked.market == market)
        .group_by(booked.portfolio)
        .subquery()
    )
    is_last = sa.and_(
        booked.portfolio == last_sessions.c.portfolio,
        booked.session == last_sessions.c.session,
    )
    statement = (
        sa.select(booked.portfolio, booked.session, booked.equity)
        .where(booked.market == market)
        .join(last_sessions, is_last)
    )
    return {portfolio: (session, equity) for portfolio, session, equity in conn.execute(statement)}


def save_targets(
    conn: Connection, market: str, positions: pd.DataFrame, *, decided_at: datetime
) -> int:
    """Store what to hold: target, symbol, weight, kept; return how many rows were new.

    A stored decision never changes.
    """
    table = tables.target_position
    decided = identified(conn, market, positions).assign(market=market, decided_at=decided_at)
    return insert_missing(conn, table, records(table, decided.drop(columns="symbol")))


def save_paper_account(
    conn: Connection, market: str, returns: pd.DataFrame, positions: pd.DataFrame
) -> int:
    """Store what the paper account earned and held; return how many rows were new.

    `returns` has the columns of paper_return, `positions` session, symbol and weight. A booked row
    never changes.
    """
    holdings = identified(conn, market, positions).assign(market=market).drop(columns="symbol")
    new = insert_missing(conn, tables.paper_position, records(tables.paper_position, holdings))
    booked = records(tables.paper_return, returns.assign(market=market))
    return new + insert_missing(conn, tables.paper_return, booked)
