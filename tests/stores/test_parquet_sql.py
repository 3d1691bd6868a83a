"""SQL asked of exported Parquet files: answers, limits, and other readers."""

import json
import shutil
import sys
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine

from db.connection.parquet_sql import open_parquet_answer
from db.errors import StoreUsageError
from dtml.errors import UsageError
from flows.commands.query import query
from flows.upkeep.parquet_export import VIEWS, export, exported
from tests.support.parquet_files import ALL, contents, no_progress, rows_of
from tests.support.stores import add_predictions, fill

OUTSIDE = [
    "copy (select 1) to '{mark}'",
    "with x as (copy (select 1) to '{mark}') select 1",
    "with x as (copy (select 1) to '{files}/daily_score/x.parquet') select 1",
    "explain analyze copy (select 1) to '{mark}'",
    "attach '{mark}' as other",
    "export database '{mark}'",
    "install httpfs",
    "load httpfs",
    "set enable_external_access = true",
    "set memory_limit = '900GB'",
    "select * from read_text('{secret}')",
    "select * from read_csv('{secret}')",
    "select * from '{secret}'",
    "select * from '{files}/*/*/*/*.parquet'",
    "select * from read_parquet('{files}/*/*/*/*.parquet')",
    "select * from glob('{files}/*')",
    "select getenv('HOME')",
    "select * from sqlite_scan('{secret}', 'run')",
    "select * from files",
    "select * from answer",
    "create table t as select 1; select * from t",
    "pragma database_list",
    "call pragma_version()",
    "",
]


@pytest.fixture
def store(engine: Engine, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A store with rows in every table, of which the market toy has predictions of two years."""
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    fill(engine)
    add_predictions(engine, 900)
    return engine


@pytest.fixture
def files(store: Engine, tmp_path: Path) -> Path:
    export(store, tmp_path / "out", VIEWS, ALL, no_progress)
    return tmp_path / "out"


@pytest.mark.slow
def test_one_statement_is_answered_alike_by_the_store_and_its_files(
    files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sql = """
        select target, symbol, direction, probability, realised_return, correct
        from prediction_history order by target, symbol, probability
    """
    for form in ({"as_json": True, "as_csv": False}, {"as_json": False, "as_csv": True}):
        query(sql, **form)
        of_store = capsys.readouterr().out
        query(sql, **form, on=files)
        assert capsys.readouterr().out == of_store
    kept = []
    for on in (None, files):
        query(sql, as_json=False, as_csv=False, parquet=tmp_path / "kept.parquet", on=on)
        kept.append(pq.read_table(tmp_path / "kept.parquet"))
    assert kept[0].to_pylist() == kept[1].to_pylist()
    capsys.readouterr()
    query(
        "select market, sum(1) as n from prediction_history group by all",
        as_json=True,
        as_csv=False,
        on=files,
    )
    assert json.loads(capsys.readouterr().out) == [{"market": "toy", "n": 903}]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_sql_on_files_reaches_no_other_file_and_writes_none(files: Path, tmp_path: Path) -> None:
    mark, secret = tmp_path / "reached", tmp_path / "secret.txt"
    secret.write_text("a secret")
    before = contents(files)
    answered = []
    for sql in OUTSIDE:
        asked = sql.format(mark=mark, secret=secret, files=files)
        with (
            pytest.raises(StoreUsageError) as caught,
            open_parquet_answer(exported(files), asked) as answer,
        ):
            answered.append((asked, list(answer.batches)))
        assert "a secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert answered == []
    assert not mark.exists()
    assert contents(files) == before
    assert sorted(each.name for each in files.rglob("*x.parquet")) == []


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("as_left", ["cut", "text", "folder", "of another view", "of no year"])
def test_a_file_that_somebody_changed_is_told_in_a_line_and_the_next_export_mends_it(
    store: Engine, files: Path, as_left: str
) -> None:
    file, *_ = sorted(files.glob("prediction_history/*/*/rows.parquet"))
    if as_left == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif as_left == "text":
        file.write_text("hello")
    elif as_left == "folder":
        file.unlink()
        file.mkdir()
    elif as_left == "of another view":
        (other,) = files.glob("daily_score/*/*/rows.parquet")
        shutil.copy(other, file)
    else:
        year = file.parent.with_name("year=soon")
        shutil.copytree(file.parent, year)
    with pytest.raises(StoreUsageError, match="files of prediction_history cannot") as caught:
        rows_of(exported(files), "select sum(probability) from prediction_history")
    assert "\n" not in str(caught.value)
    if as_left == "folder":
        file.rmdir()
    export(store, files, VIEWS, ALL, no_progress)
    assert rows_of(exported(files), "select count(*) from prediction_history") == [(903,)]


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_sql_on_files_is_ended_by_time_and_by_memory(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = exported(files)
    monkeypatch.setattr("db.connection.parquet_sql.CONFIG", parquet_config(memory_limit="40MB"))
    with pytest.raises(StoreUsageError, match="memory: request less data"):
        rows_of(found, "select list(i) from range(100000000) t(i)")
    monkeypatch.setattr("db.engine.READ_LIMIT_S", 0.5)
    with pytest.raises(StoreUsageError, match=r"interrupted after 0\.5 s"):
        rows_of(found, "select count(*) from range(1000000) a, range(1000000) b where a <> b")


def parquet_config(**changed: str) -> dict[str, object]:
    from db.connection.parquet_sql import CONFIG

    return dict(CONFIG) | changed


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_without_duckdb_the_error_says_what_to_install(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(StoreUsageError, match=r"pip install 'dtml-nightshift\[analysis\]'"):
        query("select 1", as_json=True, as_csv=False, on=files)
    with pytest.raises(UsageError, match=r"not written .*`dtml db export`"):
        query("select 1", as_json=True, as_csv=False, on=files.parent)


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_other_readers_take_the_folder_as_it_is(files: Path) -> None:
    found = pd.read_parquet(files / "prediction_history", partitioning="hive")
    assert set(found["market"]) == {"toy"}
    assert set(found["year"]) == set(pd.to_datetime(found["target"]).dt.year)
    told = (
        f"select count(*), min(year) from read_parquet('{files}/prediction_history/*/*/*.parquet')"
    )
    assert duckdb.sql(told).fetchall() == [(len(found), found["year"].astype(int).min())]
