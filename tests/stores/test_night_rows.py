"""Nights and their scores are stored once: a rerun updates a row and adds none."""

from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from sqlalchemy import Engine

from db import where
from db.connection.user_sql import select
from db.engine import reading, transaction
from db.errors import StoreError
from db.read import read, read_row
from db.rows import nights
from db.save import save
from tests.support.prediction_rows import AS_OF, TARGET, scores

NOW = datetime(2024, 1, 5, 2, 30, tzinfo=UTC)
LATER = NOW + timedelta(hours=23)


def test_scores_are_stored_once_and_updated(engine: Engine) -> None:
    with transaction(engine) as conn:
        for saved, at, new in ((scores(), NOW, 2), (scores(), LATER, 0), (scores(1.0), LATER, 0)):
            assert save(conn, "score", saved, market="toy", scored_at=at) == new
        stored = read(conn, "score", market="toy")
        assert read(conn, "score", market="toy", span="running")["n"].tolist() == [97]
        assert read(conn, "score", market="toy", target=where.until(AS_OF.date())).empty
    assert stored["acc"].tolist() == [1.0, 0.6]
    assert stored["mcc"].isna().tolist() == [True, False]
    assert stored["scored_at"].tolist() == [pd.Timestamp(LATER), pd.Timestamp(NOW)]


def test_the_daily_score_stands_beside_the_running_one(engine: Engine, reader: Engine) -> None:
    with transaction(engine) as conn:
        save(conn, "score", scores(), market="toy", scored_at=NOW)
    daily = select(reader, "select n, acc, running_n, running_nights, running_mcc from daily_score")
    assert daily.to_dict("records") == [
        {"n": 3, "acc": 0.5, "running_n": 97, "running_nights": 31, "running_mcc": 0.25}
    ]


def start(engine: Engine, started_at: datetime = NOW) -> int:
    with transaction(engine) as conn:
        return nights.start_night(
            conn, "toy", AS_OF.date(), target=TARGET.date(), source="files", started_at=started_at
        )


def finish(engine: Engine, status: str, reason: str | None = None) -> None:
    with transaction(engine) as conn:
        nights.finish_night(
            conn,
            "toy",
            AS_OF.date(),
            status=status,
            reason=reason,
            finished_at=LATER,
            counts={"fetched": 7, "stored": 5, "rejected": 2, "predictions": 3},
            gaps=[{"symbol": "B", "reason": "no bar"}],
            known_at=NOW,
        )


def night(engine: Engine) -> dict[str, object]:
    with reading(engine) as conn:
        found = read_row(conn, "night_log", market="toy", as_of=AS_OF.date())
        assert found is not None
        assert len(read(conn, "night")) == 1
    return found


def test_a_night_runs_and_then_ends(engine: Engine) -> None:
    assert start(engine) == 1
    assert night(engine)["status"] == "running"
    assert night(engine)["fetched"] is None
    finish(engine, "complete_with_gaps")
    done = night(engine)
    assert (done["status"], done["gaps"]) == (
        "complete_with_gaps",
        [{"symbol": "B", "reason": "no bar"}],
    )
    assert (done["stored"], done["known_at"], done["finished_at"]) == (5, NOW, LATER)


def test_a_complete_night_stays_as_it_is_and_a_refused_one_begins_again(engine: Engine) -> None:
    start(engine)
    finish(engine, "refused", "no index bar")
    assert start(engine, LATER) == 0
    begun = night(engine)
    assert (begun["status"], begun["started_at"]) == ("running", LATER)
    assert all(
        begun[each] is None for each in ("reason", "fetched", "gaps", "known_at", "finished_at")
    )
    finish(engine, "complete")
    assert start(engine, NOW) == 0
    assert (night(engine)["status"], night(engine)["started_at"]) == ("complete", LATER)


def test_a_night_that_never_began_cannot_end(engine: Engine) -> None:
    with pytest.raises(StoreError, match=r"no night.* toy .*2024-01-04 .*finish"):
        finish(engine, "complete")


def test_a_night_ends_in_a_known_way(engine: Engine) -> None:
    start(engine)
    with pytest.raises(StoreError, match="ck_night_status"):
        finish(engine, "perhaps")
    assert night(engine)["status"] == "running"


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
    finish(engine, "refused", "no index bar")
    start(engine, LATER)
    assert stages(engine) == []
    with transaction(engine) as conn:
        nights.start_stage(conn, "toy", AS_OF.date(), "store", started_at=LATER)
    finish(engine, "complete")
    start(engine, LATER)
    assert stages(engine) == [("store", "running", None)]


def test_a_stage_takes_no_time_below_0_and_ends_in_a_known_way(engine: Engine) -> None:
    night_of = ("toy", AS_OF.date())
    with transaction(engine) as conn:
        nights.start_stage(conn, *night_of, "fetch", started_at=NOW)
    with pytest.raises(StoreError, match="ck_night_stage_seconds"), transaction(engine) as conn:
        nights.finish_stage(conn, *night_of, "fetch", status="done", seconds=-1.0)
    with pytest.raises(StoreError, match="ck_night_stage_status"), transaction(engine) as conn:
        nights.finish_stage(conn, *night_of, "fetch", status="perhaps", seconds=1.0)  # type: ignore[arg-type]
