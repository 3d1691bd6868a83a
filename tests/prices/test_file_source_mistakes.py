"""Files that are wrong: one line says which file, what and where, and nothing
in a file is ever run.
"""

import gzip
import pickle
import re

import numpy as np
import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.sources.files import FileSource
from tests.support.price_files import FIRST, LAST, MARKET, long, write_csv, write_parquet


def csv_of(*rows, header="date,symbol,open,close"):
    return "\n".join([header, *rows, ""]).encode()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "p.csv",
            csv_of("2024-03-04,1,1", header="date,clsoe,symbol"),
            "no column close.*'clsoe'.*rename",
        ),
        (
            "p.csv",
            csv_of("2024-03-04,A,1,1", header="date,symbol,opne,close"),
            "no column open.*'opne'.*rename",
        ),
        (
            "p.csv",
            csv_of("2024-03-04,A,1,1", header="date,symbol,Close,Volumne"),
            "no column volume.*'Volumne'.*rename",
        ),
        (
            "p.csv",
            csv_of("2024-03-04,1", header="day,Close"),
            "missing .*date, symbol;.* day, Close",
        ),
        (
            "p.csv",
            csv_of("2024-03-04,1", header="\x0bate,Close"),
            r"no column date.*'\\x0bate'.*rename",
        ),
        (
            "p.csv",
            csv_of("2024-03-04,AAA,1", header="date,symbol,Date"),
            "'date' and 'Date' both",
        ),
        (
            "p.csv",
            csv_of("2024-03-04,AAA,1,2", "3/5/2024,AAA,1,2"),
            "row 2: '3/5/2024'.*not a date.*delete.*YYYY-MM-DD",
        ),
        ("p.csv", csv_of("2024-03-04,AAA,1,2", ",AAA,1,2"), "row 2:.*date is missing"),
        ("p.csv", csv_of("2024-02-30,AAA,1,2"), "row 1: '2024-02-30'.*date"),
        ("p.csv", csv_of("0024-03-04,AAA,1,2"), "row 1: '0024-03-04'.*date"),
        (
            "p.csv",
            csv_of("2024-03-04,AAA,1,2", "2024-03-05,AAA,1,two"),
            "row 2: close 'two'.*number",
        ),
        ("p.csv", csv_of('2024-03-04,AAA,"1,234.5",2'), r"row 1: open '1,234\.5'.*number"),
        (
            "p.csv",
            csv_of('2024-03-04,AAA,"1,234.5",2'),
            r"comma separates thousands.*\[columns\] thousands",
        ),
        (
            "p.csv",
            csv_of("2024-03-04,AAA,1,2", "2024-03-05,,1,2"),
            "row 2 .*no symbol.*'symbol'",
        ),
        ("p.csv", csv_of("2024-03-04,AAA,1"), "4 columns, got 3"),
        ("p.csv", csv_of(), "no rows"),
        (
            "p.csv",
            csv_of("2024-03-04,1,2", header="date,AAA,Price"),
            "one row per date",
        ),
        ("p.csv", b'{"date": "2024-03-04"}', "is JSON"),
        ("p.csv", b"\xd0\xcf\x11\xe0 an old workbook", "old Excel format"),
        ("p.csv", b"\n<!DOCTYPE html>\n<html></html>", "web page or XML"),
        ("p.csv.gz", gzip.compress(b"<html></html>", mtime=0), "web page or XML"),
        ("p.csv", b"", "file is empty"),
        (
            "p.csv",
            b"date,symbol,close\n2024-03-04,A\xff\xfe,3\n",
            r'\[columns\] encoding = "cp1252"',
        ),
        ("p.csv.gz", b"not gzip at all", "missing .*date, close, symbol;.*not gzip"),
        (
            "p.csv.gz",
            gzip.compress(csv_of("2024-03-04,AAA,1,2"), mtime=0)[:-9],
            "cannot be read: ",
        ),
        ("p.parquet", b"", "cannot be read: "),
        ("p.parquet", b"PAR1 and nothing more PAR1", "cannot be read: "),
        ("p.parquet", pickle.dumps({"close": [1.0]}), "cannot be read: "),
        ("p.docx", b"", r"unsupported.* \.parquet,.*\.xlsx"),
    ],
)
def test_a_file_that_is_wrong_is_a_mistake_of_the_user_said_in_one_line(
    tmp_path, name, content, said
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        FileSource(MARKET, tmp_path / name).fetch({"AAA": FIRST}, LAST)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert re.search(said, str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            long(("AAA",)).assign(symbol=17),
            "symbols.* text.*'symbol'.* 17:",
        ),
        (long(("AAA",)).assign(close="3.5"), None),
        (
            long(("AAA",)).assign(close=[*["3.5"] * 6, "x", *["3.5"] * 6]),
            "data row 7: close 'x'.*number",
        ),
        (
            long(("AAA",)).assign(date=[*long(("AAA",))["date"][:4], *[pd.NaT] * 9]),
            "data row 5:.*missing",
        ),
        (long(("AAA",)).assign(date=20240304.5), r"data row 1: 20240304\.5.*date"),
        (
            long(("AAA",)).drop(columns="close"),
            "missing column close;.*date,.*adj_close",
        ),
        (long(("AAA",)).iloc[:0], ".*no rows"),
    ],
)
def test_a_parquet_file_of_other_types_is_read_or_said_to_be_wrong(tmp_path, table, said):
    write_parquet(table, tmp_path / "p.parquet")
    source = FileSource(MARKET, tmp_path / "p.parquet")
    if said is None:
        assert source.fetch({"AAA": FIRST}, LAST).bars["close"].tolist() == [3.5] * 13
        return
    with pytest.raises(UsageError) as caught:
        source.fetch({"AAA": FIRST}, LAST)
    assert re.match(f"{tmp_path / 'p.parquet'}: {said}", str(caught.value))


@pytest.mark.slow
def test_a_damaged_parquet_file_is_never_more_than_a_mistake(tmp_path):
    write_parquet(long(), tmp_path / "p.parquet")
    good = (tmp_path / "p.parquet").read_bytes()
    random = np.random.default_rng(7)
    mistakes = 0
    for _ in range(60):
        damaged = bytearray(good[: random.integers(len(good) // 2, len(good) + 1)])
        for place in random.integers(0, len(damaged), 5):
            damaged[place] ^= int(random.integers(1, 256))
        (tmp_path / "p.parquet").write_bytes(damaged)
        try:
            FileSource(MARKET, tmp_path / "p.parquet").fetch({"AAA": FIRST}, LAST)
        except UsageError:
            mistakes += 1
    assert mistakes > 30


def test_paths_that_are_not_there_and_folders_without_prices_are_named(tmp_path):
    write_csv(long(("AAA",)), tmp_path / "AAA.csv")
    with pytest.raises(UsageError, match=r"none\.csv:.*no such file"):
        FileSource(MARKET, tmp_path / "none.csv")
    with pytest.raises(UsageError, match=r"none\.csv:.*no such file"):
        FileSource(MARKET, tmp_path / "AAA.csv", tmp_path / "none.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        UsageError,
        match=r"empty:.*no file.*\.parquet, \.csv, \.tsv",
    ):
        FileSource(MARKET, tmp_path / "empty")
    write_parquet(long(("AAA",)), tmp_path / "AAA.parquet")
    with pytest.raises(UsageError, match=r"AAA\.csv and .*AAA\.parquet .*same table"):
        FileSource(MARKET, tmp_path).symbols()


@pytest.mark.parametrize("day", ["2026-11-20", "2024-03-25"])
def test_a_row_after_the_last_date_of_most_stocks_is_named_with_what_to_do(tmp_path, day):
    table = pd.concat([long(), long(("BRK-B",)).head(1).assign(date=pd.Timestamp(day))])
    write_csv(table, tmp_path / "p.csv")
    with pytest.raises(UsageError) as caught:
        FileSource(MARKET, tmp_path / "p.csv").last_session()
    assert re.match(
        rf"{tmp_path / 'p.csv'}: data row 40 \('BRK-B'\).*{day}, after 2024-03-20"
        ".*correct or delete.*--as-of 2024-03-20$",
        str(caught.value),
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    for symbol, rows in table.groupby("symbol"):
        write_parquet(rows.drop(columns="symbol"), folder / f"{symbol}.parquet")
    with pytest.raises(UsageError, match=rf"BRK-B\.parquet: data row 14 .*{day}, after 2024-03-20"):
        FileSource(MARKET, folder).last_session()


def test_stocks_that_end_earlier_are_no_mistake(tmp_path):
    table = long(tuple(f"S{number}" for number in range(7)))
    ended = table[(table["symbol"] < "S4") | (table["date"] < "2024-03-06")]
    write_csv(ended, tmp_path / "p.csv")
    assert FileSource(MARKET, tmp_path / "p.csv").last_session() == LAST
