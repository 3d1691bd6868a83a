"""Scores of nights and of stocks."""

from datetime import date, datetime
from functools import partial

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import records, upsert
from db.connection.frames import Statement, frame, matching, shown, within
from db.views import view


def save_scores_of(
    table: sa.Table, conn: Connection, market: str, scores: pd.DataFrame, *, scored_at: datetime
) -> int:
    """Store or update scores: the columns of the table but market and
    scored_at; what has no value is NaN.
    """
    columns = [each.name for each in table.c if each.name not in ("market", "scored_at")]
    rows = records(
        table, scores.reindex(columns=columns).assign(market=market, scored_at=scored_at)
    )
    return upsert(conn, table, rows, stamps=("scored_at",))


save_scores = partial(save_scores_of, tables.score)


def scores(
    conn: Connection, market: str, *, last: date | None = None, span: str | None = None
) -> pd.DataFrame:
    """Return scores of a market up to target `last`: the columns of score;
    `span` keeps 'night' or 'running' alone.
    """
    table = tables.score
    mine = matching(table, market=market, span=span) + within(table.c.target, None, last)
    order = (table.c.target, table.c.span, table.c.protocol, table.c.predictor)
    return frame(conn, sa.select(table).where(*mine).order_by(*order))


def running_scores(
    conn: Connection, market: str, *, targets: int = 1, last: date | None = None
) -> pd.DataFrame:
    """Return running scores over every stock-day at the last `targets` targets
    up to a session, as in score.
    """
    table = tables.score
    mine = matching(table, market=market, span="running", protocol="all") + within(
        table.c.target, None, last
    )
    newest = (
        sa.select(table.c.target)
        .where(*mine)
        .distinct()
        .order_by(table.c.target.desc())
        .limit(targets)
    )
    found = conn.execute(newest).scalars().all()
    return frame(
        conn, sa.select(table).where(*mine, table.c.target.in_(found)).order_by(table.c.target)
    )


def last_running_scores(conn: Connection, market: str) -> pd.DataFrame:
    """Return scores of every stock-day at the last session scored: the columns
    of daily_score, a row a predictor.
    """
    found = view("daily_score")
    mine = sa.select(found).where(found.c.market == market, found.c.protocol == "all")
    last = conn.execute(
        mine.with_only_columns(found.c.target).order_by(found.c.target.desc()).limit(1)
    ).scalar()
    return frame(conn, mine.where(found.c.target == last).order_by(found.c.predictor))


def daily_scores(market: str, last: date | None = None) -> Statement:
    """Return scores of each night up to an as_of, and running ones, the newest first."""
    return shown(
        "daily_score",
        "-target",
        "protocol",
        "predictor",
        span=("target", None, last),
        market=market,
    )


def symbol_scores(market: str, symbol: str) -> Statement:
    """Return the scores of a stock over all its predictions, a row for each
    purpose of the models.
    """
    return shown("symbol_score", "kind", market=market, symbol=symbol)
