"""The published experiment on a small simulated set: what is chosen when, what
is read once, what is kept.
"""

import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from db.admin.copying import table_counts
from db.engine import reading
from db.rows import predictions, runs
from db.rows import prices as stored_prices
from dtml.baselines.naive_rules import NAIVE_RULES, STOCK_RULES
from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.errors import DtmlError, UsageError
from dtml.model import ModelConfig
from dtml.published import SETS, Figure, PublishedSet, Recipe, grid, shortened
from dtml.training import Epoch, Member, TrainingConfig
from flows.commands.answers import show
from flows.commands.benchmark import require_index_with_prices, run_published
from flows.markets.opened import RunRequest
from flows.nightly.context import MarketContext, open_stored_context
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from flows.settings import page_of
from flows.studies import published
from flows.studies.published import PublishedExperiment, train_models
from flows.studies.study import run_study
from tests.support.bounds import assert_arrays_close_in_float64, in_float64
from tests.support.nights import AS_OF, BARS, SIMULATED, SMALL, apart, copy_kept
from tests.support.run_folder import made_once

QUICK = TrainingConfig(epochs=3, batch_days=31, first_kept_epoch=1, learning_rate=0.003)
ADVERSARIAL = RecurrentConfig(hidden=5, epsilon=0.01, adversarial=0.01)
PAPER = PublishedSet(
    market="simulated",
    stocks=len(SIMULATED.market.symbols),
    train=(date(2023, 1, 3), date(2023, 10, 31)),
    validation=(date(2023, 11, 1), date(2024, 1, 31)),
    test=(date(2024, 2, 1), date(2024, 6, 28)),
    recipes={
        "dtml": Recipe(3, ModelConfig(hidden=8, heads=2), QUICK),
        "adv_alstm": Recipe(
            2,
            RecurrentConfig(hidden=5, epsilon=0.01, adversarial=0.01),
            replace(QUICK, penalty=0.001),
        ),
        "stocknet": Recipe(3, StockNetConfig(hidden=7, latent=5, movement=3), QUICK),
    },
    published={"dtml": Figure(0.5744, 0.0194, 0.1910, 0.0315)},
)

DTML_ALONE = replace(PAPER, recipes={"dtml": PAPER.recipes["dtml"]})


@pytest.fixture
def whole(context: MarketContext) -> MarketContext:
    """A market context whose fetches reach back to the first session."""
    return replace(context, experiment=replace(context.experiment, train_sessions=None))


@pytest.fixture
def stored(whole: MarketContext) -> MarketContext:
    fetch_bars(whole, AS_OF)
    return whole


@pytest.fixture
def experiment(stored: MarketContext) -> PublishedExperiment:
    return PublishedExperiment(stored, PAPER, seeds=(0, 1))


@pytest.fixture
def measured(whole: MarketContext) -> PublishedExperiment:
    """The experiment in a store that holds its benchmark: run once, and copied on SQLite."""
    if whole.engine.dialect.name == "sqlite":
        copy_kept(made_once("benchmark", lambda folder: _measure_in(folder, whole)), whole.engine)
    else:
        _measure(whole)
    return PublishedExperiment(whole, PAPER, seeds=(0, 1))


def _measure_in(folder: Path, context: MarketContext) -> None:
    with apart(folder, context) as own:
        _measure(own)


def _measure(context: MarketContext) -> None:
    fetch_bars(context, AS_OF)
    run_study(PublishedExperiment(context, PAPER, seeds=(0, 1)))


def interrupt(member: Member, epoch: Epoch) -> None:
    if isinstance(member.model, ModelConfig) and epoch.number == 2:
        raise KeyboardInterrupt


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_nothing_of_the_test_span_is_loaded_before_everything_is_chosen(
    experiment: PublishedExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, date]] = []
    prices = stored_prices.prices

    def watched(conn: object, market: str, first: date, last: date, **rest: object) -> pd.DataFrame:
        read.append((stage, last))
        return prices(conn, market, first, last, **rest)

    stage = "before"
    monkeypatch.setattr(stored_prices, "prices", watched)

    def staged(name: str, work: object) -> object:
        nonlocal stage
        stage = name
        return work()

    monkeypatch.setattr(published, "as_task", staged)
    run_study(replace(experiment, seeds=(0,)))
    assert max(last for name, last in read if name != "read the test span") <= PAPER.validation[1]
    assert [last for name, last in read if name == "read the test span"] == [PAPER.test[1]]


@pytest.mark.soak
def test_a_benchmark_is_stored_with_its_runs_predictions_and_scores(
    measured: PublishedExperiment,
) -> None:
    found = run_study(measured)
    assert page_of("benchmark", found.row).read_text(encoding="utf-8").startswith("<!doctype html>")
    scores = found.scores.set_index(["protocol", "predictor"])
    assert set(scores.loc["all"].index) == {
        "dtml",
        "adv_alstm",
        "stocknet",
        "logistic_regression",
        "gradient_boosting",
        *NAIVE_RULES,
        *STOCK_RULES,
    }
    assert scores.loc[("published", "dtml"), "published_acc"] == 0.5744
    assert np.isnan(scores.loc[("all", "dtml"), "published_acc"])
    assert found.row["best_rule"] in scores.loc["all"].index
    with reading(measured.context.engine) as conn:
        run = runs.run(conn, f"{measured.id}-dtml")
        history = predictions.prediction_history(conn, market="simulated", kind="benchmark")
        none = runs.run(conn, f"{measured.id}-gradient_boosting")
    assert (run["kind"], run["model"], run["seeds"]) == ("benchmark", "dtml", [0, 1])
    assert none["checkpoint_path"] is None
    mine = history[history["run_id"] == run["id"]]
    assert len(mine) == scores.loc[("all", "dtml"), "n"]
    correct = (mine["probability"] > 0.5) == (mine["realised_return"] > 0)
    assert correct.mean() == in_float64(scores.loc[("all", "dtml"), "acc"])
    assert mine["target"].min().date() >= PAPER.test[0]
    prices = BARS.set_index(["symbol", "session"])["adj_close"]
    before, after = (
        prices[pd.MultiIndex.from_frame(mine[["symbol", day]])].to_numpy()
        for day in ("as_of", "target")
    )
    assert_arrays_close_in_float64(mine["realised_return"], after / before - 1)
    assert found.scores.loc[found.scores["is_rule"], ["seeds", "acc_mean"]].isna().all(axis=None)
    seeds = found.seeds
    dtml = seeds[seeds["predictor"] == "dtml"]
    assert dtml["acc"].mean() == in_float64(scores.loc[("published", "dtml"), "acc_mean"])
    assert seeds.groupby("predictor").size().to_dict() == {
        "adv_alstm": 2,
        "dtml": 2,
        "gradient_boosting": 2,
        "logistic_regression": 1,
        "stocknet": 2,
    }


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_benchmark_run_again_reads_nothing_again_and_adds_no_row(
    measured: PublishedExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_study(measured)
    with reading(measured.context.engine) as conn:
        counts = table_counts(conn)
    monkeypatch.setattr(
        PublishedExperiment,
        "read_test",
        lambda _: pytest.fail("the test span was read a second time"),
    )
    file = page_of("benchmark", first.row)
    page = file.read_text(encoding="utf-8")
    file.unlink()
    again = run_study(PublishedExperiment(measured.context, PAPER, seeds=(0, 1)))
    assert file.read_text(encoding="utf-8") == page
    assert page.count("<figcaption>") == 5
    pd.testing.assert_frame_equal(again.scores, first.scores)
    with reading(measured.context.engine) as conn:
        assert table_counts(conn) == counts


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_an_interrupted_benchmark_goes_on_where_it_stopped_and_ends_the_same(
    experiment: PublishedExperiment, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_models(experiment, interrupt)
    seen: list[tuple[Member, int]] = []
    resumed = train_models(experiment, lambda member, epoch: seen.append((member, epoch.number)))
    first = dict(reversed(seen))
    assert 2 in first.values()  # the epoch in which it was interrupted
    assert {member for member, _ in seen} == {member for member, number in seen if number == 3}
    for file in tmp_path.rglob("*-cpu.safetensors"):
        file.unlink()
    undisturbed = train_models(PublishedExperiment(experiment.context, PAPER, seeds=(0, 1)))
    test = experiment.read_test()[0]
    for name, trials in resumed.items():
        np.testing.assert_array_equal(
            trials[0].probability(test[trials[0].window]),
            undisturbed[name][0].probability(test[trials[0].window]),
        )


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_grid_keeps_what_validation_chose_and_shows_every_configuration(
    stored: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = PAPER.recipes["dtml"]
    others = [replace(small, model=replace(small.model, beta=beta)) for beta in (0.01, 1.0)]
    monkeypatch.setattr("flows.studies.published.grid", lambda recipe: [*others, recipe])
    paper = replace(PAPER, recipes={"dtml": small})
    found = run_study(PublishedExperiment(stored, paper, seeds=(0, 1), with_grid=True))
    dtml = found.seeds[found.seeds["predictor"] == "dtml"]
    assert dtml.groupby("configuration").size().tolist() == [2, 2, 2]
    by_configuration = dtml.groupby("configuration")["validation_acc"].mean()
    assert dtml[dtml["kept"]]["configuration"].unique().tolist() == [0]
    assert by_configuration[0] == by_configuration.max()
    row = found.scores[
        (found.scores["predictor"] == "dtml") & (found.scores["protocol"] == "published")
    ].iloc[0]
    assert row["configurations"] == 3
    with reading(stored.engine) as conn:
        assert (
            len(
                conn.exec_driver_sql(
                    "select 1 from benchmark_configuration where predictor = 'dtml'"
                ).all()
            )
            == 3
        )


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_store_without_a_span_says_what_to_fetch(whole: MarketContext) -> None:
    fetch_bars(whole, date(2024, 6, 14))
    with pytest.raises(
        DtmlError,
        match=r"simulated.*2024-06-14.*2024-06-28.*`dtml benchmark simulated",
    ):
        run_study(PublishedExperiment(whole, PAPER, seeds=(0,)))
    earlier = replace(
        PAPER, train=(date(2020, 1, 2), date(2020, 12, 31)), data_until=date(2024, 6, 14)
    )
    with pytest.raises(DtmlError, match=r"no outcome.*2020-01-02.*`dtml fetch simulated"):
        run_study(PublishedExperiment(whole, earlier, seeds=(0,)))


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_set_that_is_known_to_end_early_is_scored_to_its_last_bar_and_says_so(
    whole: MarketContext,
) -> None:
    fetch_bars(whole, date(2024, 6, 14))
    paper = replace(DTML_ALONE, data_until=date(2024, 6, 14), notes=("prices end on 2024-06-14",))
    found = run_study(PublishedExperiment(whole, paper, seeds=(0,)))
    assert found.row["test_last"] == date(2024, 6, 14)
    assert "prices end on 2024-06-14" in page_of("benchmark", found.row).read_text(encoding="utf-8")
    with reading(whole.engine) as conn:
        made = predictions.prediction_history(conn, market="simulated", kind="benchmark")
    assert made["target"].max() == pd.Timestamp("2024-06-14")
    fetch_bars(whole, AS_OF)
    # more of the test span is another test
    assert PublishedExperiment(whole, paper, seeds=(0,)).id != found.row["id"]


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_second_benchmark_of_a_set_says_that_it_is_one_and_a_continued_one_names_no_time(
    measured: PublishedExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_study(measured)
    assert (first.number, first.row["seconds"] > 0) == (1, True)
    assert "in this store" not in page_of("benchmark", first.row).read_text(encoding="utf-8")
    other = PublishedExperiment(measured.context, DTML_ALONE, seeds=(1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(published, "training_progress", lambda *_: nullcontext(interrupt))
        with pytest.raises(KeyboardInterrupt):
            run_study(other)
    second = run_study(other)
    assert (second.number, second.row["seconds"]) == (2, None)
    for said in (
        "benchmark 2 of simulated",
        "was read 2 times",
        ">cpu</td>",
    ):
        assert said in page_of("benchmark", second.row).read_text(encoding="utf-8")


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_night_is_not_disturbed_by_a_benchmark_of_its_market(
    measured: PublishedExperiment,
) -> None:
    night = run_night(measured.context, AS_OF)
    with reading(measured.context.engine) as conn:
        run = runs.run(conn, night.row["run_id"])
        latest = (
            conn.exec_driver_sql("select distinct run_id from latest_prediction").scalars().all()
        )
    assert run["kind"] == "nightly"
    assert run["config"]["model"]["hidden"] == SMALL["hidden"]
    assert latest == [run["id"]]


@pytest.fixture
def run_request(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRequest:
    """The small set in files, and an empty store."""
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    monkeypatch.setattr("flows.commands.benchmark.SETS", {"simulated": DTML_ALONE})
    monkeypatch.setattr(published, "train_models", lambda *_: pytest.fail("a network was trained"))
    bars = BARS[BARS["session"] <= pd.Timestamp(AS_OF)].rename(columns={"session": "date"})
    index = bars["symbol"] == SIMULATED.index_symbol
    for name, which in (
        ("prices", ~index),
        ("fewer", ~index & (bars["symbol"] != "L01")),
        ("index", index),
    ):
        bars[which].to_parquet(tmp_path / f"{name}.parquet")
    return RunRequest(
        "simulated", None, "files", tmp_path / "prices.parquet", tmp_path / "index.parquet"
    )


def benchmark(run_request: RunRequest) -> None:
    require_index_with_prices(run_request)
    show(run_published(run_request, 2, None, with_grid=False))


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_files_that_cannot_be_the_set_are_refused_before_anything_is_stored(
    run_request: RunRequest, reader: Engine
) -> None:
    assert run_request.prices is not None
    wrong = {
        "--index needs --prices": replace(run_request, prices=None),
        "simulated: .*--prices FILE": RunRequest("simulated"),
        "data set simulated:.*8 stocks": replace(
            run_request, prices=run_request.prices.with_name("fewer.parquet")
        ),
        "SIMX.*--index FILE": replace(run_request, index=None),
    }
    for said, mistaken in wrong.items():
        with pytest.raises(UsageError, match=said):
            benchmark(mistaken)
    with reading(reader) as conn:
        assert sum(table_counts(conn).values()) == 0


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_stored_benchmark_is_printed_and_nothing_is_trained(
    run_request: RunRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(pytest.fail.Exception):  # files are read and stored before
        benchmark(run_request)
    assert "are used" not in capsys.readouterr().err
    monkeypatch.setattr(published, "train_models", train_models)
    found = run_study(
        PublishedExperiment(open_stored_context(run_request), DTML_ALONE, seeds=(0, 1))
    )
    benchmark(run_request)
    said = capsys.readouterr()
    assert f"stored on {found.row['test_read_at']:%Y-%m-%d}: nothing was trained" in said.err
    assert re.search("note: .*simulated.*none were fetched", said.err)
    assert str(page_of("benchmark", found.row)) in said.out.replace("\n", "")


def test_the_published_recipes_are_those_of_the_paper() -> None:
    """Section 4.1 of Yoo et al.; 24 configurations, as epochs are no axis where
    the best one is kept.
    """
    recipe = SETS["acl18"].recipes["dtml"]
    assert (recipe.window, recipe.model.hidden, recipe.model.beta) == (10, 64, 0.1)
    assert (recipe.training.batch_days, recipe.training.epochs, recipe.training.penalty) == (
        64,
        200,
        1.0,
    )
    assert len(set(grid(recipe))) == 24
    assert recipe in grid(recipe)
    short = {
        name: each.training.epochs for name, each in shortened(SETS["kdd17"], 20).recipes.items()
    }
    assert short == dict.fromkeys(("dtml", "lstm", "alstm", "adv_alstm"), 20) | {"stocknet": 5}
    for paper in SETS.values():
        assert paper.recipes["dtml"] in grid(paper.recipes["dtml"])
        assert all(each.model.name == name for name, each in paper.recipes.items())
