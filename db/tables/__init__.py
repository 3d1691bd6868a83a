"""The tables, from the TOML files beside this one, with the meaning of each row and each column.

The data dictionary prints those meanings. Defined here is what tables and views have in common: the
metadata, the type of moments, and the column types by name.

Dates are sessions of the market's exchange. Timestamps are UTC. Missing is NULL, never 0.

A line of a table's `columns` is a name, a role, a type and a meaning. The roles: a `key` is part of
the primary key; a `numbered` one is such a key, which the store numbers itself; a `required` column
always has a value; the meaning of an `optional` one says when it has none. An `interval` is a
figure that gets two more columns, NAME_low and NAME_high, for the ends of its day-resampled
interval; with `paired` they are those of a paired interval. The type is a name in TYPES, or the
column of another table that the value refers to.

The policy by which a table is `written` says what `db.save` does with a row whose key is stored.
`stays`: the stored row stays. `newest`: it is replaced, unless the two differ in `stamps` alone.
`same`: it stays, and a row that differs in a `compared` column is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tomllib import loads
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from db.errors import StoreError

BAR_VALUES = ("open", "high", "low", "close", "adj_close", "volume", "dividend", "split")
# The tables that a role which only reads may read beside the views: those of studies, and those of
# which the page of a night is made. They hold no price and no address.
READABLE = (
    "abstention_band",
    "abstention_count",
    "attention_weight",
    "calibration_bin",
    "instrument",
    "night",
    "prediction",
    "run",
    "score",
    "backtest",
    "backtest_fold",
    "backtest_score",
    "backtest_return",
    "backtest_portfolio",
    "benchmark",
    "benchmark_score",
    "benchmark_seed",
    "ranking",
    "ranking_score",
    "ranking_difference",
    "ranking_portfolio",
)
# The most characters of a text to translate, about ten pages: texts taken with it wait until it is
# translated.
LONGEST_TEXT = 20_000
# Whether a column may be NULL, by its role.
NULLABLE = {
    "key": False,
    "numbered": False,
    "required": False,
    "optional": True,
    "interval": True,
    "paired": True,
}
# The word for the kind of interval, by the role of the column.
INTERVALS = {"interval": "day-resampled", "paired": "paired"}

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


@dataclass(frozen=True)
class Written:
    """How the rows of a table may be written, as the module says.

    `compared` are the columns whose numbers are compared, by default all outside the key. Numbers
    are the same within `relative`, a share of the new one, plus `absolute`: the last digits change
    with the number of threads. `refusal` says why a row stays.
    """

    policy: Literal["stays", "newest", "same"]
    stamps: Sequence[str] = ()
    compared: Sequence[str] = ()
    relative: float = 1e-6
    absolute: float = 1e-12
    refusal: str = ""


class UtcTimestamp(sa.TypeDecorator[datetime]):
    """An aware moment in UTC, on both engines; a naive one raises StoreError."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return the moment in UTC; naive for SQLite, which keeps no zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise StoreError(f"the timestamp {value.isoformat()} has no time zone: give it one")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Return the moment, aware, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Now(FunctionElement[datetime]):
    """The moment of an INSERT, in UTC and in the form of UtcTimestamp: a column's default."""

    type = UtcTimestamp()
    inherit_cache = True


# SQLite's own current_timestamp has no fraction of a second, unlike PostgreSQL's: a copy of the
# store would differ. SQLite knows milliseconds, so that three zeros fill up the microseconds.
@compiles(Now, "sqlite")
def _now_of_sqlite(_element: Now, _compiler: object, **_options: object) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(Now, "postgresql")
def _now_of_postgresql(_element: Now, _compiler: object, **_options: object) -> str:
    return "now()"


TYPES: Mapping[str, TypeEngine[Any]] = {
    "date": sa.Date(),
    "integer": sa.Integer(),
    "big_integer": sa.BigInteger(),
    "small_integer": sa.SmallInteger(),
    "number": sa.Float(53),
    "boolean": sa.Boolean(),
    "text": sa.String(),
    "json": sa.JSON(),
    "nullable_json": sa.JSON(none_as_null=True),
    "timestamp": UtcTimestamp(),
}


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
    written: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Add a table to the metadata, with a line of `columns` for each column, as the module says.

    `constraints` are as in `_constraint`, by name; `defaults` hold SQL by column; `indexes` the
    arguments of `sqlalchemy.Index`, with `desc` behind a column and `where`. `covering` columns lie
    in PostgreSQL's index of the key too, for queries of these alone. Unless `with_rowid`, SQLite
    keeps rows in the order of the key. `options` are `sqlalchemy.Table`'s.
    """
    table_columns = list(_columns(columns, defaults))
    schema_items: list[SchemaItem] = [
        _constraint(constraint_name, rule) for constraint_name, rule in constraints.items()
    ]
    if covering:
        key = [column.name for column in table_columns if column.primary_key]
        schema_items.append(sa.PrimaryKeyConstraint(*key, postgresql_include=covering))
    if not with_rowid:
        options["sqlite_with_rowid"] = False
    if written:
        options["info"] = {"written": Written(**written)}
    table = sa.Table(name, metadata, *table_columns, *schema_items, comment=comment, **options)
    for each in indexes:
        index = dict(each)
        columns_of = [column.split() for column in index.pop("columns")]
        if "where" in index:
            where = sa.text(index.pop("where"))
            index |= {"sqlite_where": where, "postgresql_where": where}
        ordered = [
            table.c[column].desc() if order else table.c[column] for column, *order in columns_of
        ]
        sa.Index(index.pop("name", None), *ordered, **index)


def _columns(lines: str, defaults: Mapping[str, str]) -> Iterator[sa.Column[Any]]:
    for line in lines.strip().splitlines():
        name, role, kind, meaning = line.split(maxsplit=3)
        default = defaults.get(name)
        yield sa.Column(
            name,
            TYPES[kind] if kind in TYPES else sa.ForeignKey(kind),
            primary_key=role in ("key", "numbered"),
            autoincrement="auto" if role == "numbered" else False,
            nullable=NULLABLE[role],
            server_default=Now() if default == "now()" else default and sa.text(default),
            comment=meaning,
        )
        if role in INTERVALS:
            low = f"Lower end of its {INTERVALS[role]} 95 % interval; missing with too few days."
            high = "Upper end of that interval; missing with too few days."
            yield sa.Column(f"{name}_low", TYPES[kind], comment=low)
            yield sa.Column(f"{name}_high", TYPES[kind], comment=high)


def _constraint(name: str, rule: str | list[str]) -> SchemaItem:
    """Return a constraint: a check by its SQL, or one on a list of columns.

    Listed columns are unique where the name is `unique`; else they refer to that table's.
    """
    if isinstance(rule, str):
        return sa.CheckConstraint(rule, name=name)
    if name == "unique":
        return sa.UniqueConstraint(*rule)
    return sa.ForeignKeyConstraint(rule, [f"{name}.{column}" for column in rule])


for _file in sorted(Path(__file__).parent.glob("*.toml")):
    for _name, _definition in loads(_file.read_text(encoding="utf-8")).items():
        _table(_name, **_definition)


def __getattr__(name: str) -> sa.Table:
    # `tables.price` is the table price.
    if name not in metadata.tables:
        raise AttributeError(f"there is no table {name}")
    return metadata.tables[name]
