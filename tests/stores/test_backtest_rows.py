"""A backtest is begun, gets its folds, is finished once; its figures then stand."""

from datetime import datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import Engine

from db.admin.copying import table_counts
from db.connection.user_sql import select
from db.engine import reading, transaction
from db.errors import StoreError
from db.read import query, read_row
from db.rows import backtests
from db.save import save
from db.views import views
from tests.support.backtest_rows import (
    COUNTS,
    NAME,
    NOW,
    attention,
    backtest,
    fold,
    portfolios,
    returns,
    scores,
)
from tests.support.prediction_rows import NEXT, STOCKS, TARGET, predictions, run, save_stocks

TABLES = {"attention_weight", "backtest"} | {
    f"backtest_{each}" for each in ("fold", "portfolio", "return", "score")
}


@pytest.fixture
def store(engine: Engine) -> Engine:
    with transaction(engine) as conn:
        save_stocks(conn, STOCKS)
        for name in ("first", "second"):
            save(conn, "run", run(name, kind="backtest"))
        both = pd.concat([predictions("first"), predictions("second", NEXT)])
        save(conn, "prediction", both, market="toy", known_at=NOW, made_at=NOW)
        assert save(conn, "backtest", backtest()) == 1
    return engine


def add_folds(store: Engine, *folds: dict[str, Any]) -> int:
    with transaction(store) as conn:
        return sum(save(conn, "backtest_fold", each, backtest_id=NAME) for each in folds)


def finish(store: Engine, name: str = NAME, at: datetime = NOW, **changed: Any) -> int:
    figures: dict[str, Any] = {
        "scores": scores(),
        "returns": returns(),
        "portfolios": portfolios(),
        "counts": COUNTS,
    }
    with transaction(store) as conn:
        return backtests.finish_backtest(
            conn, name, finished_at=at, seconds=97.5, **(figures | changed)
        )


def counted(store: Engine) -> dict[str, int]:
    with reading(store) as conn:
        return {name: n for name, n in table_counts(conn).items() if name in TABLES}


def test_a_backtest_has_its_figures_once_it_is_finished(store: Engine) -> None:
    missing = dict.fromkeys((*COUNTS, "finished_at", "seconds"))
    with reading(store) as conn:
        assert read_row(conn, "backtest", id=NAME) == backtest() | missing
    assert finish(store) == len(scores()) + len(returns()) + len(portfolios())
    finished = {"finished_at": NOW, "seconds": 97.5}
    with reading(store) as conn:
        assert read_row(conn, "backtest", id=NAME) == backtest() | COUNTS | finished


def test_a_backtest_is_finished_once(store: Engine) -> None:
    finish(store)
    later = NOW + timedelta(days=1)
    assert finish(store, at=later, scores=scores().iloc[::-1], returns=returns().iloc[::-1]) == 0
    with reading(store) as conn:
        assert (read_row(conn, "backtest", id=NAME) or {})["finished_at"] == NOW


def test_a_figure_of_a_finished_backtest_is_never_rewritten(store: Engine) -> None:
    finish(store)
    gained = returns().assign(net=[0.01, -0.02, 0.0098, -0.0006])
    with pytest.raises(StoreError, match=f"{NAME} long, next open 2024-01-05 .*stays"):
        finish(store, returns=gained)
    with pytest.raises(StoreError, match=f"{NAME} .*with tried .*stays"):
        finish(store, counts=COUNTS | {"tried": 3})


def test_a_backtest_is_finished_wholly_or_not_at_all(store: Engine) -> None:
    before = counted(store)
    with pytest.raises(StoreError, match="ck_backtest_portfolio_figures"):
        finish(store, portfolios=portfolios().assign(max_drawdown=0.1))
    assert counted(store) == before
    with reading(store) as conn:
        assert (read_row(conn, "backtest", id=NAME) or {})["finished_at"] is None
    with pytest.raises(StoreError, match="other was never started"):
        finish(store, "other")


def test_the_summary_sets_a_portfolio_beside_the_rule_of_highest_mcc(
    store: Engine, reader: Engine
) -> None:
    finish(store)
    rows = select(reader, "select * from backtest_summary order by portfolio")
    assert list(rows) == list(views()["backtest_summary"].meanings())
    assert rows["portfolio"].tolist() == ["index", "long, next open"]
    assert set(rows["best_rule"]) == {"index_reversal"}
    assert (
        rows[["acc", "acc_low", "mcc", "rule_acc", "rule_mcc", "n", "tried"]].to_numpy().tolist()
        == [[0.75, 0.5, 0.5, 0.625, 0.25, 6, 2]] * 2
    )
    assert rows[["first", "last"]].astype(str).iloc[0].tolist() == ["2024-01-05", "2024-01-08"]


def test_the_summary_takes_one_of_two_rules_alike_and_needs_no_score(
    store: Engine, reader: Engine
) -> None:
    with transaction(store) as conn:
        save(conn, "backtest", backtest("unscored"))
    finish(store, scores=scores().assign(mcc=0.25))
    finish(store, "unscored", scores=scores().head(0))
    rows = select(reader, "select best_rule, acc from backtest_summary order by best_rule")
    found = rows["best_rule"].dropna()
    assert (len(rows), found.tolist()) == (4, ["always_up"] * 2)
    assert rows["acc"].isna().sum() == 2


def test_the_view_of_attention_names_market_and_days(store: Engine, reader: Engine) -> None:
    with transaction(store) as conn:
        save(conn, "attention_weight", attention(), market="toy")
    rows = select(reader, "select * from attention where symbol = 'C' order by source")
    assert rows["weight"].tolist() == [0.125, 0.25, 0.625]
    days = rows[["market", "as_of", "target"]].astype(str)
    assert days.iloc[0].tolist() == ["toy", "2024-01-04", "2024-01-05"]


def test_a_backtest_is_no_night(store: Engine, reader: Engine) -> None:
    add_folds(store, fold(), fold(2, "second"))
    finish(store)
    for view in ("latest_prediction", "daily_score", "night_log"):
        assert select(reader, f"select * from {view}").empty


def test_the_predictions_of_a_backtest_are_those_of_its_folds_by_session_and_symbol(
    store: Engine,
) -> None:
    """A model may have predicted other sessions too. B is renamed to Z, and keeps its number."""
    elsewhere = predictions("first", NEXT)
    with transaction(store) as conn:
        save(conn, "prediction", elsewhere, market="toy", known_at=NOW, made_at=NOW)
        conn.exec_driver_sql("update instrument set symbol = 'Z' where symbol = 'B'")
    add_folds(store, fold(), fold(2, "second"))
    with reading(store) as conn:
        found = query(conn, "backtest_predictions", backtest=NAME)
    given = pd.concat([predictions("first"), predictions("second", NEXT)], ignore_index=True)
    given = given.replace({"symbol": {"B": "Z"}}).sort_values(["target", "symbol"])
    pd.testing.assert_frame_equal(
        found[list(given)], given.reset_index(drop=True), check_dtype=False
    )


def test_sharpe_ratios_are_those_of_other_backtests_of_the_market_by_backtest_and_portfolio(
    store: Engine,
) -> None:
    chosen = portfolios().iloc[-1:]
    tried = {"b": {"y": 3.0, "x": 4.0}, "a": {"z": 1.0, "w": 2.0}, "elsewhere": {"v": 5.0}}
    for name, figures in tried.items():
        market = "far" if name == "elsewhere" else "toy"
        with transaction(store) as conn:
            save(conn, "backtest", backtest(name, market=market))
        rows = [
            chosen.assign(portfolio=portfolio, sharpe=sharpe)
            for portfolio, sharpe in figures.items()
        ]
        finish(store, name, portfolios=pd.concat(rows))
    with reading(store) as conn:
        of_others = query(conn, "sharpe_ratios", market="toy", other_than=NAME)
        of_one = query(conn, "sharpe_ratios", market="toy", other_than="a")
        of_none = query(conn, "sharpe_ratios", market="none", other_than=NAME)
    assert of_others["sharpe"].tolist() == [2.0, 1.0, 4.0, 3.0]
    assert of_one["sharpe"].tolist() == [4.0, 3.0]
    assert of_none.empty


def test_the_counts_of_a_backtest_are_those_of_its_own_folds(store: Engine) -> None:
    add_folds(store, fold())
    counts = pd.DataFrame(
        {"run_id": ["first", "first", "second"], "target": [TARGET, NEXT, TARGET], "level": 0.8}
    )
    counts = counts.assign(n=5, covered=4, decided=3, decided_correct=2)
    with transaction(store) as conn:
        save(conn, "abstention_count", counts)
        found = query(conn, "fold_counts", backtest=NAME)
    assert found[["run_id", "target"]].to_numpy().tolist() == [["first", TARGET]]
