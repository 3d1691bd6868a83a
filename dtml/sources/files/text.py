"""Tables written as text: CSV with any separator, encoding and line ends."""

import codecs
import csv
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from numpy import ndarray

from dtml.markets.definition import Columns
from dtml.sources.files.cells import BLANK, Cells, no_rows, plain
from dtml.sources.files.containers import OPENERS, AdvisedError
from dtml.sources.files.layouts import NAMES, dialects, header_key

HEADER_ROWS = 3  # fields, tickers, and the name of the dates
# What a row of fields, and one of tickers, begins with.
FIELD_LABELS = ("price", "attributes")
TICKER_LABELS = ("ticker", "tickers", "symbols")
LABELS = ("", *FIELD_LABELS, *TICKER_LABELS)  # of the first two rows
DATE_LABELS = ("date", "datetime")
# The name of a parquet column that pandas wrote for two names: "('Close', 'AAA')".
PAIR = re.compile(r"""\((['"])(?P<first>.*)\1, (['"])(?P<second>.*)\3\)""")
# Columns of yfinance besides ours.
OTHER_FIELDS = ("capital_gains", "repaired?")


def has_header_rows(records: Sequence[Sequence[str]]) -> bool:
    """Say whether a text begins with two header rows and the row of the dates' name."""
    if len(records) < HEADER_ROWS:
        return False
    first, second, third = records[:HEADER_ROWS]
    if not len(first) == len(second) == len(third) > 1:
        return False
    has_dates = header_key(third[0]) in DATE_LABELS and not any(third[1:])
    are_labels = header_key(first[0]) in LABELS and header_key(second[0]) in LABELS
    return has_dates and are_labels


def reshaped(records: Sequence[Sequence[str]], cells: Cells) -> Cells:
    """Return the cells of a text with two header rows, a row for each ticker and date."""
    first, second = records[0], records[1]
    labels = (header_key(first[0]), header_key(second[0]))
    pairs = list(zip(first[1:], second[1:], strict=True))
    return _one_row_per_ticker_and_date(
        cells, pairs, dates=0, are_fields_first=_are_fields_first(pairs, labels)
    )


def pairs_of_parquet(header: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Return the two names of each column that pandas wrote with two, by its position."""
    matches = {position: PAIR.fullmatch(name) for position, name in enumerate(header)}
    return {
        position: (match["first"], match["second"])
        for position, match in matches.items()
        if match is not None and match["second"]
    }


def reshaped_parquet(cells: Cells) -> Cells:
    """Return the cells of a parquet file with two names a column, a row for each ticker and date.

    Raises ValueError where it has no column of dates beside these, or several, where the names do
    not tell fields from tickers, and for two columns of one field and ticker.
    """
    pairs = pairs_of_parquet(cells.header)
    unpaired = [position for position in range(len(cells.header)) if position not in pairs]
    if not unpaired:
        raise AdvisedError(
            "it has columns of fields and tickers, but none of dates: add that column; pandas "
            "writes it if the dates are the index of the frame"
        )
    if len(unpaired) > 1:
        raise AdvisedError(
            "beside its columns of prices, such as ('Close', 'AAA'), it may have only one other, "
            f"the dates, but has {', '.join(cells.header[position] for position in unpaired)}: "
            "keep the dates and remove the rest of these"
        )
    named = list(pairs.values())
    is_first = _are_fields_first(named)
    return _one_row_per_ticker_and_date(cells, named, dates=unpaired[0], are_fields_first=is_first)


def reshaped_wide(cells: Cells, dates: int) -> Cells:
    """Return the cells of a table with a column of closes for each stock, as rows."""
    stocks = [name.strip() for position, name in enumerate(cells.header) if position != dates]
    pairs = [("close", stock) for stock in stocks]
    return _one_row_per_ticker_and_date(cells, pairs, dates=dates, are_fields_first=True)


def _are_fields_first(
    pairs: Sequence[tuple[str, str]], labels: tuple[str, str] | None = None
) -> bool:
    """Say whether the first name of each column is the field, and not the ticker.

    The `labels` of a text's two header rows say so; parquet has none (None). Without any, the row
    whose names are all known fields is that of the fields. Raises ValueError where this holds for
    both rows, as LOW and OPEN are tickers too, or for neither.
    """
    first_label, second_label = labels or ("", "")
    if first_label in FIELD_LABELS or second_label in TICKER_LABELS:
        return True
    if second_label in FIELD_LABELS or first_label in TICKER_LABELS:
        return False
    known = {*NAMES, *OTHER_FIELDS}
    first_are_fields, second_are_fields = (
        {header_key(pair[place]) for pair in pairs} <= known for place in (0, 1)
    )
    if first_are_fields == second_are_fields:
        if labels is None:
            raise AdvisedError(
                "the two names of its columns do not show which is the field and which the ticker: "
                "write one row per date and ticker, with the columns date, symbol, open, high, low "
                "and close"
            )
        raise AdvisedError(
            "its two header rows do not show which has the fields and which the tickers: begin the "
            "row of the fields with Price and that of the tickers with Ticker"
        )
    return first_are_fields


def _one_row_per_ticker_and_date(
    cells: Cells, pairs: Sequence[tuple[str, str]], *, dates: int, are_fields_first: bool
) -> Cells:
    """Return a row for each ticker and date that has any value.

    `pairs` are the two names of each column except that of the dates, whose position is `dates`.
    The result has the columns date, symbol and each field; its rows are those of one ticker after
    the other. Raises ValueError for two columns of one field and ticker.
    """
    positions = [position for position in range(len(cells.header)) if position != dates]
    columns: dict[str, dict[str, int]] = {}  # positions by ticker and field
    fields: dict[str, None] = {}  # in the order of the file
    for position, pair in zip(positions, pairs, strict=True):
        field, ticker = pair if are_fields_first else pair[::-1]
        of_ticker = columns.setdefault(ticker.strip(), {})
        if field in of_ticker:
            raise AdvisedError(f"two columns are {field} of {ticker}: keep one")
        of_ticker[field] = position
        fields[field] = None
    parts = [  # a table for each ticker, with all rows of the file
        _columns_of_ticker(cells, ticker, of_ticker, list(fields))
        for ticker, of_ticker in columns.items()
    ]
    rows_of_parts = [np.flatnonzero(_has_value(part)) for part in parts]
    filled = [part.take(pa.array(rows)) for part, rows in zip(parts, rows_of_parts, strict=True)]
    row_in_file = np.concatenate(rows_of_parts)
    dates_of_rows = plain(cells.read(dates)).take(pa.array(row_in_file))
    table = pa.concat_tables(filled)
    table = table.add_column(0, "date", dates_of_rows)
    return Cells.of_table(
        ["date", *table.column_names[1:]],
        table,
        separator=cells.separator,
        row_in_file=row_in_file,
    )


def _columns_of_ticker(
    cells: Cells, ticker: str, of_ticker: dict[str, int], fields: list[str]
) -> pa.Table:
    """Return the columns of one ticker, with its symbol; those it lacks are null."""
    arrays = [pa.chunked_array([pa.repeat(pa.scalar(ticker), cells.rows)])]
    for field in fields:
        if field in of_ticker:
            arrays.append(_comparable(plain(cells.read(of_ticker[field]))))
        else:
            kind = pa.string() if cells.separator else pa.float64()  # texts hold texts alone
            arrays.append(pa.chunked_array([pa.nulls(cells.rows, kind)]))
    return pa.table(arrays, names=["symbol", *fields])


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.cast(pa.float64(), safe=False)
    if pa.types.is_null(column.type):
        return column.cast(pa.float64())
    return column.cast(pa.string())


def _has_value(part: pa.Table) -> ndarray:
    has_value = np.zeros(part.num_rows, dtype=bool)
    for column in part.columns[1:]:
        if pa.types.is_string(column.type):
            texts = pyarrow.compute.utf8_lower(pyarrow.compute.utf8_trim_whitespace(column))
            is_blank = pyarrow.compute.is_in(texts, pa.array([*BLANK, None], pa.string()))
            is_filled = pyarrow.compute.invert(is_blank)
        else:
            is_filled = pyarrow.compute.is_finite(column).fill_null(False)
        has_value |= is_filled.to_numpy()
    return has_value


SEPARATORS = (",", ";", "\t", "|")
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
WEB_PAGE = (b"<!doctype html", b"<html", b"<?xml")
JSON = (b"{", b"[")
OLD_WORKBOOK = b"\xd0\xcf\x11\xe0"  # the first bytes of an .xls file
OTHER_ENCODING = (
    "if the text is not UTF-8, save it as UTF-8, or name its encoding in the market's file, such "
    'as [columns] encoding = "cp1252"'
)


def read_text(content: bytes, stated: Columns) -> Cells:
    """Return the cells of a text, all of them as text: as a number, `005930` would lose its zeros.

    `stated` is what the market's file says of the layout. Raises ValueError for what is no table,
    and for rows with more or fewer fields than the header (`AdvisedError`, with what to do); other
    errors of Arrow are raised as they are.
    """
    _refuse_other_formats(content)
    text = _in_utf8(content, stated.encoding)
    separator, text = _from_header(text, stated)
    if b"\n#" in text:  # comments below the header
        first_line, *lines = text.split(b"\n")
        text = b"\n".join([first_line, *(line for line in lines if not line.startswith(b"#"))])
    header = _record(_first_line(text), separator)
    if not header:
        if not stated.skip_rows:
            raise ValueError("the file is empty")
        raise AdvisedError(
            f"the file is empty below the {stated.skip_rows} lines that [columns] skip_rows skips: "
            "correct skip_rows in the market's file, or download the file again"
        )
    # yfinance's CSVs have three header lines, the first of which begins with one of `LABELS`. For
    # all other files only the first line is split here, as their lines may be long.
    may_have_several = header_key(header[0]) in LABELS
    beginning = list(_first_records(text, separator, HEADER_ROWS if may_have_several else 1))
    has_several = has_header_rows(beginning)
    rows = _after_lines(text, HEADER_ROWS if has_several else 1)
    table = _table(rows, separator, len(header))
    cells = Cells.of_table(header, table, separator=separator)
    return reshaped(beginning, cells) if has_several else cells


def _refuse_other_formats(content: bytes) -> None:
    """Raise ValueError for what is no text of a table, whatever the file's name."""
    beginning = content[:200].lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    if beginning.startswith(WEB_PAGE):
        raise AdvisedError(
            "this is a web page or XML, not a table: download the prices as CSV, Parquet or .xlsx"
        )
    if beginning.startswith(JSON):
        raise AdvisedError("this is JSON, not a table: save it as CSV or Parquet")
    if content.startswith(tuple(OPENERS)):
        raise AdvisedError("it is packed within a packed file: unpack it once")
    if beginning.startswith(OLD_WORKBOOK):
        raise AdvisedError("this file is in the old Excel format (.xls): save it as .xlsx or CSV")


def _in_utf8(content: bytes, encoding: str | None) -> bytes:
    """Return a text in UTF-8 without a byte order mark.

    Its encoding is the first of these that applies: the one stated, that of its byte order mark,
    UTF-8, or the one in which its first line is the header of a dialect. Raises ValueError where
    none applies, or where another one than UTF-8 does not decode the text.
    """
    if encoding is not None:
        return _decoded(content, encoding).removeprefix("\ufeff").encode()
    if content.startswith(UTF16):
        return content.decode("utf-16").encode()
    if content.startswith(codecs.BOM_UTF8):
        return content[len(codecs.BOM_UTF8) :]
    # Only the header is tried. Bytes below it that are not UTF-8 are an error of Arrow's.
    first_line = content.partition(b"\n")[0]
    try:
        first_line.decode("utf-8")
    except UnicodeDecodeError as error:
        known = _encoding_of_header(first_line)
        if known is None:
            raise AdvisedError(f"{error}; {OTHER_ENCODING}") from error
        return content.decode(known).encode()
    return content


def _decoded(content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise AdvisedError(
            f"{error}; correct or delete [columns] encoding in the market's file"
        ) from error


def _encoding_of_header(first_line: bytes) -> str | None:
    """Return the encoding in which a line is the header of a dialect, or None."""
    for dialect in dialects():
        for encoding in dialect.encodings:
            header = first_line.decode(encoding, errors="replace")
            keys = {header_key(name) for name in next(csv.reader([header]), [])}
            if dialect.signature <= keys:
                return encoding
    return None


def _from_header(text: bytes, stated: Columns) -> tuple[str, bytes]:
    """Return the separator, and the text from its header on.

    Blank lines, comments and a line such as `sep=;`, which Excel reads, may stand above the header;
    as many lines as the market's file states in `skip_rows` are skipped first.
    """
    text = _after_lines(text, stated.skip_rows)
    separator = stated.separator
    while text:
        line = _first_line(text)
        if line.startswith("sep=") and len(line) <= len("sep=;"):
            separator = separator or line.removeprefix("sep=") or ","
        elif line.strip() and not _is_comment(text, separator):
            break
        text = _after_lines(text, 1)
    return separator or _separator(_first_line(text)), text


def _is_comment(text: bytes, separator: str | None) -> bool:
    """Say whether a text begins with a comment; a header may begin with # as well.

    A line with # is a header if it has as many fields as the first line below without one.
    """
    line = _first_line(text)
    if not line.startswith("#"):
        return False
    below = _after_lines(text, 1)
    while below.startswith(b"#"):
        below = _after_lines(below, 1)
    following = _first_line(below)
    mark = separator or _separator(following)
    return len(_record(line, mark)) != len(_record(following, mark))


def _separator(line: str) -> str:
    """Return the separator that gives a header the most fields, a comma for a single field.

    Raises ValueError where several give it as many.
    """
    counts = {separator: len(_record(line, separator)) for separator in SEPARATORS}
    most = max(counts.values())
    if most <= 1:
        return ","
    best = [separator for separator, count in counts.items() if count == most]
    if len(best) > 1:
        marks = " or ".join(repr(separator) for separator in best)
        raise AdvisedError(
            f"its fields may be separated by {marks}: leave only one of these in the header, or "
            'say which in the market\'s file, such as [columns] separator = ";"'
        )
    return best[0]


def _record(line: str, separator: str) -> list[str]:
    """Return the fields of a line, none of an empty one."""
    return next(csv.reader([line], delimiter=separator), [])


def _first_line(text: bytes) -> str:
    end = text.find(b"\n")
    line = text if end < 0 else text[:end]
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise AdvisedError(f"{error}; {OTHER_ENCODING}") from error


def _after_lines(text: bytes, lines: int) -> bytes:
    """Return a text without its first lines."""
    start = 0
    for _ in range(lines):
        end = text.find(b"\n", start)
        start = len(text) if end < 0 else end + 1
    return text[start:]


def _first_records(text: bytes, separator: str, count: int) -> Iterator[list[str]]:
    for _ in range(count):
        line = _first_line(text)
        if line:
            yield _record(line, separator)
        text = _after_lines(text, 1)


def _table(rows: bytes, separator: str, fields: int) -> pa.Table:
    """Return the rows as an Arrow table of text, with positions for names."""
    if not rows.strip():
        return no_rows(fields)
    names = [str(position) for position in range(fields)]
    try:
        return pyarrow.csv.read_csv(
            pa.BufferReader(rows),
            # Only without threads do its errors name the row.
            read_options=pyarrow.csv.ReadOptions(use_threads=False, column_names=names),
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string())
            ),
        )
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise AdvisedError(f"{error}; {OTHER_ENCODING}") from error
        if "columns, got" in str(error):
            raise AdvisedError(
                f"{error}; give each row the {fields} fields of the header, with quotes around a "
                f"field that contains {separator!r}; download the file again if its end is cut off"
            ) from error
        raise
