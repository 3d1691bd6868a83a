"""A sound store passes every check, each break is named, and how a database fails is told."""

import random
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest
import sqlalchemy as sa

from db.admin.checks import LAWS, check_store
from db.connection.locks import market_lock
from db.engine import open_engine, reading, require_current_schema, transaction
from db.errors import StoreError, StoreUsageError
from db.read import read
from db.rows import translations
from db.save import save
from tests.support.kinds import sqlite_alone
from tests.support.prediction_rows import STOCKS, TARGET, predictions, run, save_stocks
from tests.support.revisions import NEXT, become_next
from tests.support.stores import MOMENT, contents, fill

NIGHTS = 20


def write_nights(url, days):
    """What a night's process does with each of many nights, as fast as it can."""
    engine = open_engine(url)
    for target in days:
        made = predictions().assign(target=target, as_of=target - timedelta(days=1))
        with transaction(engine) as conn:
            save(conn, "prediction", made, market="toy", known_at=MOMENT, made_at=MOMENT)


def findings(engine):
    return {finding.check: finding for finding in check_store(engine)}


def change(engine, *statements):
    with transaction(engine) as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def test_a_sound_store_passes_every_check(engine):
    fill(engine)
    found = findings(engine)
    assert {finding.state for finding in found.values()} == {"ok"}
    assert set(LAWS) < set(found)


GAPS = """[{{"symbol": "{}", "reason": "no bar"}}, {{"symbol": "{}", "reason": "late"}}]"""
SECOND = """
    insert into prediction (run_id, target, instrument_id, as_of, probability, known_at, made_at)
    select 'trees', target, instrument_id, as_of, probability, known_at, made_at
    from prediction where probability = 0.5
"""
BROKEN = {
    "says more": (
        "update night set predictions = 4",
        "as many predictions",
        {"said": 4, "found": 3},
    ),
    "says nothing": (
        "update night set predictions = null",
        "as many predictions",
        {"said": None, "found": 3},
    ),
    "has no model": (
        "update night set run_id = null",
        "as many predictions",
        {"said": 3, "found": 0},
    ),
    "predicted and left out": (
        f"update night set gaps = '{GAPS.format('Z', 'B')}'",
        "never both",
        {"symbol": "B"},
    ),
    "left out twice": (
        f"update night set gaps = '{GAPS.format('Z', 'Z')}'",
        "never both",
        {"symbol": "Z"},
    ),
    "predicted twice": (
        f"update run set kind = 'nightly'; {SECOND}",
        "one nightly prediction",
        {"market": "toy", "symbol": "B", "found": 2},
    ),
    "scored otherwise": (
        "update score set acc = 0.5",
        "score of a night",
        {"said": 3, "correct": 3},
    ),
    "price without a fetch": (
        "update price_fetch set known_at = '2024-01-05 02:30:00.000006+00'",
        "last fetch",
        {},
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_law_is_named_with_the_rows_that_break_it(engine, broken):
    fill(engine)
    statements, law, row = BROKEN[broken]
    if engine.dialect.name == "sqlite":
        statements = statements.replace("+00'", "'")
    change(engine, *statements.split(";"))
    failed = [finding for finding in check_store(engine) if finding.state != "ok"]
    assert [law in finding.check for finding in failed] == [True]
    assert row.items() <= failed[0].found[0].items()


@pytest.mark.soak
def test_an_interrupted_night_is_a_note_and_one_that_runs_is_none(engine):
    fill(engine)
    change(engine, "update night set status = 'running'")
    with market_lock(engine, "toy"):
        assert findings(engine)["no night was interrupted"].state == "ok"
    note = findings(engine)["no night was interrupted"]
    assert (note.state, note.found[0]["market"], note.found[0]["to do"]) == (
        "note",
        "toy",
        "run the night again",
    )
    assert {finding.state for finding in findings(engine).values()} == {"ok", "note"}


def test_a_store_of_an_older_schema_is_held_to_no_law(engine, tmp_path, monkeypatch):
    become_next(monkeypatch, tmp_path)
    found = findings(engine)
    assert not set(LAWS) & set(found)
    last = list(found.values())[-1]
    assert last.state == "failed"
    assert "dtml db upgrade" in last.found[0]["error"]
    assert NEXT in last.check


@sqlite_alone
def test_a_damaged_file_is_found(engine):
    fill(engine)
    with reading(engine) as conn:
        place = "select rootpage from sqlite_master where name = 'ix_prediction_target'"
        root = conn.exec_driver_sql(place).scalar_one()
    engine.dispose()  # which leaves one file, without a log
    file, page = Path(str(engine.url.database)), 4096
    content = bytearray(file.read_bytes())
    # an index that has lost its entries
    content[(root - 1) * page : root * page] = b"\x0a" + bytes(page - 1)
    file.write_bytes(content)
    assert findings(open_engine(f"sqlite:///{file}"))["the file is intact"].state == "failed"


PAGE = 4096
RESTORE = r"dtml db check.*dtml db restore"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, current_file):
    """A filled SQLite store, all of it in its one file."""
    file = tmp_path_factory.mktemp("whole") / "store.sqlite"
    shutil.copy(current_file, file)
    engine = open_engine(f"sqlite:///{file}")
    fill(engine)
    engine.dispose()
    with sqlite3.connect(file) as conn:
        conn.execute("pragma journal_mode = delete")
    conn.close()
    data = file.read_bytes()
    used(data, file.parent)
    return data


def used(data, folder):
    """Open a store with these bytes, read all of it and write to it."""
    for left in folder.glob("store.sqlite-*"):
        left.unlink()
    (folder / "store.sqlite").write_bytes(data)
    engine = open_engine(f"sqlite:///{folder / 'store.sqlite'}")
    try:
        require_current_schema(engine)
        contents(engine)
        with transaction(engine) as conn:
            conn.execute(sa.text("delete from price"))
            translations.queue_texts(conn, "en-de", ["x" * PAGE] * 17)
    finally:
        engine.dispose()


def garbled(data, first, last):
    return data[:first] + random.Random(first).randbytes(last - first) + data[last:]


DAMAGE = {
    "the first page": lambda data: garbled(data, 100, PAGE),
    "every other page": lambda data: garbled(data, PAGE, len(data)),
    "the second half cut off": lambda data: data[: len(data) // 2],
    "the second half cut off at a page": lambda data: data[: len(data) // PAGE // 2 * PAGE],
    "all but its first bytes cut off": lambda data: data[:50],
    "the header": lambda data: garbled(data, 16, 100),
    "the first words": lambda data: garbled(data, 0, 16),
    "zeros": lambda data: bytes(len(data)),
    "a format of the future": lambda data: data[:47] + b"\xff" + data[48:],
    "a version to write of the future": lambda data: data[:18] + b"\xff" + data[19:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_said_to_be_damaged_and_how_to_come_back(damage, whole, tmp_path):
    with pytest.raises(StoreError, match=f"damaged.*{RESTORE}") as caught:
        used(DAMAGE[damage](whole), tmp_path)
    assert "full" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "insert into alembic_version values ('9999')",
            "damaged,.*table alembic_version.*2 schemas",
        ),
        ("delete from alembic_version", "damaged,.*table alembic_version"),
    ],
)
def test_a_store_of_two_schemas_or_of_none_is_noticed(engine, store_url, change, said):
    with transaction(engine) as conn:
        conn.exec_driver_sql(change)
    with pytest.raises(StoreError, match=f"{said}.*{RESTORE}") as caught:
        require_current_schema(open_engine(store_url, read_only=True))
    assert not isinstance(caught.value, StoreUsageError)


@pytest.mark.soak
def test_two_processes_that_store_nights_at_once_both_succeed_and_every_row_is_there_once(
    engine, store_url, forks
):
    """Both store the same nights, from either end."""
    with transaction(engine) as conn:
        save_stocks(conn, STOCKS)
        save(conn, "run", run())
    engine.dispose()
    days = list(pd.bdate_range(TARGET, periods=NIGHTS))
    writers = [
        forks.Process(target=write_nights, args=(store_url, each)) for each in (days, days[::-1])
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    with reading(engine) as conn:
        stored = read(conn, "prediction", market="toy")
    assert len(stored) == len(stored[["target", "symbol"]].drop_duplicates())
    assert len(stored) == NIGHTS * len(STOCKS)
