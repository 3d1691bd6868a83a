"""The paper account: what to hold from each session's open, what was held, and what it earned."""

from datetime import date

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import read
from db.save import save


def paper_returns(conn: Connection, market: str, last: date | None = None) -> pd.DataFrame:
    """Return what the paper account, and the portfolios beside it, earned up to a session."""
    return read(
        conn,
        "paper_account",
        columns="-holdings",  # which the view counts again for each row
        market=market,
        session=where.between(None, last),
        order="session, portfolio",
    )


def last_booked(conn: Connection, market: str) -> dict[str, tuple[date, float]]:
    """Return the last booked session and equity of the paper account and its comparisons."""
    booked = read(conn, "paper_return", columns="portfolio, session, equity", market=market)
    last = booked.groupby("portfolio")[["session", "equity"]].last()
    return {
        str(portfolio): (session.date(), float(equity))
        for portfolio, session, equity in last.itertuples()
    }


def save_paper_account(
    conn: Connection, market: str, returns: pd.DataFrame, positions: pd.DataFrame
) -> int:
    """Store what the paper account earned and held; return how many rows were new."""
    held = save(conn, "paper_position", positions, market=market)
    return held + save(conn, "paper_return", returns, market=market)
