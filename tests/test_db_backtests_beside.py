"""Backtests side by side in one store: each has its own folds and figures, read in a known order."""

import pandas as pd
import pytest
from made_backtest_rows import NAME, backtest, fold, portfolios
from sqlalchemy import Engine
from test_db_backtests import add_folds, finish, store  # noqa: F401 - a fixture
from test_db_predictions import NEXT, TARGET

from db.engine import reading, transaction
from db.errors import StoreError
from db.rows import backtests


def test_a_fold_of_one_number_is_another_in_each_backtest(store: Engine) -> None:  # noqa: F811
    second = fold(1, "second", as_of=TARGET.date(), first=NEXT.date(), last=NEXT.date())
    with transaction(store) as conn:
        backtests.save_backtest(conn, backtest("other"))
        assert backtests.save_fold(conn, "other", second) == 1
    assert add_folds(store, fold()) == 1
    with reading(store) as conn:
        assert backtests.backtest_folds(conn, "other")["run_id"].tolist() == ["second"]
        assert backtests.backtest_folds(conn, NAME)["run_id"].tolist() == ["first"]
    words = f"^fold 1 of {NAME} is stored with run_id first, not second: a fold is never rewritten$"
    with pytest.raises(StoreError, match=words):
        add_folds(store, fold(run_id="second"))


def test_predictions_come_by_session_and_symbol_whatever_the_order_of_their_numbers(store: Engine) -> None:  # noqa: F811
    """B is renamed to Z: its number stays between those of A and C."""
    add_folds(store, fold(), fold(2, "second"))
    with transaction(store) as conn:
        conn.exec_driver_sql("update instrument set symbol = 'Z' where symbol = 'B'")
        found = backtests.backtest_predictions(conn, NAME)
    assert found["symbol"].tolist() == ["A", "C", "Z"] * 2
    assert found["target"].tolist() == [TARGET] * 3 + [NEXT] * 3


def test_sharpe_ratios_come_by_backtest_and_portfolio(store: Engine) -> None:  # noqa: F811
    chosen = portfolios().iloc[-1:]
    for name, figures in (("b", {"y": 3.0, "x": 4.0}), ("a", {"z": 1.0, "w": 2.0})):
        with transaction(store) as conn:
            backtests.save_backtest(conn, backtest(name))
        rows = [chosen.assign(portfolio=portfolio, sharpe=sharpe) for portfolio, sharpe in figures.items()]
        finish(store, name, portfolios=pd.concat(rows))
    with reading(store) as conn:
        assert backtests.sharpe_ratios(conn, "toy", other_than=NAME).tolist() == [2.0, 1.0, 4.0, 3.0]
        assert backtests.sharpe_ratios(conn, "toy", other_than="a").tolist() == [4.0, 3.0]
