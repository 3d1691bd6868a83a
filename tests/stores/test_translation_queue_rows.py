"""Each step of the queue changes the texts that it is of, wholly, and no others."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db import tables
from db.engine import reading, transaction
from db.errors import StoreUsageError
from db.rows.translations import (
    DIED,
    fail_texts,
    finish_texts,
    give_back,
    newest,
    queue_counts,
    queue_texts,
    renew,
    take_texts,
)

NOW = datetime(2024, 1, 5, 2, 30, tzinfo=UTC)
SOON = timedelta(minutes=1)
NAMES = (
    "status",
    "taken_by",
    "taken_until",
    "attempts",
    "finished_at",
    "reason",
    "translation",
    "score",
)


def rows(engine: Engine) -> dict[int, dict[str, Any]]:
    with reading(engine) as conn:
        asked = sa.select(tables.translation_text).order_by(tables.translation_text.c.id)
        return {each["id"]: dict(each) for each in conn.execute(asked).mappings()}


def changed(engine: Engine, before: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Of each text that changed, the new values of what did."""
    pairs = {name: (before[name], row) for name, row in rows(engine).items()}
    return {
        n: {k: new[k] for k in new if new[k] != old[k]}
        for n, (old, new) in pairs.items()
        if new != old
    }


@pytest.fixture
def held(engine: Engine) -> Engine:
    """Texts 1 and 2 are held by `a`, 3 by `b`, 4 and 5 wait; 1 to 3 are of the
    model m, 4 of n, 5 of o.
    """
    with transaction(engine) as conn:
        assert queue_texts(conn, "m", ["one", "two", "three"]) == [1, 2, 3]
        assert queue_texts(conn, "n", ["four"], 0) == [4]
        assert queue_texts(conn, "o", ["five"], -1) == [5]
        assert queue_texts(conn, "o", []) == []
    for worker, limit in (("a", 2), ("b", 1)):
        assert len(take_texts(engine, worker, ["m"], limit, now=NOW)) == limit
    return engine


def test_taking_notes_who_and_until_when_and_leaves_the_rest(held: Engine) -> None:
    found = rows(held)
    until = NOW + timedelta(seconds=300)
    assert [tuple(found[n][name] for name in NAMES[:4]) for n in (1, 2, 3)] == [
        ("taken", "a", until, 1),
        ("taken", "a", until, 1),
        ("taken", "b", until, 1),
    ]
    assert {tuple(found[n][name] for name in NAMES) for n in (4, 5)} == {
        ("queued", None, None, 0, *[None] * 4)
    }
    assert [found[n]["priority"] for n in (4, 5)] == [0, -1]
    begun = datetime.now(UTC)
    take_texts(held, "c", ["n"], 1, 60.0)
    assert SOON <= rows(held)[4]["taken_until"] - begun < 2 * SOON
    with pytest.raises(StoreUsageError, match=r"cannot take -1 texts:.* 1 "):
        take_texts(held, "c", None, -1)
    assert len(take_texts(held, "c", None, 1)) == 1


def test_a_lease_is_renewed_for_what_is_named_and_held_alone(held: Engine) -> None:
    before = rows(held)
    with transaction(held) as conn:
        assert renew(conn, "a", [2, 3, 4], 60.0, NOW + SOON) == 1
    assert changed(held, before) == {2: {"taken_until": NOW + 2 * SOON}}
    begun = datetime.now(UTC)
    with transaction(held) as conn:
        assert renew(conn, "b", [3]) == 1
    assert 5 * SOON <= rows(held)[3]["taken_until"] - begun < 6 * SOON


def test_a_translation_is_written_to_its_own_text_with_all_that_is_said_of_it(held: Engine) -> None:
    before, begun = rows(held), datetime.now(UTC)
    said = {"translation": "zwei", "score": -0.5, "attention": [[1.0]]}
    with transaction(held) as conn:
        assert (
            finish_texts(conn, "a", [{"id": 2} | said, {"id": 3, "translation": "x", "score": 0.0}])
            == 1
        )
    found = changed(held, before)
    assert list(found) == [2]
    assert begun <= found[2].pop("finished_at") < begun + SOON
    assert found[2] == said | {"status": "done", "taken_until": None}


def test_a_failure_is_written_to_what_is_named_and_held_alone(held: Engine) -> None:
    before, begun = rows(held), datetime.now(UTC)
    with transaction(held) as conn:
        assert fail_texts(conn, "a", [1, 3, 4], "no words") == 1
    found = changed(held, before)
    assert list(found) == [1]
    assert begun <= found[1].pop("finished_at") < begun + SOON
    assert found[1] == {"status": "failed", "reason": "no words", "taken_until": None}


def test_what_is_given_back_is_what_the_worker_holds(held: Engine) -> None:
    before = rows(held)
    with transaction(held) as conn:
        assert give_back(conn, "a") == 2
    again = {"status": "queued", "taken_until": None, "attempts": 0}
    assert changed(held, before) == {1: again, 2: again}


def test_leases_end_for_the_models_asked_for_and_not_before_their_time(held: Engine) -> None:
    later = NOW + timedelta(seconds=300)
    # stays as it is: nobody asks for that model
    assert len(take_texts(held, "d", ["n"], 1, now=NOW)) == 1
    assert take_texts(held, "c", ["x"], 9, now=later) == []
    assert take_texts(held, "c", ["m"], 9, now=later - timedelta(microseconds=1)) == []
    before = rows(held)
    # beside what somebody died of
    assert [each["id"] for each in take_texts(held, "c", ["m"], 9, 60.0, later)] == [1]
    again = {"status": "queued", "taken_until": None}
    taken = {"taken_by": "c", "taken_until": later + SOON, "attempts": 2}
    assert changed(held, before) == {1: taken, 2: again, 3: again}


def test_a_text_that_was_taken_three_times_is_failed_when_its_lease_ends(held: Engine) -> None:
    texts = tables.translation_text
    with transaction(held) as conn:
        conn.execute(sa.update(texts).where(texts.c.id.in_([1, 3])).values(attempts=3))
        conn.execute(
            sa.update(texts).where(texts.c.id == 3).values(taken_until=NOW + timedelta(days=1))
        )
    before, later = rows(held), NOW + timedelta(seconds=300)
    assert [each["id"] for each in take_texts(held, "c", None, 9, 60.0, later)] == [2]
    failed = {"status": "failed", "reason": DIED, "finished_at": later, "taken_until": None}
    assert changed(held, before) == {
        1: failed,
        2: {"taken_by": "c", "taken_until": later + SOON, "attempts": 2},
    }


def test_the_highest_priority_comes_first_then_the_oldest_whatever_the_model(
    engine: Engine,
) -> None:
    with transaction(engine) as conn:
        for model, priority in (("b", 0), ("a", 0), ("c", 7), ("c", 9), ("b", 9)):
            queue_texts(conn, model, [f"{model} {priority}"], priority)
    for models in (None, ["a", "b", "c"]):
        found = take_texts(engine, "w", models, 9)
        assert [(each["model"], each["priority"]) for each in found] == [("c", 9), ("c", 7)]
        with transaction(engine) as conn:
            give_back(conn, "w")
    assert [take_texts(engine, "w", None, 1)[0]["id"] for _ in range(5)] == [4, 5, 3, 1, 2]
    assert take_texts(engine, "w", None, 1) == []


def test_the_texts_queued_last_are_shown_first_of_a_model_or_a_status(held: Engine) -> None:
    with transaction(held) as conn:
        fail_texts(conn, "b", [3], "no words")
        assert newest(conn, None, None, 3)["id"].tolist() == [5, 4, 3]
        assert newest(conn, "m", None, 9)["id"].tolist() == [3, 2, 1]
        assert newest(conn, "m", "taken", 1)["id"].tolist() == [2]
        found = newest(conn, None, "failed", 9)
        counts = queue_counts(conn)
    shown = [
        "id",
        "model",
        "status",
        "text",
        "translation",
        "score",
        "attempts",
        "reason",
        "queued_at",
    ]
    assert list(found) == shown
    assert found[shown[:4]].to_numpy().tolist() == [[3, "m", "failed", "three"]]
    assert found["reason"].tolist() == ["no words"]
    assert list(counts.itertuples(index=False, name=None)) == [
        ("m", "failed", 1),
        ("m", "taken", 2),
        ("n", "queued", 1),
        ("o", "queued", 1),
    ]
