"""The documented views: an SQL file each, whose head of comment lines explains it.

The head: the view's meaning, an empty line, a line for each column with name, type and meaning, and
perhaps another empty line and reasons for the SQL. The select follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from db.tables import TYPES as COLUMN_TYPES
from db.tables import metadata

FOLDER: Final = Path(__file__).parent
TYPES: Final = ("date", "integer", "json", "number", "text", "timestamp")


@dataclass(frozen=True)
class ViewColumn:
    """A column of a view: its name, its type (one of TYPES), and its meaning in a sentence."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class View:
    """A documented view: its meaning, columns in order, and select, the same on both engines."""

    name: str
    meaning: str
    columns: tuple[ViewColumn, ...]
    select: str

    @property
    def sql(self) -> str:
        """Return the statement that creates the view."""
        return f"create view {self.name} as\n{self.select}"

    def meanings(self) -> dict[str, str]:
        """Return the meaning of each column by its name."""
        return {column.name: column.meaning for column in self.columns}

    @property
    def comments(self) -> str:
        """Return the SQL that stores all meanings as PostgreSQL's comments."""
        meanings = {f"view {self.name}": self.meaning} | {
            f'column {self.name}."{name}"': meaning for name, meaning in self.meanings().items()
        }
        return ";".join(
            "comment on {} is '{}'".format(what, meaning.replace("'", "''"))
            for what, meaning in meanings.items()
        )


@cache
def views() -> Mapping[str, View]:
    """Return the views by name, sorted; each reads only tables, so any order creates them."""
    return {
        file.stem: parse_view(file.stem, file.read_text(encoding="utf-8"))
        for file in sorted(FOLDER.glob("*.sql"))
    }


@cache
def view(name: str) -> sa.TableClause:
    """Return a documented view to select from, with types that are the same on both engines."""
    columns = [
        sa.column(column.name, COLUMN_TYPES[column.type]) for column in views()[name].columns
    ]
    return sa.table(name, *columns)


def parse_view(name: str, text: str) -> View:
    """Return the view that a file's text defines."""
    lines = text.splitlines()
    comments = list(takewhile(lambda line: line.startswith("--"), lines))
    head = "\n".join(line.removeprefix("--").removeprefix(" ") for line in comments)
    meaning, columns = head.split("\n\n")[:2]
    select = "\n".join(lines[len(comments) :]).strip()
    return View(
        name=name,
        meaning=" ".join(meaning.split()),
        columns=tuple(ViewColumn(*line.split(maxsplit=2)) for line in columns.splitlines()),
        select=select,
    )


def data_dictionary() -> str:
    """Return the data dictionary as Markdown: every view and table, and what each column means."""
    described = [
        (f"**`{view.name}`** (view): {view.meaning}", view.meanings()) for view in views().values()
    ]
    described += [
        (
            f"**`{table.name}`** (table): {table.comment}",
            {column.name: column.comment or "" for column in table.columns},
        )
        for table in metadata.sorted_tables
    ]
    parts = []
    for heading, columns in described:
        lines = [f"| `{name}` | {meaning} |" for name, meaning in columns.items()]
        parts += [heading, "", "| column | meaning |", "| --- | --- |", *lines, ""]
    return "\n".join(parts)
