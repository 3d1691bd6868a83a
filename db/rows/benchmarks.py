"""Benchmarks: each is stored with its figures once its test span was read, and never changed."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import save_row
from db.connection.differences import save_figures
from db.connection.frames import frame, matching, row_of, rows_of


def benchmark(conn: Connection, name: str) -> dict[str, Any] | None:
    """Return the row of the benchmark of this name; None when there is none."""
    return row_of(conn, tables.benchmark, "id", name)


def benchmark_scores(conn: Connection, name: str) -> pd.DataFrame:
    """Return the figures of a benchmark by protocol and predictor.

    The columns are those of benchmark_score but benchmark_id.
    """
    return rows_of(
        conn,
        tables.benchmark_score,
        "benchmark_id",
        name,
        order=("protocol", "predictor"),
    )


def benchmark_seeds(conn: Connection, name: str) -> pd.DataFrame:
    """Return every seed of a benchmark by predictor and configuration.

    The columns are those of benchmark_seed but benchmark_id.
    """
    return rows_of(conn, tables.benchmark_seed, "benchmark_id", name)


def save_benchmark(
    conn: Connection, benchmark: Mapping[str, object], scores: pd.DataFrame, seeds: pd.DataFrame
) -> int:
    """Store a benchmark with its scores and seeds; return how many rows were new.

    `benchmark` has every column by name, `scores` and `seeds` their columns but benchmark_id; a
    missing value is NaN or None. What is stored is never changed: raises StoreError, naming it,
    when a score or seed is stored with another figure.
    """
    name = str(benchmark["id"])
    new = save_row(conn, tables.benchmark, benchmark)
    reason = "the test span is read only once"
    new += save_figures(conn, tables.benchmark_score, "benchmark_id", name, scores, reason=reason)
    new += save_figures(conn, tables.benchmark_seed, "benchmark_id", name, seeds, reason=reason)
    return new


def benchmarks(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Return benchmarks in the order in which their test span was read.

    The columns are those of benchmark but config.
    """
    table = tables.benchmark
    columns = [column for column in table.c if column.name != "config"]
    statement = (
        sa.select(*columns)
        .where(*matching(table, market=market))
        .order_by(table.c.test_read_at, table.c.id)
    )
    return frame(conn, statement)
