"""Bars from files: parquet or CSV, plain or gzipped; one long table, or a file for each symbol.

Column names are those of `dtml.prices.bars.BAR_COLUMNS` in any case, or the other names in `NAMES`.
A file can be wrong but it cannot run code: parquet and CSV hold values only, and a symbol is looked
up among the files of a folder, never used as a path. Reading is strict: every failure is a
UsageError that names the file and, for a value, its row (the first row below the header is row 1).
"""

import csv
import gzip
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy import ndarray

from dtml.errors import UsageError
from dtml.markets import Constituent, Index, Market
from dtml.prices.bars import BAR_COLUMNS, bars_frame, no_bars
from dtml.sources import Fetched, Source

SUFFIXES = (".parquet", ".csv", ".csv.gz")
NAMES = {  # names of columns in a file, in any case, where blanks stand for underscores
    **{name: name for name in BAR_COLUMNS},
    "ticker": "symbol",
    "date": "session",
    "datetime": "session",
    "adjclose": "adj_close",
    "dividends": "dividend",
    "splits": "split",
    "stock_splits": "split",
}
# A missing number written as text, in lower case.
BLANK = ("", "na", "n/a", "#n/a", "nan", "null", "none")
WIDE = (
    "; if these are closes with one column per stock, write one row per date and stock instead, "
    "with the columns date, symbol and close, as pandas' melt does"
)
RECENT = 20  # last dates of the prices, whose median number of stocks is the usual one
LONGEST = 80  # characters of a value that an error shows
MISSPELT = 0.75  # difflib's similarity from which a name counts as another one misspelt
MOST_NAMES = 300  # characters of column names that an error shows
FIRST_YEAR = 1678  # 64 bits of nanoseconds hold these years
LAST_YEAR = 2261


@dataclass(frozen=True)
class TableFile:
    """One parquet or CSV file.

    Instants with a time zone become dates in `timezone`, the exchange's.
    """

    path: Path
    timezone: str

    def rows(
        self, first: date, last: date, *, with_symbol: bool, only: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the rows of `first` to `last`, both included, in the order of the file.

        With `only`, they are the rows of these symbols. Columns are those of `BAR_COLUMNS` that the
        file has, under these names: session datetime64[ns], numbers float64 with NaN where the file
        has none. `with_symbol` says whether the column `symbol` is required and read.
        """
        if with_symbol:
            self._require("session", "close", "symbol")
        else:
            self._require("session", "close")
        sessions = self.sessions
        is_inside = (sessions >= np.datetime64(first)) & (sessions <= np.datetime64(last))
        row = np.flatnonzero(is_inside)
        columns = {}
        if with_symbol:
            symbols = self._symbols(self._read_rows("symbol", row), row)
            if only is not None:
                is_wanted = symbols.isin(only).to_numpy()
                if not is_wanted.all():
                    symbols = symbols[is_wanted].reset_index(drop=True)
                    row = row[is_wanted]
            columns["symbol"] = symbols
        for name in BAR_COLUMNS[2:]:  # one at a time: a file may be large
            if name in self._columns:
                columns[name] = self._numbers(name, self._read_rows(name, row), row)
        return pd.DataFrame({"session": sessions[row], **columns}, copy=False)

    def symbols(self) -> list[str]:
        """Return the distinct symbols, sorted; none when the file has no column of them."""
        if "symbol" not in self._columns:
            return []
        column = self._read("symbol")
        symbols = self._symbols(column, np.arange(len(column)))
        return sorted(symbols.unique())

    def last_session(self) -> date:
        """Return the latest date of the file."""
        return pd.Timestamp(self.sessions.max()).date()

    def symbol_of(self, row: int) -> str:
        """Return the symbol of a row, by its position."""
        column = self._read("symbol").slice(row, 1)
        return str(self._symbols(column, np.array([row])).iloc[0])

    @cached_property
    def _columns(self) -> dict[str, str]:
        """The name in the file of each known column."""
        columns: dict[str, str] = {}
        for header in self._header:
            name = NAMES.get(_key(header))
            if name in columns:
                raise UsageError(
                    f"{self.path}: columns {columns[name][:LONGEST]!r} and {header[:LONGEST]!r} "
                    f"both mean {name}; keep one"
                )
            if name is not None:
                columns[name] = header
        return columns

    def _require(self, *names: str) -> None:
        """Raise UsageError for a column of these that is missing, and for any that is misspelt."""
        self._refuse_misspelt()
        missing = [name for name in names if name not in self._columns]
        if not missing:
            return
        lacking = ", ".join(_word(name) for name in missing)
        # On one line, whatever the header holds.
        header_words = shorten(", ".join(self._header), MOST_NAMES, placeholder=" ...")
        has_dates_only = {"close", "symbol"} <= set(missing) and "session" in self._columns
        is_wide = has_dates_only and len(self._header) > 2
        advice = WIDE if is_wide else ""
        raise UsageError(f"{self.path}: missing column {lacking}; found {header_words}{advice}")

    def _refuse_misspelt(self) -> None:
        """Raise UsageError for an unknown column whose name is nearly one that is missing."""
        headers = {_key(header): header for header in self._header}
        unknown = {key: header for key, header in headers.items() if key not in NAMES}
        missing = [_word(name) for name in BAR_COLUMNS if name not in self._columns]
        for name in missing:
            for near in get_close_matches(name, unknown, n=1, cutoff=MISSPELT):
                raise UsageError(
                    f"{self.path}: there is no column {name}: if {unknown[near]!r} is "
                    "that column, rename it"
                )

    @cached_property
    def _header(self) -> list[str]:
        if self._is_parquet:
            with _readable(self.path), pyarrow.parquet.ParquetFile(self.path) as file:
                names: list[str] = file.schema_arrow.names
                rows = file.metadata.num_rows
        else:
            names = self._csv.column_names
            rows = self._csv.num_rows
        if rows == 0:
            raise UsageError(f"{self.path}: the file has no rows")
        return names

    @property
    def _is_parquet(self) -> bool:
        return self.path.name.lower().endswith(".parquet")

    @cached_property
    def _csv(self) -> pa.Table:
        """The whole file as text.

        A type guessed from the first rows would lose the zeros of `005930`.
        """
        with _readable(self.path):
            content = self.path.read_bytes()
            if self.path.name.lower().endswith(".gz"):
                content = gzip.decompress(content)
            beginning = content[:200].lstrip(b"\xef\xbb\xbf \r\n\t").lower()
            if beginning.startswith((b"<!doctype html", b"<html")):
                raise UsageError(
                    f"{self.path}: this is a web page, not a table: download the file that "
                    "the page offers"
                )
            first_line = content.split(b"\n", 1)[0].decode("utf-8-sig")
            header = next(csv.reader([first_line]), [])
            as_text = dict.fromkeys(header, pa.string())
            return pyarrow.csv.read_csv(
                pa.BufferReader(content),
                # Only without threads do its errors name the row.
                read_options=pyarrow.csv.ReadOptions(use_threads=False),
                convert_options=pyarrow.csv.ConvertOptions(column_types=as_text),
            )

    def _read(self, name: str) -> pa.ChunkedArray:
        pa.default_memory_pool().release_unused()  # Arrow keeps the memory of earlier columns
        header = self._columns[name]
        with _readable(self.path):
            if self._is_parquet:
                with pyarrow.parquet.ParquetFile(self.path) as file:
                    column = file.read(columns=[header])[header]
            else:
                column = self._csv[header]
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            return column

    def _read_rows(self, name: str, row: ndarray) -> pa.ChunkedArray:
        return self._read(name).take(pa.array(row))

    @cached_property
    def sessions(self) -> ndarray:
        """Return the date of every row as datetime64[ns]; each distinct value is parsed once."""
        self._require("session")
        with _readable(self.path):
            encoded = self._read("session").combine_chunks().dictionary_encode()
            distinct = encoded.dictionary.to_pylist()
        codes = encoded.indices.fill_null(len(distinct)).to_numpy()
        distinct.append(None)  # for the code of missing values
        days = [_day(value, self.timezone) for value in distinct]
        is_bad = np.array([day is None for day in days])
        bad_rows = np.flatnonzero(is_bad[codes])
        if len(bad_rows):
            row = bad_rows[0]
            raise UsageError(
                f"{self.path}: row {row + 1}: {_shown(distinct[codes[row]])} is not a date; "
                "write YYYY-MM-DD"
            )
        dates: ndarray = np.array(days, dtype="datetime64[ns]")[codes]
        return dates

    def _symbols(self, column: pa.ChunkedArray, row: ndarray) -> pd.Series:
        """Return symbols as text; numbers are refused, as they have lost their leading zeros."""
        if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
            raise UsageError(
                f"{self.path}: symbols must be text, but column "
                f"{self._columns['symbol']!r} has type {column.type}"
            )
        encoded = column.combine_chunks().dictionary_encode()  # few are distinct
        distinct = [*encoded.dictionary.to_pylist(), ""]
        names = pd.Series(distinct, dtype=str).str.strip()
        codes = encoded.indices.fill_null(len(names) - 1).to_numpy()
        blank_rows = np.flatnonzero((names == "").to_numpy()[codes])
        if len(blank_rows):
            raise UsageError(f"{self.path}: row {row[blank_rows[0]] + 1} has no symbol")
        return names.take(codes).reset_index(drop=True)

    def _numbers(self, name: str, column: pa.ChunkedArray, row: ndarray) -> pd.Series:
        """Return numbers as float64; text is parsed as a number, blanks are NaN."""
        if _is_numeric(column.type):
            return pd.Series(column.cast(pa.float64(), safe=False).to_numpy())
        if not _is_text_or_boolean(column.type):
            raise UsageError(
                f"{self.path}: column {self._columns[name]!r} holds {column.type}, not numbers"
            )
        values = pd.Series(column.cast(pa.string()).to_pandas(), dtype=str).str.strip()
        values = values.where(~values.str.lower().isin(BLANK))
        numbers = pd.to_numeric(values, errors="coerce")
        bad_rows = np.flatnonzero(numbers.isna() & values.notna())
        if len(bad_rows):
            raise UsageError(
                f"{self.path}: row {row[bad_rows[0]] + 1}: {self._columns[name]} "
                f"{_shown(values.iloc[bad_rows[0]])} is not a number"
            )
        return numbers.astype(np.float64)


def _is_numeric(kind: pa.DataType) -> bool:
    """Say whether a column of this type becomes numbers by a cast; one without any value does."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def _is_text_or_boolean(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind)
    )


def _word(name: str) -> str:
    """Return the name of a column as errors write it."""
    return "date" if name == "session" else name


def stem_of(path: Path) -> str:
    """Return a file's name without its ending, other dots kept: `BT-A.L` for BT-A.L.csv.gz."""
    ending = next(suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix))
    return path.name[: -len(ending)]


def _shown(value: object) -> str:
    """Return a value as errors show it: the beginning of a long one."""
    written = repr(value)
    return written if len(written) <= LONGEST else f"{written[:LONGEST]}..."


def _day(value: object, timezone: str) -> date | None:
    """Return the date in a cell of a file, or None.

    An instant, or a text with a time zone, has its date in `timezone`.
    """
    is_whole_number = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, str) or is_whole_number:
        try:
            value = datetime.fromisoformat(str(value).strip())
        except ValueError:
            return None
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(ZoneInfo(timezone))
        value = value.date()
    if not isinstance(value, date):
        return None
    return value if FIRST_YEAR <= value.year <= LAST_YEAR else None


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn any error of reading a file into a UsageError of one line.

    The content may be anything, whatever the file's name says.
    """
    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        OverflowError,
        csv.Error,
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        ending = "".join(path.suffixes[-2:])
        raise UsageError(f"{path}: cannot be read as {ending}: {reason}") from error


def _key(column: str) -> str:
    return column.strip().lower().replace(" ", "_")


class FileSource(Source):
    """The bars of `market` in `prices`, a file or a folder, and of its index in `index`.

    Without `index` the index is looked up among the prices. An index file that holds a single
    symbol is the market's index, whatever its name there. Files may use the market's symbols or
    Yahoo's; bars carry the market's. Raises UsageError when a path does not exist or has an ending
    that is not one of `SUFFIXES`.
    """

    name = "files"

    def __init__(self, market: Market, prices: Path, index: Path | None = None) -> None:
        self._market = market
        self._prices = prices
        self._by_symbol: dict[str, TableFile] = {}  # the files of a folder
        self._long: TableFile | None = None  # or the one file of all stocks
        if prices.is_dir():
            self._by_symbol = _folder(prices, market.timezone)
        else:
            self._long = _file(prices, market.timezone)
        self._index = None if index is None else _file(index, market.timezone)
        listed: list[Index | Constituent] = [market.index, *market.constituents]
        self._own_symbols: dict[str, str] = {stock.source_symbol: stock.symbol for stock in listed}
        # A name that is both a symbol of Yahoo's and of the market's stays itself.
        self._own_symbols.update({stock.symbol: stock.symbol for stock in listed})

    def symbols(self) -> list[str]:
        """Return the stocks found, sorted, under the market's symbols, without the index."""
        written = self._by_symbol if self._long is None else self._long.symbols()
        symbols = {self._own(symbol) for symbol in written}
        return sorted(symbols - {self._market.index.symbol})

    def last_session(self) -> date | None:
        """Return the last date that both the prices and the index reach.

        Raises UsageError, naming a row, when few stocks reach the last date of the prices: its date
        is wrong, or most of the prices are old.
        """
        files = list(self._by_symbol.values()) if self._long is None else [self._long]
        sessions = np.concatenate([file.sessions for file in files])
        dates, stocks = np.unique(sessions, return_counts=True)
        usual = np.median(stocks[-RECENT:])
        reached_by_most = dates[stocks * 2 > usual]
        if reached_by_most[-1] < dates[-1]:
            raise self._date_beyond(files, reached_by_most[-1])
        last: date = dates[-1].astype("datetime64[D]").item()
        if self._index is None:
            return last
        return min(last, self._index.last_session())

    def _date_beyond(self, files: Sequence[TableFile], reached: np.datetime64) -> UsageError:
        """Return the error of the first row after the last date of most stocks."""
        file = max(files, key=TableFile.last_session)
        row = int(np.flatnonzero(file.sessions > reached)[0])
        symbol = f" ({_shown(file.symbol_of(row))})" if self._long is not None else ""
        day = file.sessions[row].astype("datetime64[D]")
        last = reached.astype("datetime64[D]")
        return UsageError(
            f"{file.path}: row {row + 1}{symbol} is dated {day}, after {last}, the last date of "
            f"most stocks: correct or delete it, or set the night with --as-of {last}"
        )

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol from its own first session to `last`.

        A symbol without a bar is `no_data`. Raises UsageError for a file that cannot be read, lacks
        a required column, or holds a value that is no date, symbol or number where one is expected.
        """
        earliest = min(first.values(), default=last)
        index = self._market.index.symbol
        tables = self._price_tables(first, earliest, last)
        if self._index is not None:
            tables = [table[table["symbol"] != index] for table in tables]
            tables.append(self._index_table(self._index, earliest, last))
        bars = pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]

        def missing(symbol: str) -> str:
            return f"no row from {first[symbol]} to {last} in {self._place(symbol)}"

        return Fetched.of(bars, first, missing)

    def _price_tables(
        self, first: Mapping[str, date], earliest: date, last: date
    ) -> list[pd.DataFrame]:
        """Read the prices under the market's symbols; of a folder, only the files asked for."""
        if self._long is not None:
            own_symbol = {written: self._own(written) for written in self._long.symbols()}
            asked_for = [written for written, symbol in own_symbol.items() if symbol in first]
            rows = self._long.rows(earliest, last, with_symbol=True, only=asked_for)
            return [bars_frame(rows.assign(symbol=rows["symbol"].map(own_symbol)))]
        tables = []
        for stem, file in self._by_symbol.items():
            symbol = self._own(stem)
            if symbol in first:
                rows = file.rows(earliest, last, with_symbol=False)
                tables.append(bars_frame(rows.assign(symbol=symbol)))
        return tables or [no_bars()]

    def _index_table(self, file: TableFile, earliest: date, last: date) -> pd.DataFrame:
        index = self._market.index
        symbols = file.symbols()
        has_several = len(symbols) > 1
        rows = file.rows(earliest, last, with_symbol=has_several)
        if has_several:
            of_index = {index.symbol, index.source_symbol}.intersection(symbols)
            if not of_index:
                raise UsageError(
                    f"{file.path}: the file has {len(symbols)} symbols, but not the index "
                    f"{index.symbol}"
                )
            rows = rows[rows["symbol"].isin(of_index)]
        return bars_frame(rows.assign(symbol=index.symbol))

    def _place(self, symbol: str) -> Path:
        """Return the path where the bars of a symbol are looked for."""
        if self._index and symbol == self._market.index.symbol:
            return self._index.path
        return self._prices

    def _own(self, symbol: str) -> str:
        """Return the market's symbol for one of Yahoo's; a name that is both stays itself."""
        return self._own_symbols.get(symbol, symbol)


def _file(path: Path, timezone: str) -> TableFile:
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    if not path.name.lower().endswith(SUFFIXES):
        raise UsageError(f"{path}: unsupported file type; use one of {', '.join(SUFFIXES)}")
    return TableFile(path, timezone)


def _folder(folder: Path, timezone: str) -> dict[str, TableFile]:
    files: dict[str, TableFile] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.lower().endswith(SUFFIXES):
            continue
        stem = stem_of(path)
        if stem in files:
            earlier = files[stem].path.name
            raise UsageError(f"{folder}: {earlier} and {path.name} hold the same symbol; keep one")
        files[stem] = TableFile(path, timezone)
    if not files:
        raise UsageError(f"{folder}: the folder holds no file that ends in {', '.join(SUFFIXES)}")
    return files
