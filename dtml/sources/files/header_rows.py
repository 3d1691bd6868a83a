"""Tables that are wider than a row for each stock and date: they are made long.

yfinance writes the fields and the tickers in two header rows; others have a column for each stock.
"""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy import ndarray

from dtml.sources.files.cells import BLANK, Cells, plain
from dtml.sources.files.containers import AdvisedError
from dtml.sources.files.dialects import NAMES, header_key

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
        left_out=cells.left_out,
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
    """Return a column in a type that those of all tickers share."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.cast(pa.float64(), safe=False)
    if pa.types.is_null(column.type):
        return column.cast(pa.float64())
    return column.cast(pa.string())


def _has_value(part: pa.Table) -> ndarray:
    """Return which rows have any value besides the symbol."""
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
