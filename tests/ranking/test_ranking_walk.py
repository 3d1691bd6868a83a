"""Models and rules walked through the stored history of a market: what is
stored, printed, and known when.
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html import unescape
from multiprocessing import active_children
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from db.engine import reading, transaction
from db.read import read_row
from db.save import save
from dtml.errors import DtmlError, UsageError
from dtml.evaluation import ranking
from dtml.evaluation.ranking import score_ranking
from dtml.pages.figures import quoted
from dtml.ranking import rankers, relative
from dtml.ranking.features import RULES
from dtml.ranking.models import BoostingConfig
from dtml.ranking.outcomes import LEGS
from dtml.ranking.rankers import walk as walk_rankers
from dtml.ranking.relative import RelativeConfig, RelativeModelConfig
from dtml.ranking.walk import folds
from flows.markets.opened import RunRequest
from flows.nightly.context import open_context, open_stored_context
from flows.settings import data_folder, page_of
from flows.studies.ranking import Plan, Ranking, RankingSet, Walk, train_side_by_side
from flows.studies.study import run_study
from tests.support.bounds import in_float64
from tests.support.commands import Command
from tests.support.nights import BARS, small_market

FIRST, LAST = date(2024, 2, 1), date(2024, 5, 17)
MODELS = {"ridge", "boosting", "blend"}


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of a walk's time is for the ends of its intervals, of which nothing is said here."""
    monkeypatch.setattr(ranking, "RESAMPLES", 499)


@pytest.fixture
def walk(run_request: RunRequest) -> Walk:
    return Walk(open_stored_context(run_request), Plan(FIRST, LAST))


def cell(
    found: Ranking, predictor: str, leg: str = "next_close", part: str = "all"
) -> Mapping[str, Any]:
    scores = found.scores
    mine = (scores["predictor"] == predictor) & (scores["leg"] == leg) & (scores["slice"] == part)
    (row,) = scores[mine].to_dict("records")
    return row  # type: ignore[return-value]


def test_stocks_stand_in_the_order_of_symbols_however_a_file_lists_them(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which `dtml.ranking.panel.places` decides ties."""
    monkeypatch.setenv("DTML_DATABASE_URL", engine.url.render_as_string(hide_password=False))
    file = tmp_path / "shuffled.toml"
    listed = '[constituents]\nas_of = 2024-01-02\nsymbols = ["L02", "F01A", "L01"]\n'
    file.write_text(small_market(more=listed))
    context = open_context(RunRequest("shuffled", market_file=file, universe="list", device="cpu"))
    assert context.market.symbols == ("F01A", "L01", "L02")


def test_every_model_and_rule_is_scored_over_every_leg_and_the_days_are_scored_once(
    walk: Walk, engine: Engine
) -> None:
    found = run_study(walk)
    assert set(found.scores["predictor"]) == MODELS | set(RULES)
    assert set(found.scores["leg"]) == set(LEGS)
    assert set(found.scores[found.scores["slice"] != "all"]["leg"]) == {"next_close"}
    assert (found.row["leg"], found.row["first"], found.row["last"]) == ("next_close", FIRST, LAST)
    assert found.row["folds"] == 2
    assert found.row["best_rule"] in RULES
    # The walk reads the store; what it keeps is where the bars in the store came from.
    assert (walk.context.source.name, found.row["config"]["source"]) == ("store", "simulated")
    assert "The prices are simulated" in page_of("ranking", found.row).read_text()
    again = run_study(Walk(walk.context, walk.plan))
    assert again.row["read_at"] == found.row["read_at"]
    pd.testing.assert_frame_equal(again.scores, found.scores)
    with reading(engine) as conn:
        assert read_row(conn, "ranking", id="none") is None


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
def test_workers_train_what_one_process_would_and_what_fails_in_one_ends_the_walk(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = folds(walk.history, pd.Timestamp(FIRST), pd.Timestamp(LAST))
    alone = walk_rankers(walk.history, walked, walk.rankers)
    trained = []
    monkeypatch.setattr(rankers, "_fit", lambda *_: trained.append("here"))
    found = run_study(replace(walk, workers=2))
    assert trained == []
    for name, scores in alone.items():
        expected = score_ranking(np.where(walk.history.there, scores, np.nan), walk.history.outcome)
        assert cell(found, name)["rank_ic"] == expected["rank_ic"]
    broken = Walk(walk.context, replace(walk.plan, last=date(2024, 5, 16)))
    settings = replace(walk.rankers, boosting=BoostingConfig(leaves=-1))
    monkeypatch.setattr(Walk, "rankers", property(lambda _: settings))
    with pytest.raises(ValueError, match="max_leaf_nodes"):
        run_study(replace(broken, workers=2))


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
def test_a_walk_whose_worker_was_killed_says_so(walk: Walk) -> None:
    walked = folds(walk.history, pd.Timestamp(FIRST), pd.Timestamp(LAST))
    folder = walk.folder

    def kill() -> None:
        """Kill a worker once the first training is done: then all of them have begun."""
        while not any(folder.glob("*.npy")):
            time.sleep(0.05)
        workers = [each for each in active_children() if each.name.startswith("SpawnProcess")]
        workers[0].kill()

    Thread(target=kill, daemon=True).start()
    to_train = list(rankers.trainings(walk.history, walked, walk.rankers))
    with pytest.raises(DtmlError, match=r"was killed,.*fewer --workers"):
        train_side_by_side(replace(walk, workers=2), to_train)


def test_a_stock_is_ordered_on_the_days_on_which_it_is_a_constituent(walk: Walk) -> None:
    history = walk.history
    column = history.panel.symbols.index("F02B")
    sessions = history.panel.sessions
    there = dict(zip(sessions.strftime("%Y-%m-%d"), history.there[:, column], strict=True))
    assert (there["2024-03-12"], there["2024-03-13"], there["2024-03-19"], there["2024-03-20"]) == (
        True,
        False,
        False,
        True,
    )
    assert np.isnan(history.features[~history.there]).all()
    assert np.isnan(history.outcome[~history.there]).all()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
def test_sectors_years_and_sizes_of_a_move_are_scored_alone_and_differences_are_those_of_scores(
    walk: Walk,
) -> None:
    market = walk.context.market
    stays = [
        replace(each, sector="Leaders" if each.symbol.startswith("L") else "Followers")
        for each in market.constituents
    ]
    found = run_study(
        Walk(replace(walk.context, market=replace(market, constituents=tuple(stays))), walk.plan)
    )
    parts = found.scores[found.scores["predictor"] == "ridge"].groupby("slice")["value"].unique()
    assert {name: sorted(set(values)) for name, values in parts.items()} == {
        "all": [""],
        "year": ["2024"],
        "sector": ["Followers", "Leaders"],
        "move": ["large", "middle", "small"],
    }
    whole = cell(found, "ridge")["n"]
    sizes = found.scores[(found.scores["predictor"] == "ridge") & (found.scores["slice"] == "year")]
    assert sizes["n"].sum() == whole
    followers = found.scores[
        (found.scores["value"] == "Followers") & (found.scores["predictor"] == "ridge")
    ].iloc[0]
    assert 0 < followers["n"] < whole
    assert np.isnan(
        found.scores.loc[found.scores["value"] == "Leaders", "rank_ic"]
    ).all()  # three stocks have no order
    gains = found.differences.set_index(["predictor", "other"])["gain"]
    rules = cell(found, "day_losers")["rank_ic"] - cell(found, "intraday_reversal")["rank_ic"]
    assert gains["day_losers", "intraday_reversal"] == in_float64(rules)
    assert gains["ridge", "boosting"] == in_float64(-gains["boosting", "ridge"])


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
def test_an_interrupted_walk_resumes_at_the_training_it_was_in_and_is_printed_without_another(
    walk: Walk, run_request: RunRequest, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    trained, fit = [], rankers._fit

    def counted(name: str, *rest: Any) -> Any:
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
    monkeypatch.setattr(rankers, "_fit", fit)
    once = walk_rankers(
        walk.history, folds(walk.history, pd.Timestamp(FIRST), pd.Timestamp(LAST)), walk.rankers
    )
    expected = score_ranking(once["ridge"], walk.history.outcome)
    assert cell(found, "ridge")["rank_ic"] == in_float64(expected["rank_ic"])
    assert not list((data_folder() / "rankings").glob("*/*.npy"))
    assert_printed(found, run_request, command)


def assert_printed(stored: Ranking, run_request: RunRequest, command: Command) -> None:
    """The command prints what is stored and trains nothing again."""
    asked = (
        "ranking",
        "--market-file",
        str(run_request.market_file),
        "--from",
        str(FIRST),
        "--to",
        str(LAST),
    )
    code, said, complaint = command(*asked, "--json")
    assert (code, "nothing was trained" in complaint) == (0, True)
    document = json.loads(said)
    assert document["ranking"]["id"] == stored.row["id"]
    assert len(document["differences"]) == len(stored.differences)
    code, said, _ = command(*asked)
    assert (code, "each day's stocks" in said) == (0, True)
    assert stored.strongest is not None
    rule, blend = stored.strongest["other"], cell(stored, "blend")
    assert document["strongest_rule"]["other"] == rule
    verdict = next(line for line in said.splitlines() if " days, the blend " in line)
    assert f" {blend['days']} days, the blend " in verdict
    assert verdict.count(f" {quoted(rule)}, in hindsight ") == 1
    assert "strongest of 5 rules" in verdict
    assert "at the next open" in said
    page = unescape(Path(said.splitlines()[-1].split()[-1]).read_text(encoding="utf-8"))
    for words in (verdict.split(". After")[0], "Year by year", "of all, free"):
        assert words in page
    whole = stored.scores[
        (stored.scores["slice"] == "all") & (stored.scores["leg"] == "next_close")
    ]
    assert str(whole.sort_values("rank_ic").iloc[0]["predictor"]) in said.splitlines()[4]
    code, said, _ = command(*asked, "--markdown")
    assert f"ranked on {blend['days']} days" in said.splitlines()[0]
    assert said.splitlines()[2].startswith("| predictor | rank IC [95 %] |")
    code, _, complaint = command(*asked[:3], "--from", str(LAST), "--to", str(FIRST))
    assert (code, "is after" in complaint) == (2, True)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
def test_a_network_is_asked_for_the_order_when_named(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RelativeConfig(window=3, seeds=1, training=replace(relative.RECIPE, epochs=1))
    for_network = lambda name, _seeds: replace(made, model=RelativeModelConfig(name, 4))  # noqa: E731
    monkeypatch.setattr(RelativeConfig, "for_network", for_network)
    found = run_study(Walk(walk.context, replace(walk.plan, networks=("dtml", "lstm"), seeds=1)))
    assert set(found.scores["predictor"]) == MODELS | set(RULES) | {
        "dtml_relative",
        "lstm_relative",
        "blend_relative",
    }
    assert [each["model"]["network"] for each in found.row["config"]["networks"]] == [
        "dtml",
        "lstm",
    ]
    assert found.row["id"] != walk.id


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        (("ranking", "--epochs", "3"), "effect on `dtml benchmark ranking`: leave out --epochs"),
        (("csi300", "--grid"), "effect on `dtml benchmark csi300`: leave out --grid"),
        (("acl18", "--leg", "five_days"), "effect on `dtml benchmark acl18`: leave out --leg"),
        (("ranking", "--json", "--markdown"), "--json and --markdown cannot"),
    ],
)
def test_an_option_that_a_benchmark_does_not_take_is_refused(
    command: Command, asked: tuple[str, ...], refused: str
) -> None:
    code, _, complaint = command("benchmark", *asked)
    assert code == 2
    assert re.search(refused, " ".join(complaint.split()))


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_the_benchmark_walks_every_set_whose_file_is_there(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("DTML_DATABASE_URL", engine.url.render_as_string(hide_password=False))
    sets = {name: RankingSet("simulated", FIRST, LAST) for name in ("toy", "absent")}
    monkeypatch.setattr("flows.commands.ranking.SETS", sets)
    monkeypatch.setattr("flows.studies.ranking.SETS", sets)
    asked = ("benchmark", "ranking", "--prices", str(tmp_path))
    code, _, complaint = command(*asked)
    assert (code, "toy.parquet, absent.parquet" in complaint) == (2, True)
    bars = BARS[(BARS["symbol"] != "SIMX") & (BARS["session"] <= pd.Timestamp("2024-06-28"))]
    bars.rename(columns={"session": "date"}).to_parquet(tmp_path / "toy.parquet")
    code, said, _ = command(*asked)
    assert (code, "ranking-toy-2024-02-01" in said, "each day's stocks" in said) == (
        0,
        True,
        True,
    )
    code, said, complaint = command(*asked, "--markdown")
    assert (code, "nothing was trained" in complaint, said.startswith("**toy**: 9 ")) == (
        0,
        True,
        True,
    )
    code, said, _ = command(*asked, "--json")
    assert json.loads(said)["toy"]["ranking"]["market"] == "ranking-toy"


def test_another_leg_or_other_days_are_another_ranking(walk: Walk) -> None:
    context = walk.context
    ids = {
        Walk(context, plan).id
        for plan in (walk.plan, Plan(FIRST, LAST, "open_to_open"), Plan(FIRST, FIRST))
    }
    assert len(ids) == 3


def test_another_list_of_stocks_or_another_price_of_returns_is_another_ranking(walk: Walk) -> None:
    market = walk.context.market
    others = (
        market.with_symbols(market.symbols[:-1]),
        replace(market, returns="close", z_close="raw"),
    )
    ids = {Walk(replace(walk.context, market=each), walk.plan).id for each in (market, *others)}
    assert len(ids) == 3


def test_a_day_after_the_last_price_is_refused_before_any_feature_is_computed(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.studies.ranking.history_of", lambda *_: pytest.fail("too late"))
    newest = walk.known[0]["session"].max().date()
    asked = Walk(walk.context, Plan(FIRST, newest + timedelta(days=1)))
    with pytest.raises(UsageError, match=f"{newest}, before --to {asked.plan.last}"):
        run_study(asked)


def test_days_without_an_outcome_are_refused(walk: Walk) -> None:
    end = walk.history.panel.sessions[-1].date()
    with pytest.raises(DtmlError, match=rf"{end} to {end} .*next_close"):
        run_study(Walk(walk.context, Plan(end, end)))
    before = walk.history.panel.sessions[-2].date()
    with pytest.raises(DtmlError, match=rf"no portfolio.*{before} to {before}"):
        run_study(Walk(walk.context, Plan(before, before)))


def test_too_short_a_history_says_what_to_do(walk: Walk) -> None:
    with pytest.raises(DtmlError, match=r"begin later.*from before"):
        run_study(Walk(walk.context, Plan(date(2023, 10, 2), date(2024, 2, 1))))


def test_the_context_of_a_walk_asks_no_source(walk: Walk) -> None:
    assert walk.context.source.name == "store"


def test_another_rejected_bar_makes_another_ranking(walk: Walk) -> None:
    """A portfolio compares no price before a rejected leap with one after it."""
    leap = pd.DataFrame({"symbol": ["L01"], "session": [pd.Timestamp(LAST)]})
    before = walk.id
    with transaction(walk.context.engine) as conn:
        save(
            conn,
            "rejected_bar",
            leap.assign(reason="unexplained_return", value="+0.900"),
            market=walk.context.name,
            source="simulated",
            first_known_at=datetime.now(UTC),
        )
    assert replace(walk).id != before
