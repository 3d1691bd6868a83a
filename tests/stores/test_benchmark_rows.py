"""A benchmark is stored once, as it was read: its figures, and every seed behind them."""

import pandas as pd
import pytest

from db.connection.user_sql import select
from db.engine import transaction
from db.rows import backtests, rankings
from db.rows.predictions import prediction_history
from db.rows.runs import latest_trained
from db.save import save
from db.views import views
from tests.support.benchmark_rows import (
    NOW,
    benchmark,
    ranking,
    ranking_differences,
    ranking_portfolios,
    ranking_scores,
    scores,
    seeds_of_models,
)
from tests.support.prediction_rows import STOCKS, predictions, run, save_stocks


@pytest.fixture
def store(engine):
    with transaction(engine) as conn:
        save(conn, "run", run(kind="benchmark"))
        weightless = {"checkpoint_path": None, "checkpoint_hash": None}
        save(conn, "run", run("trees", kind="benchmark", model="gradient_boosting", **weightless))
    return engine


def keep(store, best_rule="index_reversal"):
    kept = benchmark(best_rule=best_rule)
    with transaction(store) as conn:
        new = backtests.save_benchmark(conn, kept, scores(), seeds_of_models())
    assert new == 1 + len(scores()) + len(seeds_of_models())


def test_the_view_run_score_sets_a_figure_beside_the_printed_one(store, reader):
    keep(store)
    rows = select(reader, "select * from run_score order by acc desc")
    assert list(rows) == list(views()["run_score"].meanings())
    assert rows["predictor"].tolist() == ["dtml", "gradient_boosting", "index_reversal"]
    assert rows["is_rule"].tolist() == rows["is_best_rule"].tolist() == [0, 0, 1]
    assert rows["published_acc"].fillna(-1).tolist() == [0.125, -1, -1]
    assert set(rows["market"]) == {"toy"}
    assert set(rows["test_first"].astype(str)) == {"2015-10-01"}


def test_a_benchmark_changes_no_night(store, reader):
    """A market may hold both: its newest prediction and its daily scores are
    those of nights alone.
    """
    keep(store)
    with transaction(store) as conn:
        save_stocks(conn, STOCKS)
        save(conn, "prediction", predictions(), market="toy", known_at=NOW, made_at=NOW)
        assert latest_trained(conn, "run", "toy") is None
        assert prediction_history(conn, market="toy").empty
        assert (
            prediction_history(conn, market="toy", kind="benchmark")["run_id"].tolist()
            == ["first"] * 3
        )
    assert (
        select(reader, "select kind from prediction_history")["kind"].tolist() == ["benchmark"] * 3
    )
    for view in ("latest_prediction", "daily_score"):
        assert select(reader, f"select * from {view}").empty


def test_a_ranking_stands_beside_the_rule_that_is_strongest_on_its_days(engine, reader):
    """The blend is far ahead of the rule chosen beforehand, and equals another."""
    chosen, twin = ranking()["best_rule"], "low_volatility"
    of_scores, differences = ranking_scores(), ranking_differences()
    is_of_chosen = of_scores["predictor"] == chosen
    is_over_chosen = (differences["predictor"] == "blend") & (differences["other"] == chosen)
    with transaction(engine) as conn:
        rankings.save_ranking(
            conn,
            ranking(),
            pd.concat([of_scores, of_scores[is_of_chosen].assign(predictor=twin)]),
            pd.concat([differences, differences[is_over_chosen].assign(other=twin, gain=0.0002)]),
            ranking_portfolios(),
        )
    (row,) = select(reader, "select best_rule, gain from ranking_summary").to_dict("records")
    assert row == {"best_rule": twin, "gain": 0.0002}
