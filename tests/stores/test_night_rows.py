"""Nights and their scores are stored once: a rerun updates a row and adds none."""

from datetime import UTC, datetime, timedelta

import pytest

from db.engine import reading, transaction
from db.errors import StoreError
from db.read import read_row
from db.rows import nights
from tests.support.prediction_rows import AS_OF, NEXT, TARGET

NOW = datetime(2024, 1, 5, 2, 30, tzinfo=UTC)
LATER = NOW + timedelta(hours=23)


def start(engine, started_at=NOW, *, market="toy", as_of=AS_OF, target=TARGET, source="files"):
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


def finish(engine, status, market="toy"):
    with transaction(engine) as conn:
        nights.finish_night(conn, market, AS_OF.date(), status=status, counts=COUNTS, **ENDED)


def night(engine, market="toy", as_of=AS_OF):
    with reading(engine) as conn:
        return read_row(conn, "night_log", market=market, as_of=as_of.date()) or {}


def test_a_night_that_begins_or_ends_changes_no_other_and_keeps_all_that_is_told(engine):
    assert start(engine) == start(engine, market="far") == 1
    assert start(engine, as_of=TARGET, target=NEXT) == 1
    before = night(engine, market="far"), night(engine, as_of=TARGET)
    finish(engine, "complete_with_gaps")
    begun = {"market": "toy", "as_of": AS_OF.date(), "target": TARGET.date(), "source": "files"}
    ended = {"status": "complete_with_gaps", "started_at": NOW, "computed_by": None}
    assert night(engine) == begun | ended | ENDED | COUNTS
    assert start(engine, LATER) == 0, "a complete night does not begin again"
    assert night(engine) == begun | ended | ENDED | COUNTS
    assert (night(engine, market="far"), night(engine, as_of=TARGET)) == before
    with pytest.raises(StoreError, match=r"no night .*none .*2024-01-04"):
        finish(engine, "complete", market="none")
