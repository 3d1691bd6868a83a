"""SQL rows as DataFrames with one dtype for each SQL type, the same on both engines.

Date: datetime64[ns]. UtcTimestamp: datetime64[ns, UTC]. Float: float64, missing NaN. Integer:
int64, or Int64 with missing values. The others as pandas infers them; JSON as Python values.
"""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import (
    Boolean,
    Connection,
    CursorResult,
    Date,
    Float,
    Integer,
    Select,
    Table,
    select,
)
from sqlalchemy.sql.expression import ColumnElement, FromClause
from sqlalchemy.types import TypeEngine

from db.tables import BAR_VALUES, UtcTimestamp
from db.views import view

FETCHED_ROWS = 100_000
BATCH = 2000  # rows of a CSV in memory at once

Statement = Select[Any]


def frame(conn: Connection, statement: Statement) -> pd.DataFrame:
    """Return the rows of a statement, a DataFrame column for each of its columns."""
    rows = conn.execute(statement).all()
    columns = statement.selected_columns
    values_by_column = _transposed(rows, len(columns))
    return pd.DataFrame(
        {
            column.name: _typed(column.type, values)
            for column, values in zip(columns, values_by_column, strict=True)
        }
    )


def row(conn: Connection, statement: Statement) -> dict[str, Any] | None:
    """Return the first row of a statement as Python values, by column; None when there is none."""
    first = conn.execute(statement).mappings().first()
    return None if first is None else dict(first)


def row_of(conn: Connection, table: Table, key: str, name: str) -> dict[str, Any] | None:
    """Return the row whose column `key` is `name`, every column of the table.

    None when there is none.
    """
    return row(conn, select(table).where(table.c[key] == name))


def matching(rows: FromClause, /, **values: object) -> list[ColumnElement[bool]]:
    """Return the conditions that columns of a table or a view have these values.

    None is no condition.
    """
    return [rows.c[name] == value for name, value in values.items() if value is not None]


def within(
    column: ColumnElement[Any], first: object | None, last: object | None
) -> list[ColumnElement[bool]]:
    """Return the conditions that a column lies in first..last, both included; None is no bound."""
    conditions = []
    if first is not None:
        conditions.append(column >= first)
    if last is not None:
        conditions.append(column <= last)
    return conditions


def shown(
    name: str,
    *order: str,
    span: tuple[str, object | None, object | None] | None = None,
    **values: object,
) -> Statement:
    """Return the statement that selects rows of a documented view by the values of its columns.

    `values` are as in `matching`. `order` names the columns that sort the rows, with a minus for
    descending order; `span` is a column and its bounds, as in `within`.
    """
    rows = view(name)
    conditions = matching(rows, **values)
    if span is not None:
        column, first, last = span
        conditions += within(rows.c[column], first, last)
    by: list[ColumnElement[Any]] = []
    for column in order:
        is_descending = column.startswith("-")
        by.append(rows.c[column[1:]].desc() if is_descending else rows.c[column])
    return select(rows).where(*conditions).order_by(*by)


def head(conn: Connection, statement: Statement, most: int) -> pd.DataFrame:
    """Return at most the first `most` rows of a statement."""
    return frame(conn, statement.limit(most))


def stream(conn: Connection, statement: Statement) -> Iterator[Sequence[Sequence[Any]]]:
    """Yield all rows of a statement as Python values, in batches of `BATCH` rows at most."""
    yield from conn.execution_options(yield_per=BATCH).execute(statement).partitions()


def rows_of(
    conn: Connection, table: Table, owner: str, name: str, *, order: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the rows whose column `owner` is `name`, without that column.

    They are sorted by `order`, or by the rest of the primary key.
    """
    columns = [column for column in table.c if column.name != owner]
    if order:
        by = [table.c[column] for column in order]
    else:
        by = [column for column in table.primary_key if column.name != owner]
    return frame(conn, select(*columns).where(table.c[owner] == name).order_by(*by))


def bars(result: CursorResult[Any], ids: "pd.Series[int]") -> pd.DataFrame:
    """Return a result as a bars frame with known_at, sorted by symbol, then session.

    Its rows are instrument_id, session, known_at and BAR_VALUES, as the driver returns them. `ids`
    maps each symbol, sorted, to its instrument. Parsing the dates of a million rows one by one
    would take seconds; few of them are distinct.
    """
    cursor = result.cursor
    assert cursor is not None
    parts = []
    rows_of_driver = cursor.fetchmany(FETCHED_ROWS)
    while rows_of_driver:
        parts.append(_bar_part(rows_of_driver))
        rows_of_driver = cursor.fetchmany(FETCHED_ROWS)
    result.close()
    rows = pd.concat(parts or [_bar_part([])], ignore_index=True)
    rank_of_id = pd.Series(np.arange(len(ids)), index=ids.to_numpy())
    rank = rank_of_id.reindex(rows.pop("instrument_id")).to_numpy()
    order = np.lexsort((rows["session"].to_numpy(), rank))
    sorted_rows = rows.take(order).reset_index(drop=True)
    sorted_rows.insert(0, "symbol", ids.index.take(rank[order]))
    return sorted_rows


def typed(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> pd.DataFrame:
    """Return a driver's rows as a frame.

    Whole numbers stay whole beside missing ones (Int64), decimals are float64.
    """
    columns = [_plain(values) for values in _transposed(rows, len(names))]
    typed_rows = pd.concat(columns, axis=1) if columns else pd.DataFrame()
    typed_rows.columns = pd.Index(names)
    return typed_rows


def as_given(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> pd.DataFrame:
    """Return rows of a driver as a frame of objects: no value changes its type for its column.

    Only decimals become floats.
    """
    without_decimals = [
        [float(value) if isinstance(value, Decimal) else value for value in row] for row in rows
    ]
    return pd.DataFrame(without_decimals, columns=pd.Index(names), dtype=object)


def _transposed(rows: Sequence[Sequence[Any]], width: int) -> list[Sequence[Any]]:
    """Return the values of each of `width` columns; empty ones without a row."""
    if not rows:
        return [()] * width
    return list(zip(*rows, strict=True))


def _plain(values: Sequence[Any]) -> "pd.Series[Any]":
    """Return a driver's values of one column with the dtype that fits them all."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int}:
        fits = all(abs(value) < 2**63 for value in values if isinstance(value, int))
        if not fits:
            return pd.Series(values, dtype=object)
        return pd.Series(values, dtype="Int64" if None in values else "int64")
    if kinds and kinds <= {Decimal, int, float}:
        return pd.Series(values, dtype="float64")
    return pd.Series(values, dtype=object).infer_objects()


def _bar_part(rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """Return rows of instrument_id, session, known_at and BAR_VALUES as a frame of few dtypes."""
    columns = [np.array(values, dtype=object) for values in _transposed(rows, 3 + len(BAR_VALUES))]
    ids, sessions, known, *bar_values = columns
    numbers = {
        name: values.astype("float64") for name, values in zip(BAR_VALUES, bar_values, strict=True)
    }
    return pd.DataFrame(
        {
            "instrument_id": ids.astype("int64"),
            "session": _each_distinct(sessions, utc=False).astype("datetime64[ns]"),
            **numbers,
            "known_at": _each_distinct(known, utc=True).astype("datetime64[ns, UTC]"),
        }
    )


def _each_distinct(moments: Any, *, utc: bool) -> pd.DatetimeIndex:
    """Return moments as datetimes; each distinct one is parsed only once."""
    codes, distinct = pd.factorize(moments)
    return pd.to_datetime(pd.Index(distinct), utc=utc).take(codes)


def _typed(kind: TypeEngine[Any], values: Sequence[object]) -> "pd.Series[Any]":
    """Return values of a column of this SQL type, with the dtype that belongs to it."""
    objects = pd.Series(list(values), dtype=object)
    if isinstance(kind, Date):
        return pd.to_datetime(objects).astype("datetime64[ns]")
    if isinstance(kind, UtcTimestamp):
        return pd.to_datetime(objects, utc=True).astype("datetime64[ns, UTC]")
    if isinstance(kind, Float):
        return objects.astype("float64")
    if isinstance(kind, Integer):
        return objects.astype("Int64" if objects.hasnans else "int64")
    if isinstance(kind, Boolean):
        return objects.astype("boolean" if objects.hasnans else "bool")
    return objects.infer_objects()
