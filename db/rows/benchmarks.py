"""Benchmarks: each is stored with its figures once its test was read, and never changed."""

from collections.abc import Mapping
from functools import partial

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import save_row
from db.connection.differences import save_figures
from db.connection.frames import frame, matching, row_of, rows_of

# Of the benchmark of a name: its row, or None; its figures by protocol and predictor, and every
# seed by predictor and configuration, each without benchmark_id.
benchmark = partial(row_of, tables.benchmark, "id")
benchmark_scores = partial(
    rows_of, tables.benchmark_score, "benchmark_id", order=("protocol", "predictor")
)
benchmark_seeds = partial(rows_of, tables.benchmark_seed, "benchmark_id")


def save_benchmark(
    conn: Connection, benchmark: Mapping[str, object], scores: pd.DataFrame, seeds: pd.DataFrame
) -> int:
    """Store a benchmark, every column by name, with its scores and seeds: their columns but
    benchmark_id.

    What has no value is NaN or None. The first row of a name stands: raises StoreError, naming it,
    when a score or seed is stored with another figure.
    """
    name = str(benchmark["id"])
    new = save_row(tables.benchmark, conn, benchmark)
    why = "the test span is read once"
    new += save_figures(conn, tables.benchmark_score, "benchmark_id", name, scores, why=why)
    return new + save_figures(conn, tables.benchmark_seed, "benchmark_id", name, seeds, why=why)


def benchmarks(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Return benchmarks in the order in which their test was read: the columns
    of benchmark but its config.
    """
    table = tables.benchmark
    statement = sa.select(*(each for each in table.c if each.name != "config")).where(
        *matching(table, market=market)
    )
    return frame(conn, statement.order_by(table.c.test_read_at, table.c.id))
