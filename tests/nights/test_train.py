"""When a model is trained, on what, which one a night may use, and what a lost one does."""

import json
import logging
import re
from dataclasses import replace
from datetime import date

import pandas as pd
import pytest
from sqlalchemy import text

from db.engine import reading, transaction
from db.read import read
from db.rows import runs
from db.rows.runs import latest_trained
from dtml.errors import DtmlError
from dtml.experiments import vary
from dtml.training import fit_members
from flows.nightly import train
from flows.nightly.context import Tonight, stored_bars
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import NightRefusedError, run_night
from flows.nightly.train import config_of, load_model, train_model, why_due, windows_of
from flows.settings import data_folder
from tests.support.nights import AS_OF, BARS, FrameSource, receipt_of
from tests.support.stores import counts


def due(context, as_of):
    """Why another model is due."""
    with reading(context.engine) as conn:
        latest = latest_trained(conn, "run", context.name, on_or_before=as_of)
    return why_due(context, latest, as_of, config_of(context))


def test_the_policy_says_when_a_model_is_due(context):
    never = replace(context, market=replace(context.market, retrain="never"))
    with pytest.raises(DtmlError, match=r"no model.* 2024-07-01"):
        load_model(never, AS_OF)
    assert "none yet" in str(due(context, AS_OF))
    run_id = run_night(context, AS_OF).row["run_id"]
    later = date(2024, 7, 8)
    assert due(context, later) is None
    every = replace(context, market=replace(context.market, retrain=4))
    assert due(every, date(2024, 7, 5)) is None
    assert due(every, later) == f"{run_id} is 4 sessions old"
    changed = replace(context, experiment=vary(context.experiment, {"epochs": 3}))
    assert re.fullmatch(f"the configuration .*{run_id}", str(due(changed, later)))
    assert "none yet" in str(due(context, date(2024, 6, 28)))


def test_a_training_from_the_same_store_is_the_same_run(context):
    fetch_bars(context, AS_OF)
    first = train_model(Tonight(context, AS_OF))
    again = train_model(Tonight(context, AS_OF))
    assert again.run_id == first.run_id
    assert counts(context.engine)["run"] == 1
    with reading(context.engine) as conn:
        run = runs.run(conn, first.run_id)
    assert run["seeds"] == [0, 1]
    assert run["train_last"] == AS_OF
    assert run["config"]["model"]["hidden"] == 8
    assert [len(member["epochs"]) for member in run["losses"]] == [2, 2]


def test_too_little_history_to_train_refuses_the_night_with_what_it_takes(context):
    short = replace(context, source=FrameSource(BARS[BARS["session"] > pd.Timestamp("2024-03-01")]))
    with pytest.raises(NightRefusedError, match="64 to train on"):
        run_night(short, AS_OF)


def test_training_and_validation_days_are_a_gap_apart_and_end_a_gap_before_as_of(context):
    fetch_bars(context, AS_OF)
    fetch_bars(context, date(2024, 7, 9))
    bars, _ = stored_bars(context, date(2022, 1, 3), date(2024, 7, 9))
    windows = windows_of(context, bars, context.experiment.windows, context.market.symbols)
    fitted, chosen = context.experiment.spans(windows, AS_OF)
    sessions = windows.target
    assert sessions.get_loc(chosen.target[0]) - sessions.get_loc(fitted.target[-1]) == 2
    assert sessions.get_loc(pd.Timestamp(AS_OF)) - sessions.get_loc(chosen.target[-1]) == 1
    assert (len(fitted), len(chosen)) == (90, 19)


def test_a_past_night_never_uses_a_later_model(context):
    fetch_bars(context, date(2024, 7, 9))
    early = train_model(Tonight(context, AS_OF))
    late = train_model(Tonight(context, date(2024, 7, 9)))
    assert early.run_id != late.run_id
    assert load_model(context, date(2024, 7, 8)).run_id == early.run_id
    assert load_model(context, date(2024, 7, 9)).run_id == late.run_id


def test_a_warm_start_begins_with_the_weights_of_the_model_before(context, monkeypatch):
    begun = []

    def fit(*spans, begin, **how):
        begun.append(begin)
        return fit_members(*spans, begin=begin, **how)

    monkeypatch.setattr(train, "fit_members", fit)
    warm = replace(context, experiment=vary(context.experiment, {"warm_start": True}))
    fetch_bars(warm, date(2024, 7, 9))
    first = train_model(Tonight(warm, AS_OF))
    train_model(Tonight(warm, date(2024, 7, 9)))
    assert begun[0] is None
    for seed, weights in enumerate(begun[1]):
        for name, value in first.ensemble.weights.items():
            assert weights[name].equal(value[seed])


def test_no_price_after_as_of_moves_a_weight(context):
    fetch_bars(context, AS_OF)
    first = train_model(Tonight(context, AS_OF))
    scrambled = BARS.copy()
    later = scrambled["session"] > pd.Timestamp(AS_OF)
    scrambled.loc[later, ["open", "high", "low", "close", "adj_close"]] *= 1.3
    fetch_bars(replace(context, source=FrameSource(scrambled)), date(2024, 8, 30))
    again = train_model(Tonight(context, AS_OF))
    assert again.run_id == first.run_id
    assert all(
        (again.ensemble.weights[name] == value).all()
        for name, value in first.ensemble.weights.items()
    )


LOSSES = {
    "missing": lambda file: file.unlink(),
    "damaged": lambda file: file.write_bytes(file.read_bytes()[:-9] + b"otherwise"),
}
ELSEWHERE = "0123456789abcdef" * 4  # the hash of what another processor trained
LOST_WORDS = rf"SHA-256 {ELSEWHERE[:12]}.*lost, .*again gave.*backup"


def runs_of(context):
    with reading(context.engine) as conn:
        return {
            name: runs.run(conn, name) for name in read(conn, "run", order="created_at, id")["id"]
        }


def checkpoint_of(run):
    return data_folder() / str(run["checkpoint_path"])


def lose(context, *, how="missing", trained_elsewhere=False):
    """Lose every checkpoint; what was in the last one."""
    for run in runs_of(context).values():
        whole = checkpoint_of(run).read_bytes()
        LOSSES[how](checkpoint_of(run))
    if trained_elsewhere:
        with transaction(context.engine) as conn:
            conn.execute(text("update run set checkpoint_hash = :sha"), {"sha": ELSEWHERE})
    return whole


@pytest.mark.soak
@pytest.mark.parametrize("how", LOSSES)
def test_a_night_whose_model_s_weights_are_lost_trains_them_again(context, how, caplog):
    fetch_bars(context, AS_OF)
    model = train_model(Tonight(context, AS_OF))
    whole = lose(context, how=how)
    with caplog.at_level(logging.INFO):
        assert run_night(context, AS_OF).row["run_id"] == model.run_id
    assert f"weights of {model.run_id} are" in caplog.text
    assert checkpoint_of(runs_of(context)[model.run_id]).read_bytes() == whole
    lose(context, how=how)
    later = run_night(context, date(2024, 7, 2)).row
    assert later["status"] == "complete"
    assert later["run_id"] != model.run_id


def test_a_market_that_never_trains_says_in_the_night_s_row_what_to_do(context):
    fetch_bars(context, AS_OF)
    train_model(Tonight(context, AS_OF))
    lose(context)
    never = replace(context, market=replace(context.market, retrain="never"))
    with pytest.raises(
        NightRefusedError,
        match=r"cannot be used: .*backup.*`dtml train",
    ):
        run_night(never, AS_OF)


@pytest.mark.soak
def test_weights_that_come_out_otherwise_are_a_run_beside_the_stored_one(
    context,
    caplog,
    monkeypatch,
):
    fetch_bars(context, AS_OF)
    first = train_model(Tonight(context, AS_OF))
    lose(context, how="damaged", trained_elsewhere=True)
    lost = runs_of(context)[first.run_id]
    left = checkpoint_of(lost).read_bytes()
    with caplog.at_level(logging.WARNING):
        second = train_model(Tonight(context, AS_OF))
    assert second.run_id.startswith(f"{first.run_id}-")
    assert re.search(LOST_WORDS, caplog.text)
    assert runs_of(context)[first.run_id] == lost
    assert checkpoint_of(lost).read_bytes() == left
    assert load_model(context, AS_OF).run_id == second.run_id
    assert run_night(context, AS_OF).row["run_id"] == second.run_id
    monkeypatch.setattr(train, "fit_bars", lambda *_: pytest.fail("it was trained a third time"))
    assert train_model(Tonight(context, AS_OF)).run_id == second.run_id
    assert len(runs_of(context)) == 2


@pytest.mark.soak
def test_a_lost_checkpoint_is_put_back_by_a_retraining_from_a_receipt(context, engine, command):
    run_night(context, AS_OF)
    whole, receipt = lose(context), str(receipt_of(context, "L01"))
    (run,) = runs_of(context).values()
    code, _, complaint = command("replay", receipt, "--device", "cpu")
    assert code == 1
    assert "`dtml replay RECEIPT --retrain`" in " ".join(complaint.split())
    code, said, _ = command("replay", receipt, "--retrain", "--device", "cpu", "--json")
    assert (code, json.loads(said)["equal"], json.loads(said)["retrained"]["restored"]) == (
        0,
        True,
        True,
    )
    assert checkpoint_of(run).read_bytes() == whole
    assert command("replay", receipt, "--device", "cpu")[0] == 0
