"""Files as people have them: read as the same bars as our own layout, or
refused with the line that mends them.
"""

import gzip
import re
import tomllib
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.markets import load_market_file
from dtml.markets.definition import Columns
from dtml.sources.files import FileSource
from dtml.sources.files.dialects import dialects
from flows.console import announce
from tests.support.places import ROOT
from tests.support.price_files import FIRST, LAST, MARKET, long, read

WRITTEN = tomllib.loads(Path(__file__).with_name("layouts.toml").read_text(encoding="utf-8"))
LAYOUTS = WRITTEN["layouts"]


def bars(name="whole"):
    return pd.read_csv(StringIO(WRITTEN["bars"][name]), parse_dates=["date"])


def in_our_layout(table, folder):
    ours = folder / "ours.csv"
    table.to_csv(ours, index=False)
    return read(FileSource(MARKET, ours))


def written(layout, folder):
    """Write the files of a layout; return the path for --prices."""
    for name, text in layout["files"].items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        content = text.encode(layout.get("encoding", "utf-8"))
        if "parquet" in layout:
            pd.read_csv(StringIO(text), **layout["parquet"]).to_parquet(file)
        else:
            file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file if file.stem == "prices" else folder


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_dialect_has_the_bars_of_our_own_layout_to_the_last_digit(name, tmp_path):
    layout = LAYOUTS[name]
    source = FileSource(MARKET, written(layout, tmp_path / "theirs"))
    expected = in_our_layout(bars(layout["bars"]), tmp_path)
    assert len(expected) == 12
    pd.testing.assert_frame_equal(read(source), expected, check_exact=True)
    if "remark" in layout:
        assert layout["remark"] in (source.remark() or "")
    else:
        assert source.remark() is None


def test_every_known_layout_is_tried_above_and_each_file_is_in_the_table_of_the_page():
    tried = {layout["dialect"] for layout in LAYOUTS.values() if "dialect" in layout}
    assert tried == set(dialects())
    page = (ROOT / "dtml" / "README.md").read_text(encoding="utf-8")
    table = page.partition("\n\n| file |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == list(LAYOUTS)
    for row in rows:
        assert len(row) == 3, row


def test_prices_that_are_no_opens_are_said_and_no_other_price_is_made_up(tmp_path):
    table = bars()[["date", "symbol", "close"]]
    table.to_parquet(tmp_path / "closes.parquet")
    source = FileSource(MARKET, tmp_path / "closes.parquet")
    found = read(source)
    for name in ("open", "high", "low"):
        assert found[name].tolist() == found["close"].tolist()
    remark = source.remark() or ""
    assert remark.startswith("read as our own layout, 3 stocks (")
    assert re.search("open, high and low.*close.*next open.*next close", remark)
    # With an open and no high the file is no table of closes, and its bars lack prices.
    table.assign(open=bars()["open"]).to_parquet(tmp_path / "some.parquet")
    some = FileSource(MARKET, tmp_path / "some.parquet")
    assert read(some)[["high", "low"]].isna().all(axis=None)
    assert some.remark() is None


def test_a_price_whose_factor_is_0_is_missing(tmp_path):
    example = dialects()["crsp"].example
    (tmp_path / "AAA.csv").write_text(example.replace("20.0,2.0,2.0", "20.0,0,2.0"))
    source = FileSource(MARKET, tmp_path)
    found = source.fetch(
        {"AAA": pd.Timestamp("2026-11-01").date()}, pd.Timestamp("2026-11-30").date()
    ).bars
    prices = found.set_index(found["session"].dt.day)[["open", "high", "low", "close"]]
    assert prices.loc[23].isna().all()
    assert prices.loc[24].tolist() == [10.5, 11.0, 10.0, 10.8]


def test_every_known_layout_has_an_example_that_is_read_as_it_alone(tmp_path):
    for name, entry in dialects().items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "AAA.csv").write_text(entry.example, encoding="utf-8")
        source = FileSource(MARKET, folder)
        found = source.fetch(
            dict.fromkeys(source.symbols(), pd.Timestamp("2026-11-01").date()),
            pd.Timestamp("2026-11-30").date(),
        ).bars
        assert f"read as {entry.title}, " in (source.remark() or "")
        assert re.search(r", \d stocks?\b", source.remark() or "")
        days = set(found["session"].dt.strftime("%Y-%m-%d"))
        assert days == {"2026-11-23", "2026-11-24"}, name
        assert found[["open", "high", "low", "close"]].notna().all(axis=None)
        assert (found["low"] <= found["close"]).all()


def test_columns_of_two_layouts_are_refused_and_a_markets_file_decides(tmp_path):
    table = bars().rename(columns={"adj_close": "Adjusted_close", "dividend": "divCash"})
    table = table.rename(columns={"split": "splitFactor"})
    table.to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(UsageError, match=r"EODHD \(Adjusted_close\).*Tiingo \(divCash"):
        FileSource(MARKET, tmp_path / "p.csv").symbols()
    stated = {"adj_close": "Adjusted_close", "dividend": "divCash", "split": "splitFactor"}
    market = replace(MARKET, columns=Columns(**stated))
    found = read(FileSource(market, tmp_path / "p.csv"))
    pd.testing.assert_frame_equal(found, in_our_layout(bars(), tmp_path), check_exact=True)


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        (
            "Date,Price,Open,High,Low,Vol.,Change %",
            ["11/09/2024,1,1,1,1,1K,0%"],
            r"'11/09/2024'.*2024-11-09 or 2024-09-11.*date_format",
        ),
        (  # a decimal comma where a comma separates thousands: not 105
            "Date,Price,Open,High,Low,Vol.,Change %",
            ['11/24/2024,"10,5",1,1,1,1K,0%'],
            r"row 1: Price '10,5' is not a number",
        ),
        (
            "<TICKER>,<PER>,<DATE>,<OPEN>,<HIGH>,<LOW>,<CLOSE>",
            ["AAA,D,20240304,1,1,1,1", "AAA,5,20240305,1,1,1,1"],
            "row 2: <PER> is '5',.* D",
        ),
        (
            "PERMNO,date,TICKER,PRC,VOL,RET,CFACPR",
            ["10001,20240304,AAA,1,1,1,1"],
            "CRSP .*lacks OPENPRC, ASKHI, BIDLO",
        ),
        (
            "PERMNO,date,TICKER,BIDLO,ASKHI,PRC,OPENPRC,CFACPR",
            ["10001,20240304,AAA,1,1,1,1,1", "10002,20240305,AAA,1,1,1,1,1"],
            r"'AAA'.* 2 .*PERMNO:.*symbol = 'PERMNO'",
        ),
        (
            "ts_code,trade_date,open,high,low,close,vol",
            ["000001.SZ,04.03.2024,1,1,1,1,1"],
            r"row 1: '04\.03\.2024'.*date",
        ),
        (
            "date;symbol;open;high;low;close",
            ["2024-03-04;AAA;1,500;1,500;1,500;1,500"],
            "comma.*closes.*decimal mark or.*thousands mark",
        ),
        (
            "date;symbol;open;high;low;close",
            ["2024-03-04;AAA;1.5;1,5;1,5;1,5"],
            r"open '1\.5'.*not a number.*decimal mark ','",
        ),
        (
            "date,symbol,open,high,low,close,volume",
            ["2024-03-04,AAA,1,2,1,2K,5"],
            "row 1: close '2K'.*number",
        ),
        (  # the row of the file, not that of its stock
            "date,AAA,BBB",
            ["2024-03-04,1,", "2024-03-05,1,2", "2024-03-06,1,two"],
            "row 3: close 'two'.*number",
        ),
        (
            "date,symbol;close",
            ["2024-03-04,AAA;1"],
            "separated by ',' or ';'",
        ),
        (
            "ticker,volume,open,close,high,low,window_start",
            ["AAA,1,1,1,1,1,today"],
            "row 1: 'today'.*date",
        ),
    ],
)
def test_a_file_that_is_not_read_is_refused_with_what_mends_it(header, rows, said, tmp_path):
    folder = tmp_path / "prices"
    folder.mkdir()
    (folder / "AAA.csv").write_text("\n".join([header, *rows, ""]))
    with pytest.raises(UsageError, match=said):
        read(FileSource(MARKET, folder))


def test_us_and_european_dates_are_told_apart_by_a_day_after_the_twelfth(tmp_path):
    for name, dates in (
        ("AAA", ["03/12/2024", "03/13/2024"]),
        ("BBB", ["12/03/2024", "13/03/2024"]),
    ):
        rows = [f"{day},1,1,1,1,1K,0%" for day in dates]
        text = "\n".join(["Date,Price,Open,High,Low,Vol.,Change %", *rows, ""])
        (tmp_path / f"{name}.csv").write_text(text)
    found = read(FileSource(MARKET, tmp_path))
    assert found["session"].dt.strftime("%Y-%m-%d").tolist() == ["2024-03-12", "2024-03-13"] * 2


# what a market's file says


MARKET_FILE = """title = "T"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
[index]
symbol = "INDEX"
name = "An index"
[columns]
date = "Tag"
symbol = "Kürzel"
open = "Eröffnung"
high = "Hoch"
low = "Tief"
close = "Schluss"
volume = "Stücke (Tsd.)"
date_format = "%d.%m.%Y"
volume_unit = 1000
separator = ";"
decimal = ","
thousands = "."
encoding = "cp1252"
skip_rows = 2
"""


def german(folder):
    table = long(("AAA", "^IDX"))
    lines = ["Kurse der Börse", "in Euro", "Tag;Kürzel;Eröffnung;Hoch;Tief;Schluss;Stücke (Tsd.)"]
    for row in table.itertuples():
        prices = [row.open, row.high, row.low, row.close]
        german_prices = [f"1.{price:07.3f}".replace(".", "!", 1) for price in prices]
        written = [price.replace(".", ",").replace("!", ".") for price in german_prices]
        lines.append(";".join([f"{row.date:%d.%m.%Y}", row.symbol, *written, "1,017"]))
    (folder / "kurse.csv").write_bytes("\n".join(lines).encode("cp1252"))
    return folder / "kurse.csv"


def test_a_markets_file_says_how_its_prices_are_written(tmp_path):
    (tmp_path / "my.toml").write_text(MARKET_FILE, encoding="utf-8")
    market = load_market_file(tmp_path / "my.toml")
    long(("INDEX",)).to_csv(tmp_path / "index.csv", index=False)
    source = FileSource(market, german(tmp_path), tmp_path / "index.csv")
    found = source.fetch({"AAA": FIRST, "INDEX": FIRST}, LAST).bars
    stock = found[found["symbol"] == "AAA"]
    table = long(("AAA",))
    for name in ("open", "high", "low", "close"):
        assert stock[name].tolist() == (table[name] + 1000).tolist()
    assert stock["volume"].tolist() == [1017.0] * 13
    # the index has a file in our own layout
    assert (
        found.loc[found["symbol"] == "INDEX", "close"].tolist()
        == long(("INDEX",))["close"].tolist()
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('decimal = ","', 'decimal = ",,"', r"columns.decimal:.*one ASCII"),
        ('decimal = ","', 'decimal = "."', r"columns.thousands: '\.'.*decimal mark"),
        ('"%d.%m.%Y"', '"DD.MM.YYYY"', r"columns.date_format:.*month and year.*'DD.MM.YYYY'"),
        ('"%d.%m.%Y"', '"%Q"', r"columns.date_format:.*excel, seconds, milliseconds"),
        ('"cp1252"', '"klingon"', r"columns.encoding: .*'klingon'"),
        ("volume_unit = 1000", "volume_unit = 0", r"columns.volume_unit:.*above 0"),
    ],
)
def test_a_mistake_in_columns_is_named(old, new, said, tmp_path):
    (tmp_path / "my.toml").write_text(MARKET_FILE.replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        load_market_file(tmp_path / "my.toml")


def test_a_column_that_a_markets_file_names_and_a_file_lacks_is_said(tmp_path):
    long().to_csv(tmp_path / "p.csv", index=False)
    market = replace(MARKET, columns=Columns(date="Tag"))
    with pytest.raises(UsageError, match=r"\[columns\] .*date = 'Tag'"):
        read(FileSource(market, tmp_path / "p.csv"))


def test_a_column_that_seems_to_be_the_volume_is_said_and_then_read(tmp_path):
    long(("AAA",)).rename(columns={"volume": "Vol"}).to_csv(tmp_path / "p.csv", index=False)
    source = FileSource(MARKET, tmp_path / "p.csv")
    assert read(source)["volume"].isna().all()
    assert re.match(
        r"the column 'Vol'.*left out.*\[columns\] volume = \"Vol\"$", source.remark() or ""
    )
    market = replace(MARKET, columns=Columns(volume="Vol"))
    told = FileSource(market, tmp_path / "p.csv")
    assert read(told)["volume"].tolist() == [1000.0] * 13
    assert told.remark() is None


def test_what_is_said_of_files_is_printed_whole_and_on_one_line(capsys):
    """Rich would take [columns] for markup, and break a long line."""
    said = "the column 'Vol' is left out: [columns] volume = \"Vol\"; " + "read as Stooq " * 30
    announce(SimpleNamespace(notice=said))
    assert capsys.readouterr().err == f"note: {said}\n"
