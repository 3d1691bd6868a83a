"""Queued texts are translated once each, whoever works, dies or is told to end;
what cannot be says why.
"""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import torch
from sqlalchemy import Engine

from db.engine import open_engine, open_store, reading, transaction
from db.rows import translations
from flows.markets.opened import RunRequest
from flows.service.runner import service_of
from flows.service.schedules import DELAY, TRANSLATING
from flows.translating import worker
from flows.translating.flow import translate_queue
from flows.translating.worker import work_off
from tests.support.commands import Command
from tests.support.recipe import SOURCES, is_one_line
from translation.decoding.beam_search import Search

pytestmark = pytest.mark.slow

GREEDY, CPU = Search(beams=1, alpha=0.0), torch.device("cpu")
PLAIN = "INSERT INTO translation_text (model, text) VALUES ('tiny', 'bano lume')"
AT_ONCE = 4  # texts: a queue of sixty has turns enough for two workers
SPAWN = multiprocessing.get_context("spawn")


def queued(engine: Engine, texts: Sequence[str], model: str = "tiny") -> list[int]:
    with transaction(engine) as conn:
        return translations.queue_texts(conn, model, texts)


def jobs(engine: Engine) -> list[dict[str, Any]]:
    with reading(engine) as conn:
        found = conn.execute(sa.text("select * from translation_job order by id")).mappings()
        return [dict(each) for each in found]


def held(engine: Engine) -> list[Mapping[str, Any]]:
    with reading(engine) as conn:
        return list(
            conn.execute(
                sa.text("select status, attempts from translation_text order by id")
            ).mappings()
        )


def work(url: str, ready: Any, counted: "multiprocessing.Queue[int]") -> None:
    """A worker, as a process, which begins when the other one does."""
    worker.AT_ONCE = AT_ONCE
    torch.set_num_threads(1)
    ready.wait(550)
    counted.put(work_off(open_engine(url), None, GREEDY, CPU)["done"])


@pytest.mark.soak
@pytest.mark.usefixtures("home")
def test_two_workers_translate_each_text_once_and_lose_none(
    engine: Engine, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is this process: it waits for the other, so that both take from the queue at once."""
    monkeypatch.setattr(worker, "AT_ONCE", AT_ONCE)
    ids = queued(engine, SOURCES)
    counted: multiprocessing.Queue[int] = SPAWN.Queue()
    ready = SPAWN.Barrier(2)
    other = SPAWN.Process(target=work, args=(store_url, ready, counted))
    other.start()
    ready.wait(550)
    mine = work_off(engine, None, GREEDY, CPU)["done"]
    its = counted.get(timeout=550)
    other.join()
    assert mine + its == len(SOURCES)
    done = jobs(engine)
    assert [each["id"] for each in done] == ids
    assert {(each["status"], each["attempts"]) for each in done} == {("done", 1)}
    again = queued(engine, SOURCES)
    assert work_off(engine, None, GREEDY, CPU) == {"done": 60, "failed": 0, "waiting": 0}
    expected = {each["text"]: each["translation"] for each in jobs(engine) if each["id"] in again}
    assert {each["text"]: each["translation"] for each in done} == expected


def take_and_wait(url: str, ids: "multiprocessing.Queue[list[int]]") -> None:
    worker.LEASE_S = 1.0

    def translated(*_arguments: object, **_options: object) -> None:
        ids.put([each["id"] for each in jobs(open_engine(url)) if each["status"] == "taken"])
        signal.pause()

    worker.translate = translated  # type: ignore[assignment]
    work_off(open_engine(url), None, GREEDY, CPU)


@pytest.mark.soak
@pytest.mark.usefixtures("home")
def test_what_a_killed_worker_held_is_translated_after_its_lease(
    engine: Engine, store_url: str
) -> None:
    ids = queued(engine, SOURCES[:9])
    told: multiprocessing.Queue[list[int]] = SPAWN.Queue()
    doomed = SPAWN.Process(target=take_and_wait, args=(store_url, told))
    doomed.start()
    assert told.get(timeout=550) == ids
    assert doomed.pid is not None
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.join()
    done = 0
    while done < len(ids):  # by the clock, as a worker asks
        done += work_off(engine, None, GREEDY, CPU)["done"]
        time.sleep(0.05)
    assert {(each["status"], each["attempts"]) for each in jobs(engine)} == {("done", 2)}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_is_told_to_end_gives_back_what_it_holds_before_it_does(
    engine: Engine, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued(engine, SOURCES[:9])

    class HandledError(Exception):
        """What the handler that was there does."""

    def handler(got: int, _frame: object) -> None:
        assert got == number
        assert {tuple(each.values()) for each in held(engine)} == {("queued", 0)}
        raise HandledError

    def translated(*_arguments: object, **_options: object) -> None:
        assert {tuple(each.values()) for each in held(engine)} == {("taken", 1)}
        signal.raise_signal(number)

    monkeypatch.setattr(worker, "translate", translated)
    before = signal.signal(number, handler)
    try:
        with pytest.raises(HandledError):
            work_off(engine, None, GREEDY, CPU, attended=True)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def failing(text: str, error: Exception) -> Callable[..., object]:
    real = worker.translate

    def translated(model: object, texts: Sequence[str], **options: Any) -> object:
        if text in texts:
            raise error
        return real(model, texts, **options)  # type: ignore[arg-type]

    return translated


@pytest.mark.usefixtures("home")
def test_a_text_that_cannot_be_translated_fails_alone_with_the_reason(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued(engine, SOURCES[:5])
    monkeypatch.setattr(worker, "translate", failing(SOURCES[2], RuntimeError("no memory")))
    assert work_off(engine, None, GREEDY, CPU) == {"done": 4, "failed": 1, "waiting": 0}
    assert [each["status"] for each in jobs(engine)] == ["done", "done", "failed", "done", "done"]
    assert jobs(engine)[2]["reason"] == "RuntimeError: no memory"
    assert work_off(engine, None, GREEDY, CPU) == {"done": 0, "failed": 0, "waiting": 0}


@pytest.mark.usefixtures("home")
def test_texts_of_a_model_that_is_not_there_wait_and_others_go_on(engine: Engine) -> None:
    queued(engine, ["one", "two"], model="lost")
    queued(engine, [SOURCES[0], "", "Grüße 🙂 日本"])
    assert work_off(engine, None, GREEDY, CPU) == {"done": 3, "failed": 0, "waiting": 2}
    found = jobs(engine)
    assert [(each["status"], each["attempts"]) for each in found[:2]] == [("queued", 0)] * 2
    assert found[3]["translation"] == ""
    assert work_off(engine, ["tiny"], GREEDY, CPU) == {"done": 0, "failed": 0, "waiting": 0}


@pytest.mark.soak
@pytest.mark.usefixtures("home", "served")
def test_texts_are_queued_by_the_command_a_file_or_plain_sql_and_worked_off_by_the_command(
    engine: Engine, store_url: str, translate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    Path("lines").write_text(f"{SOURCES[2]}\n{SOURCES[3]}\n")
    code, said, complaint = translate("queue", SOURCES[1], "--file", "lines", "--priority", "2")
    assert code == 0, complaint
    assert re.fullmatch("3 texts .*tiny: 1 to 3\n", said)
    with transaction(engine) as conn:
        conn.exec_driver_sql(PLAIN)
    code, said, complaint = translate("work", "--beams", "2", "--attention")
    assert code == 0
    assert re.fullmatch("4 texts .*, 0 failed\n", said)
    (line,) = complaint.splitlines()
    assert line.startswith("stage=translate seconds=")
    assert line.endswith(f'message="{said.rstrip()}"')
    code, said, _ = translate("jobs", "--json")
    found = json.loads(said)
    assert found["counts"] == [{"model": "tiny", "status": "done", "n": 4}]
    assert [each["text"] for each in found["texts"]] == [
        "bano lume",
        SOURCES[3],
        SOURCES[2],
        SOURCES[1],
    ]
    assert all(each["translation"] for each in found["texts"])
    with reading(engine) as conn:
        kept = conn.execute(sa.text("select attention from translation_text")).scalars().all()
    assert all(
        sum(row) == pytest.approx(1, abs=0.01)
        for each in map(parsed, kept)
        for row in each[0]["weights"]
    )
    code, said, _ = translate("jobs", "--status", "failed", "--json")
    assert json.loads(said)["texts"] == []


@pytest.mark.usefixtures("home")
def test_without_a_text_of_a_model_that_is_there_nothing_is_translated(
    store_url: str, translate: Command, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    none = translate("work")
    assert (none[0], none[2]) == (0, "")
    assert re.fullmatch("0 texts .*, 0 failed\n", none[1])
    queued(open_store(), ["one"], model="lost")
    code, said, complaint = translate("work")
    assert (code, complaint) == (0, "")
    assert re.fullmatch("0 texts .*, 0 failed; 1 waiting .*model.*\n", said)
    assert translate("work", "--model", "tiny") == none


@pytest.mark.soak
def test_an_empty_queue_is_seen_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, atexit; sys.modules['torch'] = None; from flows.cli import main; "
        "atexit.register(lambda: print('prefect' in sys.modules)); main()"
    )
    environment = os.environ | {"DTML_DATA": str(tmp_path)}
    environment.pop("DTML_DATABASE_URL", None)
    work = [sys.executable, "-c", code, "translate", "work"]
    ended = subprocess.run(
        work, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch("0 texts .*, 0 failed\nFalse\n", ended.stdout)


def parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def test_nothing_to_queue_and_no_model_to_queue_for_are_one_line(
    translate: Command, bare: Path
) -> None:
    for arguments, words in (
        (("queue",), "nothing to queue"),
        (("queue", "a"), "there is no model"),
    ):
        code, _, complaint = translate(*arguments)
        assert (code, is_one_line(complaint), words in complaint) == (2, True, True), complaint
    code, _, complaint = translate("work", "--model", "nobody")
    assert (code, is_one_line(complaint), "no model 'nobody'" in complaint) == (2, True, True)
    code, _, complaint = translate("jobs")  # before there is a store
    assert (code, is_one_line(complaint)) == (2, True)
    open_store().dispose()
    code, said, complaint = translate("jobs")
    assert (code, complaint) == (0, "")
    assert re.fullmatch("The queue is empty: `dtml translate queue TEXT .*\n", said)


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_the_queue_is_served_where_there_is_a_model_with_markets_or_alone(home: Path) -> None:
    served = service_of([], [], RunRequest("each", device="cpu"), DELAY, None)
    assert served.schedules(NOW) == [replace(TRANSLATING, parameters={"device": "cpu"})]
    beside = service_of(["simulated"], [], RunRequest("each"), DELAY, None).schedules(NOW)
    assert {schedule.work for schedule in beside} >= {"night", "watch", "translations"}
    shutil.rmtree(home / "data" / "translation")
    without = service_of(["simulated"], [], RunRequest("each"), DELAY, None).schedules(NOW)
    assert "translations" not in {schedule.work for schedule in without}


@pytest.mark.soak
@pytest.mark.usefixtures("home", "served")
def test_a_scheduled_run_says_what_it_did_or_that_there_was_nothing() -> None:
    engine = open_store()
    idle: Any = translate_queue(return_state=True)
    queued(engine, SOURCES[:3])
    queued(engine, ["one"], model="lost")
    busy: Any = translate_queue(device="cpu", return_state=True)
    assert (idle.name, idle.message) == ("Skipped", "nothing is queued")
    assert busy.name == "Completed"
    assert re.fullmatch("3 texts .*, 0 failed; 1 waiting .*model.*", busy.message)
