"""The tables, each in a file beside this one: what each row and each column means, which the data
dictionary prints.

Here is what they and the views are made of: the metadata that tables join, moments, the types of
columns by name.

Dates are sessions of the market's exchange. Timestamps are UTC. Missing is NULL, never 0.

A line of a table's `columns` is a name, a role, a type and a meaning. A `key` is part of the
primary key, `numbered` one that the store counts up; a `required` column always has a value, and
the meaning of an `optional` one says when it lacks it. An `interval` is a figure with the ends of
its day-resampled interval, `paired` with those of a paired one. The type is a name in TYPES, or the
column of another table in which the value is found.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tomllib import loads
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from db.errors import StoreError

BAR_VALUES = ("open", "high", "low", "close", "adj_close", "volume", "dividend", "split")
# What studies found, which a role that only reads may read beside the views: no price, no path, no
# address is in them.
FINDINGS = (
    *("backtest", "backtest_fold", "backtest_score", "backtest_return", "backtest_portfolio"),
    *(
        "benchmark",
        "benchmark_score",
        "benchmark_seed",
        "ranking",
        "ranking_score",
        "ranking_difference",
    ),
    "ranking_portfolio",
)
# characters to translate, about ten pages: others taken with it wait for its translation
LONGEST_TEXT = 20_000
NULLABLE = {
    "key": False,
    "numbered": False,
    "required": False,
    "optional": True,
    "interval": True,
    "paired": True,
}
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


class UtcTimestamp(sa.TypeDecorator[datetime]):
    """A moment: takes aware datetimes alone and gives back aware ones in UTC, on both engines.

    A naive datetime raises StoreError: it would mean another moment on another machine.
    """

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return the moment in UTC; naive for SQLite, which keeps no zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise StoreError(f"naive timestamp {value.isoformat()}: give it a time zone")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Return the moment, aware, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Now(FunctionElement[datetime]):
    """The moment of an INSERT, in UTC, written as UtcTimestamp writes it."""

    type = UtcTimestamp()
    inherit_cache = True


# SQLite's own current_timestamp has no fraction: a copy in PostgreSQL, which has one, would differ
# from it.
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
    **options: Any,
) -> None:
    """Add a table to the metadata; without a rowid SQLite keeps the rows in the
    order of their key.
    """
    # PostgreSQL answers from the key's index alone what reads it and the columns in `covering`: of
    # others it fetches a page of the table for each row.
    made = list(_columns(columns, defaults))
    parts: list[SchemaItem] = [_constraint(each, said) for each, said in constraints.items()]
    if covering:
        key = (each.name for each in made if each.primary_key)
        parts.append(sa.PrimaryKeyConstraint(*key, postgresql_include=covering))
    if not with_rowid:
        options["sqlite_with_rowid"] = False
    table = sa.Table(name, metadata, *made, *parts, comment=comment, **options)
    for index in indexes:
        _index(table, **index)


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
            yield sa.Column(f"{name}_low", TYPES[kind], comment=low)
            yield sa.Column(
                f"{name}_high",
                TYPES[kind],
                comment="Upper end of that interval; missing with too few days.",
            )


def _constraint(name: str, said: str | list[str]) -> SchemaItem:
    """Return a check of that name or, of a list of columns, what makes them
    unique or leads to those of a table.
    """
    if isinstance(said, str):
        return sa.CheckConstraint(said, name=name)
    if name == "unique":
        return sa.UniqueConstraint(*said)
    return sa.ForeignKeyConstraint(said, [f"{name}.{each}" for each in said])


def _index(
    table: sa.Table,
    columns: Sequence[str],
    name: str | None = None,
    where: str | None = None,
    **options: Any,
) -> None:
    if where is not None:
        options |= {"sqlite_where": sa.text(where), "postgresql_where": sa.text(where)}
    found = (each.split() for each in columns)
    sa.Index(
        name,
        *(table.c[each].desc() if order else table.c[each] for each, *order in found),
        **options,
    )


for _file in sorted(Path(__file__).parent.glob("*.toml")):
    for _name, _told in loads(_file.read_text(encoding="utf-8")).items():
        _table(_name, **_told)

# By name, so that a type checker knows them.
abstention_band = metadata.tables["abstention_band"]
abstention_count = metadata.tables["abstention_count"]
alert = metadata.tables["alert"]
attention_weight = metadata.tables["attention_weight"]
backtest = metadata.tables["backtest"]
backtest_fold = metadata.tables["backtest_fold"]
backtest_portfolio = metadata.tables["backtest_portfolio"]
backtest_return = metadata.tables["backtest_return"]
backtest_score = metadata.tables["backtest_score"]
benchmark = metadata.tables["benchmark"]
benchmark_score = metadata.tables["benchmark_score"]
benchmark_seed = metadata.tables["benchmark_seed"]
calibration_bin = metadata.tables["calibration_bin"]
champion = metadata.tables["champion"]
explanation = metadata.tables["explanation"]
instrument = metadata.tables["instrument"]
market_file = metadata.tables["market_file"]
membership = metadata.tables["membership"]
night = metadata.tables["night"]
night_drift = metadata.tables["night_drift"]
outcome = metadata.tables["outcome"]
paper_position = metadata.tables["paper_position"]
paper_return = metadata.tables["paper_return"]
prediction = metadata.tables["prediction"]
price = metadata.tables["price"]
price_fetch = metadata.tables["price_fetch"]
rank_score = metadata.tables["rank_score"]
ranker = metadata.tables["ranker"]
ranking = metadata.tables["ranking"]
ranking_difference = metadata.tables["ranking_difference"]
ranking_portfolio = metadata.tables["ranking_portfolio"]
ranking_score = metadata.tables["ranking_score"]
rejected_bar = metadata.tables["rejected_bar"]
rule_direction = metadata.tables["rule_direction"]
run = metadata.tables["run"]
score = metadata.tables["score"]
stock_rank = metadata.tables["stock_rank"]
symbol_warning = metadata.tables["symbol_warning"]
target_position = metadata.tables["target_position"]
translation_model = metadata.tables["translation_model"]
translation_progress = metadata.tables["translation_progress"]
translation_score = metadata.tables["translation_score"]
translation_text = metadata.tables["translation_text"]
