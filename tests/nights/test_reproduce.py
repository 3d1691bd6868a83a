"""A prediction is made again from its receipt, and its model trained again, to the last bit."""

import json
import re
from dataclasses import replace
from datetime import date

import pandas as pd
import pytest
from sqlalchemy import text

from db.engine import reading, transaction
from db.errors import StoreUsageError
from db.rows import predictions
from dtml.errors import DtmlError, UsageError
from dtml.prices.sessions import next_session
from flows.markets.files import read_market
from flows.nightly.fetch import fetch_bars
from flows.replay import (
    FIGURES,
    TOLERANCE,
    Archive,
    Receipt,
    Retraining,
    replay_of,
    reproduce,
    retrain,
    run_of,
)
from flows.settings import data_folder
from flows.studies.study import run_study
from tests.support.backtest_market import backtest_of
from tests.support.facts import in_order
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights, receipt_of

FOLLOWING = next_session("XNYS", AS_OF)


def restate(context):
    """A dividend on everything just before the night, and a correction in the
    middle of what was trained on.
    """
    bars = BARS.copy()
    bars.loc[bars["session"] < pd.Timestamp("2024-06-27"), "adj_close"] *= 0.98
    bars.loc[bars["session"] == pd.Timestamp("2024-03-20"), "adj_close"] *= 1.01
    assert len(fetch_bars(replace(context, source=FrameSource(bars)), FOLLOWING).restated) == 10


def test_a_night_s_prediction_and_its_model_are_made_again_after_a_restatement(context, archive):
    after_nights(context, AS_OF)
    receipt = receipt_of(context, "F01A")
    restate(context)
    run = run_of(archive.engine, receipt)
    found = reproduce(archive, receipt, run)
    assert found.reasons == []
    assert found.again == found.predictions[[*FIGURES]].iloc[0].to_dict()
    assert found.recorded_hash == found.inputs_hash
    trained = retrain(archive, run)
    assert trained.reasons == []
    assert trained.checkpoint_hash == run["checkpoint_hash"]


def test_a_training_on_changed_bars_gives_other_weights_and_says_which(context, engine, archive):
    after_nights(context, AS_OF)
    run = run_of(archive.engine, receipt_of(context, "F01A"))
    with transaction(engine) as conn:
        conn.execute(
            text("update price set adj_close = adj_close * 1.02 where session = '2024-03-20'")
        )
    trained = retrain(archive, run)
    assert trained.checkpoint_hash != run["checkpoint_hash"]
    assert "parameters differ, most" in trained.reasons[0]
    assert trained.differing
    assert not trained.is_close


@pytest.mark.soak
def test_a_backtest_is_made_again_after_the_list_and_the_index_changed(run_request, reader):
    backtest = backtest_of(run_request)
    run_study(backtest)
    market = read_market(run_request.market, run_request.market_file)
    archive = Archive(reader, changed_market(market), "cpu")
    with reading(reader) as conn:
        made = predictions.prediction_history(conn, market="past", kind="backtest")
    one_a_session = made.groupby("target").tail(1)
    assert one_a_session["run_id"].nunique() == 3
    for row in one_a_session.itertuples():
        receipt = Receipt(str(row.run_id), str(row.symbol), row.target.date())
        assert reproduce(archive, receipt, run_of(reader, receipt)).reasons == []
    assert retrain(archive, run_of(reader, receipt)).reasons == []


def changed_market(market):
    """The market after one stock left, one joined, one has another date, and
    the index was replaced.
    """
    listed = market.with_symbols(
        [*(each for each in market.symbols if each != "L01"), "NEW"]
    ).constituents
    dated = tuple(
        replace(each, since=date(2024, 5, 2)) if each.symbol == "F01B" else each for each in listed
    )
    return replace(market, constituents=dated, index=replace(market.index, symbol="OTHER"))


CHANGED = in_order(" OTHER; ", " SIMX; ", "NEW joined; ", "L01 left; ", "F01B with")


@pytest.mark.parametrize("kept", [True, False])
def test_a_model_is_trained_again_on_its_own_list_and_index_whatever_they_are_today(
    context, archive, command, kept
):
    after_nights(context, AS_OF)
    receipt = receipt_of(context, "F01A")
    run = run_of(archive.engine, receipt)
    archive.market = changed_market(context.market)
    if not kept:
        (data_folder() / run["checkpoint_path"]).unlink()
    trained = retrain(archive, run)
    assert trained.reasons == []
    assert trained.restored is not kept
    found = reproduce(archive, receipt, run)
    assert found.reasons == []
    assert re.search(CHANGED, str(found.changed_since))
    assert replay_of(archive, archive.night(AS_OF)).reasons == []


def test_the_command_prints_the_receipt_and_ends_with_1_when_a_row_was_changed(
    context, engine, command
):
    after_nights(context, AS_OF)
    receipt = str(receipt_of(context, "L01"))
    code, said, _ = command("replay", receipt, "--retrain", "--device", "cpu")
    assert code == 0
    assert re.search("^found +equal", said, re.MULTILINE)
    assert "weights are the same" in said
    with transaction(engine) as conn:
        conn.execute(text("update prediction set probability_std = 0.25"))
    code, said, error = command("replay", receipt, "--json", "--device", "cpu")
    assert code == 1
    found = json.loads(said)
    assert found["equal"] is False
    assert found["inputs_hash"] == found["reproduced_inputs_hash"]
    assert "error" in error


def test_what_is_no_receipt_is_the_users_mistake(context, archive):
    after_nights(context, AS_OF)
    known = receipt_of(context, "L01")
    run = run_of(archive.engine, known)
    for wrong in ("L01", "a/b/c", f"{known}/x"):
        with pytest.raises(UsageError, match="is not a receipt"):
            Receipt.read(wrong)
    with pytest.raises(StoreUsageError, match=f" 9, .*{FOLLOWING} .. {FOLLOWING}"):
        reproduce(archive, replace(known, target=date(2024, 1, 3)), run)


def test_weights_of_a_gpu_are_equal_within_a_tolerance_and_those_of_a_cpu_to_the_last_bit():
    first = date(2024, 1, 2)
    run = {
        "id": "one",
        "checkpoint_hash": "a",
        "train_first": first,
        "code_version": "0",
        "computed_by": None,
        "market": "m",
    }
    for device, apart, equal in (
        ("cuda", TOLERANCE, True),
        ("cuda", 2 * TOLERANCE, False),
        ("cpu", 1e-7, False),
    ):
        trained = Retraining(
            run=run,
            device=device,
            machine=f"device {device}",
            checkpoint_hash="b",
            parameters=2,
            differing={"linear.weight": apart},
            first=first,
        )
        assert (trained.reasons == []) is trained.is_close is equal


ELSEWHERE = [
    "../new.safetensors",
    "{outside}/new.safetensors",
    "models/../new.safetensors",
    "models/deep/new.safetensors",
]


@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_store_that_names_another_place_for_weights_has_nothing_written_there(
    context, archive, path, tmp_path
):
    after_nights(context, AS_OF)
    path = path.format(outside=tmp_path)
    with transaction(context.engine) as conn:
        conn.execute(text("update run set checkpoint_path = :path"), {"path": path})
    run = run_of(archive.engine, receipt_of(context, "F01A"))
    with pytest.raises(DtmlError, match=r"\.safetensors files directly in "):
        retrain(archive, run)
    assert not (data_folder() / path).exists()
