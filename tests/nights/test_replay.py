"""A past night gives what it gave, to the last bit, whatever came after it; and
what was changed is found and named.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

import pandas as pd
import pytest
import torch
from sqlalchemy import text

from db.engine import transaction
from dtml.lookahead.audit import audit_list
from dtml.machine import computed_by
from dtml.prices.sessions import next_session, sessions_up_to
from flows.audit import earlier_lists
from flows.markets.opened import RunRequest
from flows.nightly.context import Tonight, open_context
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from flows.nightly.train import train_model
from flows.replay import (
    TOLERANCE,
    Archive,
    ranking_difference,
    replay_of,
    reproduce,
    restated_since,
    run_of,
)
from flows.settings import data_folder
from tests.processors import PROCESSORS
from tests.support.nights import (
    AS_OF,
    BARS,
    FrameSource,
    after_nights,
    receipt_of,
    small_market,
)
from tests.support.stores import counts

FOLLOWING = next_session("XNYS", AS_OF)
LATER = datetime(2124, 1, 1, tzinfo=UTC)


def replayed(archive, as_of=AS_OF, known_at=None):
    return replay_of(archive, archive.night(as_of), known_at)


def assert_equal(replay):
    assert replay.reasons == []
    assert replay.inputs_equal
    assert len(replay.differing) == 0


def restated_bars():
    """A dividend of every stock three sessions before the night, and a split of one."""
    bars = BARS.copy()
    ex = sessions_up_to("XNYS", AS_OF, 3)[0]
    bars.loc[bars["session"] < ex, "adj_close"] *= 0.98
    bars.loc[bars["symbol"] == "L01", ["open", "high", "low", "close", "adj_close"]] /= 2
    return bars


@pytest.mark.on_postgresql
def test_a_night_replays_equal_after_its_whole_history_was_restated(context, archive):
    after_nights(context, AS_OF)
    fetch_result = fetch_bars(replace(context, source=FrameSource(restated_bars())), FOLLOWING)
    assert len(fetch_result.restated) >= 9
    assert_equal(replayed(archive))
    today = replayed(archive, known_at=LATER)
    assert today.inputs_equal is False
    assert restated_since(archive, today)["restated"] > 9 * 20


def test_a_night_replays_equal_after_later_nights_a_training_and_another_list(context, archive):
    after_nights(context, AS_OF)
    others = [symbol for symbol in context.market.symbols if symbol not in ("L01", "F01A")]
    later = replace(context, market=context.market.with_symbols(others))
    run_night(later, FOLLOWING)
    train_model(Tonight(later, FOLLOWING))
    run_night(later, next_session("XNYS", FOLLOWING))
    gone = [replace(each, until=date(2020, 1, 2)) for each in later.market.constituents]
    archive.market = replace(archive.market, constituents=tuple(gone)).with_symbols(["L02", "NEW"])
    for night in archive.nights():
        assert_equal(replay_of(archive, night))
    assert [len(replay_of(archive, night).predictions) for night in archive.nights()] == [9, 7, 7]
    assert len(archive.models) == 2


@pytest.mark.soak
def test_a_fetch_that_began_before_a_night_and_ended_after_it_changes_nothing_of_it(
    context, archive
):
    @dataclass
    class Slow(FrameSource):
        """A source during whose answer the night is run by another."""

        def fetch(self, first, last):
            answer = super().fetch(first, last)
            run_night(context, AS_OF)
            return answer

    assert fetch_bars(replace(context, source=Slow(restated_bars())), AS_OF).stored > 9 * 20
    assert_equal(replayed(archive))
    assert replayed(archive, known_at=LATER).inputs_equal is False


def test_the_watermark_of_a_night_is_the_newest_of_all_bars_that_it_read(context):
    old, recent = date(2024, 3, 1), date(2024, 6, 3)
    bars = BARS.copy()
    bars.loc[bars["session"] < pd.Timestamp(recent), "adj_close"] *= 0.9
    fetch_bars(context, AS_OF)
    fetch_bars(replace(context, source=FrameSource(bars)), AS_OF, known_at=LATER, whole=True)
    tonight = Tonight(context, AS_OF)
    _, of_recent = tonight.known(recent)
    assert tonight.watermark == of_recent < LATER
    for first in (old, recent):
        tonight.known(first)
        assert tonight.watermark == LATER


OF_ONE = "where instrument_id = (select id from instrument where symbol = 'L02')"
CHANGED = {
    f"update price set close = close * 1.001 where session = '{AS_OF}'": "^inputs: ",
    f"delete from prediction {OF_ONE}": "made 9,.* 8 are",
    f"update prediction set probability = probability + 1e-15 {OF_ONE}": "predictions: 1 of 9.*L02",
    f"update prediction set lowest = null {OF_ONE}": "predictions: 1 of 9.*L02",
}


@pytest.mark.parametrize("changed", CHANGED)
def test_what_was_changed_is_found_and_named(context, archive, changed):
    after_nights(context, AS_OF)
    with transaction(context.engine) as conn:
        if changed.startswith("delete"):
            conn.execute(text("delete from attention_weight"))
        assert conn.execute(text(changed)).rowcount > 0
    assert any(re.search(CHANGED[changed], reason) for reason in replayed(archive).reasons)


def test_nothing_is_written_by_a_replay(context, engine, command):
    after_nights(context, AS_OF)
    files = {
        path: path.stat().st_mtime_ns
        for path in data_folder().rglob("*")
        if path.suffix == ".safetensors"
    }
    before = counts(engine)
    assert command("replay", "simulated", "--json")[0] == 0
    assert counts(engine) == before
    assert {path: path.stat().st_mtime_ns for path in files} == files


KNOWN = date(2024, 6, 28)  # the date of the first table
ALWAYS = "".join(f"{stock},2022-01-03,\n" for stock in ("L01", "L02", "F01A", "F01B", "F02A"))
# F02B leaves and comes back; F03A left long before the night.
FIRST = f"{ALWAYS}F02B,2022-01-03,2023-03-31\nF02B,2024-03-01,\nF03A,2022-01-03,2023-06-30\n"
# The second table ends a spell before the date of the first, which still had the stock.
SECOND = FIRST.replace("L01,2022-01-03,", "L01,2022-01-03,2024-05-31") + "L03,2024-07-02,\n"


def listed(folder, rows, as_of):
    """Open the market with a table of members that was true on a day."""
    (folder / "members.csv").write_text(f"symbol,since,until\n{rows}", encoding="utf-8")
    constituents = f'[constituents]\nas_of = {as_of}\nmembers = "members.csv"\nuntil = "included"\n'
    file = folder / "listed.toml"
    file.write_text(small_market(more=constituents), encoding="utf-8")
    request = RunRequest("listed", market_file=file, source="simulated", device="cpu")
    return replace(open_context(request), source=FrameSource(BARS), notice=None)


@pytest.mark.soak
def test_a_table_that_changes_later_changes_no_replayed_night_and_is_found_by_the_audit(
    tmp_path, engine
):
    first = listed(tmp_path, FIRST, KNOWN)
    run_night(first, AS_OF)
    members = {"L01", "L02", "F01A", "F01B", "F02A", "F02B"}
    assert set(first.constituents(AS_OF)) == members
    found = audit_list(first.market, earlier_lists(first), pd.Timestamp(AS_OF))
    assert found.passed is None  # no earlier list is stored

    second = listed(tmp_path, SECOND, FOLLOWING)
    run_night(second, FOLLOWING)
    assert set(second.constituents(FOLLOWING)) == members - {"L01"} | {"L03"}
    archive = Archive(engine, second.market, "cpu")
    replay = replayed(archive)
    assert replay.reasons == []
    assert replay.inputs_equal
    assert set(replay.predictions["symbol"]) == members
    finding = audit_list(second.market, earlier_lists(second), pd.Timestamp(FOLLOWING))
    assert finding.passed is False
    assert re.search(f"L01 .*on {KNOWN} .*earlier list, but not", finding.detail)


HERE = computed_by(torch.device("cpu"))
OLDER = HERE.replace(f"torch {torch.__version__}", "torch 2.0.1")


def change(engine, computed, by):
    """Let something else have computed every night, and change the probability of L02."""
    with transaction(engine) as conn:
        conn.execute(text("update night set computed_by = :computed"), {"computed": computed})
        changed = conn.execute(
            text(
                "update prediction set probability = probability + :by where instrument_id = "
                "(select id from instrument where symbol = 'L02')"
            ),
            {"by": by},
        )
        assert changed.rowcount == 1


def test_what_rounds_otherwise_after_an_upgrade_is_told_from_what_is_equal(
    context, engine, archive, command
):
    after_nights(context, AS_OF)
    change(engine, OLDER, by=3e-8)
    found = replayed(archive)
    assert (found.reasons, found.is_rounding, found.is_equal) == ([], True, False)
    why = f"torch was 2.0.1, is {torch.__version__}"
    assert found.changes == why
    code, said, _ = command("replay", "simulated", "--all", "--device", "cpu")
    assert code == 0
    assert re.search(f"1 night, .*{re.escape(why)}: 0 equal.* 1 within 1e-06", said)
    assert f"{AS_OF} (L02 by 3e-08)" in said
    code, said, _ = command("replay", "simulated", "--json", "--device", "cpu")
    document = json.loads(said)
    assert (code, document["equal"], document["equal_but_for_rounding"]) == (0, False, True)
    receipt = receipt_of(context, "L02")
    reproduction = reproduce(archive, receipt, run_of(engine, receipt))
    assert (reproduction.reasons, reproduction.differing) == ([], ["probability"])


def test_a_machine_with_a_gpu_replays_a_night_of_the_cpu_on_the_cpu(archive):
    here = replace(archive, device="auto")
    assert here.device_for(HERE) == "cpu"
    assert here.device_for(HERE.replace("device cpu", "device cuda NVIDIA H200")) == "auto"
    assert here.device_for(None) == "auto"
    assert archive.device == archive.device_for(None) == "cpu"
    asked = replace(archive, device="cuda")
    assert asked.device_for(HERE) == "cuda"


@pytest.mark.parametrize(
    ("computed", "by"),
    [(OLDER, 3 * TOLERANCE), (None, 3 * TOLERANCE), (HERE, 3e-8)],
    ids=["too much", "too much of an unknown", "nothing has changed"],
)
def test_what_no_rounding_explains_is_a_difference(context, engine, archive, command, computed, by):
    after_nights(context, AS_OF)
    change(engine, computed, by)
    found = replayed(archive)
    assert not found.is_rounding
    assert re.match("predictions: 1 of 9.*L02, by", found.reasons[0])
    assert (found.changes or "are the same") in found.reasons[1]
    code, _, error = command("replay", "simulated", "--all", "--device", "cpu")
    assert code == 1
    assert f"not reproduced: {AS_OF}; `dtml replay" in error


@pytest.mark.soak
def test_a_night_replays_within_rounding_with_the_instructions_of_another_processor(
    context, engine
):
    after_nights(context, AS_OF)
    environment = os.environ | PROCESSORS["SSE4, 1 thread"]
    environment["DTML_DATABASE_URL"] = engine.url.render_as_string(hide_password=False)
    program = Path(sys.executable).with_name("dtml")
    ended = subprocess.run(
        [program, "replay", "simulated", "--all", "--json", "--device", "cpu"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    (night,) = json.loads(ended.stdout)
    assert night["inputs_equal"]
    if HERE in night["replayed_by"]:
        pytest.skip("this processor has no other instructions")
    assert night["changes"].startswith("processor was ")
    assert night["equal"] or night["equal_but_for_rounding"]


def ranking(*rows):
    return pd.DataFrame(rows, columns=["symbol", "score", "place"]).assign(predictor="ridge")


def test_stocks_may_change_places_by_rounding_where_their_scores_are_equal_but_for_it():
    stored = ranking(("A", 2000.0, 1), ("B", 0.5 + 1e-8, 2), ("C", 0.5, 3))
    swapped = ranking(("A", 2000.001, 1), ("B", 0.5, 3), ("C", 0.5 + 1e-8, 2))
    found = ranking_difference(stored, swapped)
    assert found is not None
    assert (found.differing, found.total, found.is_close) == (3, 3, True)
    assert ranking_difference(stored, stored) is None


@pytest.mark.parametrize(
    "again",
    [
        ranking(("A", 0.9, 2), ("B", 0.5, 1)),
        ranking(("A", 0.9, 1), ("B", 0.5001, 2)),
        ranking(("A", 0.9, 1)),
    ],
    ids=["places of other scores", "another score", "a stock less"],
)
def test_a_ranking_that_rounding_does_not_explain_is_not_close(again):
    found = ranking_difference(ranking(("A", 0.9, 1), ("B", 0.5, 2)), again)
    assert found is not None
    assert not found.is_close


@pytest.mark.soak
def test_an_exchanged_checkpoint_is_found_and_the_other_nights_go_on(context, command, archive):
    first = run_night(context, AS_OF).row["run_id"]
    train_model(Tonight(context, FOLLOWING))
    second = run_night(context, FOLLOWING).row["run_id"]
    models = data_folder() / "models"
    shutil.copy(models / f"{second}.safetensors", models / f"{first}.safetensors")
    assert "changed or damaged" in str(replayed(archive).failure)
    code, said, error = command("replay", "simulated", "--all", "--device", "cpu")
    assert code == 1
    assert "2 nights replayed" in said
    assert "1 equal to the" in said
    assert "1 of 2 nights" in error
    assert f"not reproduced: {AS_OF}; `dtml replay" in error
