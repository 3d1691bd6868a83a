"""Write many rows at once: by the fastest insert of each engine, and one upsert for both."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Connection,
    Date,
    Dialect,
    Integer,
    Table,
    Text,
    or_,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql, sqlite

from db.errors import StoreError
from db.tables import UtcTimestamp

if TYPE_CHECKING:
    import psycopg

Rows = Sequence[Mapping[str, object]]

CHUNK = 50_000  # rows that are Python objects at once


def insert_frame(conn: Connection, table: Table, frame: pd.DataFrame) -> int:
    """Insert rows with new keys, by executemany or COPY; return how many. NaN and NaT become NULL.

    Several times faster than `upsert`. Raises StoreError as `_python_values`.
    """
    names = [str(name) for name in frame]
    # In chunks: as Python objects, values take ten times as much memory as in the frame.
    for start in range(0, len(frame), CHUNK):
        part = frame.iloc[start : start + CHUNK]
        lists = (_python_values(table.c[name], part[name], conn.dialect) for name in names)
        insert_rows(conn, table, names, list(zip(*lists, strict=True)))
    return len(frame)


def insert_rows(
    conn: Connection, table: Table, names: Sequence[str], rows: Sequence[tuple[object, ...]]
) -> int:
    """Insert rows as `insert_frame`, of values that the driver takes, in the order of `names`."""
    columns = ", ".join(f'"{name}"' for name in names)
    if conn.dialect.name == "postgresql":
        cursor = cast("psycopg.Cursor[Any]", conn.connection.cursor())
        with cursor, cursor.copy(f"copy {table.name} ({columns}) from stdin".encode()) as copy:
            for row in rows:
                copy.write_row(row)
        return len(rows)
    if rows:
        marks = ", ".join("?" * len(names))
        sql = f"insert into {table.name} ({columns}) values ({marks})"  # noqa: S608  (the schema's own names)
        conn.exec_driver_sql(sql, list(rows))
    return len(rows)


def insert_missing(conn: Connection, table: Table, rows: Rows, *, key: Sequence[str] = ()) -> int:
    """Insert the rows whose unique `key`, by default the primary one, is new; return how many."""
    if not rows:
        return 0
    statement = _insert(conn, table).on_conflict_do_nothing(index_elements=_key(table, key))
    options = {"preserve_rowcount": True}  # SQLAlchemy keeps the count of an INSERT only then.
    return conn.execute(statement, list(rows), execution_options=options).rowcount


def upsert(
    conn: Connection,
    table: Table,
    rows: Rows,
    *,
    key: Sequence[str] = (),
    stamps: Collection[str] = (),
) -> int:
    """Insert rows, or update those whose key is stored with other values; return how many were new.

    All rows have the same columns. A row that differs only in `stamps`, columns of moments, stays.
    """
    # First by itself: the count of the second statement would mix new and updated rows.
    new = insert_missing(conn, table, rows, key=key)
    if new == len(rows):  # also where there are no rows
        return new
    insert = _insert(conn, table)
    key_columns = _key(table, key)
    # SQL's `excluded` is the row that could not be inserted.
    values = {name: insert.excluded[name] for name in rows[0] if name not in key_columns}
    statement = insert.on_conflict_do_update(
        index_elements=key_columns,
        set_=values,
        where=_is_changed(table, values, stamps),
    )
    # All rows again: those that were just inserted do not differ, and so stay as they are.
    conn.execute(statement, list(rows))
    return new


def records(table: Table, frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return rows of plain values: missing None, dates `date`, moments aware `datetime`."""
    names = [str(name) for name in frame]
    values = (_python_values(table.c[name], frame[name]) for name in names)
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _insert(conn: Connection, table: Table) -> Any:
    # Both dialects' inserts have them, but SQLAlchemy has no common type of both: hence Any.
    if conn.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def _key(table: Table, key: Sequence[str]) -> list[str]:
    return list(key) or [column.name for column in table.primary_key]


def _is_changed(
    table: Table, values: Mapping[str, ColumnElement[Any]], stamps: Collection[str]
) -> ColumnElement[bool]:
    """Return the condition that a stored row differs outside `stamps`; NULL equals NULL.

    JSON is compared as text: PostgreSQL compares no other.
    """
    differences: list[ColumnElement[bool]] = []
    for name, value in values.items():
        if name in stamps:
            continue
        both: list[ColumnElement[Any]] = [table.c[name], value]
        if isinstance(table.c[name].type, JSON):
            both = [sql_cast(each, Text) for each in both]
        differences.append(both[0].is_distinct_from(both[1]))
    return or_(*differences)


def _python_values(
    column: Column[Any], values: "pd.Series[Any]", dialect: Dialect | None = None
) -> list[object]:
    """Return a column's values as Python's, missing None, or with a `dialect` as its driver takes
    them.

    Raises StoreError for a fraction, an infinity or more than 64 bits in a whole column, a time of
    day or zone in a date, and, with a `dialect`, a timestamp without a zone.
    """
    bind = None
    if dialect is not None and isinstance(column.type, Date | UtcTimestamp | JSON):
        bind = column.type.dialect_impl(dialect).bind_processor(dialect)
    if isinstance(column.type, Date | UtcTimestamp):
        codes, distinct = _distinct_moments(column, values)
        return _take([bind(moment) for moment in distinct] if bind else distinct, codes)
    # pandas keeps whole numbers beside missing ones as floats.
    if isinstance(column.type, Integer) and values.dtype.kind == "f":
        try:
            values = values.astype("Int64")
        except (TypeError, ValueError, OverflowError) as error:  # OverflowError for infinity
            unfit = next(
                number
                for number in values.dropna().tolist()
                if not number.is_integer() or abs(number) >= 2**63
            )
            raise StoreError(
                f"{column.table.name}.{column.name} must hold whole numbers of 64 bits, but got a "
                f"fraction, infinity or a larger number: {unfit}; correct it, or leave it missing"
            ) from error
    objects = values.astype(object).to_numpy(copy=True)  # the next line must not change `values`
    objects[values.isna().to_numpy()] = None
    python_values = cast("list[object]", objects.tolist())
    return [bind(value) for value in python_values] if bind else python_values


def _distinct_moments(column: Column[Any], values: "pd.Series[Any]") -> tuple[Any, list[object]]:
    """Return a code for each value (-1: missing), and the distinct moments: few, so converted once.

    Raises StoreError where a date has a time of day or a zone.
    """
    codes, distinct = pd.factorize(values)
    moments = pd.DatetimeIndex(pd.to_datetime(distinct))
    if isinstance(column.type, UtcTimestamp):
        return codes, list(moments.to_pydatetime())
    is_time = (moments != moments.normalize()) | (moments.tz is not None)
    if is_time.any():
        raise StoreError(
            f"{column.table.name}.{column.name} must hold dates, got times such as "
            f"{moments[is_time][0]}: leave out the time of day and the time zone"
        )
    return codes, list(moments.date)


def _take(distinct: list[object], codes: Any) -> list[object]:
    # One place more than there are values: the code -1 of a missing value takes this last one,
    # which stays None.
    places = np.empty(len(distinct) + 1, dtype=object)
    places[:-1] = distinct
    return cast("list[object]", places[codes].tolist())
