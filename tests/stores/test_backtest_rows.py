"""A backtest is begun, gets its folds, is finished once; its figures then stand."""

from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from db.admin.copying import table_counts
from db.connection.user_sql import select
from db.engine import reading, transaction
from db.errors import StoreError, StoreUsageError
from db.read import query, read, read_row
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
from tests.support.prediction_rows import NEXT, STOCKS, TARGET, predictions, run

TABLES = {"attention_weight", "backtest"} | {
    f"backtest_{each}" for each in ("fold", "portfolio", "return", "score")
}


@pytest.fixture
def store(engine: Engine) -> Engine:
    stocks = pd.DataFrame(
        {"symbol": STOCKS, "kind": "stock", "source_symbol": STOCKS, "name": None, "sector": None}
    )
    with transaction(engine) as conn:
        save(conn, "instrument", stocks, market="toy")
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


def keep_attention(store: Engine, frame: pd.DataFrame) -> int:
    with transaction(store) as conn:
        return save(conn, "attention_weight", frame, market="toy")


def counted(store: Engine) -> dict[str, int]:
    with reading(store) as conn:
        return {name: n for name, n in table_counts(conn).items() if name in TABLES}


def test_a_backtest_that_runs_has_no_figures_yet(store: Engine) -> None:
    with reading(store) as conn:
        missing = dict.fromkeys((*COUNTS, "finished_at", "seconds"))
        assert read_row(conn, "backtest", id=NAME) == backtest() | missing
        assert read(conn, "backtest_fold", backtest_id=NAME).empty
        assert read_row(conn, "backtest", id="nothing") is None


def test_a_backtest_comes_back_as_it_went_in(store: Engine, reader: Engine) -> None:
    assert add_folds(store, fold(2, "second"), fold()) == 2
    assert finish(store) == len(scores()) + len(returns()) + len(portfolios())
    with reading(reader) as conn:
        assert read_row(conn, "backtest", id=NAME) == backtest() | COUNTS | {
            "finished_at": NOW,
            "seconds": 97.5,
        }
        folds = read(conn, "backtest_fold", backtest_id=NAME)
        figures = ("backtest_score", "backtest_return", "backtest_portfolio")
        stored = [read(conn, table, backtest_id=NAME) for table in figures]
    assert folds["run_id"].tolist() == ["first", "second"]
    assert folds["first"].tolist() == folds["last"].tolist() == [TARGET, NEXT]
    assert [len(each) for each in folds["refused"]] == [0, 1]
    for given, kept in zip((scores(), returns(), portfolios()), stored, strict=True):
        pd.testing.assert_frame_equal(kept[list(given)], given, check_dtype=False)
        assert set(kept) == {"backtest_id", *given}
    assert stored[1]["session"].dtype == "datetime64[ns]"


def test_what_is_missing_is_null_and_not_zero(store: Engine, reader: Engine) -> None:
    finish(store)
    for table in (
        "backtest_portfolio where strategy is null and break_even is null",
        "backtest_score where acc is null",
    ):
        assert select(reader, f"select count(*) as n from {table}")["n"].tolist() == [1]


def test_a_rerun_adds_no_row_and_the_first_stands(store: Engine) -> None:
    add_folds(store, fold(), fold(2, "second"))
    finish(store)
    before = counted(store)
    with transaction(store) as conn:
        assert save(conn, "backtest", backtest(created_at=NOW + timedelta(days=1))) == 0
    assert add_folds(store, fold(seconds=9.0), fold(2, "second")) == 0
    assert (
        finish(
            store,
            at=NOW + timedelta(days=1),
            scores=scores().iloc[::-1],
            returns=returns().iloc[::-1],
        )
        == 0
    )
    assert counted(store) == before
    with reading(store) as conn:
        kept = read_row(conn, "backtest", id=NAME) or {}
        assert (kept["created_at"], kept["finished_at"]) == (NOW, NOW)
        assert read(conn, "backtest_fold", backtest_id=NAME)["seconds"].tolist() == [1.5, 1.5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"scores": scores().assign(rises=[3, 3, 3, 2, 2, 0])}, f"{NAME} symbol A all dtml"),
        (
            {"scores": scores().assign(acc=[0.6875, 0.76, 0.625, 0.5, 0.5, np.nan])},
            f"{NAME} all  all dtml",
        ),
        (
            {"returns": returns().assign(net=[0.01, -0.02, 0.0098, -0.0006])},
            f"{NAME} long, next open 2024-01-05",
        ),
        ({"portfolios": portfolios().assign(break_even=[1.0, 33.0])}, f"{NAME} index"),
        ({"counts": COUNTS | {"tried": 3}}, f"{NAME} .*with tried"),
    ],
)
def test_a_figure_of_a_finished_backtest_is_never_rewritten(
    store: Engine, changed: dict[str, Any], named: str
) -> None:
    finish(store)
    with pytest.raises(
        StoreError,
        match=rf"{named} .*stays.*finished backtest",
    ):
        finish(store, **changed)


def test_a_rounding_of_zero_is_no_other_figure(store: Engine) -> None:
    finish(store)
    assert finish(store, returns=returns().assign(borrow=1e-17)) == 0


@pytest.mark.parametrize(
    "changed", [{"run_id": "second"}, {"predictions": 2}, {"last": NEXT.date()}]
)
def test_a_fold_is_never_rewritten(store: Engine, changed: dict[str, Any]) -> None:
    add_folds(store, fold())
    with pytest.raises(
        StoreError,
        match=rf"{NAME} 1 .*already.* {next(iter(changed))} .*never rewritten",
    ):
        add_folds(store, fold(**changed))


def test_a_backtest_is_finished_wholly_or_not_at_all(store: Engine) -> None:
    before = counted(store)
    with pytest.raises(StoreError, match="ck_backtest_portfolio_figures"):
        finish(store, portfolios=portfolios().assign(max_drawdown=0.1))
    assert counted(store) == before
    with reading(store) as conn:
        assert (read_row(conn, "backtest", id=NAME) or {})["finished_at"] is None
    with pytest.raises(StoreError, match="other was never started"):
        finish(store, "other")


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ({"last": date(2024, 1, 4)}, "span"),
        ({"retrain_every": 0}, "counts"),
        ({"constituent_days": 1, "without_price": 2}, "counts"),
    ],
)
def test_a_backtest_that_makes_no_sense_is_refused(
    store: Engine, changed: dict[str, object], check: str
) -> None:
    with pytest.raises(StoreError, match=f"ck_backtest_{check}"), transaction(store) as conn:
        save(conn, "backtest", backtest("other", **changed))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", [{"slice": "week"}, {"value": "x"}, {"acc": 1.01}, {"mcc": -1.01}, {"rises": 7}]
)
def test_a_score_that_makes_no_sense_is_refused(store: Engine, changed: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=r"ck_backtest_score_(slice|ranges|counts)"):
        finish(store, scores=scores().head(1).assign(**changed))


def test_a_fold_sees_only_what_came_before_it_and_needs_its_run(store: Engine) -> None:
    with pytest.raises(StoreError, match="ck_backtest_fold_span"):
        add_folds(store, fold(as_of=TARGET.date()))
    with pytest.raises(StoreError, match=r"(?i)foreign key"):
        add_folds(store, fold(run_id="nothing"))


def test_the_predictions_of_a_backtest_are_those_of_its_folds(store: Engine) -> None:
    """A model may have predicted other sessions too: they are no part of it."""
    with transaction(store) as conn:
        save(
            conn, "prediction", predictions("first", NEXT), market="toy", known_at=NOW, made_at=NOW
        )
    add_folds(store, fold(), fold(2, "second"))
    with reading(store) as conn:
        made = query(conn, "backtest_predictions", backtest=NAME)
    given = pd.concat([predictions("first"), predictions("second", NEXT)], ignore_index=True)
    pd.testing.assert_frame_equal(made[list(given)], given, check_dtype=False)


def test_what_was_tried_before_are_the_strategies_of_the_other_backtests_of_the_market(
    store: Engine,
) -> None:
    with transaction(store) as conn:
        for name, market in (("other", "toy"), ("elsewhere", "far")):
            save(conn, "backtest", backtest(name, market=market))
    for name in (NAME, "other", "elsewhere"):
        finish(store, name)
    with reading(store) as conn:
        assert query(conn, "sharpe_ratios", market="toy", other_than=NAME)["sharpe"].tolist() == [
            4.0
        ]
        assert query(conn, "sharpe_ratios", market="toy", other_than="new")["sharpe"].tolist() == [
            4.0,
            4.0,
        ]
        assert query(conn, "sharpe_ratios", market="none", other_than=NAME)["sharpe"].tolist() == []


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
    spans = select(reader, "select first, last from backtest_summary").astype(str)
    assert spans.iloc[0].tolist() == ["2024-01-05", "2024-01-08"]


def test_of_two_rules_alike_the_summary_takes_one(store: Engine, reader: Engine) -> None:
    finish(store, scores=scores().assign(mcc=0.25))
    assert (
        select(reader, "select best_rule from backtest_summary")["best_rule"].tolist()
        == ["always_up"] * 2
    )


def test_a_backtest_without_scores_has_its_portfolios_in_the_summary(
    store: Engine, reader: Engine
) -> None:
    finish(store, scores=scores().head(0))
    assert select(reader, "select acc, best_rule from backtest_summary").isna().all(axis=None)


def test_attention_comes_back_as_it_went_in(store: Engine, reader: Engine) -> None:
    assert keep_attention(store, attention()) == 9
    with reading(reader) as conn:
        stored = read(
            conn,
            "attention_weight",
            columns="symbol, source, weight",
            run_id="first",
            target=TARGET.date(),
        )
        assert read(
            conn,
            "attention_weight",
            columns="symbol, source, weight",
            run_id="second",
            target=NEXT.date(),
        ).empty
    pd.testing.assert_frame_equal(
        stored, attention()[["symbol", "source", "weight"]], check_dtype=False
    )
    rows = select(reader, "select * from attention where symbol = 'C' order by source")
    assert list(rows) == list(views()["attention"].meanings())
    assert rows["weight"].tolist() == [0.125, 0.25, 0.625]
    assert rows[["market", "as_of", "target"]].astype(str).iloc[0].tolist() == [
        "toy",
        "2024-01-04",
        "2024-01-05",
    ]


def test_attention_once_stored_stands(store: Engine) -> None:
    keep_attention(store, attention().head(4))
    again = attention().assign(weight=attention()["weight"] + 1e-8)
    assert keep_attention(store, again) == 5
    assert keep_attention(store, again.head(0)) == 0
    with pytest.raises(
        StoreError,
        match=r"attention_weight: first 2024-01-05 B C .*already",
    ):
        keep_attention(
            store, attention().assign(weight=[0.5, 0.25, 0.25, 0.0, 1.0, 0.01, 0.125, 0.25, 0.625])
        )


def test_attention_needs_its_prediction_and_its_stocks(store: Engine) -> None:
    with pytest.raises(StoreError, match=r"(?i)foreign key"):
        keep_attention(store, attention(NEXT))
    with pytest.raises(StoreUsageError, match=r"not stored .*toy: Z"):
        keep_attention(store, attention().replace({"source": {"C": "Z"}}))
    with pytest.raises(StoreError, match="ck_attention_weight_weight"):
        keep_attention(store, attention().assign(weight=1.5))


def test_a_backtest_is_no_night(store: Engine, reader: Engine) -> None:
    add_folds(store, fold(), fold(2, "second"))
    finish(store)
    for view in ("latest_prediction", "daily_score", "night_log"):
        assert select(reader, f"select * from {view}").empty


def test_a_fold_of_one_number_is_another_in_each_backtest(store: Engine) -> None:
    second = fold(1, "second", as_of=TARGET.date(), first=NEXT.date(), last=NEXT.date())
    with transaction(store) as conn:
        save(conn, "backtest", backtest("other"))
        assert save(conn, "backtest_fold", second, backtest_id="other") == 1
    assert add_folds(store, fold()) == 1
    with reading(store) as conn:
        assert read(conn, "backtest_fold", backtest_id="other")["run_id"].tolist() == ["second"]
        assert read(conn, "backtest_fold", backtest_id=NAME)["run_id"].tolist() == ["first"]
    words = f"^backtest_fold: {NAME} 1 .*run_id first.*stays .*second:.*--from or --to"
    with pytest.raises(StoreError, match=words):
        add_folds(store, fold(run_id="second"))


def test_predictions_come_by_session_and_symbol_whatever_the_order_of_their_numbers(
    store: Engine,
) -> None:
    """B is renamed to Z: its number stays between those of A and C."""
    add_folds(store, fold(), fold(2, "second"))
    with transaction(store) as conn:
        conn.exec_driver_sql("update instrument set symbol = 'Z' where symbol = 'B'")
        found = query(conn, "backtest_predictions", backtest=NAME)
    assert found["symbol"].tolist() == ["A", "C", "Z"] * 2
    assert found["target"].tolist() == [TARGET] * 3 + [NEXT] * 3


def test_sharpe_ratios_come_by_backtest_and_portfolio(store: Engine) -> None:
    chosen = portfolios().iloc[-1:]
    for name, figures in (("b", {"y": 3.0, "x": 4.0}), ("a", {"z": 1.0, "w": 2.0})):
        with transaction(store) as conn:
            save(conn, "backtest", backtest(name))
        rows = [
            chosen.assign(portfolio=portfolio, sharpe=sharpe)
            for portfolio, sharpe in figures.items()
        ]
        finish(store, name, portfolios=pd.concat(rows))
    with reading(store) as conn:
        assert query(conn, "sharpe_ratios", market="toy", other_than=NAME)["sharpe"].tolist() == [
            2.0,
            1.0,
            4.0,
            3.0,
        ]
        assert query(conn, "sharpe_ratios", market="toy", other_than="a")["sharpe"].tolist() == [
            4.0,
            3.0,
        ]
