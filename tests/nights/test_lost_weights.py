"""A run whose weights are lost is made again; where they come out otherwise,
nothing is refused for ever.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from db.engine import reading, transaction
from db.read import read
from db.rows import runs as stored_runs
from flows.markets.opened import RunRequest
from flows.nightly import train
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import NightRefusedError, run_night
from flows.nightly.train import load_model, train_model
from flows.settings import data_folder
from flows.studies.backtest import FoldRun, Job, one_by_one
from flows.studies.study import run_study
from tests.support.backtest_market import FIRST, LAST, backtest_of
from tests.support.commands import Command
from tests.support.nights import AS_OF, receipt_of

LOSSES: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "damaged": lambda file: file.write_bytes(file.read_bytes()[:-9] + b"otherwise"),
}
ELSEWHERE = "0123456789abcdef" * 4  # the hash of what another processor trained
LOST_WORDS = rf"SHA-256 {ELSEWHERE[:12]}.*lost, .*again gave.*backup"


def runs(context: MarketContext) -> dict[str, dict[str, Any]]:
    with reading(context.engine) as conn:
        return {
            name: stored_runs.run(conn, name)
            for name in read(conn, "run", order="created_at, id")["id"]
        }


def checkpoint_of(run: dict[str, Any]) -> Path:
    return data_folder() / str(run["checkpoint_path"])


def lose(context: MarketContext, *, how: str = "missing", trained_elsewhere: bool = False) -> bytes:
    """Lose every checkpoint; what was in the last one."""
    for run in runs(context).values():
        whole = checkpoint_of(run).read_bytes()
        LOSSES[how](checkpoint_of(run))
    if trained_elsewhere:
        with transaction(context.engine) as conn:
            conn.execute(text("update run set checkpoint_hash = :sha"), {"sha": ELSEWHERE})
    return whole


@pytest.mark.soak
@pytest.mark.parametrize("how", LOSSES)
def test_a_night_whose_model_s_weights_are_lost_trains_them_again(
    context: MarketContext, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    fetch_bars(context, AS_OF)
    model = train_model(Tonight(context, AS_OF))
    whole = lose(context, how=how)
    with caplog.at_level(logging.INFO):
        assert run_night(context, AS_OF).row["run_id"] == model.run_id
    assert f"weights of {model.run_id} are" in caplog.text
    assert checkpoint_of(runs(context)[model.run_id]).read_bytes() == whole
    lose(context, how=how)
    later = run_night(context, date(2024, 7, 2)).row
    assert later["status"] == "complete"
    assert later["run_id"] != model.run_id


def test_a_market_that_never_trains_says_in_the_night_s_row_what_to_do(
    context: MarketContext,
) -> None:
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
@pytest.mark.parametrize("how", LOSSES)
def test_weights_that_come_out_otherwise_are_a_run_beside_the_stored_one(
    context: MarketContext,
    how: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetch_bars(context, AS_OF)
    first = train_model(Tonight(context, AS_OF))
    lose(context, how=how, trained_elsewhere=True)
    lost = runs(context)[first.run_id]
    left = checkpoint_of(lost).read_bytes() if how == "damaged" else None
    with caplog.at_level(logging.WARNING):
        second = train_model(Tonight(context, AS_OF))
    assert second.run_id.startswith(f"{first.run_id}-")
    assert re.search(LOST_WORDS, caplog.text)
    assert runs(context)[first.run_id] == lost
    assert (checkpoint_of(lost).read_bytes() if how == "damaged" else None) == left
    assert load_model(context, AS_OF).run_id == second.run_id
    assert run_night(context, AS_OF).row["run_id"] == second.run_id
    monkeypatch.setattr(train, "fit_bars", lambda *_: pytest.fail("it was trained a third time"))
    assert train_model(Tonight(context, AS_OF)).run_id == second.run_id
    assert len(runs(context)) == 2


@pytest.mark.soak
def test_a_lost_checkpoint_is_put_back_by_a_retraining_from_a_receipt(
    context: MarketContext, engine: Engine, command: Command
) -> None:
    run_night(context, AS_OF)
    whole, receipt = lose(context), str(receipt_of(context, "L01"))
    (run,) = runs(context).values()
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
    lose(context, trained_elsewhere=True)
    code, shown, complaint = command("replay", receipt, "--retrain", "--device", "cpu")
    assert code == 1
    assert "made again   probability 0." in shown
    # here the lost weights differ by name alone
    assert re.search("^found +equal", shown, re.MULTILINE)
    assert f"checkpoint   lost, SHA-256 {ELSEWHERE}" in shown
    said = " ".join(complaint.split())
    assert re.search(LOST_WORDS, said)
    assert "`dtml train simulated`" in said
    assert not checkpoint_of(run).exists()


@pytest.mark.soak
def test_a_backtest_whose_weights_are_lost_in_the_middle_is_finished(
    run_request: RunRequest, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    backtest = backtest_of(run_request)

    def stopped(jobs: Sequence[Job]) -> Iterator[FoldRun]:
        yield from one_by_one(jobs[:2])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(replace(backtest, runner=stopped))
    for file in (data_folder() / "models").iterdir():
        file.unlink()
    result = run_study(backtest)
    assert (result.folds["first"].min().date(), result.folds["last"].max().date()) == (FIRST, LAST)
    with reading(engine) as conn:
        assert len(read(conn, "run", order="created_at, id")) == 3
    monkeypatch.setattr(train, "fit_bars", lambda *_: pytest.fail("it was trained a third time"))
    assert run_study(backtest).row == result.row
