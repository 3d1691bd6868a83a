"""What tables and views are made of: the metadata they join, moments, numbers, columns that many views have."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Date, DateTime, Dialect, Float, ForeignKey, MetaData, Table, TypeDecorator
from sqlalchemy.schema import SchemaItem

from db.errors import StoreError

REAL = Float(53)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


class UtcTimestamp(TypeDecorator[datetime]):
    """A moment: takes aware datetimes alone and gives back aware ones in UTC, on both engines.

    A naive datetime raises StoreError: it would mean another moment on another machine.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the moment in UTC; naive for SQLite, which keeps no zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise StoreError(f"naive timestamp {value.isoformat()}: give it a time zone")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return the moment, aware, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def table(name: str, *parts: SchemaItem, comment: str, with_rowid: bool = False) -> Table:
    """Return a table of the store; without a rowid SQLite keeps the rows in the order of their key."""
    options: dict[str, Any] = {} if with_rowid else {"sqlite_with_rowid": False}
    return Table(name, metadata, *parts, comment=comment, **options)


def required(name: str, kind: Any, meaning: str) -> Column[Any]:
    """Return a column that always has a value, with what it means."""
    return Column(name, kind, nullable=False, comment=meaning)


def optional(name: str, kind: Any, meaning: str) -> Column[Any]:
    """Return a column that may lack its value; what it means says when."""
    return Column(name, kind, comment=meaning)


def with_interval(name: str, meaning: str, *, kind: str = "day-resampled") -> list[Column[Any]]:
    """Return the columns of a figure and of the ends of its interval."""
    return [
        optional(name, REAL, f"{meaning}."),
        optional(f"{name}_low", REAL, f"Lower end of its {kind} 95 % interval; missing with too few days."),
        optional(f"{name}_high", REAL, "Upper end of that interval; missing with too few days."),
    ]


def key(name: str, kind: Any, meaning: str) -> Column[Any]:
    """Return a column that is part of a table's key, with what it means."""
    return Column(name, kind, primary_key=True, autoincrement=False, comment=meaning)


def belongs_to(table: str, meaning: str) -> Column[Any]:
    """Return the column that names a row of another table, as part of a key."""
    return key(f"{table}_id", ForeignKey(f"{table}.id"), meaning)


def target() -> Column[Any]:
    """Return the column of the session predicted, as part of a key."""
    return key("target", Date, "Session predicted.")


def level() -> Column[Any]:
    """Return the column of a nominal coverage, as part of a key."""
    return key("level", REAL, "Nominal share of outcomes that are to be covered, 0 to 1.")
