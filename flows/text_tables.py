"""Tables on the console, printed without pandas: a short command is over before that is imported.

A table that is too wide breaks headings and prose between words, else each row is a block of lines.
"""

import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
    """A column of a table; the cells of prose may be broken between words."""

    heading: str
    cells: Sequence[str]
    is_number: bool = False
    is_prose: bool = False


def column(
    name: str,
    values: Iterable[Any],
    write: Callable[[Any], str] | None = None,
    *,
    is_number: bool = False,
    is_prose: bool = False,
) -> Column:
    """Return the column of values, each as `write` returns it, by default with all its digits."""
    cells = [_cell(value, write) for value in values]
    return Column(printed(name), cells, is_number=is_number, is_prose=is_prose)


def printed(text: str) -> str:
    """Return a text as the console prints it; Rich would widen a tab only then."""
    return shown(text).expandtabs()


def print_table(columns: Sequence[Column], title: str | None = None) -> None:
    """Print columns of equal length side by side, numbers on the right."""
    if title:
        out.print(Text(shown(title), style="italic"))
    any_width = out.options.update(width=ANY_WIDTH)
    rows = list(zip(*[each.cells for each in columns], strict=True))
    table = _laid_out(columns, rows, is_narrow=False)
    if out.measure(table, options=any_width).maximum > out.width:
        table = _laid_out(columns, rows, is_narrow=True)
    if out.measure(table, options=any_width).minimum <= out.width:
        out.print(table)
    elif not rows:
        out.print(", ".join(each.heading for each in columns), markup=False)
    else:
        width = max(cell_len(each.heading) for each in columns) + GAP
        for number, row in enumerate(rows):
            if number:
                out.print()
            for each, text in zip(columns, row, strict=True):
                whole = text.replace("\n", f"\n{' ' * width}")
                out.print(f"{each.heading:<{width}}{whole}", markup=False, soft_wrap=True)


def _laid_out(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, is_narrow: bool
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for each in columns:
        least = max((cell_len(line) for cell in each.cells for line in cell.split("\n")), default=0)
        if each.is_prose:
            least = min(least, NARROWEST)
        heading = each.heading
        if is_narrow:
            lines = [textwrap.fill(line, max(least, 1), **WHOLE) for line in heading.split("\n")]
            heading = "\n".join(lines)
        table.add_column(
            Text(heading),
            justify="right" if each.is_number else "left",
            no_wrap=not each.is_prose,
            min_width=least,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def print_rows(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print the rows that a database driver returned, under the names of their columns."""
    columns = []
    for number, name in enumerate(names):
        values = [row[number] for row in rows]
        kinds = {type(value) for value in values} - {type(None)}  # none where all are missing
        are_numbers = bool(kinds) and kinds <= {Decimal, int, float}
        if are_numbers and kinds != {int}:  # whole numbers too get a decimal point
            values = [None if value is None else float(value) for value in values]
        columns.append(column(name, values, is_number=are_numbers))
    print_table(columns)


def require_distinct(names: Sequence[str]) -> None:
    """Raise UsageError where two columns of an answer have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"{count} columns are named {name!r}: rename all but one with `as`")


def _cell(value: Any, write: Callable[[Any], str] | None) -> str:
    """Return the text of a cell: "-" for what is missing or not finite, cut over LONGEST_CELL."""
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
    text = printed(text)
    if len(text) <= LONGEST_CELL:
        return text
    return f"{text[:LONGEST_CELL]}... ({len(text):,} characters)"
