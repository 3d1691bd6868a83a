"""Tables on the console, printed without pandas.

A short command is over before pandas is imported.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from rich.table import Table
from rich.text import Text

from dtml.errors import UsageError
from flows.settings import out

LONGEST_CELL = 1000  # characters


@dataclass(frozen=True)
class Column:
    """A column of a table: its values, None where one is missing, and how its floats are written.

    `float_format` is a format of Python, such as "+.3f"; "" writes all digits.
    """

    name: str
    values: Sequence[Any]
    is_number: bool
    float_format: str = ""


def print_table(columns: Sequence[Column], title: str | None = None) -> None:
    """Print columns of equal length side by side, numbers on the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(
            column.name, justify="right" if column.is_number else "left", overflow="fold"
        )
    cells_by_column = [
        [Text(_cell(value, column.float_format)) for value in column.values] for column in columns
    ]
    for cells in zip(*cells_by_column, strict=True):
        table.add_row(*cells)
    out.print(table)


def print_rows(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print the rows that a database driver returned, under the names of their columns."""
    values_by_column = zip(*rows, strict=True) if rows else [()] * len(names)
    columns = []
    for name, values in zip(names, values_by_column, strict=True):
        kinds = {type(value) for value in values} - {type(None)}  # none where all are missing
        are_numbers = bool(kinds) and kinds <= {Decimal, int, float}
        # Whole numbers in a column that also has fractions are written with a decimal point.
        as_float = are_numbers and kinds != {int}
        columns.append(
            Column(
                name=name,
                values=[_as_printed(value, as_float=as_float) for value in values],
                is_number=are_numbers,
            )
        )
    print_table(columns)


def require_distinct(names: Sequence[str]) -> None:
    """Raise UsageError where two columns of an answer have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"two columns are named {name!r}: rename one of them with `as`")


def size_in_words(size: int) -> str:
    """Return a number of bytes as text: in GiB or MiB if it is a whole number of them."""
    for unit, unit_bytes in {"GiB": 2**30, "MiB": 2**20}.items():
        if size % unit_bytes == 0:
            return f"{size // unit_bytes:,} {unit}"
    return f"{size:,} bytes"


def _as_printed(value: Any, *, as_float: bool) -> Any:
    """Return a value of a database driver as it is printed; None where it is missing.

    `as_float` says that its column has fractions.
    """
    if value is None:
        return None
    if as_float or isinstance(value, Decimal):
        return float(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


def _cell(value: Any, float_format: str) -> str:
    """Return the text of a cell: "-" for what is missing; a text over LONGEST_CELL is cut."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    text = format(value, float_format) if isinstance(value, float) else str(value)
    if len(text) <= LONGEST_CELL:
        return text
    return f"{text[:LONGEST_CELL]}... ({len(text):,} characters)"
