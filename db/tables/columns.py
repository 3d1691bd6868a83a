"""What tables and views are made of: the metadata that tables join, moments, the types of columns by name."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Dialect,
    Float,
    Integer,
    MetaData,
    SmallInteger,
    String,
    TypeDecorator,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from db.errors import StoreError

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


class Now(FunctionElement[datetime]):
    """The moment of an INSERT, in UTC, written as UtcTimestamp writes it."""

    type = UtcTimestamp()
    inherit_cache = True


# SQLite's own current_timestamp has no fraction: a copy in PostgreSQL, which has one, would differ from it.
@compiles(Now, "sqlite")
def _now_of_sqlite(_element: Now, _compiler: object, **_options: object) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(Now, "postgresql")
def _now_of_postgresql(_element: Now, _compiler: object, **_options: object) -> str:
    return "now()"


TYPES: Mapping[str, TypeEngine[Any]] = {
    "date": Date(), "integer": Integer(), "big_integer": BigInteger(), "small_integer": SmallInteger(),
    "number": Float(53), "boolean": Boolean(), "text": String(), "json": JSON(),
    "nullable_json": JSON(none_as_null=True), "timestamp": UtcTimestamp(),
}  # fmt: skip
