"""Scores: how well directions, and rankings of stocks, agreed with outcomes."""

from datetime import date

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import read, read_value


def running_scores(
    conn: Connection,
    market: str,
    *,
    targets: int = 1,
    last: date | None = None,
    protocol: str | None = "all",
) -> pd.DataFrame:
    """Return the running scores of the last `targets` targets up to `last`, a row a target and
    predictor.

    The protocol 'all' counts every stock-day; None is every protocol.
    """
    newest = read(
        conn,
        "score",
        columns="target",
        market=market,
        span="running",
        protocol="all",
        predictor="dtml",
        target=where.between(None, last),
        order="-target",
        limit=targets,
    )
    return read(
        conn,
        "score",
        market=market,
        span="running",
        protocol=where.given(protocol),
        target=newest["target"].tolist(),
    )


def last_running_scores(conn: Connection, market: str) -> pd.DataFrame:
    """Return daily_score at a market's last scored session, of the protocol 'all'."""
    last = read_value(conn, "daily_score", "target", market=market, protocol="all", order="-target")
    return read(conn, "daily_score", market=market, protocol="all", target=last, order="predictor")
