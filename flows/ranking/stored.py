"""Walks of rankings as they are stored."""

from sqlalchemy import Connection, Engine

from db.connection.frames import sql_text
from db.engine import reading
from db.rows import rankings, scores
from dtml.pages.rankings.page import HEADLINE, Ranking
from flows.ranking.tear_sheet import read_sheet


def stored_ranking(engine: Engine, ranking_id: str) -> Ranking | None:
    """Return a ranking from the store, or None."""
    with reading(engine) as conn:
        return read_ranking(conn, ranking_id)


def read_ranking(conn: Connection, ranking_id: str) -> Ranking | None:
    """Return a ranking from the store, with its tear sheet where the file is here, or None."""
    row = rankings.ranking(conn, ranking_id)
    if row is None:
        return None
    return Ranking(
        row=row,
        scores=rankings.ranking_scores(conn, ranking_id),
        differences=rankings.ranking_differences(conn, ranking_id),
        portfolios=rankings.ranking_portfolios(conn, ranking_id),
        sheet=read_sheet(row),
    )


def sql_behind(conn: Connection, ranking_id: str) -> dict[str, str]:
    """Return the SQL of the charts of a ranking whose rows the store has, by their names."""
    parts = {"legs": "all", "sectors": "sector"}
    return {
        chart: sql_text(conn, scores.ranking_scores_by(ranking_id, predictor=HEADLINE, part=part))
        for chart, part in parts.items()
    }
