"""Scores: how well directions, and rankings of stocks, agreed with outcomes."""

from collections.abc import Sequence
from datetime import date, datetime

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import records, upsert
from db.connection.frames import Statement, frame, matching, select_rows, within
from db.views import view


def save_scores(conn: Connection, market: str, scores: pd.DataFrame, *, scored_at: datetime) -> int:
    """Store or update scores: the columns of score but market and scored_at; NaN is missing.

    Return how many rows were new.
    """
    return save_scores_of(conn, tables.score, market, scores, scored_at=scored_at)


def save_scores_of(
    conn: Connection, table: sa.Table, market: str, scores: pd.DataFrame, *, scored_at: datetime
) -> int:
    """Do as `save_scores` does, in a table of scores: its columns but market and scored_at.

    A column that is left out is stored as missing. Return how many rows were new.
    """
    columns = [column.name for column in table.c if column.name not in ("market", "scored_at")]
    complete = scores.reindex(columns=columns).assign(market=market, scored_at=scored_at)
    return upsert(conn, table, records(table, complete), stamps=("scored_at",))


def scores(
    conn: Connection, market: str, *, last: date | None = None, span: str | None = None
) -> pd.DataFrame:
    """Return scores of a market up to target `last`: the columns of score.

    `span` is 'night' or 'running', or None for both.
    """
    order = ("target", "span", "protocol", "predictor")
    bounds = ("target", None, last)
    return frame(conn, select_rows(tables.score, *order, bounds=bounds, market=market, span=span))


def running_scores(
    conn: Connection, market: str, *, targets: int = 1, last: date | None = None
) -> pd.DataFrame:
    """Return the running scores of the last `targets` targets up to `last`: the columns of score.

    There is a row for each target and predictor, sorted by target. `last` is by default the newest
    scored target. They are scores of the protocol 'all', which counts every stock-day.
    """
    c = tables.score.c
    is_running = [
        *matching(tables.score, market=market, span="running", protocol="all"),
        *within(c.target, None, last),
    ]
    newest = (
        sa.select(c.target).where(*is_running).distinct().order_by(c.target.desc()).limit(targets)
    )
    newest_targets = conn.execute(newest).scalars().all()
    return frame(
        conn,
        sa.select(tables.score).where(*is_running, c.target.in_(newest_targets)).order_by(c.target),
    )


def last_running_scores(conn: Connection, market: str) -> pd.DataFrame:
    """Return the scores at a market's last scored session: the columns of daily_score.

    They are scores of the protocol 'all', which counts every stock-day; a row for each predictor.
    """
    score = view("daily_score")
    of_market = (score.c.market == market, score.c.protocol == "all")
    targets = sa.select(score.c.target).where(*of_market).order_by(score.c.target.desc())
    last = conn.execute(targets.limit(1)).scalar()
    return frame(
        conn, sa.select(score).where(*of_market, score.c.target == last).order_by(score.c.predictor)
    )


def daily_scores(market: str, last: date | None = None) -> Statement:
    """Return nightly and running scores up to the target `last`, the newest first."""
    return select_rows(
        "daily_score",
        "-target",
        "protocol",
        "predictor",
        bounds=("target", None, last),
        market=market,
    )


def symbol_scores(market: str, symbol: str) -> Statement:
    """Return the scores of a stock over all its predictions, a row for each kind of model."""
    return select_rows("symbol_score", "kind", market=market, symbol=symbol)


def ranking_scores_of_nights(
    market: str, *, predictors: Sequence[str], span: str, leg: str | None = None
) -> Statement:
    """Return the statement of the scores of some predictors by session: rank_score_log's columns.

    `span` is 'night' or 'running'; `leg` is the name of the return scored, None for all returns.
    """
    order = ("predictor", "leg", "target")
    statement = select_rows("rank_score_log", *order, market=market, span=span, leg=leg)
    return statement.where(view("rank_score_log").c.predictor.in_(predictors))


def ranking_scores_by(name: str, *, predictor: str, part: str) -> Statement:
    """Return the statement of a predictor's figures in a ranking on one kind of slice, `part`."""
    return select_rows(
        tables.ranking_score, "leg", "value", ranking_id=name, predictor=predictor, slice=part
    )
