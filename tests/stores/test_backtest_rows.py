"""A backtest is begun, gets its folds, is finished once; its figures then stand."""

import pandas as pd
import pytest

from db.connection.user_sql import select
from db.engine import reading, transaction
from db.errors import StoreError
from db.read import read_row
from db.rows import backtests
from db.save import save
from db.views import views
from tests.support.backtest_rows import (
    COUNTS,
    NAME,
    NOW,
    backtest,
    portfolios,
    returns,
    scores,
)
from tests.support.prediction_rows import NEXT, STOCKS, predictions, run, save_stocks
from tests.support.stores import counts

TABLES = {"attention_weight", "backtest"} | {
    f"backtest_{each}" for each in ("fold", "portfolio", "return", "score")
}


@pytest.fixture
def store(engine):
    with transaction(engine) as conn:
        save_stocks(conn, STOCKS)
        for name in ("first", "second"):
            save(conn, "run", run(name, kind="backtest"))
        both = pd.concat([predictions("first"), predictions("second", NEXT)])
        save(conn, "prediction", both, market="toy", known_at=NOW, made_at=NOW)
        assert save(conn, "backtest", backtest()) == 1
    return engine


def finish(store, name=NAME, at=NOW, **changed):
    figures = {
        "scores": scores(),
        "returns": returns(),
        "portfolios": portfolios(),
        "counts": COUNTS,
    }
    with transaction(store) as conn:
        return backtests.finish_backtest(
            conn, name, finished_at=at, seconds=97.5, **(figures | changed)
        )


def counted(store):
    return {name: n for name, n in counts(store).items() if name in TABLES}


def test_a_figure_of_a_finished_backtest_is_never_rewritten(store):
    finish(store)
    gained = returns().assign(net=[0.01, -0.02, 0.0098, -0.0006])
    with pytest.raises(StoreError, match=f"{NAME} long, next open 2024-01-05 .*stays"):
        finish(store, returns=gained)
    with pytest.raises(StoreError, match=f"{NAME} .*with tried .*stays"):
        finish(store, counts=COUNTS | {"tried": 3})


def test_a_backtest_is_finished_wholly_or_not_at_all(store):
    before = counted(store)
    with pytest.raises(StoreError, match="ck_backtest_portfolio_figures"):
        finish(store, portfolios=portfolios().assign(max_drawdown=0.1))
    assert counted(store) == before
    with reading(store) as conn:
        assert (read_row(conn, "backtest", id=NAME) or {})["finished_at"] is None
    with pytest.raises(StoreError, match="other was never started"):
        finish(store, "other")


def test_the_summary_sets_a_portfolio_beside_the_rule_of_highest_mcc(store, reader):
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
