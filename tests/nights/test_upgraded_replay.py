"""After an upgrade a replay tells rounding from a difference, and says what has changed."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from sqlalchemy import Engine, text

from db.engine import reading, transaction
from dtml.machine import changes, computed_by
from flows.nightly.context import MarketContext
from flows.replay import (
    TOLERANCE,
    Archive,
    Replay,
    ranking_difference,
    replay_of,
    reproduce,
    run_of,
)
from tests.processors import PROCESSORS
from tests.support.commands import Command
from tests.support.facts import in_order
from tests.support.nights import AS_OF, after_nights, receipt_of

HERE = computed_by(torch.device("cpu"))
OLDER = HERE.replace(f"torch {torch.__version__}", "torch 2.0.1")


def change(engine: Engine, computed: str | None, by: float) -> None:
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


def replayed(archive: Archive) -> Replay:
    return replay_of(archive, archive.night(AS_OF))


def test_a_night_and_its_model_record_what_computed_them(
    context: MarketContext, engine: Engine
) -> None:
    after_nights(context, AS_OF)
    with reading(engine) as conn:
        night = conn.execute(text("select computed_by from night_log")).scalar_one()
        model = conn.execute(text("select computed_by from run_log")).scalar_one()
    assert night == model == HERE
    assert f"torch {torch.__version__}, numpy " in night
    assert night.endswith(", device cpu")


def test_what_rounds_otherwise_after_an_upgrade_is_told_from_what_is_equal(
    context: MarketContext, engine: Engine, archive: Archive, command: Command
) -> None:
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


def test_a_stock_that_only_one_ranking_has_is_no_rounding() -> None:
    stored = pd.DataFrame(
        {"predictor": "ridge", "symbol": ["A", "B"], "score": [0.2, 0.1], "place": [1, 2]}
    )
    third = pd.DataFrame({"predictor": "ridge", "symbol": ["C"], "score": [0.05], "place": [3]})
    more = pd.concat([stored, third], ignore_index=True)
    for then, now in ((stored, more), (more, stored)):
        found = ranking_difference(then, now)
        assert found is not None
        assert (found.differing, found.total, found.is_close) == (1, 3, False)
    assert ranking_difference(more, more) is None


def test_a_machine_with_a_gpu_replays_a_night_of_the_cpu_on_the_cpu(archive: Archive) -> None:
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
def test_what_no_rounding_explains_is_a_difference(
    context: MarketContext,
    engine: Engine,
    archive: Archive,
    command: Command,
    computed: str | None,
    by: float,
) -> None:
    after_nights(context, AS_OF)
    change(engine, computed, by)
    found = replayed(archive)
    assert not found.is_rounding
    assert re.match("predictions: 1 of 9.*L02, by", found.reasons[0])
    assert (found.changes or "are the same") in found.reasons[1]
    code, _, error = command("replay", "simulated", "--all", "--device", "cpu")
    assert code == 1
    assert f"not reproduced: {AS_OF}; `dtml replay" in error


def test_a_night_whose_versions_are_not_recorded_is_equal_to_the_last_bit_where_it_is(
    context: MarketContext, engine: Engine, archive: Archive, command: Command
) -> None:
    after_nights(context, AS_OF)
    with transaction(engine) as conn:
        conn.execute(text("update night set computed_by = null"))
    found = replayed(archive)
    assert (found.reasons, found.is_equal, found.is_rounding) == ([], True, False)
    code, said, _ = command("replay", "simulated", "--all", "--device", "cpu")
    assert code == 0
    assert re.search("not recorded: 1 equal.* 0 within", said)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("processor", ["AVX2, 1 thread", "SSE4, 1 thread"])
def test_a_night_replays_within_rounding_with_the_instructions_of_another_processor(
    context: MarketContext, engine: Engine, processor: str
) -> None:
    after_nights(context, AS_OF)
    environment = os.environ | PROCESSORS[processor]
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
        pytest.skip(f"this processor has no more than those of {processor}")
    assert night["changes"].startswith("processor was ")
    assert night["equal"] or night["equal_but_for_rounding"]


def ranking(*rows: tuple[str, float, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["symbol", "score", "place"]).assign(predictor="ridge")


def test_stocks_may_change_places_by_rounding_where_their_scores_are_equal_but_for_it() -> None:
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
def test_a_ranking_that_rounding_does_not_explain_is_not_close(again: pd.DataFrame) -> None:
    found = ranking_difference(ranking(("A", 0.9, 1), ("B", 0.5, 2)), again)
    assert found is not None
    assert not found.is_close


def test_changes_name_each_part_that_another_machine_has_otherwise() -> None:
    then = "dtml 0.1.0, torch 2.9.0, processor Intel Xeon (AVX512), device cpu"
    now = "dtml 0.2.0, torch 2.9.0, processor AMD EPYC (AVX2), device cpu"
    facts = ("dtml was 0.1.0, is 0.2.0; ", "processor was ", "Xeon (AVX512), is AMD EPYC (AVX2)")
    assert re.fullmatch(in_order(*facts), str(changes(then, now)))
    assert changes(then, then) is None
    assert "not recorded" in str(changes(None, now))
