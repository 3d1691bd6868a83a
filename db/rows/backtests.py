"""Backtests: each begun, given its folds one by one, and finished with its
figures, which are never changed.
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
from db.connection.frames import frame, row, row_of, rows_of
from db.errors import StoreError
from db.rows.outcomes import of_fold
from db.views import view

COUNTS = ("stocks", "constituent_days", "without_price", "tried", "expected_best")


def backtest(conn: Connection, name: str) -> dict[str, Any] | None:
    """Return the row of the backtest of a name; None when there is none."""
    return row_of(conn, tables.backtest, "id", name)


def backtest_folds(conn: Connection, name: str) -> pd.DataFrame:
    """Return the folds of a backtest that are done: the columns of backtest_fold but
    backtest_id.
    """
    return rows_of(conn, tables.backtest_fold, "backtest_id", name)


def backtest_scores(conn: Connection, name: str) -> pd.DataFrame:
    """Return the figures of a backtest by slice, value, protocol and predictor: the columns of
    backtest_score but backtest_id.
    """
    return rows_of(conn, tables.backtest_score, "backtest_id", name)


def backtest_returns(conn: Connection, name: str) -> pd.DataFrame:
    """Return the daily returns of a backtest by portfolio and session: the columns of
    backtest_return but backtest_id.
    """
    return rows_of(conn, tables.backtest_return, "backtest_id", name)


def backtest_portfolios(conn: Connection, name: str) -> pd.DataFrame:
    """Return the figures of a backtest by portfolio: the columns of backtest_portfolio but
    backtest_id.
    """
    return rows_of(conn, tables.backtest_portfolio, "backtest_id", name)


def save_backtest(conn: Connection, backtest: Mapping[str, object]) -> int:
    """Store a backtest as it begins, the columns known by then by name; 0 where it is stored."""
    return save_row(conn, tables.backtest, backtest)


def save_fold(conn: Connection, backtest_id: str, fold: Mapping[str, object]) -> int:
    """Store a fold, whose run is stored: the columns of backtest_fold but backtest_id.

    The first of a number stands.

    Raises StoreError when that number is stored with another run or other sessions.
    """
    table = tables.backtest_fold
    mine = sa.select(table).where(
        table.c.backtest_id == backtest_id, table.c.number == fold["number"]
    )
    stored = row(conn, mine) or fold
    for name in ("run_id", "as_of", "first", "last", "predictions"):
        if stored[name] != fold[name]:
            raise StoreError(
                f"fold {fold['number']} of {backtest_id} is already stored with {name} "
                f"{stored[name]}, "
                f"not {fold[name]}: a fold is never rewritten"
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
    """Store the figures of a backtest that was begun, and that it is finished; return how many rows
    were new.

    `scores`, `returns`, `portfolios` hold the columns of backtest_score, backtest_return,
    backtest_portfolio but backtest_id; what has no value is NaN or None. `counts` holds what
    `COUNTS` names. Figures of a finished backtest stand: raises StoreError, naming it, when one is
    stored with another value.
    """
    stored = backtest(conn, backtest_id)
    if stored is None:
        raise StoreError(f"backtest {backtest_id} was never started")
    counted = {name: counts[name] for name in COUNTS}
    if stored["finished_at"] is None:
        begun = sa.update(tables.backtest).where(tables.backtest.c.id == backtest_id)
        conn.execute(begun.values(**counted, finished_at=finished_at, seconds=seconds))
    elif changed := [name for name in COUNTS if stored[name] != counted[name]]:
        raise StoreError(
            f"{backtest_id} {changed[0]} is already stored with a different figure: a finished "
            "backtest cannot change"
        )
    why = "a finished backtest cannot change"
    owner = "backtest_id"
    new = save_figures(conn, tables.backtest_score, owner, backtest_id, scores, why=why)
    new += save_figures(conn, tables.backtest_return, owner, backtest_id, returns, why=why)
    new += save_figures(conn, tables.backtest_portfolio, owner, backtest_id, portfolios, why=why)
    return new


def backtest_predictions(conn: Connection, backtest_id: str) -> pd.DataFrame:
    """Return what the folds that are done predicted, by target and symbol; NaN is missing.

    Columns: run_id, as_of, target, symbol, probability, probability_std.
    """
    made, fold, stock = tables.prediction.c, tables.backtest_fold, tables.instrument.c
    columns = (
        made.run_id,
        made.as_of,
        made.target,
        stock.symbol,
        made.probability,
        made.probability_std,
    )
    joined = fold.join(tables.prediction, of_fold(tables.prediction)).join(tables.instrument)
    statement = sa.select(*columns).select_from(joined).where(fold.c.backtest_id == backtest_id)
    return frame(conn, statement.order_by(made.target, stock.symbol))


def newest_summary(conn: Connection, market: str) -> pd.DataFrame:
    """Return the rows of backtest_summary of the market's backtest that
    finished last; maybe none.
    """
    of = view("backtest_summary").c
    last = (
        sa.select(of.backtest_id)
        .where(of.market == market)
        .order_by(of.finished_at.desc())
        .limit(1)
    )
    return frame(
        conn, sa.select(*of).where(of.backtest_id == last.scalar_subquery()).order_by(of.portfolio)
    )


def sharpe_ratios(conn: Connection, market: str, *, other_than: str) -> NDArray[np.float64]:
    """Return the Sharpe ratio a year of each portfolio of predictions in the
    market's other finished backtests.
    """
    table, of = tables.backtest_portfolio, tables.backtest
    joined = table.join(of, of.c.id == table.c.backtest_id)
    mine = (
        of.c.market == market,
        of.c.id != other_than,
        table.c.strategy.is_not(None),
        table.c.sharpe.is_not(None),
    )
    statement = (
        sa.select(table.c.sharpe)
        .select_from(joined)
        .where(*mine)
        .order_by(of.c.id, table.c.portfolio)
    )
    return np.array(conn.execute(statement).scalars().all(), dtype=float)
