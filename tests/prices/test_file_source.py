"""Bars from files arrive whole, whatever the format, the names of the columns
and the way of writing dates.
"""

from datetime import date

import numpy as np
import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.prices.bars import BAR_COLUMNS
from dtml.sources import open_source
from dtml.sources.files import FileSource
from tests.support.price_files import (
    FIRST,
    LAST,
    MARKET,
    long,
    read,
    write_csv,
    write_parquet,
)

FORMATS = pytest.mark.parametrize(
    ("ending", "write"), [(".parquet", write_parquet), (".csv", write_csv), (".csv.gz", write_csv)]
)


def expected(table):
    bars = table.rename(columns={"date": "session"}).astype(
        {"volume": float, "session": "datetime64[ns]"}
    )
    bars = bars.assign(
        dividend=np.nan, split=np.nan, symbol=bars["symbol"].replace("BRK-B", "BRKB").astype(str)
    )
    return bars[list(BAR_COLUMNS)].sort_values(["symbol", "session"], ignore_index=True)


@FORMATS
def test_a_long_table_arrives_whole_under_the_markets_own_symbols(tmp_path, ending, write):
    path = tmp_path / f"prices{ending}"
    write(long(), path)
    source = FileSource(MARKET, path)
    assert source.symbols() == ["005930", "AAA", "BRKB"]
    assert source.last_session() == LAST
    pd.testing.assert_frame_equal(read(source), expected(long()))


@FORMATS
def test_a_folder_holds_one_file_for_each_symbol(tmp_path, ending, write):
    for symbol, table in long(("AAA", "BRK-B", "BT-A.L", "^IDX")).groupby("symbol"):
        write(table.drop(columns="symbol"), tmp_path / f"{symbol}{ending}")
    (tmp_path / "notes.txt").write_text("no prices")
    source = FileSource(MARKET, tmp_path)
    assert source.symbols() == ["AAA", "BRKB", "BT-A.L"]
    assert source.last_session() == LAST
    table = long(("AAA", "BRK-B", "BT-A.L", "^IDX")).replace({"symbol": {"^IDX": "INDEX"}})
    pd.testing.assert_frame_equal(read(source), expected(table))


def test_a_symbol_is_looked_up_and_never_made_into_a_path(tmp_path):
    folder = tmp_path / "prices"
    folder.mkdir()
    write_csv(long(("AAA",)), folder / "AAA.csv")
    write_csv(long(("AAA",)), tmp_path / "secret.csv")
    fetched = FileSource(MARKET, folder).fetch({"../secret": FIRST}, LAST)
    assert fetched.bars.empty
    assert fetched.outcomes["status"].tolist() == ["no_data"]


def test_names_of_columns_are_read_in_any_case_and_by_their_other_names(tmp_path):
    names = {
        "date": "Datetime",
        "symbol": "TICKER",
        "adj_close": "Adj Close",
        "close": "CLOSE",
        "volume": "Volume ",
    }
    table = long().assign(
        Dividends=[0.25, 0, 0] * 13, **{"Stock Splits": [0, 2.0, 1.0] * 13, "Notes": "kept out"}
    )
    write_csv(table.rename(columns=names), tmp_path / "prices.csv")
    bars = read(FileSource(MARKET, tmp_path / "prices.csv"))
    assert tuple(bars.columns) == BAR_COLUMNS
    assert bars["dividend"].dropna().tolist() == [0.25] * 13
    assert bars["split"].dropna().tolist() == [2.0] * 13
    assert bars["adj_close"].notna().all()


def test_missing_numbers_are_missing_values_however_they_are_written(tmp_path):
    blanks = ["", "NA", "NaN", "null", "None", "N/A", " "]
    rows = "\n".join(
        f"2024-03-{day:02d},NA,5.5,{blank}" for day, blank in zip(range(4, 11), blanks, strict=True)
    )
    (tmp_path / "prices.csv").write_text(f"date,symbol,close,volume\n{rows}\n")
    fetched = FileSource(MARKET, tmp_path / "prices.csv").fetch({"NA": FIRST}, LAST)
    assert fetched.bars["symbol"].tolist() == ["NA"] * 7  # a real ticker, not a missing one
    assert fetched.bars["volume"].isna().all()


DAYS = pd.bdate_range(FIRST, periods=13)
IN_NEW_YORK = DAYS.tz_localize("America/New_York")
WRITTEN = {
    "date": DAYS.date,
    "ISO": DAYS.strftime("%Y-%m-%d"),
    "basic ISO": DAYS.strftime("%Y%m%d"),
    "integer": DAYS.strftime("%Y%m%d").astype(int),
    "zone": IN_NEW_YORK,
    "text with zone": IN_NEW_YORK.astype(str),
    "another zone": IN_NEW_YORK.tz_convert("UTC"),
    "time of day": DAYS + pd.Timedelta(hours=16),
}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
def test_dates_are_sessions_of_the_exchange_however_they_are_written(tmp_path, written):
    long(("AAA",)).assign(date=written).to_parquet(tmp_path / "prices.parquet")
    bars = read(FileSource(MARKET, tmp_path / "prices.parquet"))
    assert bars["session"].tolist() == DAYS.tolist()
    assert bars["session"].dtype == "datetime64[ns]"


def test_each_symbol_comes_from_its_own_first_session_to_the_last_one_both_included(tmp_path):
    write_parquet(long(), tmp_path / "prices.parquet")
    first = {"AAA": date(2024, 3, 6), "BRKB": date(2024, 3, 15)}
    bars = FileSource(MARKET, tmp_path / "prices.parquet").fetch(first, date(2024, 3, 18)).bars
    spans = bars.groupby("symbol")["session"].agg(["min", "max"])
    assert spans["min"].dt.date.to_dict() == first
    assert set(spans["max"].dt.date) == {date(2024, 3, 18)}


# the index


@pytest.mark.parametrize("symbol", ["INDEX", "^IDX", "whatever it is called"])
def test_an_index_file_of_one_symbol_is_the_markets_index(tmp_path, symbol):
    write_csv(long(), tmp_path / "prices.csv")
    write_parquet(long((symbol,), sessions=11), tmp_path / "index.parquet")
    source = FileSource(MARKET, tmp_path / "prices.csv", tmp_path / "index.parquet")
    assert source.last_session() == date(2024, 3, 18)  # where the shorter of the two ends
    assert source.symbols() == ["005930", "AAA", "BRKB"]
    assert (read(source)["symbol"] == "INDEX").sum() == 11


def test_of_an_index_file_with_several_symbols_the_markets_is_taken(tmp_path):
    write_csv(long(), tmp_path / "prices.csv")
    write_csv(long(("^DJI", "^IDX")), tmp_path / "index.csv")
    bars = read(FileSource(MARKET, tmp_path / "prices.csv", tmp_path / "index.csv"))
    assert bars.loc[bars["symbol"] == "INDEX", "close"].iloc[0] == 60.5
    write_csv(long(("^DJI", "^GSPC")), tmp_path / "others.csv")
    with pytest.raises(UsageError, match=r"others\.csv: none.* 2 symbols.*INDEX"):
        read(FileSource(MARKET, tmp_path / "prices.csv", tmp_path / "others.csv"))


def test_an_index_among_the_prices_is_found_there_and_an_index_file_goes_before_it(tmp_path):
    write_csv(long(("AAA", "^IDX")), tmp_path / "prices.csv")
    assert FileSource(MARKET, tmp_path / "prices.csv").symbols() == ["AAA"]
    write_csv(long(("^IDX",)), tmp_path / "index.csv")
    among = read(FileSource(MARKET, tmp_path / "prices.csv"))
    apart = read(FileSource(MARKET, tmp_path / "prices.csv", tmp_path / "index.csv"))
    assert among.loc[among["symbol"] == "INDEX", "close"].iloc[0] == 60.5
    assert apart.loc[apart["symbol"] == "INDEX", "close"].iloc[0] == 50.0


# the choice of a source


def test_a_source_is_chosen_by_name_and_takes_only_what_it_can_read(tmp_path):
    write_csv(long(), tmp_path / "prices.csv")
    assert open_source("files", MARKET, prices=tmp_path / "prices.csv").name == "files"
    assert open_source("yahoo", MARKET).symbols() is None
    assert open_source("simulated", MARKET).last_session() is None
    with pytest.raises(UsageError, match=r"'bloomberg'.*unknown.*yahoo, files, simulated"):
        open_source("bloomberg", MARKET)
    with pytest.raises(UsageError, match=r"'files' needs .*prices"):
        open_source("files", MARKET)
    with pytest.raises(UsageError, match="'yahoo' reads no files"):
        open_source("yahoo", MARKET, prices=tmp_path / "prices.csv")
