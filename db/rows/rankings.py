"""Rankings of a day's stocks: walks through history, nights' rankers, their rankings and scores."""

from collections.abc import Collection, Mapping
from datetime import date, datetime
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame, save_row
from db.connection.differences import (
    SAME_AGAIN,
    new_rows_of,
    require_distinct,
    save_figures,
    stored_of_targets,
)
from db.connection.frames import (
    Statement,
    frame,
    row,
    row_of,
    rows_of,
    select_rows,
    within,
)
from db.rows.markets import identified
from db.rows.runs import latest_trained
from db.rows.scores import save_scores_of
from db.views import view

# Columns of a night's ranking as it is shown.
NAMES = ("place", "symbol", "name", "sector")
SHOWN = (*NAMES, "score", "probability", "predictor", "leg", "realised_return")
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

    Their sessions end on or before `on_or_before`, and their prices were known at `known_by`; None
    sets no limit. The result is None when there is no such row.
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
    None. `portfolios` of a ranking that trades nothing may have no columns. What is stored is never
    changed: raises StoreError, naming it, when a figure is stored with another value.
    """
    name = str(ranking["id"])
    reason = "a ranking is scored only once; run the same command again to see the stored result"
    new = save_row(conn, tables.ranking, ranking)
    new += save_figures(conn, tables.ranking_score, "ranking_id", name, scores, reason=reason)
    new += save_figures(
        conn, tables.ranking_difference, "ranking_id", name, differences, reason=reason
    )
    if len(portfolios):
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
    chosen. A stored row never changes: raises StoreError, naming predictor, target and symbol, when
    its score differs by more than `SCORE_TOLERANCE`, relatively. Of other columns, no difference is
    noticed. Raises StoreError, too, for two rows of one ranker_id, predictor, target and symbol,
    and for a symbol that is not stored.
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
        message="{} is already stored with a different score, which stays: a ranking is never "
        f"rewritten; {SAME_AGAIN}",
    )
    new_ranks = new[[*key, "as_of", "score", "place", "probability", "chosen"]]
    return insert_frame(conn, table, new_ranks.assign(known_at=known_at, made_at=made_at))


def night_ranking(
    conn: Connection,
    market: str,
    target: date,
    *,
    shown: tuple[str, str] | None = None,
    ends: int | None = None,
    symbols: Collection[str] | None = None,
) -> pd.DataFrame:
    """Return the ranking of a session that the nights show, the best stock first.

    It is that of the predictor chosen for the session, and the newest where there are several.
    `shown` is the pair that `shown_rankings` has for the market: with it, the ranking is found
    faster. With `ends`, only so many stocks of each end are read, with `symbols` only those, and
    with both only those of `symbols` that are at an end.
    Columns: place, symbol, name, sector, score, probability, predictor, leg (the name of the return
    that the stocks are ranked by), and realised_return (NaN without an outcome). There are no rows
    for a session that was not ranked.
    """
    history = view("ranking_history").c
    is_shown = [history.market == market, history.target == target, history.chosen == 1]
    # A part must be one of the newest ranking: an older one may have other stocks and places.
    if shown is None and (ends is not None or symbols is not None):
        shown = shown_rankings(conn, target).get(market)
    if shown is not None:
        ranker_id, predictor = shown
        is_shown += [history.ranker_id == ranker_id, history.predictor == predictor]
    is_read = []  # further conditions: the rows of the ranking that are asked for
    if ends is not None:
        last_place = sa.select(sa.func.max(history.place)).where(*is_shown).scalar_subquery()
        is_read.append(sa.or_(history.place <= ends, history.place > last_place - ends))
    if symbols is not None:
        is_read.append(history.symbol.in_(symbols))
    columns = [history[name] for name in (*SHOWN, "made_at")]
    # The market's rankers may have been trained again, and the session ranked by each of them.
    rankings = frame(conn, sa.select(*columns).where(*is_shown, *is_read).order_by(history.place))
    is_newest = rankings["made_at"] == rankings["made_at"].max()
    newest: pd.DataFrame = rankings[is_newest]
    return newest.drop(columns="made_at").reset_index(drop=True)


def champion(conn: Connection, market: str, target: date | None = None) -> dict[str, Any] | None:
    """Return the row of a market's champion in a session, by default the newest; None without."""
    champions = select_rows("champion_log", "-since", bounds=("since", None, target), market=market)
    return row(conn, champions.limit(1))


def shown_rankings(conn: Connection, target: date) -> dict[str, tuple[str, str]]:
    """Return the ranker_id and the predictor whose ranking of a session is shown, by market."""
    history = view("ranking_history").c
    statement = (
        sa.select(history.market, history.ranker_id, history.predictor)
        .where(
            history.target == target,
            history.chosen == 1,
            history.place == 1,  # one row of each ranking
        )
        .order_by(history.made_at)
    )
    # Of several rankings of a market the newest comes last, and stays.
    return {market: (ranker, name) for market, ranker, name in conn.execute(statement)}


def chosen_predictor(conn: Connection, market: str, target: date) -> str | None:
    """Return the predictor whose ranking of a session the nights show; None without one."""
    _, predictor = shown_rankings(conn, target).get(market, (None, None))
    return predictor


def first_unscored(
    conn: Connection, market: str, leg: str, *, first: date, last: date
) -> date | None:
    """Return the first ranked session of first..last that has no score for the return `leg`.

    None where every ranked session has one.
    """
    rank = tables.stock_rank.c
    ranker = tables.ranker
    score = tables.rank_score.c
    is_scored = sa.exists().where(
        score.market == market,
        score.target == rank.target,
        score.span == "night",
        score.leg == leg,
    )
    statement = (
        sa.select(sa.func.min(rank.target))
        .join_from(tables.stock_rank, ranker)
        .where(
            ranker.c.market == market,
            ~is_scored,
            rank.target >= first,
            rank.target <= last,
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

    The columns are those of stock_rank, with symbol in place of instrument_id. Sorted by target,
    made_at, predictor and place.
    """
    rank = tables.stock_rank.c
    ranker = tables.ranker
    stock = tables.instrument
    columns = [column for column in rank if column.name != "instrument_id"]
    return frame(
        conn,
        sa.select(*columns, stock.c.symbol)
        .join_from(tables.stock_rank, ranker)
        .join(stock)
        .where(ranker.c.market == market, rank.target >= first, rank.target <= last)
        .order_by(rank.target, rank.made_at, rank.predictor, rank.place),
    )


def ranks_of_nights(conn: Connection, market: str, first: date, last: date) -> pd.DataFrame:
    """Return the rankings of a market's nights first..last, without their moments.

    Columns: as_of, ranker_id, predictor, symbol, score, place, probability, chosen; sorted by
    as_of, ranker_id, predictor, place and symbol. NaN is missing.
    """
    rank = tables.stock_rank.c
    ranker = tables.ranker
    stock = tables.instrument
    columns = ("score", "place", "probability", "chosen")
    order = (rank.as_of, rank.ranker_id, rank.predictor, rank.place, stock.c.symbol)
    return frame(
        conn,
        sa.select(
            rank.as_of,
            rank.ranker_id,
            rank.predictor,
            stock.c.symbol,
            *[rank[name] for name in columns],
        )
        .join_from(tables.stock_rank, ranker)
        .join(stock)
        .where(
            ranker.c.market == market,
            *within(rank.as_of, first, last),
            rank.target > first,  # excludes no further row, but lets an index be used
        )
        .order_by(*order),
    )


def ranker_of_night(conn: Connection, market: str, target: date, made_by: datetime) -> str | None:
    """Return the name of the rankers that ranked a session last, up to the moment `made_by`.

    None for a session that was not ranked by then.
    """
    rank = tables.stock_rank.c
    ranker = tables.ranker
    statement = (
        sa.select(rank.ranker_id)
        .join_from(tables.stock_rank, ranker)
        .where(ranker.c.market == market, rank.target == target, rank.made_at <= made_by)
        .order_by(rank.made_at.desc())
        .limit(1)
    )
    return conn.execute(statement).scalar()


def rank_scores(
    conn: Connection, market: str, *, span: str, leg: str | None = None
) -> pd.DataFrame:
    """Return scores of a market's rankings: the columns of rank_score.

    `span` is 'night' or 'running'; `leg` is the name of the return scored, None for all returns.
    """
    order = ("target", "leg", "predictor")
    return frame(conn, select_rows(tables.rank_score, *order, market=market, span=span, leg=leg))


def last_rank_scores(conn: Connection, market: str, last: date) -> pd.DataFrame:
    """Return the running scores of a market's rankings at the last scored session up to `last`.

    They are rows of the view rank_score_log, one for each predictor and return that is scored.
    There may be none.
    """
    log = view("rank_score_log")
    is_running = (log.c.market == market, log.c.span == "running", log.c.target <= last)
    newest = sa.select(sa.func.max(log.c.target)).where(*is_running).scalar_subquery()
    return frame(
        conn, sa.select(log).where(*is_running, log.c.target == newest).order_by(log.c.predictor)
    )


def night_rank_ics(
    conn: Connection, market: str, leg: str, predictor: str, first: date, last: date
) -> pd.DataFrame:
    """Return the rank IC of each night of first..last, of a predictor and of all one-line rules.

    It is that for the return `leg`. Columns: target, predictor, rank_ic. A night without a rank IC
    has no row.
    """
    log = view("rank_score_log").c
    return frame(
        conn,
        sa.select(log.target, log.predictor, log.rank_ic)
        .where(
            log.market == market,
            log.target.between(first, last),
            log.span == "night",
            log.leg == leg,
            sa.or_(log.predictor == predictor, log.is_rule == 1),
            log.rank_ic.is_not(None),
        )
        .order_by(log.target, log.predictor),
    )


def newest_rank_scores(conn: Connection, market: str) -> pd.DataFrame:
    """Return the running scores of a market's rankings at its last scored session."""
    return last_rank_scores(conn, market, date.max)


def shown_ranker(conn: Connection, market: str) -> dict[str, Any] | None:
    """Return what the newest ranked night shows: predictor, leg, target, made_at; None before.

    `predictor` is the ranker, `leg` the name of the return that it ranks by.
    """
    history = view("ranking_history").c
    return row(
        conn,
        sa.select(history.predictor, history.leg, history.target, history.made_at)
        .where(history.market == market, history.chosen == 1)
        .order_by(history.target.desc(), history.made_at.desc())
        .limit(1),
    )


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
    # Where every session shows skill, `until` is before them all.
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
    walks = select_rows("ranking_summary", "-read_at", market=market)
    return row(conn, walks.where(view("ranking_summary").c.index_gain.is_not(None)).limit(1))


def walks(conn: Connection, market: str, row_limit: int) -> pd.DataFrame:
    """Return the market's walk-forwards, the newest first: rows of the view ranking_summary."""
    summary = select_rows("ranking_summary", "-read_at", market=market)
    return frame(conn, summary.limit(row_limit))
