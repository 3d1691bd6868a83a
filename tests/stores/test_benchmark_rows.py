"""A benchmark is stored once, as it was read: its figures, and every seed behind them."""

from datetime import date, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from db.connection.user_sql import select
from db.engine import reading, transaction
from db.errors import StoreError
from db.read import read, read_row
from db.rows import backtests, predictions, rankings
from db.rows.runs import latest_trained
from db.save import save
from db.views import views
from tests.support.benchmark_rows import (
    FIGURES,
    NAME,
    NOW,
    benchmark,
    ranking,
    ranking_differences,
    ranking_portfolios,
    ranking_scores,
    scores,
    seeds_of_models,
)
from tests.support.prediction_rows import run


@pytest.fixture
def store(engine: Engine) -> Engine:
    with transaction(engine) as conn:
        save(conn, "run", run(kind="benchmark"))
        weightless = {"checkpoint_path": None, "checkpoint_hash": None}
        save(conn, "run", run("trees", kind="benchmark", model="gradient_boosting", **weightless))
    return engine


def keep(store: Engine, kept: dict[str, Any], figures: pd.DataFrame, seeds: pd.DataFrame) -> int:
    with transaction(store) as conn:
        return backtests.save_benchmark(conn, kept, figures, seeds)


def test_a_benchmark_comes_back_as_it_went_in(store: Engine, reader: Engine) -> None:
    assert keep(store, benchmark(), scores(), seeds_of_models()) == 1 + 3 + 4
    with reading(reader) as conn:
        assert read_row(conn, "benchmark", id=NAME) == benchmark()
        stored, seeds = (
            read(conn, "benchmark_score", benchmark_id=NAME, order="protocol, predictor"),
            read(conn, "benchmark_seed", benchmark_id=NAME),
        )
    assert set(stored) == {"benchmark_id", *scores(), *FIGURES}
    pd.testing.assert_frame_equal(stored[list(scores())], scores(), check_dtype=False)
    given = seeds_of_models()
    pd.testing.assert_frame_equal(seeds[list(given)], given, check_dtype=False)
    assert (stored["is_rule"].dtype, stored["seeds"].dtype, seeds["best_epoch"].dtype) == (
        "bool",
        "Int64",
        "Int64",
    )


def test_what_is_missing_is_null_and_not_zero(store: Engine, reader: Engine) -> None:
    keep(store, benchmark(seconds=None), scores(), seeds_of_models())
    asked = (
        "select count(*) as n from benchmark_score where brier is null and run_id is null and "
        "seeds is null"
    )
    assert select(reader, asked)["n"].tolist() == [1]
    with reading(reader) as conn:
        assert (read_row(conn, "benchmark", id=NAME) or {})["seconds"] is None


def test_a_rerun_adds_no_row_and_the_first_reading_stands(store: Engine) -> None:
    keep(store, benchmark(), scores(), seeds_of_models())
    again = benchmark(test_read_at=NOW + timedelta(days=1))
    assert (
        keep(store, again, scores().iloc[::-1], seeds_of_models().sample(frac=1, random_state=3))
        == 0
    )
    with reading(store) as conn:
        assert read_row(conn, "benchmark", id=NAME) == benchmark()
        assert (
            len(read(conn, "benchmark_score", benchmark_id=NAME, order="protocol, predictor")) == 3
        )


def test_a_rerun_adds_what_was_missing(store: Engine) -> None:
    assert keep(store, benchmark(), scores().head(1), seeds_of_models().head(0)) == 2
    assert keep(store, benchmark(), scores(), seeds_of_models()) == 2 + 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value"), [("acc", 0.57), ("brier", np.nan), ("published_mcc", 0.2)]
)
def test_a_figure_of_the_test_is_never_rewritten(store: Engine, column: str, value: float) -> None:
    keep(store, benchmark(), scores(), seeds_of_models())
    other = scores()
    other.loc[0, column] = value
    with pytest.raises(
        StoreError,
        match=rf"{NAME} dtml published .*already.*:.*test span",
    ):
        keep(store, benchmark(), other, seeds_of_models())
    with reading(store) as conn:
        pd.testing.assert_frame_equal(
            read(conn, "benchmark_score", benchmark_id=NAME, order="protocol, predictor")[FIGURES],
            scores()[FIGURES],
        )


def test_a_seed_is_never_rewritten_and_given_once(store: Engine) -> None:
    keep(store, benchmark(), scores(), seeds_of_models())
    with pytest.raises(StoreError, match=rf"{NAME} dtml 1 0 .*already"):
        keep(store, benchmark(), scores(), seeds_of_models().assign(acc=[np.nan, 0.6, 0.625, 0.53]))
    with pytest.raises(StoreError, match=r"dtml 0 0 .*duplicated"):
        keep(store, benchmark("other"), scores(), seeds_of_models().assign(configuration=0, seed=0))


def test_figures_come_by_protocol_and_then_predictor_and_benchmarks_of_one_moment_by_name(
    store: Engine,
) -> None:
    both = pd.concat([scores(), scores().assign(protocol="all")])
    for name in ("b", "a"):
        keep(store, benchmark(id=name), both, seeds_of_models())
    with reading(store) as conn:
        found = (
            read(conn, "benchmark_score", benchmark_id="a", order="protocol, predictor")[
                ["protocol", "predictor"]
            ]
            .to_numpy()
            .tolist()
        )
        assert read(conn, "benchmark", order="test_read_at, id")["id"].tolist() == ["a", "b"]
    assert found == [
        [protocol, name] for protocol in ("all", "published") for name in scores()["predictor"]
    ]


def test_a_rounding_of_zero_is_no_other_figure_and_another_one_of_a_seed_says_why(
    store: Engine,
) -> None:
    keep(store, benchmark(), scores(), seeds_of_models())
    assert keep(store, benchmark(), scores(), seeds_of_models().replace({"mcc": {0.0: 9e-13}})) == 0
    words = f"^benchmark_seed: {NAME} dtml 1 0 .*already.*:.*same command"
    with pytest.raises(StoreError, match=words):
        keep(store, benchmark(), scores(), seeds_of_models().replace({"mcc": {0.0: 2e-12}}))


def test_a_score_needs_its_run(store: Engine) -> None:
    with pytest.raises(StoreError, match=r"(?i)foreign key"):
        keep(store, benchmark(), scores().assign(run_id="nothing"), seeds_of_models())
    with reading(store) as conn:
        assert read_row(conn, "benchmark", id=NAME) is None


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ({"train_last": date(2015, 8, 3)}, "spans"),
        ({"validation_last": date(2015, 10, 1)}, "spans"),
        ({"test_last": date(2015, 9, 30)}, "spans"),
        ({"stocks": 0}, "counts"),
    ],
)
def test_a_benchmark_that_makes_no_sense_is_refused(
    store: Engine, changed: dict[str, object], check: str
) -> None:
    with pytest.raises(StoreError, match=f"ck_benchmark_{check}"):
        keep(store, benchmark(**changed), scores(), seeds_of_models())


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", [{"acc": 1.01}, {"mcc": -1.01}, {"auc": -0.01}, {"rises": 3721}, {"protocol": "x"}]
)
def test_a_score_that_makes_no_sense_is_refused(store: Engine, changed: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=r"ck_benchmark_score_(ranges|counts|protocol)"):
        keep(store, benchmark(), scores().assign(**changed), seeds_of_models())


def test_half_an_epoch_is_refused(store: Engine) -> None:
    with pytest.raises(StoreError, match=r"benchmark_seed\.best_epoch .*whole numbers"):
        keep(store, benchmark(), scores(), seeds_of_models().assign(best_epoch=0.5))


def test_benchmarks_are_listed_by_when_their_test_was_read(store: Engine) -> None:
    later = NOW + timedelta(days=1)
    none = scores().head(0), seeds_of_models().head(0)
    keep(store, benchmark("b-late", test_read_at=later), *none)
    keep(store, benchmark(), *none)
    keep(store, benchmark("elsewhere", market="other", test_read_at=later), *none)
    with reading(store) as conn:
        listed = read(conn, "benchmark", market="toy", order="test_read_at, id")
        assert len(read(conn, "benchmark", order="test_read_at, id")) == 3
        assert read_row(conn, "benchmark", id="nothing") is None
        assert read(
            conn, "benchmark_score", benchmark_id="nothing", order="protocol, predictor"
        ).empty
    assert listed["id"].tolist() == [NAME, "b-late"]
    assert (listed["test_last"].dtype, str(listed["test_read_at"].dt.tz)) == (
        "datetime64[ns]",
        "UTC",
    )


def test_the_view_run_score_sets_a_figure_beside_the_printed_one(
    store: Engine, reader: Engine
) -> None:
    keep(store, benchmark(), scores(), seeds_of_models())
    rows = select(reader, "select * from run_score order by acc desc")
    assert list(rows) == list(views()["run_score"].meanings())
    assert rows["predictor"].tolist() == ["dtml", "gradient_boosting", "index_reversal"]
    assert rows["is_rule"].tolist() == rows["is_best_rule"].tolist() == [0, 0, 1]
    assert rows["published_acc"].fillna(-1).tolist() == [0.125, -1, -1]
    assert set(rows["market"]) == {"toy"}
    assert set(rows["test_first"].astype(str)) == {"2015-10-01"}


def test_only_the_chosen_rule_is_the_best(store: Engine, reader: Engine) -> None:
    keep(store, benchmark(best_rule="always_up"), scores(), seeds_of_models())
    assert select(reader, "select is_best_rule from run_score")["is_best_rule"].tolist() == [
        0,
        0,
        0,
    ]


def test_the_view_benchmark_configuration_shows_the_spread_of_the_seeds(
    store: Engine, reader: Engine
) -> None:
    keep(store, benchmark(), scores(), seeds_of_models())
    rows = select(reader, "select * from benchmark_configuration order by predictor, configuration")
    assert rows["seeds"].tolist() == [1, 2, 1]
    assert rows["kept"].tolist() == [0, 1, 1]
    assert rows["validation_acc"].tolist() == [0.5, 0.625, 0.5]
    dtml = rows.iloc[1]
    assert [dtml[each] for each in ("acc_min", "acc_mean", "acc_max")] == [0.5, 0.5625, 0.625]
    assert [dtml[each] for each in ("mcc_min", "mcc_mean", "mcc_max")] == [0.0, 0.125, 0.25]
    assert rows["acc_mean"].isna().tolist() == [True, False, False]
    assert "hidden" in str(dtml["settings"])


def test_a_benchmark_changes_no_night(store: Engine, reader: Engine) -> None:
    """A market may hold both: its newest prediction and its daily scores are
    those of nights alone.
    """
    keep(store, benchmark(), scores(), seeds_of_models())
    stocks = pd.DataFrame(
        {"symbol": ["A"], "kind": "stock", "source_symbol": "A", "name": None, "sector": None}
    )
    days = {"as_of": pd.Timestamp("2024-01-04"), "target": pd.Timestamp("2024-01-05")}
    made = pd.DataFrame(
        {"run_id": ["first"], "symbol": "A", "probability": 0.75, "probability_std": 0.0, **days}
    )
    with transaction(store) as conn:
        save(conn, "instrument", stocks, market="toy")
        save(conn, "prediction", made, market="toy", known_at=NOW, made_at=NOW)
        assert latest_trained(conn, "run", "toy") is None
        assert predictions.prediction_history(conn, market="toy").empty
        assert predictions.prediction_history(conn, market="toy", kind="benchmark")[
            "run_id"
        ].tolist() == ["first"]
    assert select(reader, "select kind from prediction_history")["kind"].tolist() == ["benchmark"]
    for view in ("latest_prediction", "daily_score"):
        assert select(reader, f"select * from {view}").empty


def test_a_ranking_stands_beside_the_rule_that_is_strongest_on_its_days(
    engine: Engine, reader: Engine
) -> None:
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
