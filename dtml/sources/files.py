"""Bars from files: parquet or CSV, plain or gzipped; one long table, or a folder with one file for
each symbol.

Column names are those of `dtml.prices.bars.BAR_COLUMNS` in any case, or the other names in `NAMES`.
A file can be
wrong but it cannot run code: parquet and CSV hold values only, and a symbol is looked up among the
files of a folder,
never made into a path. Reading is strict and says where it stopped: every failure is a UsageError
that names the file and, for a value, its row (the first row below the header is row 1).
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
from dtml.markets import Market
from dtml.prices.bars import BAR_COLUMNS, bars_frame, no_bars
from dtml.sources import Fetched, Source

SUFFIXES = (".parquet", ".csv", ".csv.gz")
NAMES = {name: name for name in BAR_COLUMNS}  # in a file: any case, blanks for underscores
NAMES |= {"ticker": "symbol", "date": "session", "datetime": "session", "adjclose": "adj_close"}
NAMES |= {"dividends": "dividend", "splits": "split", "stock_splits": "split"}
BLANK = (
    "",
    "na",
    "n/a",
    "#n/a",
    "nan",
    "null",
    "none",
)  # a missing number written as text, lower case
WIDE = (
    "; if these are closes, a column for each stock, write a row for each date and stock instead, "
    "with the columns "
    "date, symbol and close, as pandas' melt does"
)
RECENT = 20  # last dates of the prices, whose median number of stocks is the usual one
LONGEST = 80  # characters of a value that a complaint shows
MISSPELT = 0.75  # likeness, as difflib counts it, of a name that is meant for another
MOST_NAMES = 300  # characters of column names that one shows
FIRST_YEAR, LAST_YEAR = 1678, 2261  # what 64 bits of nanoseconds can hold


@dataclass(frozen=True)
class TableFile:
    """One parquet or CSV file; instants with a time zone become dates in
    `timezone`, the exchange's.
    """

    path: Path
    timezone: str

    def rows(
        self, first: date, last: date, *, with_symbol: bool, only: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the rows of `first` to `last`, both included, in the order of the file; of these
        symbols `only`.

        Columns are those of `BAR_COLUMNS` that the file has, under these names: session
        datetime64[ns], numbers float64 with NaN where the file has none. `with_symbol` says whether
        the column symbol is required and read.
        """
        self._require("session", "close", *(["symbol"] if with_symbol else []))
        sessions = self.sessions
        inside = np.flatnonzero(
            (sessions >= np.datetime64(first)) & (sessions <= np.datetime64(last))
        )
        columns = {}
        if with_symbol:
            symbols = self._symbols(self._read("symbol").take(pa.array(inside)), inside)
            if only is not None and not (wanted := symbols.isin(only).to_numpy()).all():
                symbols, inside = symbols[wanted].reset_index(drop=True), inside[wanted]
            columns["symbol"] = symbols
        for name in (
            each for each in BAR_COLUMNS[2:] if each in self._columns
        ):  # one at a time: a file may be large
            columns[name] = self._numbers(name, self._read(name).take(pa.array(inside)), inside)
        return pd.DataFrame({"session": sessions[inside], **columns}, copy=False)

    def symbols(self) -> list[str]:
        """Return the distinct symbols, sorted; none when the file has no column of them."""
        if "symbol" not in self._columns:
            return []
        column = self._read("symbol")
        return sorted(self._symbols(column, np.arange(len(column))).unique())

    def last_session(self) -> date:
        """Return the latest date of the file."""
        return pd.Timestamp(self.sessions.max()).date()

    def symbol_of(self, row: int) -> str:
        """Return the symbol of a row, by its position."""
        return str(self._symbols(self._read("symbol").slice(row, 1), np.array([row])).iloc[0])

    @cached_property
    def _columns(self) -> dict[str, str]:
        columns: dict[str, str] = {}
        for found in self._header:
            name = NAMES.get(_key(found))
            if name in columns:
                both = f"{columns[name][:LONGEST]!r} and {found[:LONGEST]!r}"
                raise UsageError(f"{self.path}: columns {both} are both {name}; keep one")
            if name is not None:
                columns[name] = found
        return columns

    def _require(self, *names: str) -> None:
        """Raise UsageError for a column of these that is missing, and for any that is misspelt."""
        unknown = {_key(found): found for found in self._header if _key(found) not in NAMES}
        for name in (
            "date" if each == "session" else each
            for each in BAR_COLUMNS
            if each not in self._columns
        ):
            for near in get_close_matches(name, unknown, n=1, cutoff=MISSPELT):
                raise UsageError(
                    f"{self.path}: there is no column {name}: is {unknown[near]!r} it? Then "
                    "rename it"
                )
        missing = [name for name in names if name not in self._columns]
        if missing:
            found = shorten(
                ", ".join(self._header), MOST_NAMES, placeholder=" ..."
            )  # in one line, whatever it holds
            lacking = ", ".join("date" if name == "session" else name for name in missing)
            wide = (
                {"close", "symbol"} <= set(missing)
                and "session" in self._columns
                and len(self._header) > 2
            )
            raise UsageError(
                f"{self.path}: missing column {lacking}; found {found}{WIDE if wide else ''}"
            )

    @cached_property
    def _header(self) -> list[str]:
        if self._is_parquet:
            with _readable(self.path), pyarrow.parquet.ParquetFile(self.path) as file:
                names: list[str] = file.schema_arrow.names
                rows = file.metadata.num_rows
        else:
            names, rows = self._csv.column_names, self._csv.num_rows
        if rows == 0:
            raise UsageError(f"{self.path}: the file holds no row")
        return names

    @property
    def _is_parquet(self) -> bool:
        return self.path.name.lower().endswith(".parquet")

    @cached_property
    def _csv(self) -> pa.Table:
        """Read the whole file as text: a type guessed from the first rows would
        lose the zeros of `005930`.
        """
        with _readable(self.path):
            content = self.path.read_bytes()
            if self.path.name.lower().endswith(".gz"):
                content = gzip.decompress(content)
            if (
                content[:200]
                .lstrip(b"\xef\xbb\xbf \r\n\t")
                .lower()
                .startswith((b"<!doctype html", b"<html"))
            ):
                raise UsageError(
                    f"{self.path}: it is a web page and no table: download the file that the "
                    "page offers"
                )
            header = next(csv.reader([content.split(b"\n", 1)[0].decode("utf-8-sig")]), [])
            one_by_one = pyarrow.csv.ReadOptions(
                use_threads=False
            )  # only then do its errors name the row
            text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()))
            return pyarrow.csv.read_csv(
                pa.BufferReader(content), read_options=one_by_one, convert_options=text
            )

    def _read(self, name: str) -> pa.ChunkedArray:
        pa.default_memory_pool().release_unused()  # Arrow keeps what the columns before took
        found = self._columns[name]
        with _readable(self.path):
            if self._is_parquet:
                with pyarrow.parquet.ParquetFile(self.path) as file:
                    column = file.read(columns=[found])[found]
            else:
                column = self._csv[found]
            return (
                column.cast(column.type.value_type)
                if pa.types.is_dictionary(column.type)
                else column
            )

    @cached_property
    def sessions(self) -> ndarray:
        """Return the date of every row as datetime64[ns]; each distinct value is parsed once."""
        self._require("session")
        with _readable(self.path):
            encoded = self._read("session").combine_chunks().dictionary_encode()
            written = encoded.dictionary.to_pylist()
        codes = encoded.indices.fill_null(len(written)).to_numpy()
        days = [_day(value, self.timezone) for value in [*written, None]]
        bad = np.flatnonzero(np.array([day is None for day in days])[codes])
        if len(bad):
            value = [*written, None][codes[bad[0]]]
            raise UsageError(
                f"{self.path}: row {bad[0] + 1}: {_shown(value)} is no date; write YYYY-MM-DD"
            )
        dates: ndarray = np.array(days, dtype="datetime64[ns]")[codes]
        return dates

    def _symbols(self, column: pa.ChunkedArray, row: ndarray) -> pd.Series:
        """Return symbols as text; a number would have lost its leading zeros already."""
        if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
            raise UsageError(
                f"{self.path}: symbols are text, but column {self._columns['symbol']!r} is "
                f"{column.type}"
            )
        encoded = column.combine_chunks().dictionary_encode()  # few are distinct
        names = pd.Series([*encoded.dictionary.to_pylist(), ""], dtype=str).str.strip()
        codes = encoded.indices.fill_null(len(names) - 1).to_numpy()
        bad = np.flatnonzero((names == "").to_numpy()[codes])
        if len(bad):
            raise UsageError(f"{self.path}: row {row[bad[0]] + 1} has no symbol")
        return names.take(codes).reset_index(drop=True)

    def _numbers(self, name: str, column: pa.ChunkedArray, row: ndarray) -> pd.Series:
        """Return numbers as float64; text is parsed as a number, blanks are NaN."""
        kind = pa.types
        if any(
            is_kind(column.type)
            for is_kind in (kind.is_integer, kind.is_floating, kind.is_decimal, kind.is_null)
        ):
            return pd.Series(column.cast(pa.float64(), safe=False).to_numpy())
        if not (
            kind.is_string(column.type)
            or kind.is_large_string(column.type)
            or kind.is_boolean(column.type)
        ):
            raise UsageError(
                f"{self.path}: column {self._columns[name]!r} holds {column.type}, not numbers"
            )
        values = pd.Series(column.cast(pa.string()).to_pandas(), dtype=str).str.strip()
        values = values.where(~values.str.lower().isin(BLANK))
        numbers = pd.to_numeric(values, errors="coerce")
        bad = np.flatnonzero(numbers.isna() & values.notna())
        if len(bad):
            where = f"{self.path}: row {row[bad[0]] + 1}: {self._columns[name]}"
            raise UsageError(f"{where} {_shown(values.iloc[bad[0]])} is no number")
        return numbers.astype(np.float64)


def stem_of(path: Path) -> str:
    """Return a file's name without its ending, other dots kept: `BT-A.L` for BT-A.L.csv.gz."""
    ending = next(suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix))
    return path.name[: -len(ending)]


def _shown(value: object) -> str:
    """Return a value as a complaint shows it: the beginning of a long one."""
    written = repr(value)
    return written if len(written) <= LONGEST else f"{written[:LONGEST]}..."


def _day(value: object, timezone: str) -> date | None:
    """Return the date in a cell of a file, or None; an instant, text with a
    time zone too, has one in `timezone`.
    """
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        try:
            value = datetime.fromisoformat(str(value).strip())
        except ValueError:
            return None
    if isinstance(value, datetime):
        value = (value if value.tzinfo is None else value.astimezone(ZoneInfo(timezone))).date()
    day = value if isinstance(value, date) else None
    return day if day is not None and FIRST_YEAR <= day.year <= LAST_YEAR else None


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn any error of a file that is not what its name says into one line;
    the file is never trusted.
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
        raise UsageError(
            f"{path}: cannot be read as {''.join(path.suffixes[-2:])}: {reason}"
        ) from error


def _key(column: str) -> str:
    return column.strip().lower().replace(" ", "_")


class FileSource(Source):
    """The bars of `market` in `prices`, a file or a folder, and of its index in `index`.

    Without `index` the index is looked for among the prices. An index file that holds a single
    symbol is the market's index, whatever its name there. Files may use the market's symbols or
    Yahoo's; bars carry the market's. Raises UsageError when a path is not there or has an ending
    that is not one of `SUFFIXES`.
    """

    name = "files"

    def __init__(self, market: Market, prices: Path, index: Path | None = None) -> None:
        self._market, self._prices = market, prices
        self._by_symbol = _folder(prices, market.timezone) if prices.is_dir() else {}
        self._long = None if prices.is_dir() else _file(prices, market.timezone)
        self._index = None if index is None else _file(index, market.timezone)
        listed = ((each.source_symbol, each.symbol) for each in market.constituents)
        pairs = [(market.index.source_symbol, market.index.symbol), *listed]
        self._own_symbols = dict(pairs) | {symbol: symbol for _, symbol in pairs}

    def symbols(self) -> list[str]:
        """Return the stocks found, sorted, under the market's symbols, without the index."""
        found = self._by_symbol if self._long is None else self._long.symbols()
        return sorted({self._own(symbol) for symbol in found} - {self._market.index.symbol})

    def last_session(self) -> date | None:
        """Return the last date that both the prices and the index reach.

        Raises UsageError, naming a row, when few stocks reach the last date of the prices: its date
        is wrong, or most of the prices are old.
        """
        files = list(self._by_symbol.values()) if self._long is None else [self._long]
        dates, stocks = np.unique(
            np.concatenate([file.sessions for file in files]), return_counts=True
        )
        reached = dates[stocks * 2 > np.median(stocks[-RECENT:])]
        if reached[-1] < dates[-1]:
            raise UsageError(self._beyond(files, reached[-1]))
        last: date = dates[-1].astype("datetime64[D]").item()
        return last if self._index is None else min(last, self._index.last_session())

    def _beyond(self, files: Sequence[TableFile], reached: np.datetime64) -> str:
        file = max(files, key=lambda each: each.last_session())
        row = int(np.flatnonzero(file.sessions > reached)[0])
        symbol = f" ({_shown(file.symbol_of(row))})" if self._long is not None else ""
        day, last = (value.astype("datetime64[D]") for value in (file.sessions[row], reached))
        dated = f"row {row + 1}{symbol} is dated {day}, after {last}, the last date of most stocks"
        return f"{file.path}: {dated}: correct or delete it, or name the night with --as-of {last}"

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol from its own first session to `last`; a symbol without one
        is `no_data`.

        Raises UsageError for a file that cannot be read, lacks a required column, or holds a value
        that is no date, symbol or number where one is expected.
        """
        earliest = min(first.values(), default=last)
        index = self._market.index.symbol
        tables = self._price_tables(first, earliest, last)
        if self._index is not None:
            tables = [table[table["symbol"] != index] for table in tables]
            tables.append(self._index_table(self._index, earliest, last))
        bars = pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]
        return Fetched.of(
            bars,
            first,
            lambda symbol: f"no row from {first[symbol]} to {last} in {self._place(symbol)}",
        )

    def _price_tables(
        self, first: Mapping[str, date], earliest: date, last: date
    ) -> list[pd.DataFrame]:
        """Read the prices under the market's symbols; of a folder, only the files asked for."""
        if self._long is not None:
            own = {symbol: self._own(symbol) for symbol in self._long.symbols()}
            only = [symbol for symbol, mine in own.items() if mine in first]
            rows = self._long.rows(earliest, last, with_symbol=True, only=only)
            return [bars_frame(rows.assign(symbol=rows["symbol"].map(own)))]
        asked = [
            (self._own(stem), file)
            for stem, file in self._by_symbol.items()
            if self._own(stem) in first
        ]
        read = ((symbol, file.rows(earliest, last, with_symbol=False)) for symbol, file in asked)
        return [bars_frame(rows.assign(symbol=symbol)) for symbol, rows in read] or [no_bars()]

    def _index_table(self, file: TableFile, earliest: date, last: date) -> pd.DataFrame:
        index = self._market.index
        held = file.symbols()
        rows = file.rows(earliest, last, with_symbol=len(held) > 1)
        if len(held) > 1:
            named = {index.symbol, index.source_symbol}.intersection(held)
            if not named:
                raise UsageError(
                    f"{file.path}: {len(held)} symbols and none of them is the index {index.symbol}"
                )
            rows = rows[rows["symbol"].isin(named)]
        return bars_frame(rows.assign(symbol=index.symbol))

    def _place(self, symbol: str) -> Path:
        return (
            self._index.path
            if self._index and symbol == self._market.index.symbol
            else self._prices
        )

    def _own(self, symbol: str) -> str:
        """Return the market's symbol for one of Yahoo's; a name that is both stays itself."""
        return self._own_symbols.get(symbol, symbol)


def _file(path: Path, timezone: str) -> TableFile:
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    if not path.name.lower().endswith(SUFFIXES):
        raise UsageError(f"{path}: the ending is none of {', '.join(SUFFIXES)}")
    return TableFile(path, timezone)


def _folder(folder: Path, timezone: str) -> dict[str, TableFile]:
    files: dict[str, TableFile] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.lower().endswith(SUFFIXES):
            continue
        if stem_of(path) in files:
            other = files[stem_of(path)].path.name
            raise UsageError(f"{folder}: {other} and {path.name} are of one symbol; keep one")
        files[stem_of(path)] = TableFile(path, timezone)
    if not files:
        raise UsageError(f"{folder}: the folder holds no file that ends in {', '.join(SUFFIXES)}")
    return files
