"""One file of bars as a table: whatever its format, its column names and the type of its dates.

Reading is strict and says where it stopped: every failure is a UsageError that names the file and, for a
value, its row (the first row below the header is row 1).
"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy import ndarray

from dtml.errors import UsageError
from dtml.prices.bars import BAR_COLUMNS

SUFFIXES = (".parquet", ".csv", ".csv.gz")
NAMES = {name: name for name in BAR_COLUMNS} | {  # in a file: any case, blanks for underscores
    "ticker": "symbol",
    "date": "session",
    "datetime": "session",
    "adjclose": "adj_close",
    "dividends": "dividend",
    "splits": "split",
    "stock_splits": "split",
}
BLANK = ("", "na", "n/a", "#n/a", "nan", "null", "none")  # a missing number written as text, lower case
LONGEST = 80  # characters of a value that a complaint shows
FIRST_YEAR, LAST_YEAR = 1678, 2261  # what 64 bits of nanoseconds can hold


def stem_of(path: Path) -> str:
    """File name without its ending, other dots kept: `BT-A.L` for BT-A.L.csv.gz."""
    ending = next(suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix))
    return path.name[: -len(ending)]


@dataclass(frozen=True)
class TableFile:
    """One parquet or CSV file; instants with a time zone become dates in `timezone`, the exchange's."""

    path: Path
    timezone: str

    def rows(self, first: date, last: date, *, with_symbol: bool) -> pd.DataFrame:
        """Rows of `first` to `last`, both included, in the order of the file.

        Columns are those of `BAR_COLUMNS` that the file has, under these names: session datetime64[ns],
        numbers float64 with NaN where the file has none. `with_symbol` says whether the column symbol is
        required and read.
        """
        self._require("session", "close", *(["symbol"] if with_symbol else []))
        sessions = self._sessions
        inside = np.flatnonzero((sessions >= np.datetime64(first)) & (sessions <= np.datetime64(last)))
        left_out = {"session"} if with_symbol else {"session", "symbol"}
        table = self._read([name for name in BAR_COLUMNS if name in self._columns and name not in left_out])
        frame = pd.DataFrame({"session": sessions[inside]})
        for name in table.column_names:
            values = table[name].take(pa.array(inside))
            if name == "symbol":
                frame[name] = self._symbols(values, inside)
            else:
                frame[name] = self._numbers(name, values, inside)
        return frame

    def symbols(self) -> list[str]:
        """The distinct symbols, sorted; none when the file has no column of them."""
        if "symbol" not in self._columns:
            return []
        column = self._read(["symbol"])["symbol"]
        return sorted(self._symbols(column, np.arange(len(column))).unique())

    def last_session(self) -> date:
        """The latest date of the file."""
        self._require("session")
        latest: date = self._sessions.max().astype("datetime64[D]").item()
        return latest

    @cached_property
    def _columns(self) -> dict[str, str]:
        """Where the columns of bars are: their names in the file."""
        columns: dict[str, str] = {}
        for found in self._header:
            name = NAMES.get(found.strip().lower().replace(" ", "_"))
            if name in columns:
                other = columns[name]
                raise UsageError(f"{self.path}: columns {other!r} and {found!r} are both {name}; keep one")
            if name is not None:
                columns[name] = found
        return columns

    def _require(self, *names: str) -> None:
        missing = [name for name in names if name not in self._columns]
        if missing:
            found = ", ".join(self._header)
            lacking = ", ".join("date" if name == "session" else name for name in missing)
            raise UsageError(f"{self.path}: missing column {lacking}; found {found}")

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
        """The whole file as text: a type guessed from the first rows would lose the zeros of `005930`."""
        with _readable(self.path):
            content = self.path.read_bytes()
            if self.path.name.lower().endswith(".gz"):
                content = gzip.decompress(content)
            header = next(csv.reader([content.split(b"\n", 1)[0].decode("utf-8-sig")]), [])
            one_by_one = pyarrow.csv.ReadOptions(use_threads=False)  # only then do its errors name the row
            text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()))
            return pyarrow.csv.read_csv(pa.BufferReader(content), read_options=one_by_one, convert_options=text)

    def _read(self, names: Sequence[str]) -> pa.Table:
        """Columns by their names in bars."""
        found = [self._columns[name] for name in names]
        with _readable(self.path):
            if self._is_parquet:
                with pyarrow.parquet.ParquetFile(self.path) as file:
                    table = file.read(columns=found)
            else:
                table = self._csv
            return pa.table([_decoded(table[column]) for column in found], names=list(names))

    @cached_property
    def _sessions(self) -> ndarray:
        """The date of every row as datetime64[ns]; each distinct value is read once."""
        with _readable(self.path):
            encoded = self._read(["session"])["session"].combine_chunks().dictionary_encode()
            written = encoded.dictionary.to_pylist()
        codes = encoded.indices.fill_null(len(written)).to_numpy()
        days = [_day(value, self.timezone) for value in [*written, None]]
        bad = np.flatnonzero(np.array([day is None for day in days])[codes])
        if len(bad):
            value = [*written, None][codes[bad[0]]]
            raise UsageError(f"{self.path}: row {bad[0] + 1}: {_shown(value)} is no date; write YYYY-MM-DD")
        dates: ndarray = np.array(days, dtype="datetime64[ns]")[codes]
        return dates

    def _symbols(self, column: pa.ChunkedArray, row: ndarray) -> pd.Series:
        """Symbols as text; a number would have lost its leading zeros already."""
        if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
            raise UsageError(f"{self.path}: symbols are text, but column {self._columns['symbol']!r} is {column.type}")
        symbols = pd.Series(column.to_pandas(), dtype=str).str.strip()
        bad = np.flatnonzero(symbols.isna() | (symbols == ""))
        if len(bad):
            raise UsageError(f"{self.path}: row {row[bad[0]] + 1} has no symbol")
        return symbols

    def _numbers(self, name: str, column: pa.ChunkedArray, row: ndarray) -> pd.Series:
        """Numbers as float64; text is read as a number, blanks as NaN."""
        kind = pa.types
        if any(is_kind(column.type) for is_kind in (kind.is_integer, kind.is_floating, kind.is_decimal, kind.is_null)):
            return pd.Series(column.cast(pa.float64(), safe=False).to_numpy())
        if not (kind.is_string(column.type) or kind.is_large_string(column.type) or kind.is_boolean(column.type)):
            raise UsageError(f"{self.path}: column {self._columns[name]!r} holds {column.type}, not numbers")
        values = pd.Series(column.cast(pa.string()).to_pandas(), dtype=str).str.strip()
        values = values.where(~values.str.lower().isin(BLANK))
        numbers = pd.to_numeric(values, errors="coerce")
        bad = np.flatnonzero(numbers.isna() & values.notna())
        if len(bad):
            where = f"{self.path}: row {row[bad[0]] + 1}: {self._columns[name]}"
            raise UsageError(f"{where} {_shown(values.iloc[bad[0]])} is no number")
        return numbers.astype(np.float64)


def _shown(value: object) -> str:
    """A value as a complaint shows it: of a long one, the beginning."""
    written = repr(value)
    return written if len(written) <= LONGEST else f"{written[:LONGEST]}..."


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _day(value: object, timezone: str) -> date | None:
    """The date that a cell of a file stands for, or None; text with a time zone keeps the date as written."""
    day = None
    if isinstance(value, datetime):
        day = (value if value.tzinfo is None else value.astimezone(ZoneInfo(timezone))).date()
    elif isinstance(value, date):
        day = value
    elif isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        try:
            day = datetime.fromisoformat(str(value).strip()).date()
        except ValueError:
            return None
    return day if day is not None and FIRST_YEAR <= day.year <= LAST_YEAR else None


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what a file that is not what its name says can raise into one line; the file is never trusted."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, zlib.error, ValueError, OverflowError, csv.Error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{path}: cannot be read as {''.join(path.suffixes[-2:])}: {reason}") from error
