"""Backtests and benchmarks.

A backtest is stored when it begins, then its folds one by one, at last its figures. A benchmark is
stored with its figures once its test span was read.

The figures of a finished backtest are never changed.
"""

from collections.abc import Mapping
from datetime import datetime

import numpy as np
import pandas as pd
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import Connection

from db import tables
from db.connection.frames import frame
from db.errors import StoreError
from db.read import read_row
from db.rows.outcomes import of_fold
from db.save import save
from db.views import view

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

    `scores`, `returns`, `portfolios` hold the columns of backtest_score, backtest_return,
    backtest_portfolio but backtest_id. `counts` has the numbers that `COUNTS` names, which are
    stored in the backtest's own row. The same figures may be stored again; the first `finished_at`
    and `seconds` then stay. Raises StoreError for a backtest that was never started, and for a
    figure that is stored with another value; `counts` must be equal exactly.
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


def backtest_predictions(conn: Connection, backtest_id: str) -> pd.DataFrame:
    """Return the predictions of a backtest's finished folds, by target and symbol.

    Columns: run_id, as_of, target, symbol, probability, probability_std (NaN: missing).
    """
    prediction = tables.prediction.c
    fold = tables.backtest_fold
    stock = tables.instrument
    return frame(
        conn,
        sa.select(
            prediction.run_id,
            prediction.as_of,
            prediction.target,
            stock.c.symbol,
            prediction.probability,
            prediction.probability_std,
        )
        .select_from(fold.join(tables.prediction, of_fold(tables.prediction)).join(stock))
        .where(fold.c.backtest_id == backtest_id)
        .order_by(prediction.target, stock.c.symbol),
    )


def fold_moments(conn: Connection, name: str) -> pd.DataFrame:
    """Return a backtest's stored folds: first, last, seconds, and the created_at of their model."""
    fold = tables.backtest_fold.c
    run = view("run_log").c
    return frame(
        conn,
        sa.select(fold.first, fold.last, fold.seconds, run.created_at)
        .join_from(tables.backtest_fold, view("run_log"), run.run_id == fold.run_id)
        .where(fold.backtest_id == name)
        .order_by(fold.number),
    )


def sharpe_ratios(conn: Connection, market: str, *, other_than: str) -> NDArray[np.float64]:
    """Return the annualised Sharpe ratios of the market's backtests, one for each portfolio.

    The backtest `other_than` is left out, and so are portfolios that do not trade by predictions
    and those without a ratio.
    """
    portfolio = tables.backtest_portfolio
    backtest = tables.backtest
    joined = portfolio.join(backtest, backtest.c.id == portfolio.c.backtest_id)
    statement = (
        sa.select(portfolio.c.sharpe)
        .select_from(joined)
        .where(
            backtest.c.market == market,
            backtest.c.id != other_than,
            portfolio.c.strategy.is_not(None),
            portfolio.c.sharpe.is_not(None),
        )
        .order_by(backtest.c.id, portfolio.c.portfolio)
    )
    return np.array(conn.execute(statement).scalars().all(), dtype=float)


def save_benchmark(
    conn: Connection, benchmark: Mapping[str, object], scores: pd.DataFrame, seeds: pd.DataFrame
) -> int:
    """Store a benchmark with its scores and seeds; return how many rows were new.

    `scores` and `seeds` have the columns of benchmark_score and benchmark_seed but benchmark_id.
    """
    name = benchmark["id"]
    return (
        save(conn, "benchmark", benchmark)
        + save(conn, "benchmark_score", scores, benchmark_id=name)
        + save(conn, "benchmark_seed", seeds, benchmark_id=name)
    )
