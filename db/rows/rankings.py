"""Rankings: each stored with its figures once its days were scored; they are never changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_missing
from db.connection.differences import save_figures
from db.connection.frames import row, rows_of


def save_ranking(
    conn: Connection, ranking: Mapping[str, object], scores: pd.DataFrame, differences: pd.DataFrame
) -> int:
    """Store a ranking, every column by name, with its scores and differences: their columns but ranking_id.

    What has no value is NaN or None. The first row of a name stands: raises StoreError, naming it, when a figure is
    stored with another value.
    """
    name, why = str(ranking["id"]), "the days of a ranking are scored once"
    new = insert_missing(conn, tables.ranking, [dict(ranking)])
    new += save_figures(conn, tables.ranking_score, "ranking_id", name, scores, why=why)
    return new + save_figures(conn, tables.ranking_difference, "ranking_id", name, differences, why=why)


def ranking(conn: Connection, ranking_id: str) -> dict[str, Any] | None:
    """Return one ranking, every column of ranking; None when there is none of that name."""
    return row(conn, sa.select(tables.ranking).where(tables.ranking.c.id == ranking_id))


def ranking_scores(conn: Connection, ranking_id: str) -> pd.DataFrame:
    """Return a ranking's figures: the columns of ranking_score but ranking_id."""
    return rows_of(conn, tables.ranking_score, "ranking_id", ranking_id)


def ranking_differences(conn: Connection, ranking_id: str) -> pd.DataFrame:
    """Return a ranking's paired differences: the columns of ranking_difference but ranking_id."""
    return rows_of(conn, tables.ranking_difference, "ranking_id", ranking_id)
