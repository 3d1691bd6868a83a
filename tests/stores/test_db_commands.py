"""`dtml db` as its user meets it: each command ends in what was done, or in one
line that says why not.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url

from db.engine import open_engine, reading, require_current_schema, transaction
from db.errors import StoreError
from tests.support.benchmark_rows import ranker
from tests.support.commands import Command
from tests.support.revisions import become_next
from tests.support.roles import NAME
from tests.support.stores import FIRST, add_predictions, contents, fill, keep_weights, rows, url_of

pytestmark = pytest.mark.slow

DTML = Path(sys.executable).with_name("dtml")


def test_a_sound_store_is_found_sound_a_line_a_check(
    engine: Engine, store_url: str, dtml: Command, tmp_path: Path
) -> None:
    fill(engine)
    keep_weights(tmp_path / "data")
    code, said, complaint = dtml(store_url, "check")
    assert (code, complaint) == (0, "")
    assert {line.split()[0] for line in said.splitlines()} == {"ok"}
    assert "every model's weights" in said
    found = json.loads(dtml(store_url, "check", "--json")[1])
    assert len(found) == len(said.splitlines())
    assert {each["state"] for each in found} == {"ok"}


@pytest.mark.soak
@pytest.mark.parametrize("weights", [None, b"other"])
def test_weights_that_are_lost_or_damaged_fail_the_check(
    filled: Engine, dtml: Command, tmp_path: Path, weights: bytes | None
) -> None:
    file = keep_weights(tmp_path / "data")
    file.unlink() if weights is None else file.write_bytes(weights)
    code, said, _ = dtml(url_of(filled), "check")
    why = "not exist" if weights is None else "changed or damaged"
    assert code == 1
    assert re.search(f"run_id first,.*{FIRST},.*{why}", said)
    code, said, _ = dtml(url_of(filled), "check", "--json")
    failed = [each for each in json.loads(said) if each["state"] == "failed"]
    # both are kept there
    lost = [(name, FIRST) for name in ("first", ranker()["id"])]
    assert code == 1
    (found,) = (each["found"] for each in failed)
    assert [(each["run_id"], each["path"]) for each in found] == lost
    assert all(why in each["why"] for each in found)


def test_a_store_of_an_older_schema_fails_the_check_and_says_what_to_do(
    filled: Engine, dtml: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_next(monkeypatch, tmp_path)
    code, said, _ = dtml(url_of(filled), "check")
    assert code == 1
    assert said.splitlines()[-1].startswith("failed  not so: ")
    assert "dtml db upgrade" in said
    assert dtml(url_of(filled), "upgrade")[0] == 0
    assert dtml(url_of(filled), "check")[0] == 0


def test_a_night_that_was_interrupted_does_not_stand_as_one_that_was_not(
    filled: Engine, dtml: Command, tmp_path: Path
) -> None:
    keep_weights(tmp_path / "data")
    with transaction(filled) as conn:
        conn.exec_driver_sql("update night set status = 'running'")
    code, said, _ = dtml(url_of(filled), "check")
    (note,) = (line for line in said.splitlines() if line.startswith("note"))
    assert (code, note.startswith("note    not so: "), "market toy" in note) == (0, True, True)


def test_a_store_that_is_not_there_is_not_made_by_a_check(dtml: Command, tmp_path: Path) -> None:
    for asked in (("check",), ("backup", str(tmp_path / "kept"))):
        code, _, complaint = dtml(f"sqlite:///{tmp_path}/none.sqlite", *asked)
        assert (code, "no store at" in complaint) == (2, True)
    assert not (tmp_path / "none.sqlite").exists()


def test_a_store_is_copied_into_the_one_of_the_environment(
    filled: Engine, store_url: str, dtml: Command
) -> None:
    code, said, complaint = dtml(store_url, "copy", str(filled.url.database))
    assert code == 0, complaint
    tables = len(contents(filled))
    assert re.search(rf"\b{tables} tables, {rows(url_of(filled))} rows .*equal", said)
    assert "weights" in said
    assert contents(open_engine(store_url)) == contents(filled)
    code, _, complaint = dtml(store_url, "copy", str(filled.url.database))
    assert (code, "not empty" in complaint) == (2, True)


def test_what_cannot_be_copied_is_refused_in_one_line(
    filled: Engine, dtml: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, target = str(filled.url.database), f"sqlite:///{tmp_path}/target.sqlite"
    (tmp_path / "notes.txt").write_text(
        "no database at all, and long enough to be read as the head of one" * 9
    )
    (tmp_path / "link.sqlite").symlink_to(own)
    refused = {
        (url_of(filled), own): (2, "is not empty"),
        (url_of(filled), str(tmp_path / "link.sqlite")): (2, "is not empty"),
        (target, str(tmp_path / "none.sqlite")): (2, "give an SQLite file"),
        (target, str(tmp_path / "notes.txt")): (1, "not a database"),
    }
    for (url, file), (expected, words) in refused.items():
        code, said, complaint = dtml(url, "copy", file)
        assert (code, said, words in complaint, complaint.count("\n")) == (expected, "", True, 1), (
            complaint
        )
    become_next(monkeypatch, tmp_path)
    code, _, complaint = dtml(target, "copy", own)
    assert code == 2
    assert f"`DTML_DATABASE_URL=sqlite:///{own} dtml db upgrade`" in complaint
    assert not (tmp_path / "target.sqlite").exists()


@pytest.mark.soak
def test_a_copy_that_is_killed_leaves_nothing_and_can_be_made_again(
    filled: Engine, store_url: str, dtml: Command
) -> None:
    add_predictions(filled, 60_000)
    environment = os.environ | {"DTML_DATABASE_URL": store_url}
    copying = [DTML, "db", "copy", str(filled.url.database)]
    process = subprocess.Popen(copying, env=environment, stdout=subprocess.DEVNULL)
    target = open_engine(store_url)
    with watched(target):
        process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    require_current_schema(target)
    assert rows(store_url) == 0
    assert dtml(store_url, "copy", str(filled.url.database))[0] == 0
    assert rows(store_url) == rows(url_of(filled))


@contextmanager
def watched(target: Engine) -> Iterator[None]:
    """Wait until another process writes to a store: nobody else can then."""
    waiting = threading.Event()
    while not waiting.wait(0.05):
        try:
            require_current_schema(target)
        except StoreError:  # the tables are still being made
            continue
        if is_held(target):
            break
    yield


def is_held(target: Engine) -> bool:
    if target.dialect.name == "postgresql":
        with reading(target) as conn:
            held = (
                "select count(*) from pg_locks where locktype = 'advisory' and mode = "
                "'ExclusiveLock'"
            )
            return bool(conn.exec_driver_sql(held).scalar_one())
    with sqlite3.connect(str(target.url.database), timeout=0) as conn:
        try:
            conn.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
        return False


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_reader_gets_its_password_from_the_environment_and_it_is_never_shown(
    engine: Engine, store_url: str, dtml: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTML_READER_PASSWORD", "s3cret-w0rd")
    superuser = make_url(store_url).set(username="postgres").render_as_string(hide_password=False)
    code, said, complaint = dtml(superuser, "grant-reader", NAME)
    assert (code, complaint) == (0, "")
    assert re.search(f"role {NAME} .*created .*views .*studies", said)
    assert "s3cret" not in said
    reader = make_url(store_url).set(username=NAME).render_as_string(hide_password=False)
    with reading(open_engine(reader)) as conn:
        assert conn.exec_driver_sql("select count(*) from night_log").scalar_one() == 0
    with transaction(open_engine(superuser)) as conn:
        conn.exec_driver_sql(f"drop owned by {NAME}")
        conn.exec_driver_sql(f"drop role {NAME}")


def test_on_sqlite_a_reader_is_told_how_to_read(filled: Engine, dtml: Command) -> None:
    code, _, complaint = dtml(url_of(filled), "grant-reader", NAME)
    assert (code, "dtml query" in complaint) == (2, True)
