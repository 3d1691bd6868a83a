"""Tables on the console, printed without pandas, in the room that the console has.

Nothing is broken that a reader would have to put together again: no date, number, interval or name.
A table that is too wide first breaks its headings and its columns of prose between words, then
leaves out its least important columns and names them; an answer to a query, whose columns the user
has chosen, prints each row as a block of lines. A short command is over before pandas is imported.
"""

import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from dtml.errors import UsageError
from flows.settings import err, out, shown

LONGEST_CELL = 1000  # characters
GAP = 2  # blanks between two columns
NARROWEST = 14  # characters of a column of prose, at least, unless its words are longer


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
        """Return the texts of the values."""
        return [_cell(value, self.write) for value in self.values]


@dataclass(frozen=True)
class _Fitted:
    """A column with its texts, and the least and the greatest width that it can use."""

    column: Column
    cells: list[str]
    least: int
    greatest: int


def print_table(
    columns: Sequence[Column], title: str | None = None, importance: Sequence[str] | None = None
) -> None:
    """Print columns of equal length side by side, numbers on the right.

    If the console is too narrow for all columns, the least important are left out, and a note names
    them. `importance` names columns, the most important first. Columns that it does not name are
    left out before these, the rightmost first. If it is None, no column is left out. Where the
    columns that are left do not fit either, the rows are printed as blocks of lines.
    """
    if title:
        out.print(Text(shown(title), style="italic"))
    measured = [_fitted(column) for column in columns]
    widths = _widths(measured, out.width)
    left_out: list[str] = []
    if importance is not None:
        ranks = {name: rank for rank, name in enumerate(importance)}
        while widths is None and len(measured) > 1:
            least_important = max(
                range(len(measured)),
                key=lambda place: (ranks.get(measured[place].column.name, len(ranks)), place),
            )
            name = measured.pop(least_important).column.name
            left_out.append(" ".join(name.split()))  # a heading may have several lines
            widths = _widths(measured, out.width)
    if widths is None:
        _print_blocks(measured)
    else:
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        for fitted, width in zip(measured, widths, strict=True):
            is_right = fitted.column.is_number
            table.add_column(
                Text(_broken(fitted.column.heading, width)),
                justify="right" if is_right else "left",
                no_wrap=True,
                width=width,
            )
        rows = zip(*(fitted.cells for fitted in measured), strict=True)
        for row in rows:
            texts = [Text(_broken(cell, width)) for cell, width in zip(row, widths, strict=True)]
            table.add_row(*texts)
        out.print(table)
    if left_out:
        names = "; ".join(reversed(left_out))
        err.print(f"note: columns left out in this width: {names}", markup=False)


def _fitted(column: Column) -> _Fitted:
    """Measure a column: at its least width, prose and headings are broken between words.

    At its greatest width no line is broken but where the text itself has line breaks.
    """
    cells = column.cells
    lines = [line for cell in cells for line in cell.split("\n")]
    body = max((cell_len(line) for line in lines), default=0)
    heading = max(cell_len(line) for line in column.heading.split("\n"))
    longest_heading_word = max((cell_len(word) for word in column.heading.split()), default=0)
    narrowest_body = body
    if column.is_prose:
        words = [word for line in lines for word in line.split()]
        longest = max((cell_len(word) for word in words), default=0)
        narrowest_body = min(body, max(longest, NARROWEST))
    return _Fitted(
        column=column,
        cells=cells,
        least=max(narrowest_body, longest_heading_word, 1),
        greatest=max(body, heading, 1),
    )


def _widths(columns: Sequence[_Fitted], room: int) -> list[int] | None:
    """Return the width of each column in a room of so many characters; None where it is too small.

    What the least widths leave free goes to the columns of prose first, then to the headings.
    """
    widths = [column.least for column in columns]
    free = room - sum(widths) - GAP * (len(columns) - 1)
    if free < 0:
        return None
    by_need = sorted(range(len(columns)), key=lambda place: not columns[place].column.is_prose)
    for place in by_need:
        more = min(free, columns[place].greatest - widths[place])
        widths[place] += more
        free -= more
    return widths


def _print_blocks(columns: Sequence[_Fitted]) -> None:
    """Print each row as a block: the name of a column and its value on a line.

    A value that does not fit beside its name is on the lines below it, broken between words. A
    word that is longer than a line is left whole. Without rows, only the names are printed.
    """
    if not columns[0].cells:
        names = ", ".join(fitted.column.heading for fitted in columns)
        out.print(_broken(names, out.width), markup=False)
        return
    width = max(cell_len(fitted.column.heading) for fitted in columns)
    for number in range(len(columns[0].cells)):
        if number:
            out.print()
        for fitted in columns:
            text = fitted.cells[number]
            name = fitted.column.heading
            if width + GAP + cell_len(text) <= out.width and "\n" not in text:
                line = f"{name:<{width}}{' ' * GAP}{text}"
            else:
                broken = _broken(text, out.width - GAP)
                line = f"{name}\n{textwrap.indent(broken, ' ' * GAP)}"
            out.print(line, markup=False, soft_wrap=True)


def _broken(text: str, width: int) -> str:
    """Return a text with line breaks between words, so that no line but a long word is wider."""
    lines: list[str] = []
    for line in text.split("\n"):
        if cell_len(line) <= width:
            lines.append(line)
        else:
            lines += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


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
            raise UsageError(f"{count} columns are named {name!r}: rename all but one with `as`")


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


def _cell(value: Any, write: Callable[[Any], str] | None) -> str:
    """Return the text of a cell: "-" for what is missing or no finite number.

    A text over LONGEST_CELL is cut, and says how long it was.
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    # Rich would widen a tab only when it prints it.
    text = shown(str(value) if write is None else write(value)).expandtabs()
    if len(text) <= LONGEST_CELL:
        return text
    return f"{text[:LONGEST_CELL]}... ({len(text):,} characters)"
