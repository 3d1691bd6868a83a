"""Queued texts are translated once each, whoever works, dies or is told to end;
what cannot be says why.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
import torch

from db.engine import open_store, reading, transaction
from db.rows import translations
from flows.markets.opened import RunRequest
from flows.service.runner import service_of
from flows.service.schedules import DELAY, TRANSLATING
from flows.translating import worker
from flows.translating.flow import translate_queue
from flows.translating.worker import work_off
from tests.support.recipe import SOURCES, refused
from translation.decoding.beam_search import Search

pytestmark = pytest.mark.slow

GREEDY, CPU = Search(beams=1, alpha=0.0), torch.device("cpu")
PLAIN = "INSERT INTO translation_text (model, text) VALUES ('tiny', 'bano lume')"


def queued(engine, texts, model="tiny"):
    with transaction(engine) as conn:
        return translations.queue_texts(conn, model, texts)


def jobs(engine):
    with reading(engine) as conn:
        found = conn.execute(sa.text("select * from translation_job order by id")).mappings()
        return [dict(each) for each in found]


def held(engine):
    """The status and the attempts of the queued texts."""
    with reading(engine) as conn:
        return {*conn.execute(sa.text("select distinct status, attempts from translation_text"))}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_is_told_to_end_gives_back_what_it_holds_before_it_does(
    engine, number, monkeypatch
):
    queued(engine, SOURCES[:9])

    class HandledError(Exception):
        """What the handler that was there does."""

    def handler(got, _frame):
        assert got == number
        assert held(engine) == {("queued", 0)}
        raise HandledError

    def translated(*_arguments, **_options):
        assert held(engine) == {("taken", 1)}
        signal.raise_signal(number)

    monkeypatch.setattr(worker, "translate", translated)
    before = signal.signal(number, handler)
    try:
        with pytest.raises(HandledError):
            work_off(engine, None, GREEDY, CPU, attended=True)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


@pytest.mark.usefixtures("home")
def test_a_text_that_cannot_be_translated_fails_alone_with_the_reason(engine, monkeypatch):
    real = worker.translate

    def translated(model, texts, **options):
        if SOURCES[2] in texts:
            raise RuntimeError("no memory")
        return real(model, texts, **options)

    queued(engine, SOURCES[:5])
    monkeypatch.setattr(worker, "translate", translated)
    assert work_off(engine, None, GREEDY, CPU) == {"done": 4, "failed": 1, "waiting": 0}
    assert [each["status"] for each in jobs(engine)] == ["done", "done", "failed", "done", "done"]
    assert jobs(engine)[2]["reason"] == "RuntimeError: no memory"
    assert work_off(engine, None, GREEDY, CPU) == {"done": 0, "failed": 0, "waiting": 0}


@pytest.mark.usefixtures("home")
def test_texts_of_a_model_that_is_not_there_wait_and_others_go_on(engine):
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
    engine, store_url, translate, monkeypatch
):
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
    for attention in kept:
        (part,) = json.loads(attention) if isinstance(attention, str) else attention
        assert len(part["weights"]) == len(part["target"])
        assert all(sum(row) == pytest.approx(1, abs=0.01) for row in part["weights"])
    code, said, _ = translate("jobs", "--status", "failed", "--json")
    assert json.loads(said)["texts"] == []


@pytest.mark.usefixtures("home")
def test_without_a_text_of_a_model_that_is_there_nothing_is_translated(translate):
    none = (0, "0 texts translated, 0 failed\n", "")
    assert translate("work") == none
    queued(open_store(), ["one"], model="lost")
    code, said, complaint = translate("work")
    assert (code, complaint) == (0, "")
    assert re.fullmatch("0 texts .*, 0 failed; 1 waiting .*model.*\n", said)
    assert translate("work", "--model", "tiny") == none


@pytest.mark.soak
def test_an_empty_queue_is_seen_without_torch(tmp_path):
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


def test_nothing_to_queue_and_no_model_to_queue_for_are_one_line(translate, bare):
    for arguments, words in (
        (("queue",), "nothing to queue"),
        (("queue", "a"), "there is no model"),
        (("work", "--model", "nobody"), "no model 'nobody'"),
        (("jobs",), "no store"),
    ):
        assert words in refused(translate, *arguments)
    open_store().dispose()
    code, said, complaint = translate("jobs")
    assert (code, complaint) == (0, "")
    assert re.fullmatch("The queue is empty: `dtml translate queue TEXT .*\n", said)


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_the_queue_is_served_where_there_is_a_model_with_markets_or_alone(home):
    served = service_of([], [], RunRequest("each", device="cpu"), DELAY, None)
    assert served.schedules(NOW) == [replace(TRANSLATING, parameters={"device": "cpu"})]
    beside = service_of(["simulated"], [], RunRequest("each"), DELAY, None).schedules(NOW)
    assert {schedule.work for schedule in beside} >= {"night", "watch", "translations"}
    shutil.rmtree(home / "data" / "translation")
    without = service_of(["simulated"], [], RunRequest("each"), DELAY, None).schedules(NOW)
    assert "translations" not in {schedule.work for schedule in without}


@pytest.mark.soak
@pytest.mark.usefixtures("home", "served")
def test_a_scheduled_run_says_what_it_did_or_that_there_was_nothing():
    engine = open_store()
    idle = translate_queue(return_state=True)
    queued(engine, SOURCES[:3])
    queued(engine, ["one"], model="lost")
    busy = translate_queue(device="cpu", return_state=True)
    assert (idle.name, idle.message) == ("Skipped", "nothing is queued")
    assert busy.name == "Completed"
    assert re.fullmatch("3 texts .*, 0 failed; 1 waiting .*model.*", busy.message)
