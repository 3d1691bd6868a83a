"""Walks of rankings as they are stored."""

from sqlalchemy import Connection, Engine

from db.connection.frames import sql_text
from db.engine import reading
from db.rows import rankings, scores
from dtml.pages.ranking import HEADLINE, Ranking
from flows.ranking.tear_sheet import read_sheet


def stored_ranking(engine: Engine, ranking_id: str) -> Ranking | None:
    """Return a ranking from the store; None where it has none of this id."""
    with reading(engine) as conn:
        return read_ranking(conn, ranking_id)


def read_ranking(conn: Connection, ranking_id: str) -> Ranking | None:
    """Return a ranking from the store, with its tear sheet if the file is on this machine.

    None where the store has no ranking of this id.
    """
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
    """Return the SQL behind the charts `legs` and `sectors` of a ranking's page.

    The rows of its other charts are in no table, but in the file of the tear sheet.
    """
    parts = {"legs": "all", "sectors": "sector"}
    return {
        chart: sql_text(conn, scores.ranking_scores_by(ranking_id, predictor=HEADLINE, part=part))
        for chart, part in parts.items()
    }
