"""Backtests and benchmarks.

A backtest is stored when it begins, then fold by fold, at last its figures, which never change. A
benchmark is stored once its test span was read.
"""

from collections.abc import Mapping
from datetime import datetime

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.errors import StoreError
from db.read import read_row
from db.save import save

# Columns of a backtest's own row that are known only when it finishes.
COUNTS = ("stocks", "constituent_days", "without_price", "tried", "expected_best")


def finish_backtest(
    conn: Connection,
    backtest_id: str,
    *,
    scores: pd.DataFrame,
    returns: pd.DataFrame,
    portfolios: pd.DataFrame,
    counts: Mapping[str, float],
    finished_at: datetime,
    seconds: float | None,
) -> int:
    """Store the figures of a backtest, and mark it as finished; return how many rows were new.

    The frames have the columns of backtest_score, backtest_return and backtest_portfolio but
    backtest_id; `counts` those of `COUNTS`. The first `finished_at` and `seconds` stay. Raises
    StoreError for an unknown backtest, and for a figure stored with another value.
    """
    stored = read_row(conn, "backtest", id=backtest_id)
    if stored is None:
        raise StoreError(
            f"backtest {backtest_id} was never started: run the same `dtml backtest` again"
        )
    if stored["finished_at"] is None:
        values = {name: counts[name] for name in COUNTS}
        update = sa.update(tables.backtest).where(tables.backtest.c.id == backtest_id)
        conn.execute(update.values(**values, finished_at=finished_at, seconds=seconds))
    else:
        for name in COUNTS:
            if stored[name] != counts[name]:
                raise StoreError(
                    f"{backtest_id} is already stored with {name} {stored[name]}, which stays in "
                    f"place of {counts[name]}: {tables.backtest_score.info['written'].refusal}"
                )
    figures = {
        "backtest_score": scores,
        "backtest_return": returns,
        "backtest_portfolio": portfolios,
    }
    return sum(save(conn, table, rows, backtest_id=backtest_id) for table, rows in figures.items())


def save_benchmark(
    conn: Connection, benchmark: Mapping[str, object], scores: pd.DataFrame, seeds: pd.DataFrame
) -> int:
    """Store a benchmark with its scores and seeds; return how many rows were new.

    The frames have the columns of benchmark_score and benchmark_seed but benchmark_id.
    """
    name = benchmark["id"]
    return (
        save(conn, "benchmark", benchmark)
        + save(conn, "benchmark_score", scores, benchmark_id=name)
        + save(conn, "benchmark_seed", seeds, benchmark_id=name)
    )
