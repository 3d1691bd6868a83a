"""The documented views: an SQL file each, whose head explains the view and each of its columns.

The head is made of comment lines: the meaning of the view, an empty line, a line for each column
with its name, its type and its meaning, and, where needed, another empty line and the reasons for
the SQL. The select follows.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Final

import sqlalchemy as sa

from db.tables import TYPES as COLUMN_TYPES
from db.tables import metadata

FOLDER: Final = Path(__file__).parent
TYPES: Final = ("date", "integer", "json", "number", "text", "timestamp")
_COLUMN = re.compile(rf"([a-z_0-9]+) +({'|'.join(TYPES)}) +(\S.*\.)")


@dataclass(frozen=True)
class ViewColumn:
    """A column of a view: its name, its type (one of TYPES), and its meaning in a sentence."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class View:
    """A documented view: its meaning, its columns in order, and the statement that creates it.

    The statement is the same for both engines.
    """

    name: str
    meaning: str
    columns: tuple[ViewColumn, ...]
    sql: str

    def meanings(self) -> dict[str, str]:
        """Return the meaning of each column by its name."""
        return {column.name: column.meaning for column in self.columns}

    @property
    def comments(self) -> str:
        """Return the SQL that stores the view's and its columns' meanings as PostgreSQL's comments.

        Programs that browse a database show them. The statements are separated by semicolons.
        """
        meanings = {f"view {self.name}": self.meaning}
        for name, meaning in self.meanings().items():
            meanings[f'column {self.name}."{name}"'] = meaning
        statements = []
        for what, meaning in meanings.items():
            quoted = meaning.replace("'", "''")
            statements.append(f"comment on {what} is '{quoted}'")
        return ";".join(statements)


@cache
def views() -> Mapping[str, View]:
    """Return the documented views by name, sorted.

    A view reads only tables, never another view, so they can be created in any order.
    """
    parsed = {}
    for file in sorted(FOLDER.glob("*.sql")):
        text = file.read_text(encoding="utf-8")
        parsed[file.stem] = parse_view(file.stem, text)
    return MappingProxyType(parsed)


@cache
def view(name: str) -> sa.TableClause:
    """Return a documented view to select from, with types that are the same on both engines."""
    columns = [
        sa.column(column.name, COLUMN_TYPES[column.type]) for column in views()[name].columns
    ]
    return sa.table(name, *columns)


def parse_view(name: str, text: str) -> View:
    """Return the view that a file's text defines.

    Raises ValueError, saying what is missing or wrong, for a text of another form.
    """
    lines = text.splitlines()
    comments = list(takewhile(lambda line: line.startswith("--"), lines))
    head = "\n".join(line.removeprefix("--").removeprefix(" ") for line in comments)
    meaning, *rest = head.split("\n\n")
    select = "\n".join(lines[len(comments) :]).strip()
    if not meaning.endswith(".") or not rest or not select:
        raise ValueError(
            f"db/views/{name}.sql lacks one of its parts: begin with the meaning of the view, "
            "comment lines that end with a full stop; then a line with only `--`; then a comment "
            "line for each column; then the select"
        )
    columns = []
    for line in rest[0].splitlines():
        match = _COLUMN.fullmatch(line)
        if match is None:
            raise ValueError(
                f"db/views/{name}.sql: {line!r} does not explain a column: write NAME TYPE "
                "MEANING, where NAME has only a-z, 0-9 and _, TYPE is one of "
                f"{', '.join(TYPES)}, and MEANING ends with a full stop"
            )
        columns.append(ViewColumn(name=match[1], type=match[2], meaning=match[3]))
    if not columns:
        raise ValueError(f"db/views/{name}.sql explains no column: write a line for each")
    counts = Counter(column.name for column in columns)
    for column_name, count in counts.items():
        if count > 1:
            raise ValueError(
                f"db/views/{name}.sql explains the column {column_name} {count} times: keep one of "
                "these lines"
            )
    return View(
        name=name,
        meaning=" ".join(meaning.split()),
        columns=tuple(columns),
        sql=f"create view {name} as\n{select}",
    )


def data_dictionary() -> str:
    """Return the data dictionary as Markdown: every view and table, and what each column means."""
    parts = []
    for documented in views().values():
        heading = f"**`{documented.name}`** (view): {documented.meaning}"
        parts += [heading, "", *_meanings(documented.meanings()), ""]
    for table in metadata.sorted_tables:
        columns = {column.name: column.comment or "" for column in table.columns}
        heading = f"**`{table.name}`** (table): {table.comment}"
        parts += [heading, "", *_meanings(columns), ""]
    return "\n".join(parts)


def _meanings(columns: Mapping[str, str]) -> list[str]:
    lines = [f"| `{name}` | {meaning} |" for name, meaning in columns.items()]
    return ["| column | meaning |", "| --- | --- |", *lines]
