"""The published experiment on a small simulated set: what is chosen when, what
is read once, what is kept.
"""

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from db.engine import reading
from db.rows import predictions, runs
from db.rows import prices as stored_prices
from dtml.baselines.naive_rules import NAIVE_RULES, STOCK_RULES
from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.errors import DtmlError, UsageError
from dtml.model import ModelConfig
from dtml.published import SETS, Figure, PublishedSet, Recipe, grid, shortened
from dtml.training import TrainingConfig
from flows.commands.benchmark import require_index_with_prices, run_published
from flows.markets.opened import RunRequest
from flows.nightly.fetch import fetch_bars
from flows.settings import page_of
from flows.studies import published
from flows.studies.published import PublishedExperiment
from flows.studies.study import run_study
from tests.support.bounds import in_float64
from tests.support.kinds import sqlite_alone
from tests.support.nights import AS_OF, BARS, SIMULATED, apart, copy_kept
from tests.support.run_folder import made_once
from tests.support.stores import counts

QUICK = TrainingConfig(epochs=3, batch_days=31, first_kept_epoch=1, learning_rate=0.003)
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
def whole(context):
    """A market context whose fetches reach back to the first session."""
    return replace(context, experiment=replace(context.experiment, train_sessions=None))


@pytest.fixture
def stored(whole):
    fetch_bars(whole, AS_OF)
    return whole


@pytest.fixture
def measured(whole):
    """The experiment in a store that holds its benchmark: run once, and copied on SQLite."""
    if whole.engine.dialect.name == "sqlite":
        copy_kept(made_once("benchmark", lambda folder: _measure_in(folder, whole)), whole.engine)
    else:
        _measure(whole)
    return PublishedExperiment(whole, PAPER, seeds=(0, 1))


def _measure_in(folder, context):
    with apart(folder, context) as own:
        _measure(own)


def _measure(context):
    fetch_bars(context, AS_OF)
    run_study(PublishedExperiment(context, PAPER, seeds=(0, 1)))


@pytest.mark.soak
@sqlite_alone
def test_nothing_of_the_test_span_is_loaded_before_everything_is_chosen(stored, monkeypatch):
    read = []
    prices = stored_prices.prices

    def watched(conn, market, first, last, **rest):
        read.append((stage, last))
        return prices(conn, market, first, last, **rest)

    stage = "before"
    monkeypatch.setattr(stored_prices, "prices", watched)

    def staged(name, work):
        nonlocal stage
        stage = name
        return work()

    monkeypatch.setattr(published, "as_task", staged)
    run_study(PublishedExperiment(stored, PAPER, seeds=(0,)))
    assert max(last for name, last in read if name != "read the test span") <= PAPER.validation[1]
    assert [last for name, last in read if name == "read the test span"] == [PAPER.test[1]]


@pytest.mark.soak
def test_a_benchmark_is_stored_with_its_runs_predictions_and_scores_and_read_once(
    measured, monkeypatch
):
    monkeypatch.setattr(PublishedExperiment, "read_test", lambda _: pytest.fail("read again"))
    found = run_study(measured)
    scores = found.scores.set_index(["protocol", "predictor"])
    classifiers = {"logistic_regression", "gradient_boosting"}
    models = {*PAPER.recipes, *classifiers}
    assert set(scores.loc["all"].index) == {*models, *NAIVE_RULES, *STOCK_RULES}
    assert scores.loc[("published", "dtml"), "published_acc"] == 0.5744
    assert np.isnan(scores.loc[("all", "dtml"), "published_acc"])
    with reading(measured.context.engine) as conn:
        run = runs.run(conn, f"{measured.id}-dtml")
        history = predictions.prediction_history(conn, market="simulated", kind="benchmark")
    assert (run["kind"], run["model"], run["seeds"]) == ("benchmark", "dtml", [0, 1])
    mine = history[history["run_id"] == run["id"]]
    assert len(mine) == scores.loc[("all", "dtml"), "n"]
    correct = (mine["probability"] > 0.5) == (mine["realised_return"] > 0)
    assert correct.mean() == in_float64(scores.loc[("all", "dtml"), "acc"])
    acc = found.seeds.groupby("predictor")["acc"].agg(["mean", "size"])
    assert acc.loc["dtml", "mean"] == in_float64(scores.loc[("published", "dtml"), "acc_mean"])
    assert acc["size"].to_dict() == dict.fromkeys(models, 2) | {"logistic_regression": 1}


@pytest.mark.soak
@sqlite_alone
def test_the_grid_keeps_what_validation_chose_and_shows_every_configuration(stored, monkeypatch):
    small = PAPER.recipes["dtml"]
    others = [replace(small, model=replace(small.model, beta=beta)) for beta in (0.01, 1.0)]
    monkeypatch.setattr("flows.studies.published.grid", lambda recipe: [*others, recipe])
    found = run_study(PublishedExperiment(stored, DTML_ALONE, seeds=(0, 1), with_grid=True))
    dtml = found.seeds[found.seeds["predictor"] == "dtml"]
    assert dtml.groupby("configuration").size().tolist() == [2, 2, 2]
    by_configuration = dtml.groupby("configuration")["validation_acc"].mean()
    assert dtml[dtml["kept"]]["configuration"].unique().tolist() == [0]
    assert by_configuration[0] == by_configuration.max()
    rows = found.scores[found.scores["predictor"] == "dtml"]
    assert rows["configurations"].unique().tolist() == [3]


@sqlite_alone
def test_a_store_without_a_span_says_what_to_fetch(whole):
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
@sqlite_alone
def test_a_set_that_is_known_to_end_early_is_scored_to_its_last_bar_and_says_so(whole):
    fetch_bars(whole, date(2024, 6, 14))
    paper = replace(DTML_ALONE, data_until=date(2024, 6, 14), notes=("prices end on 2024-06-14",))
    found = run_study(PublishedExperiment(whole, paper, seeds=(0,)))
    assert found.row["test_last"] == date(2024, 6, 14)
    assert "prices end on 2024-06-14" in page_of("benchmark", found.row).read_text(encoding="utf-8")
    fetch_bars(whole, AS_OF)
    # more of the test span is another test
    assert PublishedExperiment(whole, paper, seeds=(0,)).id != found.row["id"]


@sqlite_alone
def test_files_that_cannot_be_the_set_are_refused_before_anything_is_stored(
    reader, tmp_path, monkeypatch
):
    monkeypatch.setattr("flows.commands.benchmark.SETS", {"simulated": DTML_ALONE})
    bars = BARS[BARS["session"] <= pd.Timestamp(AS_OF)].rename(columns={"session": "date"})
    is_index = bars["symbol"] == SIMULATED.index_symbol
    prices, fewer, index = (tmp_path / f"{name}.parquet" for name in ("prices", "fewer", "index"))
    bars[~is_index].to_parquet(prices)
    bars[~is_index & (bars["symbol"] != "L01")].to_parquet(fewer)
    bars[is_index].to_parquet(index)
    wrong = {
        "--index needs --prices": RunRequest("simulated", None, "files", None, index),
        "simulated: .*--prices FILE": RunRequest("simulated"),
        "data set simulated:.*8 stocks": RunRequest("simulated", None, "files", fewer, index),
        "SIMX.*--index FILE": RunRequest("simulated", None, "files", prices),
    }

    def benchmark(asked):
        require_index_with_prices(asked)
        run_published(asked, 2, None, with_grid=False)

    for said, mistaken in wrong.items():
        with pytest.raises(UsageError, match=said):
            benchmark(mistaken)
    assert sum(counts(reader).values()) == 0


def test_the_published_recipes_are_those_of_the_paper():
    """Section 4.1 of Yoo et al.; 24 configurations, as epochs are no axis where
    the best one is kept.
    """
    recipe = SETS["acl18"].recipes["dtml"]
    training = recipe.training
    assert (recipe.window, recipe.model.hidden, recipe.model.beta) == (10, 64, 0.1)
    assert (training.batch_days, training.epochs, training.penalty) == (64, 200, 1.0)
    assert len(set(grid(recipe))) == 24
    for paper in SETS.values():
        assert paper.recipes["dtml"] in grid(paper.recipes["dtml"])
    short = shortened(SETS["kdd17"], 20).recipes
    assert (short["dtml"].training.epochs, short["stocknet"].training.epochs) == (20, 5)
