"""One file of prices: its rows as bars, its dates and its symbols."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy import ndarray

from dtml.errors import UsageError
from dtml.markets.definition import Columns
from dtml.prices.bars import BAR_COLUMNS, bars_frame
from dtml.sources.files.cells import (
    ISO,
    NumberFormat,
    advice_on,
    days_of,
    decimal_mark,
    fault_of,
    numbers_of,
)
from dtml.sources.files.containers import Container
from dtml.sources.files.dialects import (
    BESIDES_CLOSE,
    NAMES,
    Layout,
    dialects,
    header_key,
    layout_of,
    other_names,
)
from dtml.sources.files.tables import Table, one_row_per_ticker_and_date, read_table
from translation.definitions import shown

PER_SHARE = ("open", "high", "low", "close", "adj_close", "dividend")
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
DIGITS = 4  # after the point of a volume that was multiplied; further ones are rounding alone
UNNAMED = ("", "__index_level_0__", "unnamed:_0")  # what pandas calls a column of dates without one


@dataclass(frozen=True)
class PriceFile:
    """A table of prices, and what its columns mean.

    - timezone: the exchange's, in which instants become dates;
    - market_symbols: the market's symbols by the names that files may use for them;
    - zero_filled: names of digits by what is left without leading zeros.
    """

    table: Table
    layout: Layout
    timezone: str
    market_symbols: Mapping[str, str]
    zero_filled: Mapping[str, str]

    @property
    def place(self) -> Path:
        """Return the path that errors name."""
        return self.table.container.place

    @property
    def stem(self) -> str:
        """Return the symbol in the name of the file."""
        return re.sub(self.layout.dialect.beside_symbol, "", self.table.container.stem)

    @property
    def has_symbols(self) -> bool:
        """Say whether the file has a column of symbols."""
        return "symbol" in self.layout.columns

    def require_prices(self, *, with_symbol: bool) -> None:
        """Raise UsageError for a table that lacks dates, closes, any row or, if asked, symbols."""
        self.layout.require(self.place, "session", "close", *(["symbol"] if with_symbol else []))
        if self.table.rows == 0:
            raise UsageError(
                f"{self.place}: the file has no rows with values: download it again, or leave it "
                "out"
            )

    def require_closes(self) -> None:
        """Raise UsageError for a row without a date, and for a close that is no number."""
        self._numbers("close", np.arange(len(self.sessions)))

    def bars(self, first: date, last: date, symbols: Collection[str]) -> pd.DataFrame:
        """Return the bars of some symbols from `first` to `last`, in the order of the file.

        Raises UsageError for a text that is no number, and for rows that are no daily bars of one
        stock.
        """
        _, known, codes = self._symbols
        is_asked = np.array([symbol in symbols for symbol in known])[codes]
        is_asked &= self.sessions >= np.datetime64(first)
        is_asked &= self.sessions <= np.datetime64(last)
        rows = np.flatnonzero(is_asked)
        of_rows = pd.Series(known, dtype=str).take(codes[rows]).array
        bars = pd.DataFrame({"session": self.sessions[rows], "symbol": of_rows}, copy=False)
        for name in BAR_COLUMNS[2:]:  # one at a time: a file may be large
            if name in self.layout.columns:
                bars[name] = self._numbers(name, rows)
        self._require_daily_bars(rows)
        self._convert(bars, rows)
        return bars_frame(bars)

    def symbols(self) -> list[str]:
        """Return the distinct symbols, sorted: the market's, where the market lists them."""
        return sorted({*self._symbols[1]} - {""})

    def restored_symbols(self) -> dict[str, str]:
        """Return the symbols that have lost leading zeros, each with the market's name for it."""
        whole = {name: self._whole_name(name) for name in sorted(self._symbols[0])}
        return {name: full for name, full in whole.items() if name != full}

    def require_none_after(self, last: np.datetime64) -> None:
        """Raise UsageError for a row after the last date of most stocks, with its symbol."""
        late_rows = np.flatnonzero(self.sessions > last)
        if not len(late_rows):
            return
        row = late_rows[0]
        written, _, codes = self._symbols
        symbol = f" ({shown(written[codes[row]])})" if self.has_symbols else ""
        day, last_day = (moment.astype("datetime64[D]") for moment in (self.sessions[row], last))
        raise self._fault(
            row,
            f"{symbol} is dated {day}, after {last_day}, the last date of most stocks: correct or "
            "delete the row if its date is wrong, or add the later rows of the other stocks; a "
            f"command with --as-of also runs with --as-of {last_day}",
        )

    @cached_property
    def sessions(self) -> ndarray:
        """Return the date of every row as datetime64[ns].

        Raises UsageError for a row without a date, and for dates with two readings.
        """
        formats = self.layout.dialect.dates
        values, codes = self.table.distinct(self.layout.columns["session"])
        days = days_of(values, self.timezone, formats, self.place)
        bad_rows = np.flatnonzero(np.array([day is None for day in days])[codes])
        if len(bad_rows):
            value = values[codes[bad_rows[0]]]
            raise self._fault(bad_rows[0], f": {fault_of(value, shown(value), formats)}")
        dates: ndarray = np.array(days, dtype="datetime64[ns]")[codes]
        return dates

    @cached_property
    def _symbols(self) -> tuple[list[str], list[str], ndarray]:
        """Return the distinct symbols, as written and as meant, and each row's position in them.

        A file without such a column is named after its stock. A number may lack the leading zeros
        of a listed symbol. Raises UsageError for a row without a symbol, and for a value that is no
        text, unless it is such a number.
        """
        if not self.has_symbols:
            symbol = self.market_symbols.get(self.stem, self.stem)
            return [self.stem], [symbol], np.zeros(self.table.rows, dtype=np.int8)
        position = self.layout.columns["symbol"]
        header = self.table.header[position]
        values, codes = self.table.distinct(position)
        written = ["" if value is None else str(value).strip() for value in values]
        names = [self._whole_name(name) for name in written]
        symbols = [self.market_symbols.get(name, name) for name in names]
        listed = self.zero_filled.keys()
        for value in values:
            if not isinstance(value, str | None) and str(value).removesuffix(".0") not in listed:
                raise UsageError(
                    f"{self.place}: symbols must be text, but column {header!r} holds "
                    f"{shown(value)}: write them as text, because numbers lose leading zeros; "
                    "whole numbers are read only if the market's file lists all of them"
                )
        blank_rows = np.flatnonzero(np.array([not name for name in symbols])[codes])
        if len(blank_rows):
            raise self._fault(
                blank_rows[0],
                f" has no symbol in column {header!r}: write the stock's symbol, or delete the row",
            )
        return written, symbols, codes

    def _whole_name(self, name: str) -> str:
        """Return the name that a number has lost its leading zeros of, such as 5930 or 5930.0."""
        return self.zero_filled.get(name.removesuffix(".0"), name)

    def _fault(self, row: int, words: str) -> UsageError:
        return UsageError(f"{self.place}: data row {self.table.row_number(row)}{words}")

    def _numbers(self, name: str, rows: ndarray) -> pd.Series:
        """Return a column of some rows as float64; text is parsed as a number, blanks are NaN."""
        position = self.layout.columns[name]
        header = self.table.header[position]
        column = self.table.column(position, rows)
        # Truth values become the texts "true" and "false", so that the error names their first row.
        if column.type not in (pa.string(), pa.large_string(), pa.bool_()):
            try:
                return pd.Series(column.cast(pa.float64(), safe=False).to_numpy())
            except pa.ArrowException as error:
                raise UsageError(
                    f"{self.place}: column {header!r} holds {column.type}, not numbers: write "
                    "numbers there; adjusted closes, volumes, dividends and splits may be left out "
                    "instead"
                ) from error
        written = _texts(column)
        number_format = self.layout.dialect.numbers
        # A volume may be written as 1.2M.
        numbers, is_bad = numbers_of(written, number_format, has_magnitudes=name == "volume")
        bad_rows = np.flatnonzero(is_bad)
        if len(bad_rows):
            text = written.iloc[bad_rows[0]].strip()
            raise self._fault(
                rows[bad_rows[0]],
                f": {header} {shown(text)} is not a number{advice_on(text, number_format)}",
            )
        return numbers

    def _convert(self, bars: pd.DataFrame, rows: ndarray) -> None:
        """Bring bars of these rows into the common units, in place, and add columns left out."""
        dialect = self.layout.dialect
        prices = [name for name in PER_SHARE if name in bars]
        if dialect.absolute:
            bars[prices] = bars[prices].abs().where(bars[prices] != 0)  # 0 stands for no price
        if dialect.divisor:
            bars[prices] = bars[prices].div(self._factors(rows, dialect.divisor), axis=0)
        if "volume" in bars and (dialect.volume_unit != 1 or dialect.volume_factor):
            volume = bars["volume"] * dialect.volume_unit
            if dialect.volume_factor:
                volume = volume * self._factors(rows, *dialect.volume_factor)
            bars["volume"] = volume.round(DIGITS)
        for name, original in dialect.copies.items():
            if name not in bars:
                bars[name] = bars[original]
        if self.layout.has_closes_alone:
            # A bar needs all four prices. The remark on the files says that these are copies, and
            # it shows in the data: no holding period is measured from opens that are all the close.
            for name in BESIDES_CLOSE:
                bars[name] = bars["close"]

    def _factors(self, rows: ndarray, *headers: str) -> pd.Series:
        """Return the factors of rows from the first of these columns, NaN where not above 0."""
        position = self.table.position(*headers)
        assert position is not None
        factors, _ = numbers_of(_texts(self.table.column(position, rows)), NumberFormat())
        return factors.where(factors > 0)

    def _require_daily_bars(self, rows: ndarray) -> None:
        """Raise UsageError for rows that are no daily bars of one stock, as of minutes."""
        dialect = self.layout.dialect
        for header, value in dialect.only.items():
            position = self.table.position(header)
            if position is None:
                continue
            texts = _texts(self.table.column(position, rows))
            # A missing value, which is empty in a text, is taken for the right one.
            others = np.flatnonzero(texts.fillna("").replace("", value) != value)
            if len(others):
                raise self._fault(
                    rows[others[0]],
                    f": {self.table.header[position]} is {shown(texts.iloc[others[0]])}, but daily "
                    f"bars have {value}: keep only the daily rows",
                )
        position = self.table.position(dialect.identity) if dialect.identity else None
        if position is None or position == self.layout.columns.get("symbol", position):
            return
        written, _, codes = self._symbols
        identities = _texts(self.table.column(position))
        counts = identities.groupby(np.array(written, dtype=object)[codes]).nunique()
        shared = counts.index[counts > 1]
        if len(shared):
            name = self.table.header[position]
            raise UsageError(
                f"{self.place}: {shown(shared[0])} is the symbol of {counts[shared[0]]} different "
                f"{name}: keep the rows of one, or list the stocks by {name} in the market's file, "
                f"with [columns] symbol = {name!r}"
            )


def read_price_file(
    container: Container,
    stated: Columns,
    timezone: str,
    market_symbols: Mapping[str, str],
    zero_filled: Mapping[str, str],
) -> PriceFile:
    """Read a table of prices, and say what its columns mean.

    A table with a field and a ticker above each column (`yfinance`), or with a column of closes for
    each stock (`wide`), is turned into a row for each stock and date. A first or last column of
    dates may lack a name.
    """
    place = container.place
    table = read_table(container, stated).with_constants(partitions(container, stated))
    layout = layout_of(table.header, stated, place)
    shape = None if table.row_in_file is None else "yfinance"
    dates = None if "session" in layout.columns else _unnamed_dates(table)
    if dates is not None:
        layout = replace(layout, columns={**layout.columns, "session": dates})
    if layout.is_wide():
        shape = "wide"
        dates = layout.columns["session"]
        stocks = {
            position: ("close", name)
            for position, name in enumerate(table.header)
            if position != dates
        }
        with container.readable():
            table = one_row_per_ticker_and_date(table, stocks, dates=dates)
        # Without the headers that the market's file names: those were of the wide table.
        layout = layout_of(table.header, stated.without_headers, place)
    dialect = layout.dialect
    if shape is not None:
        dialect = replace(dialect, title=dialects()[shape].title)
    # The decimal mark, a point or a comma, is shown by closes with another mark between fields.
    is_undecided = table.separator not in ("", ",") and stated.decimal is None
    if is_undecided and "close" in layout.columns:
        mark = decimal_mark(_texts(table.column(layout.columns["close"])))
        if mark is None:
            raise UsageError(
                f"{place}: the comma in its closes may be a decimal mark or a thousands mark: "
                "write all numbers with a decimal point and no comma, or say in the market's file "
                '[columns] decimal = ",", or decimal = "." and thousands = ","'
            )
        dialect = replace(dialect, numbers=replace(dialect.numbers, decimal=mark))
    layout = replace(layout, dialect=dialect)
    return PriceFile(table, layout, timezone, market_symbols, zero_filled)


def partitions(container: Container, stated: Columns) -> dict[str, str | None]:
    """Return the symbol and the date that folders named key=value give to all rows, by header."""
    stated_headers = {header_key(name) for name in stated.headers.values()}
    known = {**other_names(), **NAMES}
    ours = {"symbol": "symbol", "session": "date"}
    found: dict[str, str | None] = {}
    for part in container.place.parts[:-1]:
        name, is_pair, value = part.partition("=")
        key = header_key(name)
        header = name if key in stated_headers else ours.get(known.get(key, ""))
        if is_pair and header is not None:
            found[header] = None if value == HIVE_NULL else unquote(value)
    return found


def _unnamed_dates(table: Table) -> int | None:
    """Return the position of a column without a name that begins with a date; None without one."""
    for position in (0, len(table.header) - 1):
        if header_key(table.header[position]) in UNNAMED and table.rows:
            first = table.column(position, np.array([0])).to_pylist()
            days = days_of(first, "UTC", [ISO], table.container.place)
            # Whole numbers without a name are taken for a count of rows, even one that could be the
            # date 20260120.
            if days != [None] and not isinstance(first[0], int):
                return position
    return None


def _texts(column: pa.ChunkedArray) -> pd.Series:
    return pd.Series(column.cast(pa.string()).to_pandas(), dtype=str)
