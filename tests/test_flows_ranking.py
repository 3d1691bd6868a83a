"""Models and rules walked through the stored history of a market: what is stored, printed, and known when."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_commands import Command
from sqlalchemy import Engine

from db.engine import reading
from db.rows import rankings
from dtml.errors import DtmlError
from dtml.ranking.outcomes import LEGS
from dtml.ranking.rules import RULES
from flows.benchmark.ranking import Plan, Ranking, Walk, run_ranking
from flows.nightly.context import RunRequest, open_stored_context

FIRST, LAST = date(2024, 2, 1), date(2024, 5, 17)
MODELS = {"ridge", "boosting", "blend"}


@pytest.fixture
def walk(run_request: RunRequest) -> Walk:
    return Walk(open_stored_context(run_request), Plan(FIRST, LAST))


def cell(found: Ranking, predictor: str, leg: str = "next_close", part: str = "all") -> Mapping[str, Any]:
    scores = found.scores
    mine = (scores["predictor"] == predictor) & (scores["leg"] == leg) & (scores["slice"] == part)
    (row,) = scores[mine].to_dict("records")
    return row  # type: ignore[return-value]


def test_every_model_and_rule_is_scored_over_every_leg_and_the_days_are_scored_once(walk: Walk, engine: Engine) -> None:
    found = run_ranking(walk)
    assert set(found.scores["predictor"]) == MODELS | set(RULES)
    assert set(found.scores["leg"]) == set(LEGS)
    assert set(found.scores[found.scores["slice"] != "all"]["leg"]) == {"next_close"}
    assert (found.row["leg"], found.row["first"], found.row["last"]) == ("next_close", FIRST, LAST)
    assert found.row["folds"] == 2
    assert found.row["best_rule"] in RULES
    again = run_ranking(Walk(walk.context, walk.plan))
    assert again.row["read_at"] == found.row["read_at"]
    pd.testing.assert_frame_equal(again.scores, found.scores)
    with reading(engine) as conn:
        assert rankings.ranking(conn, "none") is None


def test_a_stock_is_ordered_on_the_days_on_which_it_is_a_constituent(walk: Walk) -> None:
    history = walk.history
    column = history.panel.symbols.index("F02B")
    sessions = history.panel.sessions
    there = dict(zip(sessions.strftime("%Y-%m-%d"), history.there[:, column], strict=True))
    assert (there["2024-03-12"], there["2024-03-13"], there["2024-03-19"], there["2024-03-20"]) == (
        True, False, False, True,
    )  # fmt: skip
    assert np.isnan(history.features[~history.there]).all()
    assert np.isnan(history.outcome[~history.there]).all()


def test_a_difference_is_that_of_the_two_scores_and_turns_its_sign(walk: Walk) -> None:
    found = run_ranking(walk)
    gains = found.differences.set_index(["predictor", "other"])["gain"]
    rules = cell(found, "day_losers")["rank_ic"] - cell(found, "intraday_reversal")["rank_ic"]
    assert gains["day_losers", "intraday_reversal"] == pytest.approx(rules)
    assert gains["ridge", "boosting"] == pytest.approx(-gains["boosting", "ridge"])


def test_another_leg_or_other_days_are_another_ranking(walk: Walk) -> None:
    context = walk.context
    ids = {Walk(context, plan).id for plan in (walk.plan, Plan(FIRST, LAST, "open_to_open"), Plan(FIRST, FIRST))}
    assert len(ids) == 3


def test_another_list_of_stocks_or_another_price_of_returns_is_another_ranking(walk: Walk) -> None:
    market = walk.context.market
    others = market.with_symbols(market.symbols[:-1]), replace(market, returns="close", z_close="raw")
    ids = {Walk(replace(walk.context, market=each), walk.plan).id for each in (market, *others)}
    assert len(ids) == 3


def test_days_without_an_outcome_are_refused(walk: Walk) -> None:
    with pytest.raises(DtmlError, match=r"the prices end on 20\d\d-\d\d-\d\d: choose --to up to then"):
        run_ranking(Walk(walk.context, Plan(FIRST, date(2030, 1, 2))))
    end = walk.history.panel.sessions[-1].date()
    with pytest.raises(DtmlError, match=f"from {end} to {end} .*next_close"):
        run_ranking(Walk(walk.context, Plan(end, end)))


def test_too_short_a_history_says_what_to_do(walk: Walk) -> None:
    with pytest.raises(DtmlError, match="begin later, or give prices from before"):
        run_ranking(Walk(walk.context, Plan(date(2023, 10, 2), date(2024, 2, 1))))


@pytest.mark.slow
def test_the_command_prints_what_it_stores_and_trains_nothing_again(
    run_request: RunRequest, walk: Walk, command: Command
) -> None:
    stored = run_ranking(walk)
    asked = ("ranking", "--market-file", str(run_request.market_file), "--from", str(FIRST), "--to", str(LAST))
    code, said, complaint = command(*asked, "--json")
    assert (code, "nothing was trained" in complaint) == (0, True)
    document = json.loads(said)
    assert document["ranking"]["id"] == stored.row["id"]
    assert len(document["differences"]) == len(stored.differences)
    code, said, _ = command(*asked)
    assert (code, "how well the stocks of a day were ordered" in said) == (0, True)
    rule, blend = stored.row["best_rule"], cell(stored, "blend")
    assert f"of {blend['days']} days, the blend " in said.splitlines()[-1]
    assert said.splitlines()[-1].count(f" {rule}: rank IC ") == 1
    whole = stored.scores[(stored.scores["slice"] == "all") & (stored.scores["leg"] == "next_close")]
    assert str(whole.sort_values("rank_ic").iloc[0]["predictor"]) in said.splitlines()[4]
    code, said, _ = command(*asked, "--markdown")
    assert said.startswith("| predictor | rank IC [95 %] |")
    code, _, complaint = command(*asked[:3], "--from", str(LAST), "--to", str(FIRST))
    assert (code, "lies after" in complaint) == (2, True)


def test_the_context_of_a_walk_asks_no_source(walk: Walk) -> None:
    assert walk.context.source.name == "store"
