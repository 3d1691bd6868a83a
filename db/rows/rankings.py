"""The order of a day's stocks: walks through history, the rankers of the
nights, what they said and were worth.
"""

from collections.abc import Mapping
from datetime import date, datetime
from functools import partial
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame, insert_missing, records, save_row
from db.connection.differences import require_distinct, save_figures, stored_on, unstored
from db.connection.frames import frame, matching, row, row_of, rows_of, shown, within
from db.rows.markets import identified
from db.rows.runs import latest_trained
from db.rows.scores import save_scores_of
from db.views import view

SCORE_TOLERANCE = 1e-9

# Of the ranking of a name: its row, or None; its figures, its paired differences, and what is left
# of its order after costs, each without ranking_id.
ranking = partial(row_of, tables.ranking, "id")
ranking_scores = partial(rows_of, tables.ranking_score, "ranking_id")
ranking_differences = partial(rows_of, tables.ranking_difference, "ranking_id")
ranking_portfolios = partial(rows_of, tables.ranking_portfolio, "ranking_id")
# Of the rankers of a training, and of who speaks from a session on, every column is stored by name.
save_ranker = partial(save_row, tables.ranker)
save_champion = partial(save_row, tables.champion)
# The rankers of a training: its row by name, and that of the last; None where there is none.
ranker = partial(row_of, tables.ranker, "id")
latest_ranker = partial(latest_trained, tables.ranker)
save_rank_scores = partial(save_scores_of, tables.rank_score)


def save_ranking(
    conn: Connection,
    ranking: Mapping[str, object],
    scores: pd.DataFrame,
    differences: pd.DataFrame,
    portfolios: pd.DataFrame,
) -> int:
    """Store a ranking, every column by name, with its scores, differences and portfolios: their
    columns but ranking_id.

    What has no value is NaN or None. The first row of a name stands: raises StoreError, naming it,
    when a figure is stored with another value.
    """
    name, why = str(ranking["id"]), "the days of a ranking are scored once"
    new = save_row(tables.ranking, conn, ranking)
    new += save_figures(conn, tables.ranking_score, "ranking_id", name, scores, why=why)
    new += save_figures(conn, tables.ranking_difference, "ranking_id", name, differences, why=why)
    return new + save_figures(
        conn, tables.ranking_portfolio, "ranking_id", name, portfolios, why=why
    )


def rankers(conn: Connection) -> pd.DataFrame:
    """Return the name, the checkpoint_path and the checkpoint_hash of the
    rankers of every training.
    """
    of = tables.ranker.c
    return frame(conn, sa.select(of.id, of.checkpoint_path, of.checkpoint_hash).order_by(of.id))


def save_order(
    conn: Connection, market: str, order: pd.DataFrame, *, known_at: datetime, made_at: datetime
) -> int:
    """Store the order of a session: ranker_id, predictor, as_of, target, symbol, score, place,
    probability (or NaN), speaks.

    What was said once stands: raises StoreError, naming it, when a stored score differs.
    """
    if order.empty:
        return 0
    table, key = tables.stock_rank, ["ranker_id", "predictor", "target", "instrument_id"]
    require_distinct(order, ["ranker_id", "predictor", "target", "symbol"])
    rows = identified(conn, market, order).sort_values(key, ignore_index=True)
    stored, named = stored_on(conn, table, rows, "ranker_id"), ["predictor", "target", "symbol"]
    wrong = "{} is stored with another score"
    new = unstored(rows, stored, key, ["score"], SCORE_TOLERANCE, shown=named, wrong=wrong)
    made = new[[*key, "as_of", "score", "place", "probability", "speaks"]]
    return insert_frame(conn, table, made.assign(known_at=known_at, made_at=made_at))


def night_order(conn: Connection, market: str, target: date) -> pd.DataFrame:
    """Return the newest order of a session by the market's chosen predictor, best first; maybe no
    rows.

    Columns: place, symbol, name, sector, probability, predictor, leg.
    """
    of = view("ranking_history").c
    columns = (
        of.place,
        of.symbol,
        of.name,
        of.sector,
        of.probability,
        of.predictor,
        of.leg,
        of.made_at,
    )
    mine = sa.select(*columns).where(of.market == market, of.target == target, of.chosen == 1)
    found = frame(conn, mine.order_by(of.place))
    newest: pd.DataFrame = found[found["made_at"] == found["made_at"].max()]
    return newest.drop(columns="made_at").reset_index(drop=True)


def champion(conn: Connection, market: str, target: date | None = None) -> dict[str, Any] | None:
    """Return the row of who speaks for a market in a session, by default the
    newest; None without one.
    """
    return row(
        conn, shown("champion_log", "-since", span=("since", None, target), market=market).limit(1)
    )


def chosen_predictor(conn: Connection, market: str, target: date) -> str | None:
    """Return who ordered the stocks of a session, as the market's nights show
    them; None where nobody did.
    """
    of = view("ranking_history").c
    mine = sa.select(of.predictor).where(of.market == market, of.target == target, of.chosen == 1)
    return conn.execute(mine.order_by(of.made_at.desc()).limit(1)).scalar()


def first_unscored(
    conn: Connection, market: str, leg: str, *, first: date, last: date
) -> date | None:
    """Return the first session of first..last whose order has no score for a
    return; None where all have one.
    """
    said, of, score = tables.stock_rank, tables.ranker, tables.rank_score
    scored = sa.exists().where(
        score.c.market == market,
        score.c.target == said.c.target,
        score.c.span == "night",
        score.c.leg == leg,
    )
    mine = (
        sa.select(sa.func.min(said.c.target))
        .join_from(said, of)
        .where(of.c.market == market, ~scored)
    )
    return conn.execute(mine.where(said.c.target >= first, said.c.target <= last)).scalar()


def last_ordered(conn: Connection, market: str) -> date | None:
    """Return the newest session whose stocks were ordered; None before the first."""
    said, of = tables.stock_rank, tables.ranker
    mine = sa.select(sa.func.max(said.c.target)).join_from(said, of).where(of.c.market == market)
    return conn.execute(mine).scalar()


def orders(conn: Connection, market: str, *, first: date, last: date) -> pd.DataFrame:
    """Return the order of the sessions first..last: the columns of stock_rank,
    with symbol for its instrument.
    """
    said, of, stock = tables.stock_rank, tables.ranker, tables.instrument
    columns = [each for each in said.c if each.name != "instrument_id"]
    statement = sa.select(*columns, stock.c.symbol).join_from(said, of).join(stock)
    statement = statement.where(
        of.c.market == market, said.c.target >= first, said.c.target <= last
    )
    return frame(
        conn, statement.order_by(said.c.target, said.c.made_at, said.c.predictor, said.c.place)
    )


def rank_scores(
    conn: Connection, market: str, *, span: str, leg: str | None = None
) -> pd.DataFrame:
    """Return scores of a market's orders, of one return or of all: the columns of rank_score."""
    table = tables.rank_score
    mine = matching(table, market=market, span=span, leg=leg)
    return frame(
        conn, sa.select(table).where(*mine).order_by(table.c.target, table.c.leg, table.c.predictor)
    )


def last_rank_scores(conn: Connection, market: str, last: date) -> pd.DataFrame:
    """Return the running scores of a market's orders at the last session scored
    up to a day; maybe no rows.
    """
    table = view("rank_score_log")
    mine = (table.c.market == market, table.c.span == "running", table.c.target <= last)
    newest = sa.select(sa.func.max(table.c.target)).where(*mine).scalar_subquery()
    return frame(
        conn, sa.select(table).where(*mine, table.c.target == newest).order_by(table.c.predictor)
    )


def lasting_skill(
    conn: Connection, market: str, leg: str, predictor: str, last: date
) -> tuple[date | None, int]:
    """Return since which session the running rank IC lies above 0 by its
    interval, and over how many; (None, 0).
    """
    of = view("rank_score_log").c
    mine = (
        of.market == market,
        of.span == "running",
        of.leg == leg,
        of.predictor == predictor,
        of.target <= last,
    )
    unsure = sa.select(sa.func.max(of.target)).where(
        *mine, sa.func.coalesce(of.rank_ic_low, 0) <= 0
    )
    until = conn.execute(unsure).scalar() or date.min
    lasting = sa.select(sa.func.min(of.target), sa.func.count()).where(*mine, of.target > until)
    since, nights = conn.execute(lasting).one()
    return since, nights


def newest_ranking(conn: Connection, market: str) -> dict[str, Any] | None:
    """Return the row of ranking_summary of the market's walk that was scored
    last; None without one.
    """
    of = view("ranking_summary")
    mine = (of.c.market == market, of.c.index_gain.is_not(None))
    return row(conn, sa.select(of).where(*mine).order_by(of.c.read_at.desc()).limit(1))


def last_target(conn: Connection, market: str) -> date | None:
    """Return the newest session for which it was decided what to hold; None before the first."""
    of = tables.target_position.c
    return conn.execute(sa.select(sa.func.max(of.target)).where(of.market == market)).scalar()


def _positions(
    table: sa.Table, day: str, conn: Connection, market: str, first: date | None, last: date | None
) -> pd.DataFrame:
    """Return the columns of a table of positions, with symbol for its
    instrument, of the sessions first..last.
    """
    stock, columns = (
        tables.instrument,
        [each for each in table.c if each.name not in ("market", "instrument_id")],
    )
    mine = (
        sa.select(*columns, stock.c.symbol).join_from(table, stock).where(table.c.market == market)
    )
    return frame(
        conn, mine.where(*within(table.c[day], first, last)).order_by(table.c[day], stock.c.symbol)
    )


targets = partial(_positions, tables.target_position, "target")  # what to hold from each open on
paper_positions = partial(
    _positions, tables.paper_position, "session"
)  # what the account held after each open


def paper_returns(conn: Connection, market: str, last: date | None = None) -> pd.DataFrame:
    """Return what the paper account and its yardsticks earned up to a session:
    the columns of paper_return.
    """
    of = view("paper_account")
    columns = [
        each for each in of.c if each.name != "holdings"
    ]  # which are counted anew for each row
    mine = matching(of, market=market) + within(of.c.session, None, last)
    return frame(conn, sa.select(*columns).where(*mine).order_by(of.c.session, of.c.portfolio))


def last_paper(conn: Connection, market: str) -> dict[str, tuple[date, float]]:
    """Return the last session booked of the paper account and of each
    yardstick, and its equity then; maybe none.
    """
    of = tables.paper_return
    newest = sa.select(of.c.portfolio, sa.func.max(of.c.session).label("session")).where(
        of.c.market == market
    )
    each = newest.group_by(of.c.portfolio).subquery()
    mine = sa.select(of.c.portfolio, of.c.session, of.c.equity).where(of.c.market == market)
    mine = mine.join(each, (of.c.portfolio == each.c.portfolio) & (of.c.session == each.c.session))
    return {name: (session, equity) for name, session, equity in conn.execute(mine)}


def save_targets(conn: Connection, market: str, aims: pd.DataFrame, *, decided_at: datetime) -> int:
    """Store what to hold: target, symbol, weight, kept. What was decided once stands."""
    rows = (
        identified(conn, market, aims)
        .assign(market=market, decided_at=decided_at)
        .drop(columns="symbol")
    )
    return insert_missing(conn, tables.target_position, records(tables.target_position, rows))


def save_paper(conn: Connection, market: str, returns: pd.DataFrame, held: pd.DataFrame) -> int:
    """Store what was earned (the columns of paper_return) and held: session, symbol, weight.

    What is booked stands.
    """
    rows = identified(conn, market, held).assign(market=market).drop(columns="symbol")
    new = insert_missing(conn, tables.paper_position, records(tables.paper_position, rows))
    booked = records(tables.paper_return, returns.assign(market=market))
    return new + insert_missing(conn, tables.paper_return, booked)
