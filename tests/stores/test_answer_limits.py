"""How much an answer to SQL of a user may be: rows, bytes and memory are
bounded, on either engine, in every form.
"""

import os
import re
import subprocess
import sys

import pytest

from db.connection.user_sql import select
from db.engine import open_reader
from db.errors import StoreUsageError
from dtml.errors import UsageError
from flows.answer_files import write_parquet
from flows.commands.query import SHOWN, query
from tests.support.places import ROOT

NUMBERS = "with recursive n(i) as (select 1 union all select i + 1 from n{end})"
ENDLESS = NUMBERS.format(end="") + " select i from n"
LONG_TEXTS = (
    NUMBERS.format(end=" where i < 150000") + f" select i, '{'x' * 1000}' || i as said from n"
)
pytestmark = pytest.mark.usefixtures("engine")

TABLE = {"as_json": False, "as_csv": False}

# Says in which forms, one after the other, what memory it may take, and what it asks; prints what
# it complains of, and the peak of its resident memory in bytes.
CHILD = """
import resource, sys
from pathlib import Path
import db.engine
import flows.commands.query
from dtml.errors import DtmlError
from db.errors import StoreError
forms, memory, sql = sys.argv[1:]
flows.commands.query.MEMORY = int(memory)
db.engine.READ_LIMIT_S = 3600  # not what is asked about here
for form in forms.split():
    try:
        chosen = {name: name == form for name in ("as_json", "as_csv")}
        parquet = Path("rows.parquet") if form == "parquet" else None
        flows.commands.query.query(sql, **chosen, parquet=parquet)
    except (DtmlError, StoreError) as error:
        print(error, file=sys.stderr)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
"""


def asked_in_a_process(folder, forms, sql, memory=2**31):
    """What a process of its own complains of that asks this in some forms, and
    the most memory that it had.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD, forms, str(memory), sql],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    *said, peak = done.stderr.splitlines()
    return said, int(peak)


@pytest.mark.by_quarters
@pytest.mark.soak
@pytest.mark.parametrize("form", ["as_csv", "as_json"])
def test_rows_are_written_as_they_come_and_not_held(form, tmp_path):
    _, one = asked_in_a_process(tmp_path, form, "select 1 as i, 'x' as said")
    said, all_of_them = asked_in_a_process(tmp_path, form, LONG_TEXTS)
    assert said == []
    assert all_of_them - one < 75_000_000  # of 150 MB


@pytest.mark.soak
def test_a_table_shows_the_first_rows_and_reads_no_more(capsys):
    query(ENDLESS, **TABLE)
    printed = capsys.readouterr()
    assert [line.split() for line in printed.out.splitlines()] == [
        ["i"],
        *([str(i)] for i in range(1, SHOWN + 1)),
    ]
    assert re.fullmatch("note:.*first 1,000 rows; --csv and --json .*\n", printed.err)
    query(NUMBERS.format(end=f" where i < {SHOWN}") + " select i from n", **TABLE)
    printed = capsys.readouterr()
    assert (len(printed.out.splitlines()), printed.err) == (SHOWN + 1, "")


def test_rows_that_must_be_held_at_once_are_refused_beyond_a_bound(monkeypatch):
    monkeypatch.setattr("db.connection.user_sql.HELD_ROWS", 5000)
    reader = open_reader()
    with pytest.raises(
        StoreUsageError,
        match=r"more than 5,000 rows,.*memory:.*less data.*`dtml query`",
    ):
        select(reader, ENDLESS, is_trusted=True)
    monkeypatch.setattr("db.connection.user_sql.HELD_ROWS", 10**9)
    monkeypatch.setattr("db.connection.user_sql.HELD_BYTES", 10**6)
    with pytest.raises(StoreUsageError, match=r"more than 1,000,000 bytes"):
        select(reader, ENDLESS, is_trusted=True)


@pytest.mark.soak
def test_a_file_that_would_fill_the_disk_is_refused_and_none_of_it_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(write_parquet, "__defaults__", (50_000,))
    with pytest.raises(UsageError, match=r"more than .* MiB as Parquet.*no file.*: select fewer"):
        query(ENDLESS, **TABLE, parquet=tmp_path / "rows.parquet")
    assert [each for each in tmp_path.iterdir() if "rows" in each.name] == []


@pytest.mark.one_case
@pytest.mark.parametrize("form", ["as_csv", "as_json"])
def test_an_answer_that_would_fill_the_disk_is_refused_and_none_of_it_is_printed(
    form, monkeypatch, capsys
):
    monkeypatch.setattr("flows.commands.query.LARGEST", 100_000)
    with pytest.raises(UsageError, match=r"more than .* MiB as .*: select fewer"):
        query(ENDLESS, **TABLE | {form: True})
    assert capsys.readouterr().out == ""


@pytest.mark.soak
@pytest.mark.parametrize("form", ["as_csv", "as_json"])
def test_rows_without_end_are_ended_by_time_and_none_is_printed(form, monkeypatch, capsys):
    monkeypatch.setattr("db.engine.READ_LIMIT_S", 0.3)
    crossed = (
        NUMBERS.format(end=" where i < 100000") + " select a.i, b.i as j from n a cross join n b"
    )
    for sql in (ENDLESS, crossed):
        with pytest.raises(StoreUsageError, match=r"interrupted|statement timeout"):
            query(sql, **TABLE | {form: True})
    assert capsys.readouterr().out == ""


@pytest.mark.soak
def test_a_huge_value_takes_no_more_memory_than_an_answer_may(tmp_path, store_url):
    if store_url.startswith("sqlite"):  # whose values are bounded too, but not how many a row has
        values = ", ".join(f"randomblob(950000) as b{number}" for number in range(600))
        sql = f"select {values}"
    else:
        sql = "select repeat('x', 300000000) as b"
    memory = 2**27
    _, one = asked_in_a_process(tmp_path, "table", "select 1 as b", memory)
    said, peak = asked_in_a_process(tmp_path, "table as_csv parquet", sql, memory)
    assert len(said) == 3
    for complaint in said:
        assert "memory" in complaint
        assert re.search("select fewer rows|request less data", complaint)
    assert peak - one < 2 * memory
    assert list(tmp_path.glob("*.parquet*")) == []
