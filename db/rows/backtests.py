"""Backtests and benchmarks.

A backtest is stored when it begins, then its folds one by one, at last its figures. A benchmark is
stored with its figures once its test span was read.

The figures of a finished backtest are never changed.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import save_row
from db.connection.differences import save_figures
from db.connection.frames import frame, row, row_of, rows_of, select_rows
from db.errors import StoreError
from db.rows.outcomes import of_fold
from db.views import view

# Columns of a backtest's own row that are known only when it finishes.
COUNTS = ("stocks", "constituent_days", "without_price", "tried", "expected_best")


def backtest(conn: Connection, name: str) -> dict[str, Any] | None:
    """Return the row of the backtest of this name; None when there is none."""
    return row_of(conn, tables.backtest, "id", name)


def backtest_folds(conn: Connection, name: str) -> pd.DataFrame:
    """Return a backtest's finished folds: the columns of backtest_fold but backtest_id."""
    return rows_of(conn, tables.backtest_fold, "backtest_id", name)


def backtest_scores(conn: Connection, name: str) -> pd.DataFrame:
    """Return the figures of a backtest by slice, value, protocol and predictor.

    The columns are those of backtest_score but backtest_id.
    """
    return rows_of(conn, tables.backtest_score, "backtest_id", name)


def backtest_returns(conn: Connection, name: str) -> pd.DataFrame:
    """Return the daily returns of a backtest by portfolio and session.

    The columns are those of backtest_return but backtest_id.
    """
    return rows_of(conn, tables.backtest_return, "backtest_id", name)


def backtest_portfolios(conn: Connection, name: str) -> pd.DataFrame:
    """Return a backtest's figures by portfolio: columns of backtest_portfolio but backtest_id."""
    return rows_of(conn, tables.backtest_portfolio, "backtest_id", name)


def save_backtest(conn: Connection, backtest: Mapping[str, object]) -> int:
    """Store a backtest that begins, with the columns known by then.

    Return 1, or 0 where it is stored already.
    """
    return save_row(conn, tables.backtest, backtest)


def save_fold(conn: Connection, backtest_id: str, fold: Mapping[str, object]) -> int:
    """Store a fold, whose run must be stored: the columns of backtest_fold but backtest_id.

    Return 1, or 0, without any change, where a fold of its number is stored. Raises StoreError when
    the stored fold has another run, other sessions or another number of predictions.
    """
    table = tables.backtest_fold
    statement = sa.select(table).where(
        table.c.backtest_id == backtest_id,
        table.c.number == fold["number"],
    )
    stored = row(conn, statement) or fold  # A fold that is not stored yet equals itself.
    for name in ("run_id", "as_of", "first", "last", "predictions"):
        if stored[name] != fold[name]:
            raise StoreError(
                f"fold {fold['number']} of {backtest_id} is already stored with {name} "
                f"{stored[name]}, which stays in place of {fold[name]}: a fold is never rewritten; "
                "for a new result, choose another --from or --to"
            )
    return save_row(conn, table, {"backtest_id": backtest_id, **fold})


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
    backtest_portfolio but backtest_id; a missing value is NaN or None. `counts` has the numbers
    that `COUNTS` names, which are stored in the backtest's own row. The same figures may be stored
    again; the first `finished_at` and `seconds` then stay. Raises StoreError for a backtest that
    was never started, and for a figure that is stored with another value, which the message names:
    `counts` must be equal exactly, all others as `save_figures` compares them.
    """
    stored = backtest(conn, backtest_id)
    if stored is None:
        raise StoreError(
            f"backtest {backtest_id} was never started: run the same `dtml backtest` again"
        )
    reason = (
        "a finished backtest cannot change; run the same command again to see it, or choose "
        "another --from or --to for a new one"
    )
    new_counts = {name: counts[name] for name in COUNTS}
    changed_counts = [name for name in COUNTS if stored[name] != new_counts[name]]
    if stored["finished_at"] is None:
        update = sa.update(tables.backtest).where(tables.backtest.c.id == backtest_id)
        conn.execute(update.values(**new_counts, finished_at=finished_at, seconds=seconds))
    elif changed_counts:
        raise StoreError(
            f"{backtest_id} {changed_counts[0]} is already stored with a different figure, which "
            f"stays: {reason}"
        )
    owner = "backtest_id"
    new = save_figures(conn, tables.backtest_score, owner, backtest_id, scores, reason=reason)
    new += save_figures(conn, tables.backtest_return, owner, backtest_id, returns, reason=reason)
    new += save_figures(
        conn, tables.backtest_portfolio, owner, backtest_id, portfolios, reason=reason
    )
    return new


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


def newest_summary(conn: Connection, market: str) -> pd.DataFrame:
    """Return the rows of backtest_summary of the market's backtest that finished last.

    No rows where none has finished.
    """
    summary = view("backtest_summary").c
    newest = (
        sa.select(summary.backtest_id)
        .where(summary.market == market)
        .order_by(summary.finished_at.desc())
        .limit(1)
    )
    return frame(
        conn,
        sa.select(*summary)
        .where(summary.backtest_id == newest.scalar_subquery())
        .order_by(summary.portfolio),
    )


def finished(conn: Connection, market: str, row_limit: int) -> pd.DataFrame:
    """Return the market's finished backtests, the newest first, `row_limit` at most.

    Columns: backtest_id, first, last, finished_at.
    """
    summary = view("backtest_summary").c
    columns = (summary.backtest_id, summary.first, summary.last, summary.finished_at)
    return frame(
        conn,
        sa.select(*columns)
        .where(summary.market == market)
        .distinct()  # the view has a row for each portfolio
        .order_by(summary.finished_at.desc())
        .limit(row_limit),
    )


def unfinished(conn: Connection, since: datetime) -> pd.DataFrame:
    """Return the backtests that have not finished, by id: the columns of table backtest.

    Left out are those that began before `since`.
    """
    begun = select_rows(tables.backtest, "id", bounds=("created_at", since, None))
    return frame(conn, begun.where(tables.backtest.c.finished_at.is_(None)))


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
    reason = "the test span is read only once; run the same command again to see the stored result"
    new += save_figures(conn, tables.benchmark_score, "benchmark_id", name, scores, reason=reason)
    new += save_figures(conn, tables.benchmark_seed, "benchmark_id", name, seeds, reason=reason)
    return new


def benchmarks(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Return benchmarks in the order in which their test span was read.

    The columns are those of benchmark but config.
    """
    order = ("test_read_at", "id")
    return frame(conn, select_rows(tables.benchmark, *order, without=["config"], market=market))
