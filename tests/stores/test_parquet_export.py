"""Views as Parquet files: what they hold, and that an export again equals one from nothing."""

import json
import re
import shutil
from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest
from pyarrow import dataset
from sqlalchemy import text

from db.admin.exporting import MARKER, export, exportable
from db.engine import transaction
from db.errors import StoreUsageError
from db.views import view
from flows.nightly.night import run_night
from flows.upkeep.parquet_export import VIEWS, export_if_asked
from tests.support.db_commands import dtml  # noqa: F401 - a fixture
from tests.support.kinds import sqlite_alone
from tests.support.nights import AS_OF
from tests.support.stores import add_predictions, fill

EVERY = tuple(exportable())


@pytest.fixture
def store(engine):
    """A store with rows in every table, of which the market toy has predictions of two years."""
    fill(engine)
    add_predictions(engine, 900)
    return engine


def read(folder, name):
    """The rows of an exported view, without the year that names their folder."""
    rows = dataset.dataset(folder / name, format="parquet", partitioning="hive").to_table()
    return rows.drop_columns(["year"])


def contents(folder):
    return {
        str(file.relative_to(folder)): sorted(map(repr, pq.read_table(file).to_pylist()))
        for file in folder.rglob("*.parquet")
    }


def test_every_view_that_can_be_exported_comes_back_as_the_store_gives_it(store, tmp_path):
    export(store, tmp_path / "out", EVERY)
    for name in EVERY:
        with store.connect() as conn:
            wanted = [dict(row) for row in conn.execute(view(name).select()).mappings()]
        found = read(tmp_path / "out", name).to_pylist() if wanted else []
        assert sorted(map(as_text, found)) == sorted(map(as_text, wanted)), name


def as_text(row):
    return repr(
        {
            name: json.dumps(value)
            if isinstance(value, list | dict)
            else value.astimezone(UTC)
            if isinstance(value, datetime)
            else value
            for name, value in sorted(row.items())
        }
    )


def test_an_export_again_replaces_what_changed_and_leaves_other_markets(store, tmp_path):
    out = tmp_path / "out"
    export(store, out, VIEWS)
    other = out / "prediction_history" / "market=other" / "year=2024"
    shutil.copytree(out / "prediction_history" / "market=toy" / "year=2024", other)
    (out / ".daily_score").mkdir()  # what a killed export left
    with transaction(store) as conn:
        conn.execute(text("update prediction set probability = 0.75"))
    export(store, out, VIEWS, ["toy"])
    assert set(read(out, "prediction_history")["market"].to_pylist()) == {"toy", "other"}
    shutil.rmtree(other.parent)
    export(store, tmp_path / "anew", VIEWS)
    assert contents(out) == contents(tmp_path / "anew")
    assert sorted(path.name for path in out.iterdir()) == sorted([*VIEWS, MARKER])


@sqlite_alone
def test_a_folder_of_somebody_else_is_left_alone(store, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    for folder in (tmp_path / "theirs", tmp_path / "theirs" / "notes.txt"):
        with pytest.raises(StoreUsageError, match=r"neither empty nor .*export .*:.*empty folder"):
            export(store, folder, VIEWS)
    assert [each.name for each in (tmp_path / "theirs").iterdir()] == ["notes.txt"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MARKER).write_text("/another/dtml.sqlite")
    with pytest.raises(StoreUsageError, match=r"export of /another/dtml\.sqlite"):
        export(store, tmp_path / "other", VIEWS)


@sqlite_alone
def test_a_night_keeps_its_markets_files_and_a_failure_is_a_warning(
    store, tmp_path, monkeypatch, caplog
):
    export_if_asked(store, "toy")
    assert list(tmp_path.rglob("*.parquet")) == []
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    monkeypatch.setenv("DTML_EXPORT", str(tmp_path / "theirs"))
    export_if_asked(store, "toy")
    assert re.search("night is stored,.*toy .*not exported", caplog.text)


@pytest.mark.soak
def test_a_night_ends_with_its_files(context, tmp_path, monkeypatch):
    monkeypatch.setenv("DTML_EXPORT", str(tmp_path / "out"))
    run_night(context, AS_OF)
    assert read(tmp_path / "out", "prediction_history").num_rows == 9
