"""The pages of backtests, benchmarks and rankings, from what the store holds of them."""

import pandas as pd
from sqlalchemy import Connection

from db.rows import backtests, benchmarks, rankings
from dtml.pages.backtest import backtest_page
from dtml.pages.benchmark import benchmark_page
from dtml.pages.ranking import Ranking, ranking_page
from flows.dashboard.market import NotThereError


def study_page(conn: Connection, kind: str, name: str) -> str:
    """Return the page of a study of a kind; raise NotThereError for one that is not stored or not finished.

    What is computed from its predictions and not stored, rolling scores and calibration, is on the report alone.
    """
    read = {"backtest": backtests.backtest, "benchmark": benchmarks.benchmark, "ranking": rankings.ranking}
    row = read[kind](conn, name)
    if row is None or (kind == "backtest" and row["finished_at"] is None):
        raise NotThereError(f"no finished {kind} {name!r} in the store")
    if kind == "benchmark":
        scores, seeds = benchmarks.benchmark_scores(conn, name), benchmarks.benchmark_seeds(conn, name)
        return benchmark_page(benchmark=row, scores=scores, seed_scores=seeds, served=True)
    if kind == "ranking":
        tables = (rankings.ranking_scores, rankings.ranking_differences, rankings.ranking_portfolios)
        return ranking_page(Ranking(row, *(each(conn, name) for each in tables)), served=True)
    return backtest_page(
        backtest=row, folds=backtests.backtest_folds(conn, name), scores=backtests.backtest_scores(conn, name),
        tracks=backtests.backtest_returns(conn, name), performances=backtests.backtest_portfolios(conn, name),
        rolling=pd.DataFrame(), curve=pd.DataFrame(), coverage=pd.DataFrame(), served=True,
    )  # fmt: skip
