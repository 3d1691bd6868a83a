"""One table of prices: its rows as bars, its dates and its symbols."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from numpy import ndarray

from dtml.errors import UsageError
from dtml.markets.definition import Columns
from dtml.prices.bars import BAR_COLUMNS
from dtml.sources.files.cells import (
    ISO,
    AmbiguousDateError,
    Cells,
    NumberFormat,
    advice_on,
    all_rows,
    days_of,
    decimal_mark,
    fault_of,
    is_numeric,
    is_text,
    parsed,
    plain,
)
from dtml.sources.files.containers import PARQUET, ZIP, Container, csv_of_workbook, require_room
from dtml.sources.files.layouts import (
    BESIDES_CLOSE,
    NAMES,
    UNNAMED,
    Dialect,
    Layout,
    dialect,
    header_key,
    is_wide,
    layout_of,
    other_names,
    require,
    shown,
)
from dtml.sources.files.text import pairs_of_parquet, read_text, reshaped_parquet, reshaped_wide

PER_SHARE = ("open", "high", "low", "close", "adj_close", "dividend")
DIGITS = 4  # after the point of a volume that was multiplied; further ones are rounding alone


@dataclass(frozen=True)
class TableFile:
    """One table of prices.

    - timezone: the exchange's, in which instants become dates;
    - stated: what the market's file says of its layout;
    - is_stated_optional: whether a file that does not fit it is read without it;
    - zero_filled: the market's symbols of digits by what is left of them without leading zeros.
    """

    container: Container
    timezone: str
    stated: Columns = field(default_factory=Columns)
    is_stated_optional: bool = False
    zero_filled: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Return the path that errors name."""
        return self.container.place

    @property
    def stem(self) -> str:
        """Return the symbol in the name of the file."""
        known = self.layout.dialect
        stem = self.container.stem
        if known is None:
            return stem
        stem = stem.removesuffix(known.file_suffix)
        for prefix in known.file_prefixes:
            if stem.startswith(prefix):
                return stem.removeprefix(prefix)
        return stem

    @property
    def partitions(self) -> dict[str, str | None]:
        """Return the symbol and the date that folders named key=value give to all rows, by header.

        The header is our own, or the one that the market's file names.
        """
        stated = {header_key(name) for name in self.stated.headers.values()}
        known = {**other_names(), **NAMES}
        ours = {"symbol": "symbol", "session": "date"}
        found = {}
        for key, value in self.container.partitions.items():
            if header_key(key) in stated:
                found[key] = value
            elif known.get(header_key(key)) in ours:
                found[ours[known[header_key(key)]]] = value
        return found

    @property
    def has_symbols(self) -> bool:
        """Say whether the file has a column of symbols."""
        return "symbol" in self.layout.columns

    @property
    def layout(self) -> Layout:
        """Return what the columns mean."""
        return self._table[1]

    def require_prices(self, *, with_symbol: bool) -> None:
        """Raise UsageError for a table that cannot be read, or lacks dates, closes or any row.

        `with_symbol` says whether it must have a column of symbols too.
        """
        self._require("session", "close", *(["symbol"] if with_symbol else []))
        self._require_rows()

    def rows(
        self, first: date, last: date, *, with_symbol: bool, only: Collection[str] | None = None
    ) -> pd.DataFrame:
        """Return the rows of `first` to `last`, both included, in the order of the file.

        `with_symbol` says whether the column `symbol` is required and read; with `only`, rows of
        other symbols are left out. The other columns are those of `BAR_COLUMNS` that the file has
        or `_converted` adds: session datetime64[ns], numbers float64, NaN where the file has none.
        """
        self._require("session", "close", *(["symbol"] if with_symbol else []))
        sessions = self.sessions
        is_inside = (sessions >= np.datetime64(first)) & (sessions <= np.datetime64(last))
        row_positions = np.flatnonzero(is_inside)
        columns: dict[str, pd.Series] = {}
        if with_symbol:
            symbols = self._symbols(row_positions)
            if only is not None:
                is_wanted = symbols.isin(only).to_numpy()
                if not is_wanted.all():
                    symbols = symbols[is_wanted].reset_index(drop=True)
                    row_positions = row_positions[is_wanted]
            columns["symbol"] = symbols
        for name in BAR_COLUMNS[2:]:  # one at a time: a file may be large
            if name in self.layout.columns:
                columns[name] = self._numbers(name, row_positions)
        rows = pd.DataFrame({"session": sessions[row_positions], **columns}, copy=False)
        return self._converted(rows, row_positions)

    def symbols(self) -> list[str]:
        """Return the distinct symbols, sorted; none when the file has no column of them."""
        if not self.has_symbols:
            return []
        self._require_rows()
        return sorted(self._symbols(np.arange(self._cells.rows)).unique())

    def restored_symbols(self) -> dict[str, str]:
        """Return the symbols that have lost leading zeros, each with the market's symbol for it."""
        if not self.has_symbols or not self.zero_filled:
            return {}
        values, _ = self._cells.distinct(self.layout.columns["symbol"])
        written = sorted({str(value).strip() for value in values if value is not None})
        return {name: self._restored(name) for name in written if self._restored(name) != name}

    def last_session(self) -> date:
        """Return the latest date of the file."""
        return pd.Timestamp(self.sessions.max()).date()

    def symbol_of(self, row: int) -> str:
        """Return the symbol of a row, by its position."""
        return str(self._symbols(np.array([row])).iloc[0])

    def row_number(self, row: int) -> int:
        """Return the number of a row in the file: the first below the header is 1."""
        return self._cells.row_number(row)

    @cached_property
    def sessions(self) -> ndarray:
        """Return the date of every row as datetime64[ns]; each distinct value is parsed once.

        Raises UsageError for the first row without a date, for dates with two readings, and for a
        file without a column of dates or without rows.
        """
        self._require("session")
        self._require_rows()
        with self.container.readable():
            values, codes = self._cells.distinct(self.layout.columns["session"])
        try:
            days = days_of(values, self.timezone, self.layout.dates)
        except AmbiguousDateError as error:
            raise UsageError(
                f"{self.path}: {error}: write all dates as YYYY-MM-DD, or say in the market's "
                'file how they are written, such as [columns] date_format = "%d/%m/%Y"'
            ) from error
        is_bad = np.array([day is None for day in days])
        bad_rows = np.flatnonzero(is_bad[codes])
        if len(bad_rows):
            row = bad_rows[0]
            value = values[codes[row]]
            fault = fault_of(value, shown(value), self.layout.dates)
            raise UsageError(f"{self.path}: data row {self.row_number(row)}: {fault}")
        dates: ndarray = np.array(days, dtype="datetime64[ns]")[codes]
        return dates

    @property
    def _cells(self) -> Cells:
        return self._table[0]

    @cached_property
    def _table(self) -> tuple[Cells, Layout]:
        """Return the cells of the file, and what its columns mean.

        Two kinds of table come back with a row for each stock and date, and with a dialect that
        follows from their shape instead of their headers: those with two names for each column, a
        field and a ticker (`yfinance`), and those with a column of closes for each stock (`wide`).
        In any other table, a column without a name may be that of the dates (`_dates_position`).
        """
        # An index's own file may be in another layout than the prices: then it fits only without
        # [columns].
        unstated = Columns()
        is_optional = self.is_stated_optional and self.stated != unstated
        if not is_optional or self._is_read_by(self.stated):
            stated = self.stated
        else:
            # Errors of a file that fits neither way are those of the layout that is stated.
            stated = unstated if self._is_read_by(unstated) else self.stated
        cells = self._with_partitions(self._stored(stated))
        dialect_of_shape: Dialect | None = None
        if cells.row_in_file is not None:  # `_stored` found two names for each column
            dialect_of_shape = dialect("yfinance")
        layout = layout_of(cells.header, stated, self.path)
        dates = _dates_position(layout, cells)
        if "close" not in layout.columns and is_wide(cells.header, dates):
            assert dates is not None  # `is_wide` is false without dates
            dialect_of_shape = dialect("wide")
            with self.container.readable():
                cells = reshaped_wide(cells, dates)
            # Without the headers that the market's file names: those were of the wide table.
            layout = layout_of(cells.header, replace(stated, headers={}), self.path)
        elif dates is not None and "session" not in layout.columns:
            layout = replace(layout, columns={**layout.columns, "session": dates})
        if dialect_of_shape is not None:
            layout = replace(layout, dialect=dialect_of_shape)
        return cells, self._with_decimal_mark(layout, cells)

    def _with_partitions(self, cells: Cells) -> Cells:
        """Return the cells with a column for each of `partitions` that the file itself lacks."""
        keys = {header_key(name) for name in cells.header}
        added = {
            name: value for name, value in self.partitions.items() if header_key(name) not in keys
        }
        values = list(added.values())

        def read(position: int) -> pa.ChunkedArray:
            if position < len(cells.header):
                return cells.read(position)
            value = pa.scalar(values[position - len(cells.header)], pa.string())
            return pa.chunked_array([pa.repeat(value, cells.rows)])

        return replace(cells, header=[*cells.header, *added], read=read) if added else cells

    def _is_read_by(self, stated: Columns) -> bool:
        table = replace(self, stated=stated, is_stated_optional=False)
        try:
            table.require_prices(with_symbol=False)
            rows = all_rows(table._cells)
            # Always equal: both have all rows, and are read for the errors that they raise.
            return len(table.sessions) == len(table._numbers("close", rows))
        except UsageError:
            return False

    def _stored(self, stated: Columns) -> Cells:
        """Return the cells of the table as it is stored.

        If each column has two names, a field and a ticker (as yfinance and pandas write them),
        `_parquet` and `read_text` return a row for each date and ticker.
        """
        if self.container.is_plain_parquet():
            return self._parquet(self.container.file)
        content = self.container.content()
        with self.container.readable():
            if content.startswith(PARQUET):
                return self._parquet(pa.BufferReader(content))
            if content.startswith(ZIP):  # a workbook, which `content` leaves packed
                content = csv_of_workbook(content)
                # The CSV is made here, in UTF-8 with commas, whatever the market's file states.
                stated = replace(stated, encoding=None, separator=",")
            elif ".parquet" in self.container.place.name.lower():
                raise ValueError("it does not begin as a parquet file")
            return read_text(content, stated)

    def _parquet(self, file: Path | pa.BufferReader) -> Cells:
        """Return a parquet file's cells: by column when needed, all now if columns are pairs."""

        def read(position: int) -> pa.ChunkedArray:
            pa.default_memory_pool().release_unused()  # Arrow keeps the memory of earlier columns
            with self.container.readable(), pyarrow.parquet.ParquetFile(file) as opened:
                name = opened.schema_arrow.names[position]
                return opened.read(columns=[name]).column(0)

        with self.container.readable():
            with pyarrow.parquet.ParquetFile(file) as opened:
                names: list[str] = opened.schema_arrow.names
                rows = opened.metadata.num_rows
                # A value that is repeated takes next to nothing in the file, but 8 bytes in memory.
                require_room(8 * rows * len(names))
            cells = Cells(header=names, rows=rows, read=read)
            return reshaped_parquet(cells) if pairs_of_parquet(names) else cells

    def _with_decimal_mark(self, layout: Layout, cells: Cells) -> Layout:
        """Return a layout with the decimal mark, a point or a comma, that the file's closes show.

        The layout's own mark stays if the market's file states it, if there are no closes, and for
        parquet and texts with commas between fields. Raises UsageError if a comma may be either.
        """
        is_undecided = cells.separator not in ("", ",") and not layout.has_decimal
        if not is_undecided or "close" not in layout.columns:
            return layout
        written = cells.read(layout.columns["close"]).to_pandas().astype(str)
        mark = decimal_mark(written)
        if mark is None:
            raise UsageError(
                f"{self.path}: the comma in its closes may be a decimal mark or a thousands mark: "
                "write all numbers with a decimal point and no comma, or say in the market's file "
                '[columns] decimal = ",", or decimal = "." and thousands = ","'
            )
        return replace(layout, numbers=replace(layout.numbers, decimal=mark))

    def _require(self, *fields: str) -> None:
        require(self.layout, self.path, *fields)

    def _require_rows(self) -> None:
        if self._cells.rows == 0:
            raise UsageError(
                f"{self.path}: the file has no rows with values: download it again, or leave it out"
            )

    def _symbols(self, row_positions: ndarray) -> pd.Series:
        """Return the symbols of some rows as text, as they are written but for blanks around them.

        One that has lost its leading zeros becomes the market's symbol (`zero_filled`). Raises
        UsageError for a column of another type than text, unless it holds numbers that are all
        symbols of the market, and for a row without a symbol.
        """
        column_position = self.layout.columns["symbol"]
        with self.container.readable():
            column = plain(self._cells.rows_at(column_position, row_positions))
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            column = self._symbols_of_numbers(column)
        if not is_text(column.type):
            raise UsageError(
                f"{self.path}: symbols must be text, but column "
                f"{self.layout.header_of('symbol')!r} has type {column.type}: write them as text, "
                "because numbers lose leading zeros; whole numbers are read only if the market's "
                "file lists all of them"
            )
        encoded = column.combine_chunks().dictionary_encode()  # few are distinct
        distinct = [*encoded.dictionary.to_pylist(), ""]  # the last one stands for missing symbols
        stripped = [symbol.strip() for symbol in distinct]
        names = pd.Series([self._restored(name) for name in stripped], dtype=str)
        codes = encoded.indices.fill_null(len(names) - 1).to_numpy()
        blank_rows = np.flatnonzero((names == "").to_numpy()[codes])
        if len(blank_rows):
            number = self.row_number(row_positions[blank_rows[0]])
            raise UsageError(
                f"{self.path}: data row {number} has no symbol in column "
                f"{self.layout.header_of('symbol')!r}: write the stock's symbol, or delete the row"
            )
        return names.take(codes).reset_index(drop=True)

    def _symbols_of_numbers(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return whole numbers as text if the market lists all as symbols, else the numbers.

        Floats are whole numbers that were read in a column with a gap. A missing value stays.
        """
        try:
            written = column.cast(pa.int64()).cast(pa.string())
        except pa.ArrowInvalid:  # a fraction
            return column
        known = {*self.zero_filled, None}
        return column if set(written.unique().to_pylist()) - known else written

    def _restored(self, symbol: str) -> str:
        """Return the market's symbol for one that was read as a number, such as 5930 or 5930.0."""
        return self.zero_filled.get(symbol.removesuffix(".0"), symbol)

    def _numbers(self, name: str, row_positions: ndarray) -> pd.Series:
        """Return a column of some rows as float64; text is parsed as a number, blanks are NaN.

        Raises UsageError for a text that is no number, and for a column of another type.
        """
        with self.container.readable():
            column = plain(self._cells.rows_at(self.layout.columns[name], row_positions))
        header = self.layout.header_of(name)
        if is_numeric(column.type):
            return pd.Series(column.cast(pa.float64(), safe=False).to_numpy())
        # Booleans become the texts "true" and "false", so that the error names their first row.
        if not is_text(column.type) and not pa.types.is_boolean(column.type):
            raise UsageError(
                f"{self.path}: column {header!r} holds {column.type}, not numbers: write numbers "
                "there; adjusted closes, volumes, dividends and splits may be left out instead"
            )
        written = pd.Series(column.cast(pa.string()).to_pandas(), dtype=str)
        number_format = self.layout.numbers
        # A volume may be written as 1.2M.
        numbers, is_bad = parsed(written, number_format, has_magnitudes=name == "volume")
        bad_rows = np.flatnonzero(is_bad)
        if len(bad_rows):
            number = self.row_number(row_positions[bad_rows[0]])
            text = written.iloc[bad_rows[0]].strip()
            raise UsageError(
                f"{self.path}: data row {number}: {header} {shown(text)} is not a number"
                f"{advice_on(text, number_format)}"
            )
        return numbers

    def _converted(self, rows: pd.DataFrame, row_positions: ndarray) -> pd.DataFrame:
        """Return the rows in the units of bars, and with the columns that the file leaves out.

        Volumes become shares. By the entries of the file's dialect, prices lose their sign
        (`absolute`), are divided by a column (`divisor`), and columns are added as copies of others
        (`copies`). Where there are closes alone, they become open, high and low too.
        `row_positions` are those of the rows in the table. The frame is changed in place. Raises
        UsageError for rows that are no daily bars of one stock by the dialect's entries.
        """
        if self.layout.volume_unit != 1 and "volume" in rows:
            rows["volume"] = (rows["volume"] * self.layout.volume_unit).round(DIGITS)
        known = self.layout.dialect
        if known is not None:
            self._refuse_other_rows(known, row_positions)
            if known.absolute:
                for name in set(PER_SHARE).intersection(rows):  # 0 stands for no price there
                    rows[name] = rows[name].abs().where(rows[name] != 0)
            if known.divisor is not None:
                self._adjust(known, rows, row_positions)
            for name, original in known.copies.items():
                if name not in rows:
                    rows[name] = rows[original]
        if self.layout.has_closes_alone:
            # A bar needs all four prices. The remark on the files says that these are copies, and
            # it shows in the data: no holding period is measured from opens that are all the close.
            for name in BESIDES_CLOSE:
                rows[name] = rows["close"]
        return rows

    def _adjust(self, known: Dialect, rows: pd.DataFrame, row_positions: ndarray) -> None:
        """Divide prices by the column `divisor`, and multiply volumes by one of `volume_factor`."""
        divisor = self._factors(row_positions, known.divisor or "")
        for name in set(PER_SHARE).intersection(rows):
            rows[name] = rows[name] / divisor
        if "volume" in rows and known.volume_factor:
            factor = self._factors(row_positions, *known.volume_factor)
            rows["volume"] = (rows["volume"] * factor).round(DIGITS)

    def _factors(self, row_positions: ndarray, *headers: str) -> pd.Series:
        """Return the factors of rows from the first of these columns, NaN where not above 0."""
        position = self.layout.position(*headers)
        assert position is not None
        with self.container.readable():
            column = plain(self._cells.rows_at(position, row_positions))
            texts = pd.Series(column.cast(pa.string()).to_pandas(), dtype=str)
            factors, _ = parsed(texts, NumberFormat())
        return factors.where(factors > 0)

    def _refuse_other_rows(self, known: Dialect, row_positions: ndarray) -> None:
        """Raise UsageError for rows that are no daily bars of one stock, by a dialect's rules.

        These are rows with another value than the dialect's daily bars have, such as bars of
        minutes, and those of a symbol that stands for two securities.
        """
        for header, value in known.only.items():
            position = self.layout.position(header)
            if position is None:
                continue
            with self.container.readable():
                column = self._cells.rows_at(position, row_positions)
                texts = column.cast(pa.string()).to_pandas()
            # A missing value, which is empty in a text, is taken for the right one.
            others = np.flatnonzero(texts.fillna("").replace("", value) != value)
            if len(others):
                number = self.row_number(row_positions[others[0]])
                name = self._cells.header[position]
                raise UsageError(
                    f"{self.path}: data row {number}: {name} is {shown(texts.iloc[others[0]])}, "
                    f"but daily bars have {value}: keep only the daily rows"
                )
        if known.identity is None or not self.has_symbols:
            return
        position = self.layout.position(known.identity)
        if position is None or position == self.layout.columns["symbol"]:
            return
        symbols = self._symbols(np.arange(self._cells.rows))
        identities = self._cells.read(position).cast(pa.string()).to_pandas()
        counts = identities.groupby(symbols.to_numpy()).nunique()
        shared = counts.index[counts > 1]
        if len(shared):
            name = self._cells.header[position]
            raise UsageError(
                f"{self.path}: {shown(shared[0])} is the symbol of {counts[shared[0]]} different "
                f"{name}: keep the rows of one, or list the stocks by {name} in the market's file, "
                f"with [columns] symbol = {name!r}"
            )


def _dates_position(layout: Layout, cells: Cells) -> int | None:
    """Return the position of the column of dates, None where there is none.

    It is the one named so, or else a first or last column without a name that begins with a date.
    """
    if "session" in layout.columns:
        return layout.columns["session"]
    for position, name in enumerate(cells.header):
        is_at_an_end = position in (0, len(cells.header) - 1)
        if header_key(name) in UNNAMED and is_at_an_end and cells.rows:
            first = plain(cells.rows_at(position, np.array([0]))).to_pylist()
            is_date = days_of(first, "UTC", [ISO])[0] is not None
            # Whole numbers without a name are taken for a count of rows, even one that could be the
            # date 20260120.
            if is_date and not isinstance(first[0], int):
                return position
    return None
