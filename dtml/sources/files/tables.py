"""The table in a container, whatever it is: Parquet, a workbook, or a text with any separator,
encoding and line ends.
"""

import codecs
import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy import ndarray

from dtml.markets.definition import Columns
from dtml.sources.files.cells import BLANK
from dtml.sources.files.containers import (
    OPENERS,
    ZIP,
    AdvisedError,
    Container,
    csv_of_workbook,
    require_room,
)
from dtml.sources.files.dialects import NAMES, dialects, header_key

PARQUET = b"PAR1"


@dataclass(frozen=True)
class Table:
    """The headers of a table and a way to read its columns.

    - header: the names of the columns as they are written;
    - rows: the number of rows below the header;
    - read: returns a column by its position, [rows];
    - separator: of the fields of a text; empty for parquet;
    - row_in_file: the row of the file, from 0, of each row here; None unless reshaped.
    """

    container: Container
    header: Sequence[str]
    rows: int
    read: Callable[[int], pa.ChunkedArray]
    separator: str = ""
    row_in_file: ndarray | None = field(default=None, compare=False)

    def row_number(self, row: int) -> int:
        """Return the number by which people find a row: the first below the header is 1."""
        return int(row if self.row_in_file is None else self.row_in_file[row]) + 1

    def position(self, *headers: str) -> int | None:
        """Return the position of the first of these headers that the table has."""
        keys = [header_key(name) for name in self.header]
        return next((keys.index(header) for header in headers if header in keys), None)

    def column(self, position: int, rows: ndarray | None = None) -> pa.ChunkedArray:
        """Return a column, or some rows of it; raise UsageError where it cannot be read."""
        with self.container.readable():
            column = self.read(position)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            return column if rows is None else column.take(pa.array(rows))

    def distinct(self, position: int) -> tuple[list[object], ndarray]:
        """Return a column's distinct values, then None (missing), and each row's position."""
        column = self.column(position)
        with self.container.readable():
            encoded = column.combine_chunks().dictionary_encode()
            values: list[object] = encoded.dictionary.to_pylist()
        codes: ndarray = encoded.indices.fill_null(len(values)).to_numpy()
        return [*values, None], codes

    def with_constants(self, constants: Mapping[str, str | None]) -> "Table":
        """Return the table with a column of one value for each header that it lacks."""
        added = {name: value for name, value in constants.items() if self.position(name) is None}
        header = [*self.header, *added]

        def read(position: int) -> pa.ChunkedArray:
            if position < len(self.header):
                return self.read(position)
            value = pa.scalar(added[header[position]], pa.string())
            return pa.chunked_array([pa.repeat(value, self.rows)])

        return replace(self, header=header, read=read)


def read_table(container: Container, stated: Columns) -> Table:
    """Return the table in a container, as `stated`; raise UsageError where it cannot be read.

    One with two names a column, field and ticker, gets a row for each date and ticker.
    """
    with container.readable():
        if container.archive is None:
            with container.place.open("rb") as file:
                is_parquet = file.read(len(PARQUET)) == PARQUET
            if is_parquet:  # it is read a column at a time
                return _parquet(container, container.place)
        content = container.content()
        if content.startswith(PARQUET):
            return _parquet(container, pa.BufferReader(content))
        if content.startswith(ZIP):
            # The CSV is made here, in UTF-8 with commas, whatever the market's file states.
            stated = replace(stated, encoding=None, separator=",")
            content = csv_of_workbook(content)
        elif ".parquet" in container.place.name.lower():
            raise ValueError("it does not begin as a parquet file")
        return _text(container, content, stated)


# The name of a column that pandas wrote for two names: "('Close', 'AAA')".
PAIR = re.compile(r"""\((['"])(?P<first>.*)\1, (['"])(?P<second>.+)\3\)""")


def _parquet(container: Container, file: Path | pa.BufferReader) -> Table:
    with pyarrow.parquet.ParquetFile(file) as opened:
        header: list[str] = opened.schema_arrow.names
        rows = opened.metadata.num_rows
    # A value that is repeated takes next to nothing in the file, but 8 bytes in memory.
    require_room(8 * rows * len(header))

    def read(position: int) -> pa.ChunkedArray:
        pa.default_memory_pool().release_unused()  # Arrow keeps the memory of earlier columns
        with pyarrow.parquet.ParquetFile(file) as opened:
            return opened.read(columns=[header[position]]).column(0)

    table = Table(container, header, rows, read)
    matches = {position: PAIR.fullmatch(name) for position, name in enumerate(header)}
    pairs = {place: (found["first"], found["second"]) for place, found in matches.items() if found}
    if not pairs:
        return table
    others = [name for position, name in enumerate(header) if position not in pairs]
    if len(others) != 1:
        raise AdvisedError(
            "beside its columns of prices, such as ('Close', 'AAA'), it must have one other, the "
            f"dates, but has {', '.join(others) or 'none'}: keep or add the dates alone; pandas "
            "writes them if they are the index of the frame"
        )
    return one_row_per_ticker_and_date(
        table, _fields_first(pairs, ("", "")), dates=header.index(others[0])
    )


HEADER_ROWS = 3  # fields, tickers, and the name of the dates
# What a row of fields, and one of tickers, begins with.
FIELD_LABELS = ("price", "attributes")
TICKER_LABELS = ("ticker", "tickers", "symbols")
LABELS = ("", *FIELD_LABELS, *TICKER_LABELS)  # of the first two rows
DATE_LABELS = ("date", "datetime")
# Columns of yfinance besides ours.
OTHER_FIELDS = ("capital_gains", "repaired?")


def _fields_first(
    pairs: Mapping[int, tuple[str, str]], labels: tuple[str, str]
) -> dict[int, tuple[str, str]]:
    """Return the two names of each column, by position, with the field before the ticker.

    By `labels`, else by the known fields; raises AdvisedError where these fit both names or
    neither.
    """
    first_label, second_label = labels
    known = {*NAMES, *OTHER_FIELDS}
    first_are_fields, second_are_fields = (
        {header_key(pair[place]) for pair in pairs.values()} <= known for place in (0, 1)
    )
    if first_label in FIELD_LABELS or second_label in TICKER_LABELS:
        first_are_fields, second_are_fields = True, False
    elif second_label in FIELD_LABELS or first_label in TICKER_LABELS:
        first_are_fields, second_are_fields = False, True
    if first_are_fields == second_are_fields:
        raise AdvisedError(
            "the two names of its columns do not show which is the field and which the ticker: in "
            "a text, begin the row of the fields with Price and that of the tickers with Ticker; "
            "else write one row per date and ticker, with the columns date, symbol, open, high, "
            "low and close"
        )
    if first_are_fields:
        return dict(pairs)
    return {position: (name, ticker) for position, (ticker, name) in pairs.items()}


def one_row_per_ticker_and_date(
    table: Table, pairs: Mapping[int, tuple[str, str]], *, dates: int
) -> Table:
    """Return a row for each ticker and date with a value: date, symbol and each field.

    `pairs`: field and ticker by position; `dates`: the dates' position. Raises AdvisedError for two
    columns of one pair.
    """
    positions: dict[str, dict[str, int]] = {}  # by ticker and field
    for position, (name, ticker) in pairs.items():
        of_ticker = positions.setdefault(ticker.strip(), {})
        if name in of_ticker:
            raise AdvisedError(f"two columns are {name} of {ticker.strip()}: keep one")
        of_ticker[name] = position
    days = table.column(dates)
    parts = []
    rows_of_parts = []
    for ticker, of_ticker in positions.items():
        columns = {name: table.column(position) for name, position in of_ticker.items()}
        has_value = np.zeros(table.rows, dtype=bool)
        for column in columns.values():
            has_value |= ~_is_blank(column)
        rows = np.flatnonzero(has_value)
        symbols = pa.repeat(pa.scalar(ticker), len(rows))
        filled = {name: column.take(pa.array(rows)) for name, column in columns.items()}
        parts.append(pa.table({"date": days.take(pa.array(rows)), "symbol": symbols, **filled}))
        rows_of_parts.append(rows)
    together = pa.concat_tables(parts, promote_options="permissive")
    return Table(
        table.container,
        together.column_names,
        together.num_rows,
        together.column,
        separator=table.separator,
        row_in_file=np.concatenate(rows_of_parts),
    )


def _is_blank(column: pa.ChunkedArray) -> ndarray:
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(column.cast(pa.string())))
    blank: ndarray = pc.is_in(texts, pa.array([*BLANK, None], pa.string())).to_numpy()
    return blank


SEPARATORS = (",", ";", "\t", "|")
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
COMMENT = re.compile(rb"^#.*\n?", flags=re.MULTILINE)
OTHER_FORMATS = {  # by the bytes with which they begin
    (b"<!doctype html", b"<html", b"<?xml"): (
        "this is a web page or XML, not a table: download the prices as CSV, Parquet or .xlsx"
    ),
    (b"{", b"["): "this is JSON, not a table: save it as CSV or Parquet",
    tuple(OPENERS): "it is packed within a packed file: unpack it once",
    (b"\xd0\xcf\x11\xe0",): (
        "this file is in the old Excel format (.xls): save it as .xlsx or CSV"
    ),
}
OTHER_ENCODING = (
    "if the text is not UTF-8, save it as UTF-8, or name its encoding in the market's file, such "
    'as [columns] encoding = "cp1252"'
)


def _text(container: Container, content: bytes, stated: Columns) -> Table:
    """Return the table in a text, all cells as text: as a number, `005930` would lose its zeros.

    Above the header: `skip_rows` as stated, blank lines, comments, and `sep=;`.
    """
    content = _in_utf8(content, stated.encoding)
    text = BytesIO(content)
    for _ in range(stated.skip_rows):
        text.readline()
    separator = stated.separator
    line = ""
    for content_of_line in text:
        line = _decoded(content_of_line)
        if line.startswith("sep=") and len(line) <= len("sep=;"):
            separator = separator or line.removeprefix("sep=") or ","
        elif line.strip() and not _is_comment(line, text, separator):
            break
    else:
        if not stated.skip_rows:
            raise ValueError("the file is empty")
        raise AdvisedError(
            f"the file is empty below the {stated.skip_rows} lines that [columns] skip_rows skips: "
            "correct skip_rows in the market's file, or download the file again"
        )
    separator = separator or _separator(line)
    header = _record(line, separator)
    rows = memoryview(content)[text.tell() :]  # not copied: a file may be large
    if b"#" in content:
        rows = memoryview(COMMENT.sub(b"", rows))
    names: dict[int, tuple[str, str]] = {}
    if header_key(header[0]) in LABELS:
        below = BytesIO(rows)
        tickers, dates = (
            _record(_decoded(below.readline()), separator) for _ in range(HEADER_ROWS - 1)
        )
        labels = (header_key(header[0]), header_key("".join(tickers[:1])))
        if (
            len(header) == len(tickers) == len(dates) > 1
            and labels[1] in LABELS
            and header_key(dates[0]) in DATE_LABELS
            and not any(dates[1:])
        ):
            pairs = enumerate(zip(header[1:], tickers[1:], strict=True), start=1)
            names = _fields_first(dict(pairs), labels)
            rows = memoryview(below.read())
    table = _table_of_rows(container, header, rows, separator)
    return one_row_per_ticker_and_date(table, names, dates=0) if names else table


def _in_utf8(content: bytes, encoding: str | None) -> bytes:
    """Return a text in UTF-8 without a byte order mark; raise AdvisedError for another format.

    By the stated encoding, its mark, UTF-8, or that in which it begins with a dialect's header.
    """
    beginning = content[:200].lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for marks, words in OTHER_FORMATS.items():
        if content.startswith(marks) or beginning.startswith(marks):
            raise AdvisedError(words)
    if encoding is not None:
        try:
            return content.decode(encoding).removeprefix("\ufeff").encode()
        except UnicodeDecodeError as error:
            raise AdvisedError(
                f"{error}; correct or delete [columns] encoding in the market's file"
            ) from error
    if content.startswith(UTF16):
        return content.decode("utf-16").encode()
    # Only the header is tried. Bytes below it that are not UTF-8 are an error of Arrow's.
    first_line = BytesIO(content).readline()
    try:
        _decoded(first_line)
    except AdvisedError:
        for dialect in dialects().values():
            for known in dialect.encodings:
                names = _record(first_line.decode(known, errors="replace"), ",")
                if {*dialect.signature} <= {header_key(name) for name in names}:
                    return content.decode(known).encode()
        raise
    return content.removeprefix(codecs.BOM_UTF8)


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise AdvisedError(f"{error}; {OTHER_ENCODING}") from error


def _is_comment(line: str, text: BytesIO, separator: str | None) -> bool:
    """Say whether a line is a comment: it begins with #, and is not a header.

    A header has as many fields as the first line without #, read in `text`.
    """
    if not line.startswith("#"):
        return False
    place = text.tell()
    below = next((below for below in text if not below.startswith(b"#")), b"")
    text.seek(place)
    following = _decoded(below)
    mark = separator or _separator(following)
    return len(_record(line, mark)) != len(_record(following, mark))


def _separator(line: str) -> str:
    """Return the separator that gives most fields, else a comma; AdvisedError for a tie."""
    counts = {separator: len(_record(line, separator)) for separator in SEPARATORS}
    most = max(counts.values())
    best = [separator for separator, count in counts.items() if count == most]
    if most <= 1:
        return ","
    if len(best) > 1:
        marks = " or ".join(repr(separator) for separator in best)
        raise AdvisedError(
            f"its fields may be separated by {marks}: leave only one of these in the header, or "
            'say which in the market\'s file, such as [columns] separator = ";"'
        )
    return best[0]


def _record(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [])


def _table_of_rows(
    container: Container, header: list[str], rows: memoryview, separator: str
) -> Table:
    names = [str(position) for position in range(len(header))]  # headers may repeat
    types = [(name, pa.string()) for name in names]
    table = pa.schema(types).empty_table()
    if re.search(rb"\S", rows):
        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(rows),
                # Only without threads do its errors name the row.
                read_options=pyarrow.csv.ReadOptions(use_threads=False, column_names=names),
                parse_options=pyarrow.csv.ParseOptions(delimiter=separator),
                convert_options=pyarrow.csv.ConvertOptions(column_types=dict(types)),
            )
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):
                raise AdvisedError(f"{error}; {OTHER_ENCODING}") from error
            if "columns, got" in str(error):
                raise AdvisedError(
                    f"{error}; give each row the {len(header)} fields of the header, with quotes "
                    f"around a field that contains {separator!r}; download the file again if its "
                    "end is cut off"
                ) from error
            raise
    return Table(container, header, table.num_rows, table.column, separator=separator)
