"""The pages of backtests and benchmarks, from what the store holds of them."""

import pandas as pd
from sqlalchemy import Connection

from db.rows import backtests, benchmarks
from dtml.pages.backtest import backtest_page
from dtml.pages.benchmark import benchmark_page
from flows.dashboard.market import NotThereError


def study_page(conn: Connection, kind: str, name: str) -> str:
    """Return the page of a backtest or a benchmark; raise NotThereError for one that is not stored or not finished.

    What is computed from its predictions and not stored, rolling scores and calibration, is on the report alone.
    """
    row = backtests.backtest(conn, name) if kind == "backtest" else benchmarks.benchmark(conn, name)
    if row is None or (kind == "backtest" and row["finished_at"] is None):
        raise NotThereError(f"no finished {kind} {name!r} in the store")
    if kind == "benchmark":
        scores, seeds = benchmarks.benchmark_scores(conn, name), benchmarks.benchmark_seeds(conn, name)
        return benchmark_page(benchmark=row, scores=scores, seed_scores=seeds, served=True)
    return backtest_page(
        backtest=row,
        folds=backtests.backtest_folds(conn, name),
        scores=backtests.backtest_scores(conn, name),
        tracks=backtests.backtest_returns(conn, name),
        performances=backtests.backtest_portfolios(conn, name),
        rolling=pd.DataFrame(),
        curve=pd.DataFrame(),
        coverage=pd.DataFrame(),
        served=True,
    )
