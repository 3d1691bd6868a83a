"""Nights and their scores are stored once: a rerun updates a row and adds none."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import Engine

from db.connection.user_sql import select
from db.engine import reading, transaction
from db.errors import StoreError
from db.read import read, read_row
from db.rows import nights
from db.save import save
from tests.support.prediction_rows import AS_OF, NEXT, TARGET, scores

NOW = datetime(2024, 1, 5, 2, 30, tzinfo=UTC)
LATER = NOW + timedelta(hours=23)


def test_the_daily_score_stands_beside_the_running_one(engine: Engine, reader: Engine) -> None:
    with transaction(engine) as conn:
        save(conn, "score", scores(), market="toy", scored_at=NOW)
    daily = select(reader, "select n, acc, running_n, running_nights, running_mcc from daily_score")
    assert daily.to_dict("records") == [
        {"n": 3, "acc": 0.5, "running_n": 97, "running_nights": 31, "running_mcc": 0.25}
    ]


def start(
    engine: Engine,
    started_at: datetime = NOW,
    *,
    market: str = "toy",
    as_of: pd.Timestamp = AS_OF,
    target: pd.Timestamp = TARGET,
    source: str = "files",
) -> int:
    with transaction(engine) as conn:
        return nights.start_night(
            conn,
            market,
            as_of.date(),
            target=target.date(),
            source=source,
            started_at=started_at,
        )


ENDED = {
    "finished_at": LATER,
    "reason": "no index bar",
    "known_at": NOW,
    "inputs_hash": "hash",
    "run_id": None,
    "gaps": [{"symbol": "B", "reason": "no bar"}],
}
COUNTS = {"fetched": 7, "stored": 5, "rejected": 2, "predictions": 3}


def finish(engine: Engine, status: str, market: str = "toy") -> None:
    with transaction(engine) as conn:
        nights.finish_night(conn, market, AS_OF.date(), status=status, counts=COUNTS, **ENDED)


def night(engine: Engine, market: str = "toy", as_of: pd.Timestamp = AS_OF) -> dict[str, Any]:
    with reading(engine) as conn:
        return read_row(conn, "night_log", market=market, as_of=as_of.date()) or {}


def test_a_night_that_begins_or_ends_changes_no_other_and_keeps_all_that_is_told(
    engine: Engine,
) -> None:
    assert start(engine) == start(engine, market="far") == 1
    assert start(engine, as_of=TARGET, target=NEXT) == 1
    before = night(engine, market="far"), night(engine, as_of=TARGET)
    finish(engine, "complete_with_gaps")
    begun = {"market": "toy", "as_of": AS_OF.date(), "target": TARGET.date(), "source": "files"}
    ended = {"status": "complete_with_gaps", "started_at": NOW, "computed_by": None}
    assert night(engine) == begun | ended | ENDED | COUNTS
    assert (night(engine, market="far"), night(engine, as_of=TARGET)) == before
    with pytest.raises(StoreError, match=r"no night .*none .*2024-01-04"):
        finish(engine, "complete", market="none")


def test_a_complete_night_stays_as_it_is_and_a_refused_one_begins_again(engine: Engine) -> None:
    start(engine)
    finish(engine, "refused")
    assert start(engine, LATER, source="yahoo", target=NEXT) == 0
    begun = night(engine)
    told = ("status", "started_at", "source", "target")
    assert [begun[name] for name in told] == ["running", LATER, "yahoo", NEXT.date()]
    assert {begun[name] for name in ("reason", "fetched", "gaps", "known_at", "finished_at")} == {
        None
    }
    finish(engine, "complete")
    complete = night(engine)
    assert start(engine, NOW) == 0
    assert night(engine) == complete


def stages(engine: Engine) -> list[tuple[str, str, float | None]]:
    with reading(engine) as conn:
        stored = read(
            conn, "stage_log", market="toy", as_of=AS_OF.date(), order="started_at, stage"
        )
    seconds = stored["seconds"].astype(object).where(stored["seconds"].notna(), None)
    return list(zip(stored["stage"], stored["status"], seconds, strict=True))


def test_a_stage_is_running_until_it_ends_and_a_second_try_of_it_stands_in_its_place(
    engine: Engine,
) -> None:
    night_of = ("toy", AS_OF.date())
    start(engine)
    with transaction(engine) as conn:
        nights.start_stage(conn, *night_of, "fetch", started_at=NOW)
        nights.finish_stage(conn, *night_of, "fetch", status="done", seconds=0.25)
        nights.start_stage(conn, *night_of, "model", started_at=LATER)
    assert stages(engine) == [("fetch", "done", 0.25), ("model", "running", None)]
    with transaction(engine) as conn:
        nights.finish_stage(conn, *night_of, "model", status="failed", seconds=1.5)
        nights.start_stage(conn, *night_of, "fetch", started_at=LATER)
    assert stages(engine) == [("fetch", "running", None), ("model", "failed", 1.5)]


def test_a_refused_night_that_begins_again_has_no_stage_and_a_complete_one_keeps_its_own(
    engine: Engine,
) -> None:
    start(engine)
    with transaction(engine) as conn:
        nights.start_stage(conn, "toy", AS_OF.date(), "fetch", started_at=NOW)
    finish(engine, "refused")
    start(engine, LATER)
    assert stages(engine) == []
    with transaction(engine) as conn:
        nights.start_stage(conn, "toy", AS_OF.date(), "store", started_at=LATER)
    finish(engine, "complete")
    start(engine, LATER)
    assert stages(engine) == [("store", "running", None)]
