"""A sound store passes every check, each break is found and named; two that
write at once lose nothing.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db import tables
from db.admin.checks import LAWS, Finding, check_store
from db.connection.locks import market_lock
from db.engine import open_engine, reading, transaction
from db.read import read
from db.save import save
from tests.support.prediction_rows import STOCKS, TARGET, predictions, run, save_stocks
from tests.support.revisions import NEXT, become_next
from tests.support.stores import MOMENT, fill

NIGHTS = 20


def findings(engine: Engine) -> dict[str, Finding]:
    return {finding.check: finding for finding in check_store(engine)}


def change(engine: Engine, *statements: str) -> None:
    with transaction(engine) as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


@pytest.mark.slow
def test_a_sound_store_passes_every_check(engine: Engine) -> None:
    fill(engine)
    found = findings(engine)
    assert {finding.state for finding in found.values()} == {"ok"}
    assert set(LAWS) < set(found)


def test_an_empty_store_is_sound(engine: Engine) -> None:
    assert {finding.state for finding in findings(engine).values()} == {"ok"}


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


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_law_is_named_with_the_rows_that_break_it(engine: Engine, broken: str) -> None:
    fill(engine)
    statements, law, row = BROKEN[broken]
    if engine.dialect.name == "sqlite":
        statements = statements.replace("+00'", "'")
    change(engine, *statements.split(";"))
    failed = [finding for finding in check_store(engine) if finding.state != "ok"]
    assert [law in finding.check for finding in failed] == [True]
    assert row.items() <= failed[0].found[0].items()


@pytest.mark.slow
def test_no_more_rows_are_named_than_can_be_read(engine: Engine) -> None:
    fill(engine)
    change(engine, "delete from price_fetch")
    with transaction(engine) as conn:
        for day in range(7):
            night = {
                "market": "toy",
                "as_of": date(2024, 2, 1 + day),
                "target": date(2024, 3, 1),
                "source": "files",
            }
            night |= {
                "status": "complete",
                "run_id": "first",
                "predictions": 9,
                "started_at": MOMENT,
            }
            conn.execute(sa.insert(tables.night), night)
    (law,) = (law for name, law in findings(engine).items() if "as many predictions" in name)
    assert (law.state, len(law.found), law.more) == ("failed", 5, True)


@pytest.mark.slow
def test_a_store_that_kept_no_fetches_is_not_held_to_them(engine: Engine) -> None:
    fill(engine)
    change(engine, "delete from price_fetch")
    assert {finding.state for finding in findings(engine).values()} == {"ok"}


@pytest.mark.soak
def test_an_interrupted_night_is_a_note_and_one_that_runs_is_none(engine: Engine) -> None:
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


def test_a_store_of_an_older_schema_is_held_to_no_law(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_next(monkeypatch, tmp_path)
    found = findings(engine)
    assert not set(LAWS) & set(found)
    last = list(found.values())[-1]
    assert last.state == "failed"
    assert "dtml db upgrade" in last.found[0]["error"]
    assert NEXT in last.check


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_damaged_file_is_found(engine: Engine) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # PostgreSQL lets nobody do this
def test_a_row_whose_owner_is_gone_is_found(engine: Engine) -> None:
    fill(engine)
    with engine.connect() as conn:
        raw = conn.connection.cursor()
        raw.execute("pragma foreign_keys = off")
        raw.execute("delete from benchmark")
    engine.dispose()
    lost = findings(engine)["every foreign key leads to a row"]
    assert {row["parent"] for row in lost.found} == {"benchmark"}


def write_nights(url: str, market: str, run_id: str, days: Sequence[pd.Timestamp]) -> None:
    """What a night's process does with each of many nights, as fast as it can."""
    engine = open_engine(url)
    for target in days:
        made = predictions(run_id).assign(target=target, as_of=target - timedelta(days=1))
        with transaction(engine) as conn:
            save(conn, "prediction", made, market=market, known_at=MOMENT, made_at=MOMENT)


@pytest.mark.soak
@pytest.mark.parametrize(
    "both", [("toy", "toy"), pytest.param(("toy", "other"), marks=pytest.mark.soak)]
)
def test_two_processes_that_store_nights_at_once_both_succeed_and_every_row_is_there_once(
    engine: Engine, store_url: str, forks: ForkServerContext, both: tuple[str, str]
) -> None:
    """Of one market both store the same nights, from either end; of two each its own."""
    with transaction(engine) as conn:
        for market in sorted(set(both)):
            save_stocks(conn, STOCKS, market)
            save(conn, "run", run(market, market=market))
    engine.dispose()
    days = list(pd.bdate_range(TARGET, periods=NIGHTS))
    work = zip(both, (days, days[::-1]), strict=True)
    writers = [
        forks.Process(target=write_nights, args=(store_url, each, each, run_request))
        for each, run_request in work
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    for market in set(both):
        with reading(engine) as conn:
            stored = read(conn, "prediction", market=market, order="target, symbol, made_at")
        assert len(stored) == NIGHTS * len(STOCKS)
        assert stored[["target", "symbol"]].drop_duplicates().shape[0] == NIGHTS * len(STOCKS)
