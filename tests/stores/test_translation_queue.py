"""Each text is translated once, whoever dies: workers take texts under a lease
and finish only what they still hold.
"""

import os
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from db import tables
from db.engine import open_engine, reading, transaction
from db.rows.translations import (
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
WORKERS, TEXTS = 8, 200
PLAIN = "INSERT INTO translation_text (model, text) VALUES ('m', 'A dog.')"


def in_seconds(seconds):
    return NOW + timedelta(seconds=seconds)


def queued(engine, model="m", count=1, **options):
    with transaction(engine) as conn:
        return queue_texts(conn, model, [f"{model} {number}" for number in range(count)], **options)


def taken(engine, worker, models=None, limit=99, **options):
    return [each["id"] for each in take_texts(engine, worker, models, limit, **options)]


def finished(engine, worker, ids):
    with transaction(engine) as conn:
        return finish_texts(
            conn, worker, [{"id": each, "translation": worker, "score": -0.5} for each in ids]
        )


def rows(engine):
    with reading(engine) as conn:
        found = conn.execute(
            sa.select(tables.translation_text).order_by(tables.translation_text.c.id)
        ).mappings()
        return [dict(each) for each in found]


def test_a_text_that_a_user_inserts_is_taken(engine):
    before = datetime.now(UTC)
    with transaction(engine) as conn:
        conn.exec_driver_sql(PLAIN)
    (row,) = rows(engine)
    assert abs(row["queued_at"] - before) < timedelta(minutes=1)
    assert (row["status"], row["priority"], row["attempts"], row["attention"]) == (
        "queued",
        0,
        0,
        None,
    )
    assert take_texts(engine, "worker", None, 9) == [
        {
            "id": row["id"],
            "model": "m",
            "text": "A dog.",
            "priority": 0,
            "attempts": 1,
            "unfit": None,
        }
    ]


def test_a_lease_that_ended_lets_another_take_the_text_and_the_slow_worker_writes_nothing(engine):
    ids = queued(engine, count=2)
    assert taken(engine, "slow", lease_s=300, now=NOW) == ids
    assert taken(engine, "quick", now=in_seconds(299)) == []
    assert taken(engine, "quick", limit=1, now=in_seconds(300)) == ids[:1]
    assert finished(engine, "slow", ids) == 0  # one is another's, one waits
    with transaction(engine) as conn:
        assert (
            fail_texts(conn, "slow", ids, "slow")
            == renew(conn, "slow", ids)
            == give_back(conn, "slow")
            == 0
        )
    assert finished(engine, "quick", ids) == 1
    assert finished(engine, "slow", ids) == 0
    assert [(each["translation"], each["status"]) for each in rows(engine)] == [
        ("quick", "done"),
        (None, "queued"),
    ]


def test_leases_end_for_the_models_asked_for_and_not_before_their_time(engine):
    ids = queued(engine, "m", 2) + queued(engine, "n")
    for model in "mn":
        taken(engine, "slow", [model], lease_s=300, now=NOW)
    assert taken(engine, "quick", ["x"], now=in_seconds(300)) == []
    assert taken(engine, "quick", ["m"], now=in_seconds(299.999999)) == []
    assert {each["taken_by"] for each in rows(engine)} == {"slow"}
    assert taken(engine, "quick", ["m"], limit=1, now=in_seconds(300)) == ids[:1]
    assert [(each["status"], each["attempts"]) for each in rows(engine)] == [
        ("taken", 2),
        ("queued", 1),
        ("taken", 1),
    ]
    assert rows(engine)[2]["taken_by"] == "slow"


def work(url, worker, start, said):
    """Take texts and finish them until there are none."""
    engine = open_engine(url)
    start.wait(120)
    while ids := taken(engine, worker, limit=3):
        said.put((worker, ids, finished(engine, worker, ids)))
    said.put((worker, [], 0))


@pytest.mark.soak
def test_eight_processes_translate_each_text_exactly_once(engine, store_url, forks):
    ids = queued(engine, "a", TEXTS // 2) + queued(engine, "b", TEXTS // 2)
    start, said = forks.Barrier(WORKERS), forks.Queue()
    names = [f"worker {number}" for number in range(WORKERS)]
    workers = [forks.Process(target=work, args=(store_url, name, start, said)) for name in names]
    for each in workers:
        each.start()
    told, working = [], WORKERS
    while working:
        told.append(said.get(timeout=550))
        working -= not told[-1][1]
    for each in workers:
        each.join()
    assert [each.exitcode for each in workers] == [0] * WORKERS
    assert sorted(number for _worker, taken_ids, _written in told for number in taken_ids) == ids
    assert all(len(taken_ids) == written for _worker, taken_ids, written in told)
    done = {number: worker for worker, taken_ids, _written in told for number in taken_ids}
    assert {each["id"]: each["translation"] for each in rows(engine)} == done
    assert {(each["status"], each["attempts"]) for each in rows(engine)} == {("done", 1)}


def hold(url, said):
    said.put(taken(open_engine(url), "doomed", lease_s=1))
    signal.pause()


@pytest.mark.soak
def test_the_texts_of_a_killed_worker_come_back_after_its_lease(engine, store_url, forks):
    ids = queued(engine, count=5)
    said = forks.Queue()
    doomed = forks.Process(target=hold, args=(store_url, said))
    doomed.start()
    assert said.get(timeout=550) == ids
    assert doomed.pid is not None
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.join()
    over = max(each["taken_until"] for each in rows(engine))
    assert taken(engine, "next", now=over - timedelta(milliseconds=1)) == []
    while not (found := taken(engine, "next")):  # by the clock, as a worker asks
        time.sleep(0.05)
    found += [each for _ in ids[1:] for each in taken(engine, "next")]
    assert found == ids
    assert finished(engine, "next", ids) == len(ids)
    assert {each["attempts"] for each in rows(engine)} == {2}


def test_a_text_that_kills_its_workers_takes_no_other_with_it(engine):
    ids, poison, now = queued(engine, count=4), 2, datetime.now(UTC)
    for death in range(10):
        if not (found := taken(engine, f"worker {death}", lease_s=60, now=now)):
            break
        if ids[poison] not in found:
            assert finished(engine, f"worker {death}", found) == len(found)
        now += timedelta(seconds=61)
    said = {each["id"]: (each["status"], each["attempts"]) for each in rows(engine)}
    assert said == dict.fromkeys(ids, ("done", 2)) | {ids[poison]: ("failed", 3)}


def test_the_highest_priority_comes_first_then_the_oldest_whatever_the_model(engine):
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


def test_the_texts_queued_last_are_shown_first_of_a_model_or_a_status(engine):
    ids = queued(engine, "m", 3) + queued(engine, "n")
    with transaction(engine) as conn:
        assert newest(conn, None, None, 3)["id"].tolist() == ids[:0:-1]
        assert newest(conn, "m", None, 9)["id"].tolist() == ids[2::-1]
        assert newest(conn, "m", "taken", 9).empty
        counts = queue_counts(conn)
    found = list(counts.itertuples(index=False, name=None))
    assert found == [("m", "queued", 3), ("n", "queued", 1)]
