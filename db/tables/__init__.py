"""The tables, each in a file beside this one: what each row and each column means, which the data dictionary prints.

Dates are sessions of the market's exchange. Timestamps are UTC. Missing is NULL, never 0.

A line of a table's `columns` is a name, a role, a type and a meaning. A `key` is part of the primary key, `numbered`
one that the store counts up; a `required` column always has a value, and the meaning of an `optional` one says when it
lacks it. An `interval` is a figure with the ends of its day-resampled interval, `paired` with those of a paired one.
The type is a name in TYPES, or the column of another table in which the value is found.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tomllib import loads
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import SchemaItem

from db.tables.columns import TYPES, Now
from db.tables.columns import metadata as metadata

BAR_VALUES = ("open", "high", "low", "close", "adj_close", "volume", "dividend", "split")
# What studies found, which a role that only reads may read beside the views: no price, no path, no address is in them.
FINDINGS = (
    *("backtest", "backtest_fold", "backtest_score", "backtest_return", "backtest_portfolio"),
    *("benchmark", "benchmark_score", "benchmark_seed", "ranking", "ranking_score", "ranking_difference"),
    "ranking_portfolio",
)
LONGEST_TEXT = 20_000  # characters to translate, about ten pages: others taken with it wait for its translation
NULLABLE = {"key": False, "numbered": False, "required": False, "optional": True, "interval": True, "paired": True}
INTERVALS = {"interval": "day-resampled", "paired": "paired"}


def _table(
    name: str,
    *,
    comment: str,
    columns: str,
    constraints: Mapping[str, str | list[str]] = {},
    indexes: Sequence[Mapping[str, Any]] = (),
    covering: Sequence[str] = (),
    defaults: Mapping[str, str] = {},
    with_rowid: bool = False,
    **options: Any,
) -> None:
    """Add a table to the metadata; without a rowid SQLite keeps the rows in the order of their key."""
    # PostgreSQL answers from the key's index alone what reads it and the columns in `covering`: of others it fetches a
    # page of the table for each row.
    made = list(_columns(columns, defaults))
    parts: list[SchemaItem] = [_constraint(each, said) for each, said in constraints.items()]
    if covering:
        key = (each.name for each in made if each.primary_key)
        parts.append(PrimaryKeyConstraint(*key, postgresql_include=covering))
    if not with_rowid:
        options["sqlite_with_rowid"] = False
    table = Table(name, metadata, *made, *parts, comment=comment, **options)
    for index in indexes:
        _index(table, **index)


def _columns(lines: str, defaults: Mapping[str, str]) -> Iterator[Column[Any]]:
    for line in lines.strip().splitlines():
        name, role, kind, meaning = line.split(maxsplit=3)
        default = defaults.get(name)
        yield Column(
            name, TYPES[kind] if kind in TYPES else ForeignKey(kind), primary_key=role in ("key", "numbered"),
            autoincrement="auto" if role == "numbered" else False, nullable=NULLABLE[role],
            server_default=Now() if default == "now()" else default and text(default), comment=meaning,
        )  # fmt: skip
        if role in INTERVALS:
            low = f"Lower end of its {INTERVALS[role]} 95 % interval; missing with too few days."
            yield Column(f"{name}_low", TYPES[kind], comment=low)
            yield Column(f"{name}_high", TYPES[kind], comment="Upper end of that interval; missing with too few days.")


def _constraint(name: str, said: str | list[str]) -> SchemaItem:
    """Return a check of that name or, of a list of columns, what makes them unique or leads to those of a table."""
    if isinstance(said, str):
        return CheckConstraint(said, name=name)
    if name == "unique":
        return UniqueConstraint(*said)
    return ForeignKeyConstraint(said, [f"{name}.{each}" for each in said])


def _index(
    table: Table, columns: Sequence[str], name: str | None = None, where: str | None = None, **options: Any
) -> None:
    if where is not None:
        options |= {"sqlite_where": text(where), "postgresql_where": text(where)}
    found = (each.split() for each in columns)
    Index(name, *(table.c[each].desc() if order else table.c[each] for each, *order in found), **options)


for _file in sorted(Path(__file__).parent.glob("*.toml")):
    for _name, _told in loads(_file.read_text(encoding="utf-8")).items():
        _table(_name, **_told)


def __getattr__(name: str) -> Table:
    """Return the table of that name, as `tables.night`."""
    try:
        return metadata.tables[name]
    except KeyError:
        raise AttributeError(f"no table {name!r}") from None
