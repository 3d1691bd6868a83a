"""Bars from files: what is there arrives whole, and what is wrong is said with file and row."""

import gzip
import pickle
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dtml.bars import BAR_COLUMNS
from dtml.errors import UsageError
from dtml.markets import Constituent, Index, Market
from dtml.sources import OUTCOME_COLUMNS, open_source
from dtml.sources.files import FileSource

SHARED = Path(__file__).parents[2] / "shared" / "data"
FIRST, LAST = date(2024, 3, 4), date(2024, 3, 20)
MARKET = Market(
    name="small",
    title="Small",
    calendar="XNYS",
    timezone="America/New_York",
    currency="USD",
    index=Index("INDEX", "^IDX", "The index"),
    constituents=(Constituent("BRKB", "BRK-B"), Constituent("005930", "005930.KS")),
)
Writer = Callable[[pd.DataFrame, Path], None]


def long(symbols: tuple[str, ...] = ("AAA", "BRK-B", "005930"), sessions: int = 13) -> pd.DataFrame:
    """A table of prices as people have them: date first, sorted by date, no dividends and no splits."""
    days = pd.bdate_range(FIRST, periods=sessions)
    tables = []
    for place, symbol in enumerate(symbols):
        close = 50 + 10.5 * place + np.arange(sessions) / 8
        table = pd.DataFrame({"date": days, "symbol": symbol, "open": close - 0.5, "high": close + 1})
        tables.append(table.assign(low=close - 1, close=close, adj_close=close / 2, volume=1000 + place))
    return pd.concat(tables).sort_values(["date", "symbol"], ignore_index=True)


def write_parquet(table: pd.DataFrame, path: Path) -> None:
    table.to_parquet(path)


def write_csv(table: pd.DataFrame, path: Path) -> None:
    table.to_csv(path, index=False)


FORMATS = pytest.mark.parametrize(
    ("ending", "write"), [(".parquet", write_parquet), (".csv", write_csv), (".csv.gz", write_csv)]
)


def fetch_all(source: FileSource, first: date = FIRST, last: date = LAST) -> pd.DataFrame:
    fetched = source.fetch(dict.fromkeys([*source.symbols(), "INDEX"], first), last)
    return fetched.bars.sort_values(["symbol", "session"], ignore_index=True)


def expected(table: pd.DataFrame) -> pd.DataFrame:
    bars = table.rename(columns={"date": "session"}).astype({"volume": float, "session": "datetime64[ns]"})
    bars = bars.assign(dividend=np.nan, split=np.nan, symbol=bars["symbol"].replace("BRK-B", "BRKB").astype(str))
    return bars[list(BAR_COLUMNS)].sort_values(["symbol", "session"], ignore_index=True)


@FORMATS
def test_a_long_table_arrives_whole_under_the_markets_own_symbols(tmp_path: Path, ending: str, write: Writer) -> None:
    path = tmp_path / f"prices{ending}"
    write(long(), path)
    source = FileSource(MARKET, path)
    assert source.symbols() == ["005930", "AAA", "BRKB"]
    assert source.last_session() == LAST
    pd.testing.assert_frame_equal(fetch_all(source), expected(long()))


@FORMATS
def test_a_folder_holds_one_file_for_each_symbol(tmp_path: Path, ending: str, write: Writer) -> None:
    for symbol, table in long(("AAA", "BRK-B", "BT-A.L", "^IDX")).groupby("symbol"):
        write(table.drop(columns="symbol"), tmp_path / f"{symbol}{ending}")
    (tmp_path / "notes.txt").write_text("no prices")
    source = FileSource(MARKET, tmp_path)
    assert source.symbols() == ["AAA", "BRKB", "BT-A.L"]
    assert source.last_session() == LAST
    table = long(("AAA", "BRK-B", "BT-A.L", "^IDX")).replace({"symbol": {"^IDX": "INDEX"}})
    pd.testing.assert_frame_equal(fetch_all(source), expected(table))


def test_of_a_folder_only_the_files_asked_for_are_read(tmp_path: Path) -> None:
    write_csv(long(("AAA",)), tmp_path / "AAA.csv")
    (tmp_path / "BBB.csv").write_bytes(b"\xff\xfe not a table")
    fetched = FileSource(MARKET, tmp_path).fetch({"AAA": FIRST}, LAST)
    assert len(fetched.bars) == 13


def test_a_symbol_is_looked_up_and_never_made_into_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "prices"
    folder.mkdir()
    write_csv(long(("AAA",)), folder / "AAA.csv")
    write_csv(long(("AAA",)), tmp_path / "secret.csv")
    fetched = FileSource(MARKET, folder).fetch({"../secret": FIRST}, LAST)
    assert fetched.bars.empty
    assert fetched.outcomes["status"].tolist() == ["no_data"]


def test_names_of_columns_are_read_in_any_case_and_by_their_other_names(tmp_path: Path) -> None:
    names = {"date": "Datetime", "symbol": "TICKER", "adj_close": "Adj Close", "close": "CLOSE", "volume": "Volume "}
    table = long().assign(Dividends=[0.25, 0, 0] * 13, **{"Stock Splits": [0, 2.0, 1.0] * 13, "Notes": "kept out"})
    write_csv(table.rename(columns=names), tmp_path / "prices.csv")
    bars = fetch_all(FileSource(MARKET, tmp_path / "prices.csv"))
    assert tuple(bars.columns) == BAR_COLUMNS
    assert bars["dividend"].dropna().tolist() == [0.25] * 13
    assert bars["split"].dropna().tolist() == [2.0] * 13
    assert bars["adj_close"].notna().all()


def test_columns_that_a_file_lacks_are_missing_values(tmp_path: Path) -> None:
    write_parquet(long()[["date", "symbol", "close"]], tmp_path / "prices.parquet")
    bars = fetch_all(FileSource(MARKET, tmp_path / "prices.parquet"))
    assert bars["close"].notna().all()
    assert bars[["open", "high", "low", "adj_close", "volume", "dividend", "split"]].isna().all(axis=None)


def test_missing_numbers_are_missing_values_however_they_are_written(tmp_path: Path) -> None:
    blanks = ["", "NA", "NaN", "null", "None", "N/A", " "]
    rows = "\n".join(f"2024-03-{day:02d},NA,5.5,{blank}" for day, blank in zip(range(4, 11), blanks, strict=True))
    (tmp_path / "prices.csv").write_text(f"date,symbol,close,volume\n{rows}\n")
    fetched = FileSource(MARKET, tmp_path / "prices.csv").fetch({"NA": FIRST}, LAST)
    assert fetched.bars["symbol"].tolist() == ["NA"] * 7  # a real ticker, not a missing one
    assert fetched.bars["volume"].isna().all()


@pytest.mark.parametrize(
    "written",
    [
        pd.Series(pd.bdate_range(FIRST, periods=13).date),
        pd.Series(pd.bdate_range(FIRST, periods=13).strftime("%Y-%m-%d")),
        pd.Series(pd.bdate_range(FIRST, periods=13).strftime("%Y%m%d")),
        pd.Series(pd.bdate_range(FIRST, periods=13).strftime("%Y%m%d").astype(int)),
        pd.Series(pd.bdate_range(FIRST, periods=13, tz="America/New_York")),
        pd.Series(pd.bdate_range(FIRST, periods=13, tz="America/New_York").astype(str)),
        pd.Series(pd.bdate_range(FIRST, periods=13, tz="America/New_York").tz_convert("UTC")),
        pd.Series(pd.bdate_range(FIRST, periods=13) + pd.Timedelta(hours=16)),
    ],
    ids=["date", "ISO", "basic ISO", "integer", "zone", "text with zone", "another zone", "time of day"],
)
def test_dates_are_sessions_of_the_exchange_however_they_are_written(tmp_path: Path, written: pd.Series) -> None:
    table = long(("AAA",)).assign(date=written)
    table.to_parquet(tmp_path / "prices.parquet")
    bars = fetch_all(FileSource(MARKET, tmp_path / "prices.parquet"))
    assert bars["session"].tolist() == pd.bdate_range(FIRST, periods=13).tolist()
    assert bars["session"].dtype == "datetime64[ns]"


def test_each_symbol_comes_from_its_own_first_session_to_the_last_one_both_included(tmp_path: Path) -> None:
    write_parquet(long(), tmp_path / "prices.parquet")
    first = {"AAA": date(2024, 3, 6), "BRKB": date(2024, 3, 15)}
    bars = FileSource(MARKET, tmp_path / "prices.parquet").fetch(first, date(2024, 3, 18)).bars
    spans = bars.groupby("symbol")["session"].agg(["min", "max"])
    assert spans["min"].dt.date.to_dict() == first
    assert set(spans["max"].dt.date) == {date(2024, 3, 18)}


def test_a_symbol_without_rows_has_no_data_and_the_place_is_named(tmp_path: Path) -> None:
    write_csv(long(), tmp_path / "prices.csv")
    outcomes = FileSource(MARKET, tmp_path / "prices.csv").fetch({"AAA": FIRST, "ZZZ": FIRST}, LAST).outcomes
    assert tuple(outcomes.columns) == OUTCOME_COLUMNS
    assert outcomes["status"].tolist() == ["ok", "no_data"]
    assert outcomes["rows"].tolist() == [13, 0]
    assert outcomes["detail"].tolist() == ["", f"no row from {FIRST} to {LAST} in {tmp_path / 'prices.csv'}"]


def test_nothing_asked_for_brings_nothing(tmp_path: Path) -> None:
    write_csv(long(), tmp_path / "prices.csv")
    fetched = FileSource(MARKET, tmp_path / "prices.csv").fetch({}, LAST)
    assert fetched.bars.empty
    assert fetched.outcomes.empty


# the index


@pytest.mark.parametrize("called", ["INDEX", "^IDX", "whatever it is called"])
def test_an_index_file_of_one_symbol_is_the_markets_index(tmp_path: Path, called: str) -> None:
    write_csv(long(), tmp_path / "prices.csv")
    write_parquet(long((called,), sessions=11), tmp_path / "index.parquet")
    source = FileSource(MARKET, tmp_path / "prices.csv", tmp_path / "index.parquet")
    assert source.last_session() == date(2024, 3, 18)  # where the shorter of the two ends
    assert source.symbols() == ["005930", "AAA", "BRKB"]
    assert (fetch_all(source)["symbol"] == "INDEX").sum() == 11


def test_an_index_file_needs_no_column_of_symbols(tmp_path: Path) -> None:
    write_csv(long(), tmp_path / "prices.csv")
    write_csv(long(("any",)).drop(columns="symbol"), tmp_path / "index.csv")
    source = FileSource(MARKET, tmp_path / "prices.csv", tmp_path / "index.csv")
    assert (fetch_all(source)["symbol"] == "INDEX").sum() == 13


def test_of_an_index_file_with_several_symbols_the_markets_is_taken(tmp_path: Path) -> None:
    write_csv(long(), tmp_path / "prices.csv")
    write_csv(long(("^DJI", "^IDX")), tmp_path / "index.csv")
    bars = fetch_all(FileSource(MARKET, tmp_path / "prices.csv", tmp_path / "index.csv"))
    assert bars.loc[bars["symbol"] == "INDEX", "close"].iloc[0] == 60.5
    write_csv(long(("^DJI", "^GSPC")), tmp_path / "others.csv")
    with pytest.raises(UsageError, match=r"others\.csv: 2 symbols and none of them is the index INDEX"):
        fetch_all(FileSource(MARKET, tmp_path / "prices.csv", tmp_path / "others.csv"))


def test_an_index_among_the_prices_is_found_there_and_an_index_file_goes_before_it(tmp_path: Path) -> None:
    write_csv(long(("AAA", "^IDX")), tmp_path / "prices.csv")
    assert FileSource(MARKET, tmp_path / "prices.csv").symbols() == ["AAA"]
    write_csv(long(("^IDX",)), tmp_path / "index.csv")
    among = fetch_all(FileSource(MARKET, tmp_path / "prices.csv"))
    apart = fetch_all(FileSource(MARKET, tmp_path / "prices.csv", tmp_path / "index.csv"))
    assert among.loc[among["symbol"] == "INDEX", "close"].iloc[0] == 60.5
    assert apart.loc[apart["symbol"] == "INDEX", "close"].iloc[0] == 50.0


# what is wrong


def csv_of(*rows: str, header: str = "date,symbol,open,close") -> bytes:
    return "\n".join([header, *rows, ""]).encode()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.csv", csv_of("2024-03-04,1,5", header="day,open,Close"), "missing column session, symbol; found day, open, Close"),
        ("p.csv", csv_of("2024-03-04;AAA;1;2", header="date;symbol;open;close"), "found date;symbol;open;close"),
        ("p.csv", csv_of("2024-03-04,AAA,1,2,3", header="date,symbol,open,close,Date"), "'date' and 'Date' are both session"),
        ("p.csv", csv_of("2024-03-04,AAA,1,2", "3/5/2024,AAA,1,2"), "row 2: '3/5/2024' is no date; write YYYY-MM-DD"),
        ("p.csv", csv_of("2024-03-04,AAA,1,2", ",AAA,1,2"), "row 2: '' is no date"),
        ("p.csv", csv_of("2024-02-30,AAA,1,2"), "row 1: '2024-02-30' is no date"),
        ("p.csv", csv_of("0024-03-04,AAA,1,2"), "row 1: '0024-03-04' is no date"),
        ("p.csv", csv_of("2024-03-04,AAA,1,2", "2024-03-05,AAA,1,2", "2024-03-06,AAA,1,two"), "row 3: close 'two' is no number"),
        ("p.csv", csv_of('2024-03-04,AAA,"1,234.5",2'), "row 1: open '1,234.5' is no number"),
        ("p.csv", csv_of("2024-03-04,AAA,1,2", "2024-03-05,,1,2"), "row 2 has no symbol"),
        ("p.csv", csv_of("2024-03-04,AAA,1"), "Expected 4 columns, got 3"),
        ("p.csv", csv_of(), "the file holds no row"),
        ("p.csv", b"", "cannot be read as .csv"),
        ("p.csv", b"date,symbol,close\n2024-03-04,A\xff\xfe,3\n", "cannot be read as .csv"),
        ("p.csv.gz", b"not gzip at all", "cannot be read as .csv.gz: Not a gzipped file"),
        ("p.csv.gz", gzip.compress(csv_of("2024-03-04,AAA,1,2"))[:-9], "cannot be read as .csv.gz"),
        ("p.parquet", b"", "cannot be read as .parquet"),
        ("p.parquet", b"PAR1 and nothing more PAR1", "cannot be read as .parquet"),
        ("p.parquet", pickle.dumps({"close": [1.0]}), "cannot be read as .parquet"),
        ("p.xlsx", b"", "the ending is none of .parquet, .csv, .csv.gz"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_a_mistake_of_the_user_said_in_one_line(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        FileSource(MARKET, tmp_path / name).fetch({"AAA": FIRST}, LAST)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (long(("AAA",)).assign(symbol=5930), "symbols are text, but column 'symbol' is int64"),
        (long(("AAA",)).assign(close="3.5"), None),
        (long(("AAA",)).assign(close=[*["3.5"] * 6, "x", *["3.5"] * 6]), "row 7: close 'x' is no number"),
        (long(("AAA",)).assign(date=[*long(("AAA",))["date"][:4], *[pd.NaT] * 9]), "row 5: None is no date"),
        (long(("AAA",)).assign(date=20240304.5), "row 1: 20240304.5 is no date"),
        (long(("AAA",)).drop(columns="close"), "missing column close; found date, symbol, open, high, low, adj_close"),
        (long(("AAA",)).iloc[:0], "the file holds no row"),
    ],
)
def test_a_parquet_file_of_other_types_is_read_or_said_to_be_wrong(
    tmp_path: Path, table: pd.DataFrame, said: str | None
) -> None:
    write_parquet(table, tmp_path / "p.parquet")
    source = FileSource(MARKET, tmp_path / "p.parquet")
    if said is None:
        assert source.fetch({"AAA": FIRST}, LAST).bars["close"].tolist() == [3.5] * 13
        return
    with pytest.raises(UsageError) as caught:
        source.fetch({"AAA": FIRST}, LAST)
    assert str(caught.value).startswith(f"{tmp_path / 'p.parquet'}: {said}")


def test_a_damaged_parquet_file_is_never_more_than_a_mistake(tmp_path: Path) -> None:
    write_parquet(long(), tmp_path / "p.parquet")
    good = (tmp_path / "p.parquet").read_bytes()
    random = np.random.default_rng(7)
    mistakes = 0
    for _ in range(101):
        damaged = bytearray(good[: random.integers(len(good) // 2, len(good) + 1)])
        for place in random.integers(0, len(damaged), 5):
            damaged[place] ^= int(random.integers(1, 256))
        (tmp_path / "p.parquet").write_bytes(damaged)
        try:
            FileSource(MARKET, tmp_path / "p.parquet").fetch({"AAA": FIRST}, LAST)
        except UsageError:
            mistakes += 1
    assert mistakes > 50


def test_paths_that_are_not_there_and_folders_without_prices_are_named(tmp_path: Path) -> None:
    write_csv(long(("AAA",)), tmp_path / "AAA.csv")
    with pytest.raises(UsageError, match=r"none\.csv: there is no such file"):
        FileSource(MARKET, tmp_path / "none.csv")
    with pytest.raises(UsageError, match=r"none\.csv: there is no such file"):
        FileSource(MARKET, tmp_path / "AAA.csv", tmp_path / "none.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty: the folder holds no file that ends in \.parquet, \.csv, \.csv\.gz"):
        FileSource(MARKET, tmp_path / "empty")
    write_parquet(long(("AAA",)), tmp_path / "AAA.parquet")
    with pytest.raises(UsageError, match=r"AAA\.csv and AAA\.parquet are of one symbol; keep one"):
        FileSource(MARKET, tmp_path)


# the real sets, and the choice of a source


@pytest.mark.skipif(not (SHARED / "prices").is_dir(), reason="shared data is not beside this clone")
def test_one_session_of_a_large_file_is_read_in_half_a_second() -> None:
    source = FileSource(MARKET, SHARED / "prices" / "sp500.parquet", SHARED / "index" / "GSPC.parquet")
    symbols = source.symbols()
    assert len(symbols) == 483
    day = date(2022, 12, 30)
    assert source.last_session() == day
    seconds = []
    for _ in range(3):
        fresh = FileSource(MARKET, SHARED / "prices" / "sp500.parquet", SHARED / "index" / "GSPC.parquet")
        start = time.perf_counter()
        fetched = fresh.fetch(dict.fromkeys([*symbols, "INDEX"], day), day)
        seconds.append(time.perf_counter() - start)
    assert len(fetched.bars) == 484
    assert (fetched.outcomes["status"] == "ok").all()
    assert min(seconds) < 0.5


def test_a_source_is_chosen_by_name_and_takes_only_what_it_can_read(tmp_path: Path) -> None:
    write_csv(long(), tmp_path / "prices.csv")
    assert open_source("files", MARKET, prices=tmp_path / "prices.csv").name == "files"
    assert open_source("yahoo", MARKET).symbols() is None
    assert open_source("simulated", MARKET).last_session() is None
    with pytest.raises(UsageError, match="source 'bloomberg' is unknown: choose one of yahoo, files, simulated"):
        open_source("bloomberg", MARKET)
    with pytest.raises(UsageError, match="source 'files' needs a file or folder of prices"):
        open_source("files", MARKET)
    with pytest.raises(UsageError, match="source 'yahoo' reads no files"):
        open_source("yahoo", MARKET, prices=tmp_path / "prices.csv")
