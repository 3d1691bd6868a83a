"""The stages of a night: the store says which one it is in, how long each took and which failed."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import select, text

from db.engine import reading
from db.errors import StoreError
from db.read import read, read_row
from db.tables import UtcTimestamp, metadata
from dtml.errors import DtmlError
from flows.freezing import begin, link_of_night
from flows.nightly import predict
from flows.nightly.context import MarketContext
from flows.nightly.night import AFTERWARDS, PREDICTING, NightRefusedError, run_night
from tests.support.log_lines import objects, standard_error
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights, apart, without

NEXT = date(2024, 7, 2)
# The id of a run tells of its moment; what the try that was killed fetched is not fetched again.
UNLIKE = {"run_id", "seconds", "train_seconds", "asked", "fetched", "stored"}
STAGES = ["fetch", "model", "predict", "store", "score", "paper account", "drift", "report"]


def stages(context: MarketContext) -> dict[str, tuple[str, float]]:
    with reading(context.engine) as conn:
        stored = read(
            conn, "stage_log", market=context.name, as_of=AS_OF, order="started_at, stage"
        )
    pairs = zip(stored["status"], stored["seconds"], strict=True)
    return dict(zip(stored["stage"], pairs, strict=True))


@pytest.mark.on_postgresql
def test_a_night_stores_its_stages_in_order_and_the_seconds_of_each(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = standard_error(monkeypatch, form="json")
    run_night(context, AS_OF)
    stored = stages(context)
    assert [stage for stage in stored if stage != "rank"] == STAGES
    assert {status for status, _ in stored.values()} == {"done"}
    assert stored["model"][1] > 0
    *stage_lines, ended = objects(said)
    timed = [line for line in stage_lines if line["message"].startswith("stage ")]
    assert [line["stage"] for line in timed] == list(stored)
    assert (ended["stage"], ended["night"], ended["level"]) == ("report", "2024-07-01", "info")
    assert re.fullmatch("complete: 9 .*2024-07-02", ended["message"])
    assert ended["seconds"] >= max(seconds for _, seconds in stored.values())


def test_the_store_says_which_stage_a_night_is_in(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    real: Callable[..., Any] = predict.forecast

    def look(*arguments: Any) -> Any:
        seen.append({stage: status for stage, (status, _) in stages(context).items()})
        return real(*arguments)

    monkeypatch.setattr(predict, "forecast", look)
    run_night(context, AS_OF)
    assert seen == [{"fetch": "done", "model": "done", "predict": "running"}]


@pytest.mark.soak
def test_a_stage_that_fails_is_stored_with_its_seconds_and_the_run_s_line_says_why(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise DtmlError("scales not finite")

    said = standard_error(monkeypatch, form="json")
    with monkeypatch.context() as patch:
        patch.setattr(predict, "forecast", fail)
        with pytest.raises(NightRefusedError):
            run_night(context, AS_OF)
    stored = stages(context)
    assert list(stored) == ["fetch", "model", "predict"]
    assert stored["predict"][0] == "failed"
    assert stored["predict"][1] >= 0
    ended = objects(said)[-1]
    assert (ended["level"], ended["stage"]) == ("warning", "predict")
    assert ended["message"].endswith(" refused: scales not finite")
    run_night(context, AS_OF)
    assert {status for status, _ in stages(context).values()} == {"done"}


def test_a_night_without_its_index_is_refused_in_its_fetch_and_completes_when_the_bar_comes(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = standard_error(monkeypatch, form="json")
    index = context.market.index.symbol
    poor = replace(context, source=FrameSource(without(BARS, [index])))
    with pytest.raises(NightRefusedError, match=f"no good bar.* {index} on {AS_OF}"):
        run_night(poor, AS_OF)
    assert list(stages(context)) == ["fetch"]
    ended = objects(said)[-1]
    assert (ended["level"], ended["stage"], ended["market"]) == ("warning", "fetch", "simulated")
    with reading(context.engine) as conn:
        row = read_row(conn, "night_log", market=context.name, as_of=AS_OF) or {}
    assert (row["status"], index in row["reason"]) == ("refused", True)
    assert run_night(context, AS_OF).row["status"] == "complete"


def test_a_complete_night_keeps_its_stages_and_says_that_it_was_complete(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_nights(context, AS_OF)
    before = stages(context)
    said = standard_error(monkeypatch, form="json")
    run_night(context, AS_OF)
    assert stages(context) == before
    assert objects(said)[-1]["message"] == "complete before"


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # a store that is not used again
def test_a_store_that_breaks_in_a_stage_is_the_failure_that_is_told(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        with context.engine.begin() as conn:
            conn.execute(text("drop table night_stage"))
        raise StoreError("the disk is full")

    monkeypatch.setattr(predict, "forecast", fail)
    with pytest.raises(NightRefusedError, match="the disk is full"):
        run_night(context, AS_OF)


def rows_of_all_tables(context: MarketContext) -> dict[str, pd.DataFrame]:
    """Return each table without its moments and what else is not the same in two equal nights."""
    rows = {}
    with reading(context.engine) as conn:
        for table in metadata.sorted_tables:
            alike = [
                column
                for column in table.columns
                if not isinstance(column.type, UtcTimestamp) and column.name not in UNLIKE
            ]
            frame = pd.DataFrame(conn.execute(select(*alike)).all()).astype(str)
            rows[table.name] = frame.sort_values(list(frame)).reset_index(drop=True)
    return rows


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # stores are copied
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("killed", [step.stage for step in PREDICTING + AFTERWARDS if step.stage])
@pytest.mark.one_case("store-after")
def test_a_night_killed_in_any_of_its_stages_ends_as_one_that_was_not(
    context: MarketContext, killed: str, when: str, tmp_path: Path
) -> None:
    def kill(stage: str, work: Callable[[], Any]) -> None:
        if stage != killed or when == "after":
            work()
        if stage == killed:
            raise KeyboardInterrupt

    after_nights(context, AS_OF)
    begin(context.engine, context.name, since=None)
    with pytest.raises(KeyboardInterrupt):
        run_night(context, NEXT, stage=kill)
    page = run_night(context, NEXT).report
    assert page.exists()
    assert link_of_night(context.name, NEXT)
    with apart(tmp_path / "whole", context) as whole:
        after_nights(whole, AS_OF)
        begin(whole.engine, whole.name, since=None)
        run_night(whole, NEXT)
        expected = rows_of_all_tables(whole)
    found = rows_of_all_tables(context)
    for table in expected:
        pd.testing.assert_frame_equal(found[table], expected[table], obj=table)
