"""Many rows at once: the fastest insert of each engine, and one upsert for both."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from sqlalchemy import (
    Column,
    Connection,
    Date,
    Dialect,
    Integer,
    MetaData,
    Table,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from db.errors import StoreError
from db.tables import UtcTimestamp

if TYPE_CHECKING:
    import psycopg

Rows = Sequence[Mapping[str, object]]

CHUNK = 50_000


def insert_frame(conn: Connection, table: Table, frame: pd.DataFrame) -> int:
    """Insert rows whose keys are new, by executemany or COPY; return how many.

    The frame's columns are the table's; NaN and NaT become NULL. Several times faster than
    `upsert`.
    """
    names = [str(name) for name in frame]
    for start in range(0, len(frame), CHUNK):  # as Python's objects, rows are ten times as large
        part = frame.iloc[start : start + CHUNK]
        lists = (_python_values(table.c[name], part[name], conn.dialect) for name in names)
        insert_rows(conn, table, names, list(zip(*lists, strict=True)))
    return len(frame)


def insert_rows(
    conn: Connection, table: Table, names: Sequence[str], rows: Sequence[tuple[object, ...]]
) -> int:
    """Insert as `insert_frame` does, for rows of these columns that already
    hold what the driver takes.
    """
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
    """Insert the rows whose unique `key` (by default the primary one) is not
    stored yet; return how many were.
    """
    if not rows:
        return 0
    statement = _insert(conn, table).on_conflict_do_nothing(index_elements=_key(table, key))
    return conn.execute(
        statement, list(rows), execution_options={"preserve_rowcount": True}
    ).rowcount


def save_row(conn: Connection, table: Table, row: Mapping[str, object]) -> int:
    """Store a row, columns by name, and return 1.

    0 where its key is stored: the first row of a name stands.
    """
    return insert_missing(conn, table, [dict(row)])


def upsert(
    conn: Connection,
    table: Table,
    rows: Rows,
    *,
    key: Sequence[str] = (),
    stamps: Collection[str] = (),
) -> int:
    """Insert rows, or update those whose key is stored with other values; return how many were new.

    `stamps` are columns that say when: they change with the others, but alone are no reason to.
    """
    new = insert_missing(conn, table, rows, key=key)
    if new == len(rows):
        return new
    statement = _insert(conn, table)
    given = {name: statement.excluded[name] for name in rows[0] if name not in _key(table, key)}
    changed = or_(
        *(
            table.c[name].is_distinct_from(value)
            for name, value in given.items()
            if name not in stamps
        )
    )
    statement = statement.on_conflict_do_update(
        index_elements=_key(table, key), set_=given, where=changed
    )
    conn.execute(statement, list(rows))
    return new


def upsert_frame(
    conn: Connection, table: Table, frame: pd.DataFrame, *, stamps: Collection[str] = ()
) -> int:
    """Upsert very many rows by the primary key: from a temporary table, in two
    statements at most.
    """
    names, keys = [str(name) for name in frame], _key(table, ())
    columns = (Column(name, table.c[name].type) for name in names)
    staged = Table(f"staged_{table.name}", MetaData(), *columns, prefixes=["temporary"])
    staged.create(conn, checkfirst=False)
    insert_frame(conn, staged, frame)
    # Without a where, SQLite reads the ON of ON CONFLICT as that of a join.
    inserted = (
        _insert(conn, table)
        .from_select(names, select(staged).where(true()))
        .on_conflict_do_nothing()
    )
    new = conn.execute(inserted, execution_options={"preserve_rowcount": True}).rowcount
    if new < len(frame):
        same = (table.c[name] == staged.c[name] for name in keys)
        given = {name: staged.c[name] for name in names if name not in keys}
        changed = or_(
            *(
                table.c[name].is_distinct_from(value)
                for name, value in given.items()
                if name not in stamps
            )
        )
        conn.execute(update(table).where(*same, changed).values(given))
    staged.drop(conn, checkfirst=False)
    return new


def records(table: Table, frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return the frame's rows as mappings of plain Python values: None for
    missing, dates, aware datetimes.
    """
    names = [str(name) for name in frame]
    values = (_python_values(table.c[name], frame[name]) for name in names)
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _insert(conn: Connection, table: Table) -> Any:
    # Both dialects spell ON CONFLICT alike; SQLAlchemy has no common type for it.
    return {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[conn.dialect.name](table)


def _key(table: Table, key: Sequence[str]) -> list[str]:
    return list(key) or [column.name for column in table.primary_key]


def _python_values(
    column: Column[Any], values: "pd.Series[Any]", driver: Dialect | None = None
) -> list[object]:
    """Return plain values; for a driver dates and timestamps are as it wants
    them: SQLite keeps them as text.
    """
    if isinstance(column.type, Date | UtcTimestamp):
        codes, distinct = _distinct_moments(column, values)
        bind = None if driver is None else column.type.dialect_impl(driver).bind_processor(driver)
        return _take(list(map(bind, distinct) if bind else distinct), codes)
    if (
        isinstance(column.type, Integer) and values.dtype.kind == "f"
    ):  # a missing value made them floats
        try:
            values = values.astype("Int64")
        except (TypeError, ValueError, OverflowError) as error:  # the last of infinity
            raise StoreError(
                f"{column.table.name}.{column.name} must hold whole numbers"
            ) from error
    objects = values.astype(object).to_numpy(copy=True)
    objects[values.isna().to_numpy()] = None
    return cast("list[object]", objects.tolist())


def _distinct_moments(
    column: Column[Any], values: "pd.Series[Any]"
) -> tuple[Any, Iterator[object]]:
    """Return codes and the distinct dates or datetimes they stand for: few, so
    each is converted once.
    """
    codes, distinct = pd.factorize(values)
    moments = pd.DatetimeIndex(pd.to_datetime(distinct))
    if isinstance(column.type, UtcTimestamp):
        return codes, iter(moments.to_pydatetime())
    if moments.tz is not None or not (moments == moments.normalize()).all():
        raise StoreError(
            f"{column.table.name}.{column.name} must hold dates, got times such as {moments[0]}"
        )
    return codes, iter(moments.date)


def _take(distinct: list[object], codes: Any) -> list[object]:
    # factorize codes a missing value -1: the last place of the array.
    places = np.empty(len(distinct) + 1, dtype=object)
    places[:-1] = distinct
    return cast("list[object]", places[codes].tolist())
