"""The ranking of each night's stocks: kept, replayed, scored beside one-line
rules, and made of the past alone.
"""

import logging
import re
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sqlalchemy import text

from db.engine import reading, transaction
from db.read import read
from dtml.errors import DtmlError
from dtml.markets.definition import LEGS
from dtml.prices.sessions import next_session, previous_session
from dtml.ranking.features import RULES
from flows.nightly import ranking
from flows.nightly.context import Tonight
from flows.nightly.night import run_night
from flows.replay import replay_of
from flows.settings import data_folder
from tests.support.bounds import in_float64
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights, without

TARGET = next_session("XNYS", AS_OF)
PREDICTORS = {"ridge", "boosting", "blend", "dtml"}


def said(context, target=TARGET):
    with reading(context.engine) as conn:
        return read(
            conn,
            "stock_rank",
            market=context.name,
            target=target,
            order="target, made_at, predictor, place",
        )


def scored(context, span="night"):
    with reading(context.engine) as conn:
        return read(conn, "rank_score", market=context.name, span=span)


def test_a_night_orders_its_stocks_by_every_predictor_and_a_rerun_adds_no_row(ranking_context):
    after_nights(ranking_context, AS_OF)
    made = said(ranking_context)
    assert set(made["predictor"]) == PREDICTORS
    for name, own in made.groupby("predictor"):
        assert own["place"].tolist() == list(range(1, 10)), name
        assert own["score"].is_monotonic_decreasing
        assert (
            own["probability"].isna().all()
            if name == "dtml"
            else own["probability"].between(0, 1).all()
        )
    run_night(ranking_context, AS_OF)
    assert len(said(ranking_context)) == len(made)
    with reading(ranking_context.engine) as conn:
        latest = pd.read_sql(text("select * from latest_ranking order by place"), conn)
    assert latest["predictor"].unique().tolist() == ["dtml"]  # as the simulated market's file asks
    assert latest["symbol"].tolist() == made.loc[made["predictor"] == "dtml", "symbol"].tolist()


@pytest.mark.soak
def test_what_comes_after_a_night_changes_no_place_of_it(ranking_context):
    after_nights(ranking_context, AS_OF)
    later = BARS["session"] > pd.Timestamp(AS_OF)
    prices = ["open", "high", "low", "close", "adj_close", "volume"]
    scrambled = BARS.assign(**{name: BARS[name].where(~later, BARS[name] * 1.1) for name in prices})
    before = said(ranking_context)
    run_night(replace(ranking_context, source=FrameSource(scrambled)), TARGET)
    trained = ranking.rankers_for(Tonight(ranking_context, AS_OF))
    assert trained is not None
    probabilities = before[before["predictor"] == "dtml"].set_index("symbol")["score"]
    again = ranking.rank_night(Tonight(ranking_context, AS_OF), trained, probabilities)
    both = before.merge(again, on=["predictor", "symbol"], suffixes=("", "_again"))
    assert len(both) == 36
    assert (both["score"] == both["score_again"]).all()


def test_an_order_is_replayed_to_the_last_bit_and_a_change_of_it_is_told(ranking_context, archive):
    after_nights(ranking_context, AS_OF)
    night = archive.night(AS_OF)
    assert replay_of(archive, night).reasons == []
    with transaction(ranking_context.engine) as conn:
        conn.execute(
            text(
                "update stock_rank set score = score + 1e-9 where predictor = 'ridge' and place = 1"
            )
        )
    (reason,) = replay_of(archive, night).reasons
    assert re.match("ranking: 1 of 36 .*differ", reason)


@pytest.mark.soak
def test_orders_are_scored_beside_the_rules_over_each_return_once_it_is_known(ranking_context):
    after_nights(ranking_context, AS_OF, TARGET)
    following = next_session("XNYS", TARGET)
    run_night(ranking_context, following)
    closes = BARS.pivot(index="session", columns="symbol", values="adj_close")
    moves = closes.pct_change(fill_method=None)
    found = scored(ranking_context)
    of_closes = found[found["leg"] == "next_close"].set_index(["target", "predictor"])["rank_ic"]
    for target in (TARGET, following):
        session = pd.Timestamp(target)
        mine = of_closes[session]
        assert set(mine.index) == PREDICTORS | set(RULES)
        ridge = (
            said(ranking_context, target).query("predictor == 'ridge'").set_index("symbol")["score"]
        )
        came, yesterday = (each.loc[session, ridge.index] for each in (moves, moves.shift()))
        assert mine["ridge"] == in_float64(spearmanr(ridge, came)[0])
        assert mine["day_losers"] == in_float64(spearmanr(-yesterday, came)[0])
    of_two_days = found[found["leg"] == "second_close"]
    assert pd.Timestamp(following) not in set(of_two_days["target"])
    running = scored(ranking_context, "running")
    last = running[running["target"] == running["target"].max()].set_index("predictor")
    assert last["rank_ic"].to_dict() == in_float64(of_closes.groupby("predictor").mean().to_dict())
    assert last["rank_ic_low"].isna().all()  # below 20 nights no interval


@pytest.mark.soak
def test_a_market_with_too_little_history_has_its_night_without_an_order(context, caplog):
    with caplog.at_level(logging.WARNING, logger="flows.nightly.ranking"):
        assert run_night(context, AS_OF).row["status"] == "complete"
    assert said(context).empty
    assert re.search("rankers need 253: 126 .*train.* 1 .*126 .*validation", caplog.text)


@pytest.mark.soak
def test_rankers_are_trained_again_when_the_policy_or_the_file_says_so(ranking_context):
    first = ranking.rankers_for(Tonight(fetched(ranking_context), AS_OF))
    assert first is not None
    later = date(2024, 10, 1)
    every = replace(ranking_context, market=replace(ranking_context.market, retrain=21))
    assert ranking.rankers_for(Tonight(ranking_context, later), only_stored=True).row == first.row
    assert ranking.rankers_for(Tonight(fetched(every, later), later)).row["train_last"] == later
    other = replace(ranking_context, market=replace(ranking_context.market, leg="open_to_open"))
    assert ranking.rankers_for(Tonight(other, later)).row["leg"] == "open_to_open"
    never = replace(
        ranking_context, market=replace(ranking_context.market, retrain="never", name="other")
    )
    assert ranking.rankers_for(Tonight(never, later)) is None


def fetched(context, as_of=AS_OF):
    from flows.nightly.fetch import fetch_bars

    fetch_bars(context, as_of)
    return context


@pytest.mark.soak
def test_rankers_whose_checkpoint_is_lost_are_trained_again_and_others_lie_beside(
    ranking_context, monkeypatch
):
    fetched(ranking_context)

    def trained(*, only_stored=False):
        found = ranking.rankers_for(Tonight(ranking_context, AS_OF), only_stored=only_stored)
        assert found is not None
        return found.row

    first = trained()
    file = data_folder() / first["checkpoint_path"]
    kept = file.read_bytes()
    file.unlink()
    assert (trained()["id"], file.read_bytes()) == (first["id"], kept)
    file.unlink()
    fit = ranking.fit_rankers

    def other(*given):
        return replace(fit(*given), slopes={"ridge": 1.0, "boosting": 1.0, "blend": 1.0})

    # as another processor computes other last bits
    monkeypatch.setattr(ranking, "fit_rankers", other)
    beside = trained()["id"]
    assert beside != first["id"]
    assert trained()["id"] == trained(only_stored=True)["id"] == beside


def test_a_night_that_trains_nothing_and_has_no_rankers_says_what_to_do(ranking_context, caplog):
    with caplog.at_level(logging.WARNING, logger="flows.nightly.ranking"):
        assert (
            ranking.rankers_for(Tonight(fetched(ranking_context), AS_OF), only_stored=True) is None
        )
    remedy = f"no rankers.*{AS_OF}:.*`dtml train simulated --as-of"
    assert re.search(remedy, caplog.text)


@pytest.mark.soak
def test_a_corrected_price_corrects_the_score_of_an_order(ranking_context):
    """Also where it moves no rank: the spread of the best less the worst is another."""
    after_nights(ranking_context, AS_OF, TARGET)
    following = next_session("XNYS", TARGET)
    of_order = "leg == 'next_close' and predictor == 'ridge' and target == @pd.Timestamp(@TARGET)"
    best = said(ranking_context).query("predictor == 'ridge' and place == 1")["symbol"].item()
    row = (BARS["symbol"] == best) & (BARS["session"] == pd.Timestamp(TARGET))
    spreads = [scored(ranking_context).query(of_order)["decile_spread"].item()]
    for factor, night in ((1.0002, following), (1.2, next_session("XNYS", following))):
        corrected = BARS.copy()
        corrected.loc[row, ["open", "high", "low", "close", "adj_close"]] *= factor
        run_night(replace(ranking_context, source=FrameSource(corrected)), night)
        spreads.append(scored(ranking_context, "running").query(of_order)["decile_spread"].item())
    assert len(set(spreads)) == 3


@pytest.mark.soak
def test_returns_that_end_while_no_night_is_run_are_scored_by_the_next(ranking_context):
    after_nights(ranking_context, AS_OF, TARGET)
    run_night(ranking_context, date(2024, 8, 1))
    own = scored(ranking_context).query("target == @pd.Timestamp(@TARGET) and predictor == 'ridge'")
    assert set(own["leg"]) == set(LEGS)
    assert (own["days"] == 1).all()


@pytest.mark.soak
def test_a_checkpoint_that_was_changed_serves_no_night(ranking_context, engine):
    trained = ranking.train_rankers(Tonight(fetched(ranking_context), AS_OF))
    again = ranking.load_trained(ranking_context, trained.row)
    for name, model in trained.rankers.models.items():
        for part, value in vars(model).items():
            np.testing.assert_array_equal(value, getattr(again.rankers.models[name], part))
    with pytest.raises(DtmlError, match=r"changed or damaged;.*backup"):
        ranking.load_trained(ranking_context, {**trained.row, "checkpoint_hash": "0" * 64})


@pytest.mark.soak
def test_a_ranked_stock_that_the_model_left_out_has_its_outcome(ranking_context):
    """The model needs a whole window; rankers do not."""
    gap = without(BARS, ["L02"], previous_session("XNYS", AS_OF))
    after_nights(replace(ranking_context, source=FrameSource(gap)), AS_OF, TARGET)
    with reading(ranking_context.engine) as conn:
        history = read(conn, "ranking_history", target=TARGET)
        predicted = read(conn, "prediction_history", columns="symbol")
    assert "L02" not in set(predicted["symbol"])
    assert history["realised_return"].notna().all()
    assert history["predictor"].value_counts().to_dict() == dict.fromkeys(PREDICTORS, 9) | {
        "dtml": 8
    }
    close = BARS[BARS["symbol"] == "L02"].set_index("session")["adj_close"]
    expected = close[pd.Timestamp(TARGET)] / close[pd.Timestamp(AS_OF)] - 1
    of_stock = history.loc[history["symbol"] == "L02", "realised_return"]
    assert of_stock.unique() == in_float64([expected])
