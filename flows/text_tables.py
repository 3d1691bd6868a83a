"""Tables on the console, printed without pandas: a short command is over before that is imported.

A table that is too wide breaks its headings and its columns of prose between words. Where that is
not enough, each row is printed as a block of lines. No date, number, interval or name is broken.
"""

import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from dtml.errors import UsageError
from flows.settings import out, shown

LONGEST_CELL = 1000  # characters
GAP = 2  # blanks between two columns
NARROWEST = 14  # characters of a column of prose, at least, unless its words are longer
ANY_WIDTH = 100_000
WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}  # words


@dataclass(frozen=True)
class Column:
    """A column of a table: its values, None where one is missing, and how they are written.

    `write` returns the text of a known value; None writes all digits. `is_prose` says that its
    texts are sentences or names in words, which may be broken between words.
    """

    name: str
    values: Sequence[Any]
    is_number: bool
    write: Callable[[Any], str] | None = None
    is_prose: bool = False

    @property
    def heading(self) -> str:
        """Return the name as it is printed."""
        return shown(self.name).expandtabs()

    @property
    def cells(self) -> list[str]:
        """Return the values as they are printed."""
        return [_cell(value, self.write) for value in self.values]


def print_table(columns: Sequence[Column], title: str | None = None) -> None:
    """Print columns of equal length side by side, numbers on the right."""
    if title:
        out.print(Text(shown(title), style="italic"))
    cells = [column.cells for column in columns]
    any_width = out.options.update(width=ANY_WIDTH)
    table = _laid_out(columns, cells, is_narrow=False)
    if out.measure(table, options=any_width).maximum > out.width:
        table = _laid_out(columns, cells, is_narrow=True)
    if out.measure(table, options=any_width).minimum <= out.width:
        out.print(table)
    elif not cells[0]:
        out.print(", ".join(column.heading for column in columns), markup=False)
    else:
        _print_blocks([column.heading for column in columns], list(zip(*cells, strict=True)))


def _laid_out(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], *, is_narrow: bool
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column, texts in zip(columns, cells, strict=True):
        width = max((cell_len(line) for text in texts for line in text.split("\n")), default=0)
        least = min(width, NARROWEST) if column.is_prose else width
        heading = column.heading
        if is_narrow:
            lines = [textwrap.fill(line, max(least, 1), **WHOLE) for line in heading.split("\n")]
            heading = "\n".join(lines)
        table.add_column(
            Text(heading),
            justify="right" if column.is_number else "left",
            no_wrap=not column.is_prose,
            min_width=least,
        )
    for row in zip(*cells, strict=True):
        table.add_row(*map(Text, row))
    return table


def _print_blocks(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as a block: the name of a column and its value on a line."""
    width = max(map(cell_len, names)) + GAP
    for number, row in enumerate(rows):
        if number:
            out.print()
        for name, text in zip(names, row, strict=True):
            whole = text.replace("\n", f"\n{' ' * width}")
            out.print(f"{name:<{width}}{whole}", markup=False, soft_wrap=True)


def print_rows(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print the rows that a database driver returned, under the names of their columns."""
    columns = []
    for name, values in zip(
        names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True
    ):
        kinds = {type(value) for value in values} - {type(None)}  # none where all are missing
        are_numbers = bool(kinds) and kinds <= {Decimal, int, float}
        # Whole numbers in a column that also has fractions are written with a decimal point.
        as_float = are_numbers and kinds != {int}
        printed = [float(value) if as_float and value is not None else value for value in values]
        columns.append(Column(name=name, values=printed, is_number=are_numbers))
    print_table(columns)


def require_distinct(names: Sequence[str]) -> None:
    """Raise UsageError where two columns of an answer have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"{count} columns are named {name!r}: rename all but one with `as`")


def size_in_words(size: int) -> str:
    """Return a number of bytes as text: in GiB or MiB if it is a whole number of them."""
    for unit, unit_bytes in {"GiB": 2**30, "MiB": 2**20}.items():
        if size % unit_bytes == 0:
            return f"{size // unit_bytes:,} {unit}"
    return f"{size:,} bytes"


def _cell(value: Any, write: Callable[[Any], str] | None) -> str:
    """Return the text of a cell: "-" for what is missing or no finite number.

    A text over LONGEST_CELL is cut, and says how long it was.
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if write is not None:
        text = write(value)
    elif isinstance(value, date):
        text = value.isoformat()
    elif isinstance(value, bytes):
        text = value.hex()
    elif isinstance(value, dict | list):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = str(value)
    # Rich would widen a tab only when it prints it.
    text = shown(text).expandtabs()
    if len(text) <= LONGEST_CELL:
        return text
    return f"{text[:LONGEST_CELL]}... ({len(text):,} characters)"
