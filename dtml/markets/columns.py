"""What a market's file says of the layout of its price files: the table [columns]."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dtml.markets.table import Table

NAMES = (
    "date",
    "symbol",
    "open",
    "high",
    "low",
    "close",
    "adj_close",
    "volume",
    "dividend",
    "split",
)
LAYOUT = (
    "date_format",
    "volume_unit",
    "separator",
    "decimal",
    "thousands",
    "encoding",
    "skip_rows",
)
# Besides strptime's formats of dates: days as Excel counts them, and units of time since 1970 in
# UTC, each with its nanoseconds.
EXCEL = "excel"
UNITS = {"seconds": 1_000_000_000, "milliseconds": 1_000_000, "nanoseconds": 1}


@dataclass(frozen=True)
class Columns:
    """What a market's file says of the layout of its price files.

    What it does not say, None here, is recognised from the price files themselves.

    - headers: for those of `NAMES` that are given, the header of that column in the price file;
    - date_format: such as "%d.%m.%Y", as Python's strptime reads it, `EXCEL` or one of `UNITS`;
    - volume_unit: shares in a unit of volume, above 0;
    - separator, decimal and thousands: one character each;
    - encoding: the name of a codec, such as cp949;
    - skip_rows: lines above the header, 0 or more.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    date_format: str | None = None
    volume_unit: float | None = None
    separator: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None
    skip_rows: int = 0


def read_columns(table: Table) -> Columns:
    """Read the table [columns] of a market's file; a mistake raises UsageError with its key."""
    table.allow(*NAMES, *LAYOUT)
    volume_unit = table.optional("volume_unit", float, None)
    if volume_unit is not None and not 0 < volume_unit < float("inf"):
        raise table.error("volume_unit", f"expected a finite number above 0, got {volume_unit}")
    skip_rows = table.optional("skip_rows", int, 0)
    if skip_rows < 0:
        raise table.error("skip_rows", f"expected 0 lines or more, got {skip_rows}")
    decimal = _character(table, "decimal")
    thousands = _character(table, "thousands")
    if decimal is not None and decimal == thousands:
        raise table.error(
            "thousands", f"{thousands!r} is also the decimal mark; correct decimal or thousands"
        )
    return Columns(
        headers={name: table.typed(name, str) for name in NAMES if name in table.values},
        date_format=_date_format(table),
        volume_unit=volume_unit,
        separator=_character(table, "separator"),
        decimal=decimal,
        thousands=thousands,
        encoding=_encoding(table),
        skip_rows=skip_rows,
    )


def _date_format(table: Table) -> str | None:
    """Return the format of dates; UsageError for one that does not read a whole date."""
    written = table.optional("date_format", str, None)
    if written is None or written == EXCEL or written in UNITS:
        return written
    sample = datetime(2026, 11, 24, tzinfo=UTC)
    with warnings.catch_warnings():
        # From Python 3.14 on, strptime warns of a format without a year.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            read = datetime.strptime(sample.strftime(written), written)  # noqa: DTZ007 - a date
        except (ValueError, DeprecationWarning):  # also a directive that strptime does not know
            read = None
    if read is None or read.date() != sample.date():
        others = ", ".join([EXCEL, *UNITS])
        raise table.error(
            "date_format",
            'expected a format of Python\'s strptime with day, month and year such as "%d.%m.%Y", '
            f"or one of {others}, got {written!r}",
        )
    return written


def _character(table: Table, key: str) -> str | None:
    """Return a mark of one character, None where the key is missing.

    It is not read as other texts are, which must be printable: a tab or a blank is a mark.
    """
    if key not in table.values:
        return None
    value = table.values[key]
    # A line end or a quote has a meaning of its own in a CSV.
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in '\r\n"':
        raise table.error(
            key,
            f"expected one ASCII character such as ',' or ';', no quote and no line end, got "
            f"{value!r}",
        )
    return value


def _encoding(table: Table) -> str | None:
    name = table.optional("encoding", str, None)
    if name is None:
        return None
    try:
        "a".encode(name)  # raises for an unknown name, and for a codec that encodes no text
    except (LookupError, ValueError) as problem:
        raise table.error(
            "encoding", f"unknown encoding {name!r}; give one such as cp949"
        ) from problem
    return name
