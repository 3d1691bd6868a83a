"""Benchmarks: each is stored with its figures once its test was read, and never changed."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_missing
from db.connection.differences import save_figures
from db.connection.frames import frame, matching, row, rows_of


def save_benchmark(conn: Connection, benchmark: Mapping[str, object], scores: pd.DataFrame, seeds: pd.DataFrame) -> int:
    """Store a benchmark, every column by name, with its scores and seeds: their columns but benchmark_id.

    What has no value is NaN or None. The first row of a name stands: raises StoreError, naming it, when a score
    or seed is stored with another figure.
    """
    name = str(benchmark["id"])
    new = insert_missing(conn, tables.benchmark, [dict(benchmark)])
    why = "the test span is read once"
    new += save_figures(conn, tables.benchmark_score, "benchmark_id", name, scores, why=why)
    return new + save_figures(conn, tables.benchmark_seed, "benchmark_id", name, seeds, why=why)


def benchmarks(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Return benchmarks in the order in which their test was read: the columns of benchmark but its config."""
    table = tables.benchmark
    statement = sa.select(*(each for each in table.c if each.name != "config")).where(*matching(table, market=market))
    return frame(conn, statement.order_by(table.c.test_read_at, table.c.id))


def benchmark(conn: Connection, benchmark_id: str) -> dict[str, Any] | None:
    """Return one benchmark, every column of benchmark; None when there is none of that name."""
    return row(conn, sa.select(tables.benchmark).where(tables.benchmark.c.id == benchmark_id))


def benchmark_scores(conn: Connection, benchmark_id: str) -> pd.DataFrame:
    """Return a benchmark's figures by protocol and predictor: the columns of benchmark_score but benchmark_id."""
    order = ("protocol", "predictor")
    return rows_of(conn, tables.benchmark_score, "benchmark_id", benchmark_id, order=order)


def benchmark_seeds(conn: Connection, benchmark_id: str) -> pd.DataFrame:
    """Return every seed of a benchmark by predictor and configuration: the columns of benchmark_seed but its id."""
    return rows_of(conn, tables.benchmark_seed, "benchmark_id", benchmark_id)
