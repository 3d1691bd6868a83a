"""Models and rules walked through the stored history of a market: what is
stored, printed, and known when.
"""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from db.engine import transaction
from db.save import save
from dtml.errors import DtmlError, UsageError
from dtml.evaluation import ranking
from dtml.evaluation.ranking import score_ranking
from dtml.ranking import rankers, relative
from dtml.ranking.features import RULES
from dtml.ranking.models import BoostingConfig
from dtml.ranking.outcomes import LEGS
from dtml.ranking.rankers import walk as walk_rankers
from dtml.ranking.relative import RelativeConfig, RelativeModelConfig
from dtml.ranking.walk import folds
from flows.nightly.context import open_stored_context
from flows.settings import data_folder
from flows.studies.ranking import Plan, RankingSet, Walk
from flows.studies.study import run_study
from tests.support.bounds import in_float64
from tests.support.kinds import sqlite_alone
from tests.support.nights import BARS

FIRST, LAST = date(2024, 2, 1), date(2024, 5, 17)
MODELS = {"ridge", "boosting", "blend"}


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    """A third of a walk's time is for the ends of its intervals, of which nothing is said here."""
    monkeypatch.setattr(ranking, "RESAMPLES", 499)


@pytest.fixture
def walk(run_request):
    return Walk(open_stored_context(run_request), Plan(FIRST, LAST))


def rank_ic(found, predictor):
    whole = found.scores[(found.scores["slice"] == "all") & (found.scores["leg"] == "next_close")]
    return float(whole.set_index("predictor").loc[predictor, "rank_ic"])


def test_every_model_and_rule_is_scored_over_every_leg_and_the_days_are_scored_once(walk):
    found = run_study(walk)
    assert set(found.scores["predictor"]) == MODELS | set(RULES)
    assert set(found.scores["leg"]) == set(LEGS)
    assert set(found.scores[found.scores["slice"] != "all"]["leg"]) == {"next_close"}
    assert (found.row["leg"], found.row["first"], found.row["last"]) == ("next_close", FIRST, LAST)
    assert found.row["folds"] == 2
    # The walk asks no source; what it keeps is where the bars in the store came from.
    assert (walk.context.source.name, found.row["config"]["source"]) == ("store", "simulated")
    again = run_study(Walk(walk.context, walk.plan))
    assert again.row["read_at"] == found.row["read_at"]
    pd.testing.assert_frame_equal(again.scores, found.scores)


@sqlite_alone
@pytest.mark.soak
def test_workers_train_what_one_process_would_and_what_fails_in_one_ends_the_walk(
    walk, monkeypatch
):
    walked = folds(walk.history, pd.Timestamp(FIRST), pd.Timestamp(LAST))
    alone = walk_rankers(walk.history, walked, walk.rankers)
    monkeypatch.setattr(rankers, "_fit", lambda *_: pytest.fail("trained here"))
    found = run_study(replace(walk, workers=2))
    for name, scores in alone.items():
        expected = score_ranking(np.where(walk.history.there, scores, np.nan), walk.history.outcome)
        assert rank_ic(found, name) == expected["rank_ic"]
    broken = Walk(walk.context, replace(walk.plan, last=date(2024, 5, 16)))
    settings = replace(walk.rankers, boosting=BoostingConfig(leaves=-1))
    monkeypatch.setattr(Walk, "rankers", property(lambda _: settings))
    with pytest.raises(ValueError, match="max_leaf_nodes"):
        run_study(replace(broken, workers=2))


def test_a_stock_is_ordered_on_the_days_on_which_it_is_a_constituent(walk):
    history = walk.history
    column = history.panel.symbols.index("F02B")
    days = ["2024-03-12", "2024-03-13", "2024-03-19", "2024-03-20"]
    of_days = history.panel.sessions.get_indexer(pd.DatetimeIndex(days))
    assert history.there[of_days, column].tolist() == [True, False, False, True]
    assert np.isnan(history.features[~history.there]).all()
    assert np.isnan(history.outcome[~history.there]).all()


@sqlite_alone
@pytest.mark.soak
def test_a_network_is_asked_for_the_order_when_named(walk, monkeypatch):
    made = RelativeConfig(window=3, seeds=1, training=replace(relative.RECIPE, epochs=1))
    for_network = lambda name, _seeds: replace(made, model=RelativeModelConfig(name, 4))  # noqa: E731
    monkeypatch.setattr(RelativeConfig, "for_network", for_network)
    found = run_study(Walk(walk.context, replace(walk.plan, networks=("dtml", "lstm"), seeds=1)))
    networks = {"dtml_relative", "lstm_relative", "blend_relative"}
    assert set(found.scores["predictor"]) == MODELS | set(RULES) | networks
    assert found.row["id"] != walk.id


@sqlite_alone
@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_the_benchmark_walks_every_set_whose_file_is_there(engine, tmp_path, monkeypatch, command):
    monkeypatch.setenv("DTML_DATABASE_URL", engine.url.render_as_string(hide_password=False))
    sets = {name: RankingSet("simulated", FIRST, LAST) for name in ("toy", "absent")}
    monkeypatch.setattr("flows.commands.ranking.SETS", sets)
    monkeypatch.setattr("flows.studies.ranking.SETS", sets)
    asked = ("benchmark", "ranking", "--prices", str(tmp_path), "--json")
    code, _, complaint = command(*asked)
    assert (code, "toy.parquet, absent.parquet" in complaint) == (2, True)
    bars = BARS[(BARS["symbol"] != "SIMX") & (BARS["session"] <= pd.Timestamp("2024-06-28"))]
    bars.rename(columns={"session": "date"}).to_parquet(tmp_path / "toy.parquet")
    for is_stored in (False, True):
        code, said, complaint = command(*asked)
        assert (code, "nothing was trained" in complaint) == (0, is_stored)
        assert json.loads(said)["toy"]["ranking"]["market"] == "ranking-toy"


def test_what_a_walk_is_asked_and_reads_decides_which_it_is(walk):
    """A portfolio compares no price before a rejected leap with one after it."""
    context, market = walk.context, walk.context.market
    fewer = market.with_symbols(market.symbols[:-1])
    asked = [
        walk,
        Walk(context, Plan(FIRST, LAST, "open_to_open")),
        Walk(context, Plan(FIRST, FIRST)),
        Walk(replace(context, market=fewer), walk.plan),
        Walk(replace(context, market=replace(market, returns="close", z_close="raw")), walk.plan),
    ]
    ids = {each.id for each in asked}
    leap = pd.DataFrame({"symbol": ["L01"], "session": [pd.Timestamp(LAST)]})
    leap = leap.assign(reason="unexplained_return", value="+0.900")
    of_market = {"market": context.name, "source": "simulated"}
    with transaction(context.engine) as conn:
        save(conn, "rejected_bar", leap, **of_market, first_known_at=datetime.now(UTC))
    assert len(ids | {replace(walk).id}) == len(asked) + 1


@sqlite_alone
@pytest.mark.soak
def test_an_interrupted_walk_resumes_at_the_training_it_was_in(walk, monkeypatch):
    trained, fit = [], rankers._fit

    def counted(name, *rest):
        trained.append(name)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return fit(name, *rest)

    monkeypatch.setattr(rankers, "_fit", counted)
    with pytest.raises(KeyboardInterrupt):
        run_study(walk)
    assert trained == ["ridge", "ridge", "boosting"]
    found = run_study(Walk(walk.context, walk.plan))
    assert trained[3:] == ["boosting", "boosting"]
    walked = folds(walk.history, pd.Timestamp(FIRST), pd.Timestamp(LAST))
    once = walk_rankers(walk.history, walked, walk.rankers)
    expected = score_ranking(once["ridge"], walk.history.outcome)
    assert rank_ic(found, "ridge") == in_float64(expected["rank_ic"])
    assert not list((data_folder() / "rankings").glob("*/*.npy"))


def test_days_without_a_price_an_outcome_or_a_portfolio_are_refused(walk, monkeypatch):
    before, end = (each.date() for each in walk.history.panel.sessions[-2:])
    for day, said in ((end, "next_close"), (before, "no portfolio")):
        with pytest.raises(DtmlError, match=said):
            run_study(Walk(walk.context, Plan(day, day)))
    monkeypatch.setattr("flows.studies.ranking.history_of", lambda *_: pytest.fail("too late"))
    newest = walk.known[0]["session"].max().date()
    last = newest + timedelta(days=1)
    with pytest.raises(UsageError, match=f"{newest}, before --to {last}"):
        run_study(Walk(walk.context, Plan(FIRST, last)))
