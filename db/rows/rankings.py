"""Rankings of a day's stocks: walks through history, nights' rankers, their rankings and scores."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame, insert_missing, records, save_row
from db.connection.differences import new_rows_of, require_distinct, save_figures, stored_of_targets
from db.connection.frames import (
    Statement,
    frame,
    matching,
    row,
    row_of,
    rows_of,
    select_view,
    within,
)
from db.rows.markets import identified
from db.rows.runs import latest_trained
from db.rows.scores import save_scores_of
from db.views import view

# Scores of a ranking that differ by less, relatively, are the same.
SCORE_TOLERANCE = 1e-9


def ranking(conn: Connection, name: str) -> dict[str, Any] | None:
    """Return the row of the ranking of this name; None when there is none."""
    return row_of(conn, tables.ranking, "id", name)


def ranking_scores(conn: Connection, name: str) -> pd.DataFrame:
    """Return the figures of a ranking: the columns of ranking_score but ranking_id."""
    return rows_of(conn, tables.ranking_score, "ranking_id", name)


def ranking_differences(conn: Connection, name: str) -> pd.DataFrame:
    """Return a ranking's paired differences: the columns of ranking_difference but ranking_id."""
    return rows_of(conn, tables.ranking_difference, "ranking_id", name)


def ranking_portfolios(conn: Connection, name: str) -> pd.DataFrame:
    """Return the portfolios of a ranking after costs.

    The columns are those of ranking_portfolio but ranking_id.
    """
    return rows_of(conn, tables.ranking_portfolio, "ranking_id", name)


def save_ranker(conn: Connection, ranker: Mapping[str, object]) -> int:
    """Store the rankers of a training, every column of ranker by name; 0 where they are stored."""
    return save_row(conn, tables.ranker, ranker)


def ranker(conn: Connection, name: str) -> dict[str, Any] | None:
    """Return the row of the rankers of a training, by its name; None when there is none."""
    return row_of(conn, tables.ranker, "id", name)


def latest_ranker(
    conn: Connection,
    market: str,
    *,
    on_or_before: date | None = None,
    known_by: datetime | None = None,
) -> dict[str, Any] | None:
    """Return the row of the rankers that were trained on a market's latest sessions.

    Their sessions end on or before `on_or_before`, and their prices were known at `known_by`. None
    when there is no such row.
    """
    return latest_trained(conn, tables.ranker, market, on_or_before=on_or_before, known_by=known_by)


def save_champion(conn: Connection, champion: Mapping[str, object]) -> int:
    """Store the champion from a session on, every column by name.

    Return 1, or 0 where that session's champion is stored already.
    """
    return save_row(conn, tables.champion, champion)


def save_rank_scores(
    conn: Connection, market: str, scores: pd.DataFrame, *, scored_at: datetime
) -> int:
    """Store or update scores of nights' rankings.

    The columns are those of rank_score but market and scored_at.
    """
    return save_scores_of(conn, tables.rank_score, market, scores, scored_at=scored_at)


def save_ranking(
    conn: Connection,
    ranking: Mapping[str, object],
    scores: pd.DataFrame,
    differences: pd.DataFrame,
    portfolios: pd.DataFrame,
) -> int:
    """Store a ranking with its scores, differences and portfolios; return how many rows were new.

    `ranking` has every column by name, the frames theirs but ranking_id; a missing value is NaN or
    None. What is stored is never changed: raises StoreError, naming it, when a figure is stored
    with another value.
    """
    name = str(ranking["id"])
    reason = "the days of a ranking are scored only once"
    new = save_row(conn, tables.ranking, ranking)
    new += save_figures(conn, tables.ranking_score, "ranking_id", name, scores, reason=reason)
    new += save_figures(
        conn, tables.ranking_difference, "ranking_id", name, differences, reason=reason
    )
    new += save_figures(
        conn, tables.ranking_portfolio, "ranking_id", name, portfolios, reason=reason
    )
    return new


def rankers(conn: Connection) -> pd.DataFrame:
    """Return id, checkpoint_path and checkpoint_hash of the rankers of every training."""
    ranker = tables.ranker.c
    statement = sa.select(ranker.id, ranker.checkpoint_path, ranker.checkpoint_hash)
    return frame(conn, statement.order_by(ranker.id))


def save_night_ranking(
    conn: Connection, market: str, ranking: pd.DataFrame, *, known_at: datetime, made_at: datetime
) -> int:
    """Store the ranking of a session and return how many rows were new.

    `ranking` has ranker_id, predictor, as_of, target, symbol, score, place, probability (or NaN),
    chosen. A stored score never changes: raises StoreError, naming predictor, target and symbol,
    when it differs by more than `SCORE_TOLERANCE`.
    """
    if ranking.empty:
        return 0
    table = tables.stock_rank
    key = ["ranker_id", "predictor", "target", "instrument_id"]
    require_distinct(ranking, ["ranker_id", "predictor", "target", "symbol"])
    # In the order of the primary key, in which SQLite keeps the rows and inserts them fastest.
    rows = identified(conn, market, ranking).sort_values(key, ignore_index=True)
    new = new_rows_of(
        rows,
        stored_of_targets(conn, table, rows, "ranker_id"),
        key,
        ["score"],
        SCORE_TOLERANCE,
        named_columns=["predictor", "target", "symbol"],
        message="{} is already stored with a different score: a ranking is never rewritten",
    )
    new_ranks = new[[*key, "as_of", "score", "place", "probability", "chosen"]]
    return insert_frame(conn, table, new_ranks.assign(known_at=known_at, made_at=made_at))


def night_ranking(conn: Connection, market: str, target: date) -> pd.DataFrame:
    """Return the ranking of a session that the nights show, the best stock first.

    It is that of the predictor chosen for the session, and the newest where there are several.
    Columns: place, symbol, name, sector, probability, predictor, and leg, the name of the return
    that the stocks are ranked by. There are no rows for a session that was not ranked.
    """
    history = view("ranking_history").c
    statement = (
        sa.select(
            history.place,
            history.symbol,
            history.name,
            history.sector,
            history.probability,
            history.predictor,
            history.leg,
            history.made_at,
        )
        .where(history.market == market, history.target == target, history.chosen == 1)
        .order_by(history.place)
    )
    # The market's rankers may have been trained again, and the session ranked by each of them.
    rankings = frame(conn, statement)
    is_newest = rankings["made_at"] == rankings["made_at"].max()
    newest: pd.DataFrame = rankings[is_newest]
    return newest.drop(columns="made_at").reset_index(drop=True)


def champion(conn: Connection, market: str, target: date | None = None) -> dict[str, Any] | None:
    """Return the row of a market's champion in a session, by default the newest; None without."""
    champions = select_view("champion_log", "-since", span=("since", None, target), market=market)
    return row(conn, champions.limit(1))


def chosen_predictor(conn: Connection, market: str, target: date) -> str | None:
    """Return the predictor whose ranking of a session the nights show; None without one."""
    history = view("ranking_history").c
    statement = (
        sa.select(history.predictor)
        .where(history.market == market, history.target == target, history.chosen == 1)
        .order_by(history.made_at.desc())
        .limit(1)
    )
    return conn.execute(statement).scalar()


def first_unscored(
    conn: Connection, market: str, leg: str, *, first: date, last: date
) -> date | None:
    """Return the first ranked session of first..last that has no score for the return `leg`.

    None where every ranked session has one.
    """
    rank = tables.stock_rank
    ranker = tables.ranker
    score = tables.rank_score
    is_scored = sa.exists().where(
        score.c.market == market,
        score.c.target == rank.c.target,
        score.c.span == "night",
        score.c.leg == leg,
    )
    statement = (
        sa.select(sa.func.min(rank.c.target))
        .join_from(rank, ranker)
        .where(
            ranker.c.market == market,
            ~is_scored,
            rank.c.target >= first,
            rank.c.target <= last,
        )
    )
    return conn.execute(statement).scalar()


def last_ranked(conn: Connection, market: str) -> date | None:
    """Return the newest session whose stocks were ranked; None before the first."""
    rank = tables.stock_rank
    ranker = tables.ranker
    statement = (
        sa.select(sa.func.max(rank.c.target))
        .join_from(rank, ranker)
        .where(ranker.c.market == market)
    )
    return conn.execute(statement).scalar()


def night_rankings(conn: Connection, market: str, *, first: date, last: date) -> pd.DataFrame:
    """Return the nights' rankings of the sessions first..last.

    The columns are those of stock_rank, with symbol in place of instrument_id.
    """
    rank = tables.stock_rank
    ranker = tables.ranker
    stock = tables.instrument
    columns = [column for column in rank.c if column.name != "instrument_id"]
    statement = (
        sa.select(*columns, stock.c.symbol)
        .join_from(rank, ranker)
        .join(stock)
        .where(ranker.c.market == market, rank.c.target >= first, rank.c.target <= last)
        .order_by(rank.c.target, rank.c.made_at, rank.c.predictor, rank.c.place)
    )
    return frame(conn, statement)


def rank_scores(
    conn: Connection, market: str, *, span: str, leg: str | None = None
) -> pd.DataFrame:
    """Return scores of a market's rankings: the columns of rank_score.

    `span` is 'night' or 'running'; `leg` is the name of the return scored, None for all returns.
    """
    table = tables.rank_score
    statement = (
        sa.select(table)
        .where(*matching(table, market=market, span=span, leg=leg))
        .order_by(table.c.target, table.c.leg, table.c.predictor)
    )
    return frame(conn, statement)


def last_rank_scores(conn: Connection, market: str, last: date) -> pd.DataFrame:
    """Return the running scores of a market's rankings at the last scored session up to `last`.

    There may be no rows.
    """
    log = view("rank_score_log")
    is_running = (log.c.market == market, log.c.span == "running", log.c.target <= last)
    newest = sa.select(sa.func.max(log.c.target)).where(*is_running).scalar_subquery()
    statement = sa.select(log).where(*is_running, log.c.target == newest).order_by(log.c.predictor)
    return frame(conn, statement)


def newest_rank_scores(conn: Connection, market: str) -> pd.DataFrame:
    """Return the running scores of a market's rankings at its last scored session."""
    return last_rank_scores(conn, market, date.max)


def shown_ranker(conn: Connection, market: str) -> dict[str, Any] | None:
    """Return what the newest ranked night shows: predictor, leg, target, made_at; None before.

    `predictor` is the ranker, `leg` the name of the return that it ranks by.
    """
    history = view("ranking_history").c
    statement = (
        sa.select(history.predictor, history.leg, history.target, history.made_at)
        .where(history.market == market, history.chosen == 1)
        .order_by(history.target.desc(), history.made_at.desc())
        .limit(1)
    )
    return row(conn, statement)


def ranked_stocks(market: str, *, predictor: str, first: date) -> Statement:
    """Return the statement of a predictor's rankings of the sessions from `first` on.

    A row is a stock of a session, with its outcome. A session that was ranked again has the rows of
    each ranking, the newest last.
    """
    history = view("ranking_history").c
    return (
        sa.select(
            history.target,
            history.symbol,
            history.sector,
            history.score,
            history.place,
            history.realised_return,
            history.made_at,
        )
        .where(
            history.market == market,
            history.predictor == predictor,
            history.target >= first,
        )
        .order_by(history.target, history.made_at, history.place)
    )


def lasting_skill(
    conn: Connection, market: str, leg: str, predictor: str, last: date
) -> tuple[date | None, int]:
    """Return the first session of a predictor's lasting skill, and the number of its sessions.

    A session shows skill if the interval of its running rank IC lies above 0. The sessions of
    lasting skill are those up to `last` after the newest one that shows none. (None, 0) where there
    are no such sessions.
    """
    log = view("rank_score_log").c
    of_predictor = (
        log.market == market,
        log.span == "running",
        log.leg == leg,
        log.predictor == predictor,
        log.target <= last,
    )
    # A missing interval, that of too few days, shows no skill.
    has_no_skill = sa.func.coalesce(log.rank_ic_low, 0) <= 0
    last_without_skill = sa.select(sa.func.max(log.target)).where(*of_predictor, has_no_skill)
    until = conn.execute(last_without_skill).scalar() or date.min
    lasting = sa.select(sa.func.min(log.target), sa.func.count()).where(
        *of_predictor, log.target > until
    )
    since, session_count = conn.execute(lasting).one()
    return since, session_count


def newest_ranking(conn: Connection, market: str) -> dict[str, Any] | None:
    """Return the row of ranking_summary of the market's walk-forward that was scored last.

    Walk-forwards without a portfolio, and so without an `index_gain`, are left out. None where
    there is no other.
    """
    summary = view("ranking_summary")
    statement = (
        sa.select(summary)
        .where(summary.c.market == market, summary.c.index_gain.is_not(None))
        .order_by(summary.c.read_at.desc())
        .limit(1)
    )
    return row(conn, statement)


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
    """Return the positions whose column `day` lies in first..last, by day and symbol."""
    stock = tables.instrument
    columns = [column for column in table.c if column.name not in ("market", "instrument_id")]
    statement = (
        sa.select(*columns, stock.c.symbol)
        .join_from(table, stock)
        .where(table.c.market == market, *within(table.c[day], first, last))
        .order_by(table.c[day], stock.c.symbol)
    )
    return frame(conn, statement)


def paper_returns(conn: Connection, market: str, last: date | None = None) -> pd.DataFrame:
    """Return the returns of the paper account up to a session: the columns of paper_return.

    The portfolios that it is compared with have rows too.
    """
    account = view("paper_account")
    # Left out, because the view counts the holdings again for each row.
    columns = [column for column in account.c if column.name != "holdings"]
    statement = (
        sa.select(*columns)
        .where(*matching(account, market=market), *within(account.c.session, None, last))
        .order_by(account.c.session, account.c.portfolio)
    )
    return frame(conn, statement)


def last_booked(conn: Connection, market: str) -> dict[str, tuple[date, float]]:
    """Return the last booked session and its equity, by the name of the portfolio.

    Portfolios are the paper account and those that it is compared with; there may be none.
    """
    booked = tables.paper_return
    last_sessions = (
        sa.select(booked.c.portfolio, sa.func.max(booked.c.session).label("session"))
        .where(booked.c.market == market)
        .group_by(booked.c.portfolio)
        .subquery()
    )
    is_last = sa.and_(
        booked.c.portfolio == last_sessions.c.portfolio,
        booked.c.session == last_sessions.c.session,
    )
    statement = (
        sa.select(booked.c.portfolio, booked.c.session, booked.c.equity)
        .where(booked.c.market == market)
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
