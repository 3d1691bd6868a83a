"""Views as Parquet files: what they hold, and that an export again equals one from nothing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Connection, Engine, text

from db.admin.exporting import GROWING, Part, exportable
from db.engine import open_engine, transaction
from db.rows import markets, outcomes, predictions, rankings, runs
from db.rows import scores as stored_scores
from db.views import view, views
from dtml.errors import UsageError
from flows.nightly.context import MarketContext
from flows.nightly.night import run_night
from flows.upkeep import parquet_export
from flows.upkeep.parquet_export import FILE, MARKER, VIEWS, Exported, export, exported
from tests.support.commands import Command
from tests.support.db_commands import dtml  # noqa: F401 - a fixture
from tests.support.nights import AS_OF
from tests.support.parquet_files import ALL, contents, no_progress, rows_of
from tests.support.prediction_rows import run
from tests.support.stores import MOMENT, add_predictions, fill

EVERY = tuple(exportable())


@pytest.fixture
def store(engine: Engine, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A store with rows in every table, of which the market toy has predictions of two years."""
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    fill(engine)
    add_predictions(engine, 900)
    return engine


def brought_up_to_date(store: Engine, folder: Path, views: tuple[str, ...] = EVERY) -> Exported:
    """Export again, and compare all files to those of an export from nothing."""
    done = export(store, folder, views, ALL, no_progress)
    anew = folder.with_name("anew")
    export(store, anew, views, ALL, no_progress)
    kept = {
        name: rows for name, rows in contents(folder).items() if name.partition("/")[0] in views
    }
    assert kept == contents(anew)
    shutil.rmtree(anew)
    return done


@pytest.mark.slow
def test_a_file_has_the_rows_and_the_types_of_its_view(store: Engine, tmp_path: Path) -> None:
    export(store, tmp_path / "out", EVERY, ALL, no_progress)
    kept = pq.ParquetFile(
        tmp_path / "out" / "prediction_history" / "market=toy" / "year=2024" / FILE
    ).read()
    assert {
        each.name: str(each.type)
        for each in kept.schema
        if each.name in ("target", "made_at", "correct", "place")
    } == {
        "target": "date32[day]",
        "made_at": "timestamp[us, tz=UTC]",
        "correct": "int64",
        "place": "int64",
    }
    assert kept.schema.field("probability").type == pa.float64()
    first = next(
        row for row in kept.to_pylist() if (row["symbol"], row["target"]) == ("A", date(2024, 1, 5))
    )
    assert (first["probability"], first["realised_return"], first["made_at"]) == (
        0.25,
        -0.01,
        MOMENT,
    )


@pytest.mark.soak
@pytest.mark.slow
def test_every_view_that_can_be_exported_comes_back_as_the_store_gives_it(
    store: Engine, tmp_path: Path
) -> None:
    export(store, tmp_path / "out", EVERY, ALL, no_progress)
    found = exported(tmp_path / "out")
    assert set(found) == set(EVERY)
    for name in found:
        rows = rows_of(found, f"select * exclude (year) from {name}")
        with store.connect() as conn:
            wanted = [tuple(row) for row in conn.execute(view(name).select())]
        assert sorted(map(as_text, rows)) == sorted(map(as_text, wanted)), name


def store_reader(store: Engine) -> Engine:
    return open_engine(store.url.render_as_string(hide_password=False), read_only=True)


def as_text(row: tuple[object, ...]) -> str:
    told = (json.dumps(each) if isinstance(each, list | dict) else each for each in row)
    return repr([each.astimezone(UTC) if isinstance(each, datetime) else each for each in told])


def test_a_view_without_rows_has_its_columns_until_it_has_rows(
    engine: Engine, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert export(engine, out, VIEWS, ALL, no_progress).written == len(VIEWS)
    for name in VIEWS:
        columns = [column.name for column in views()[name].columns]
        sql = f"select count(*), count({', '.join(columns[:1])}) from {name}"
        assert rows_of(exported(out), sql) == [(0, 0)]
    assert export(engine, out, VIEWS, ALL, no_progress).written == 0
    fill(engine)
    export(engine, out, VIEWS, frozenset(["toy"]), no_progress)
    assert not list(out.glob("daily_score/market=none/year=0/*"))
    assert rows_of(exported(out), "select count(*) > 0 from daily_score") == [(True,)]


def test_the_tables_that_a_growing_view_reads_are_those_that_its_export_looks_at() -> None:
    settled = {
        "run",
        "ranker",
        "instrument",
    }  # what a view reads of them never changes, but for names and sectors
    for name, looked_at in GROWING.items():
        read = set(re.findall(r"\b(?:from|join) ([a-z_]+)", views()[name].sql))
        assert read - settled == set(looked_at) - settled
        reads_names = bool({"name", "sector"} & set(views()[name].meanings()))
        assert reads_names == ("instrument" in looked_at)


@pytest.mark.slow
def test_what_did_not_change_is_not_written_again(store: Engine, tmp_path: Path) -> None:
    growing = tuple(GROWING)
    first = export(store, tmp_path / "out", growing, ALL, no_progress)
    before = {file: file.stat().st_ino for file in (tmp_path / "out").rglob("*.parquet")}
    again = export(store, tmp_path / "out", growing, ALL, no_progress)
    assert (again.written, again.kept, again.rows) == (0, first.written, 0)
    assert {file: file.stat().st_ino for file in before} == before


@pytest.mark.soak
def test_an_outcome_of_an_earlier_year_that_comes_late_is_exported_and_nothing_else(
    store: Engine, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    brought_up_to_date(store, out)
    years = {file.parent.name for file in out.glob(f"prediction_history/market=toy/*/{FILE}")}
    assert len(years) > 1
    happened = pd.DataFrame(
        {"symbol": ["A"], "session": pd.Timestamp("2024-01-08"), "realised_return": 0.5}
    )
    late = MOMENT - timedelta(days=400)  # committed after others, but dated before them
    for value in (0.5, 0.25):  # it comes, and is then restated
        with transaction(store) as conn:
            outcomes.save_outcomes(
                conn,
                "toy",
                happened.assign(realised_return=value, rise=True, label=1),
                known_at=late,
                recorded_at=late,
            )
        late += timedelta(seconds=1)
        done = brought_up_to_date(store, out, ("prediction_history",))
        assert (done.written, done.kept) == (1, len(years) - 1)
    kept = (
        pq.ParquetFile(out / "prediction_history" / "market=toy" / "year=2024" / FILE)
        .read()
        .to_pylist()
    )
    assert 0.25 in {row["realised_return"] for row in kept}


@pytest.mark.soak
def test_each_write_of_a_night_changes_what_an_export_writes(store: Engine, tmp_path: Path) -> None:
    out, later = tmp_path / "out", MOMENT + timedelta(days=9)
    brought_up_to_date(store, out)
    target = pd.Timestamp("2024-01-08")
    with transaction(store) as conn:
        runs.save_run(conn, run("second"))
        made = pd.DataFrame(
            {
                "symbol": ["A"],
                "run_id": "second",
                "as_of": pd.Timestamp("2024-01-05"),
                "target": target,
            }
        )
        predictions.save_predictions(
            conn,
            "toy",
            made.assign(probability=0.5, probability_std=0.0),
            known_at=later,
            made_at=later,
        )
    assert brought_up_to_date(store, out, ("prediction_history",)).written == 1
    with transaction(store) as conn:
        rules = {"always_up": True, "index_reversal": False, "index_below_mean20": None}
        predictions.save_rule_directions(conn, "toy", made[["target", "as_of"]].assign(**rules))
    assert brought_up_to_date(store, out, ("prediction_history",)).written == 1
    with transaction(store) as conn:
        order = made[["symbol", "as_of", "target"]].assign(
            score=1.0, place=1, probability=0.5, chosen=True
        )
        ranker = conn.execute(text("select id, chosen from ranker")).one()
        order = order.assign(ranker_id=ranker.id, predictor=ranker.chosen)
        rankings.save_night_ranking(conn, "toy", order, known_at=later, made_at=later)
    assert brought_up_to_date(store, out, ("prediction_history",)).written == 1
    assert brought_up_to_date(store, out, ("ranking_history",)).written == 1
    with transaction(store) as conn:
        score = pd.DataFrame(
            {"target": [target], "span": "night", "protocol": "all", "predictor": "dtml"}
        )
        for acc in (0.5, 0.75):
            made_score = score.assign(n=1, nights=1, rises=1, predicted_rises=1, acc=acc)
            stored_scores.save_scores(conn, "toy", made_score, scored_at=later)
    assert brought_up_to_date(store, out, ("daily_score",)).written == 1
    with transaction(store) as conn:
        named = pd.DataFrame(
            {"symbol": ["A"], "kind": "stock", "source_symbol": "A", "name": "New", "sector": "Tin"}
        )
        markets.save_instruments(conn, "toy", named)
    assert brought_up_to_date(store, out, ("ranking_history",)).written == 1
    assert brought_up_to_date(store, out).written < len(list(out.rglob("*.parquet")))


@pytest.mark.soak
def test_a_file_of_what_the_store_has_no_more_is_removed(store: Engine, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(store, out, VIEWS, ALL, no_progress)
    there = next(out.glob(f"daily_score/market=toy/*/{FILE}"))
    for market, year in (("toy", 1999), ("gone", 2024)):
        other = out / "daily_score" / f"market={market}" / f"year={year}" / FILE
        other.parent.mkdir(parents=True)
        other.write_bytes(there.read_bytes())
    assert brought_up_to_date(store, out, VIEWS).removed == 2


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_an_interrupted_export_is_completed_by_the_next(
    store: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write = tmp_path / "out", pq.ParquetWriter.write_table
    for allowed in (0, 1, 2):
        left = [None] * allowed

        def fill_the_disk(self: pq.ParquetWriter, table: pa.Table, left: list[None] = left) -> None:
            if not left:
                raise OSError(28, "No space left on device", "rows.parquet.partial")
            left.pop()
            write(self, table)

        monkeypatch.setattr(pq.ParquetWriter, "write_table", fill_the_disk)
        with pytest.raises(OSError, match="No space left"):
            export(store, out, VIEWS, ALL, no_progress)
        monkeypatch.undo()
        assert list(out.rglob("*.partial")) == []
        for file in out.rglob("*.parquet"):
            pq.read_metadata(file)
    broken = next(out.rglob("*.parquet"))
    broken.write_bytes(broken.read_bytes()[:100])
    broken.with_name(f"{FILE}.partial").write_bytes(b"PAR1 of a killed one")
    brought_up_to_date(store, out, VIEWS)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_killed_export_is_completed_by_the_next(store: Engine, tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = (
        "import time; import pyarrow.parquet as pq\n"
        "write = pq.ParquetWriter.write_table\n"
        "def slow(self, table):\n    write(self, table); print('wrote', flush=True); "
        "time.sleep(60)\n"
        "pq.ParquetWriter.write_table = slow\n"
        "from flows.cli import main; main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "db", "export", str(out)],
        stdout=subprocess.PIPE,
        env=os.environ,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"wrote\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(list(out.rglob("*.partial"))) == 1
    brought_up_to_date(store, out, VIEWS)
    assert list(out.rglob("*.partial")) == []


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_folder_of_somebody_else_is_left_alone(store: Engine, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    for folder in (tmp_path / "theirs", tmp_path / "theirs" / "notes.txt"):
        with pytest.raises(UsageError, match=r"neither empty nor .*export .*:.*empty folder"):
            export(store, folder, VIEWS, ALL, no_progress)
    assert [each.name for each in (tmp_path / "theirs").iterdir()] == ["notes.txt"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MARKER).write_text('{"format": 1, "store": "/another/dtml.sqlite"}')
    with pytest.raises(UsageError, match=r"export of /another/dtml\.sqlite"):
        export(store, tmp_path / "other", VIEWS, ALL, no_progress)
    (tmp_path / "other" / MARKER).write_text("{}")
    with pytest.raises(UsageError, match=r"not say .*which store"):
        export(store, tmp_path / "other", VIEWS, ALL, no_progress)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / f"{MARKER}.partial").write_text("{")  # all that a killed export left
    assert export(store, tmp_path / "begun", VIEWS, ALL, no_progress).written > 0


@pytest.mark.slow
def test_the_command_says_how_many_files_it_wrote(
    store: Engine,
    store_url: str,
    dtml: Command,  # noqa: F811
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    code, said, complaint = dtml(
        store_url, "export", str(out), "--view", "daily_score", "--market", "toy"
    )
    assert code == 0, complaint
    assert re.fullmatch(rf"{out}: 1 file .*\(1 row\), 0 unchanged\n", said)
    said = dtml(store_url, "export", str(out), "--view", "daily_score")[1]
    assert re.match(rf"{out}: 0 files .*\(0 rows\), 1 unchanged", said)
    assert sorted(each.name for each in out.iterdir()) == ["daily_score", MARKER]
    for refused, words in (
        (("--view", "night"), "'night' cannot be exported"),
        (("--market", "x"), "no market 'x'"),
    ):
        code, said, complaint = dtml(store_url, "export", str(out), *refused)
        assert (code, said, words in complaint, complaint.count("\n")) == (2, "", True, 1)


@pytest.mark.soak
def test_an_export_is_not_ended_by_the_limit_of_a_read(
    store: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("db.engine.READ_LIMIT_S", 1)
    reader, fingerprint = store_reader(store), Part.fingerprint

    def slow(part: Part, conn: Connection) -> str:
        if conn.dialect.name == "postgresql":
            conn.execute(text("select pg_sleep(1.2)"))
        else:
            time.sleep(1.2)
        return fingerprint(part, conn)

    monkeypatch.setattr(Part, "fingerprint", slow)
    assert export(reader, tmp_path / "out", ("daily_score",), ALL, no_progress).written == 1


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_night_keeps_its_markets_files_and_a_failure_is_a_warning(
    store: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parquet_export.export_if_asked(store, "toy")
    assert list(tmp_path.rglob("*.parquet")) == []
    monkeypatch.setenv("DTML_EXPORT", str(tmp_path / "out"))
    parquet_export.export_if_asked(store, "toy")
    assert set(exported(tmp_path / "out")) == set(VIEWS)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    monkeypatch.setenv("DTML_EXPORT", str(tmp_path / "theirs"))
    parquet_export.export_if_asked(store, "toy")
    assert re.search("night is stored,.*toy .*not exported", caplog.text)


@pytest.mark.soak
def test_a_night_ends_with_its_files(
    context: MarketContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTML_EXPORT", str(tmp_path / "out"))
    # One with rows, and those of the two views that have none yet; a rerun finds them as they were.
    for expected in (3, 0):
        files = {file: file.stat().st_ino for file in (tmp_path / "out").rglob("*.parquet")}
        run_night(context, AS_OF)
        now = {file: file.stat().st_ino for file in (tmp_path / "out").rglob("*.parquet")}
        assert len(set(now.items()) - set(files.items())) == expected
    assert rows_of(exported(tmp_path / "out"), "select count(*) from prediction_history") == [(9,)]
