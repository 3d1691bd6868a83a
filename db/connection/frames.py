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
    lists = zip(*rows, strict=True) if rows else [()] * len(statement.selected_columns)
    columns = zip(statement.selected_columns, lists, strict=True)
    return pd.DataFrame({column.name: _typed(column.type, values) for column, values in columns})


def row(conn: Connection, statement: Statement) -> dict[str, Any] | None:
    """Return the first row of a statement as Python values, by column; None when there is none."""
    found = conn.execute(statement).mappings().first()
    return None if found is None else dict(found)


def row_of(table: Table, key: str, conn: Connection, name: str) -> dict[str, Any] | None:
    """Return the row whose column `key` is `name`, every column of the table;
    None when there is none.
    """
    return row(conn, select(table).where(table.c[key] == name))


def matching(of: FromClause, **values: object) -> list[ColumnElement[bool]]:
    """Return the conditions that columns of a table or a view have these
    values; None is no condition.
    """
    return [of.c[name] == value for name, value in values.items() if value is not None]


def within(
    column: ColumnElement[Any], first: object | None, last: object | None
) -> list[ColumnElement[bool]]:
    """Return the conditions that a column lies in first..last, both included; None is no bound."""
    return ([] if first is None else [column >= first]) + ([] if last is None else [column <= last])


def shown(
    name: str,
    *order: str,
    span: tuple[str, object | None, object | None] | None = None,
    **values: object,
) -> Statement:
    """Return the statement that selects the rows of a documented view whose columns have these
    values (`matching`).

    `order` names the columns that sort them, with a minus where the last comes first; `span` is a
    column and the bounds that it lies `within`.
    """
    of = view(name)
    mine = matching(of, **values) + ([] if span is None else within(of.c[span[0]], *span[1:]))
    by = (of.c[each[1:]].desc() if each.startswith("-") else of.c[each] for each in order)
    return select(of).where(*mine).order_by(*by)


def head(conn: Connection, statement: Statement, most: int) -> pd.DataFrame:
    """Return the first rows of a statement, `most` at most."""
    return frame(conn, statement.limit(most))


def stream(conn: Connection, statement: Statement) -> Iterator[Sequence[Sequence[Any]]]:
    """Yield all rows of a statement as Python values, in batches: neither a
    page nor this program holds them all.
    """
    yield from conn.execution_options(yield_per=BATCH).execute(statement).partitions()


def rows_of(
    table: Table, owner: str, conn: Connection, name: str, *, order: Sequence[str] = ()
) -> pd.DataFrame:
    """Return rows whose column `owner` is `name`, without it, by `order` or the
    rest of the primary key.
    """
    sought = order or [each.name for each in table.primary_key if each.name != owner]
    columns = (each for each in table.c if each.name != owner)
    return frame(
        conn,
        select(*columns)
        .where(table.c[owner] == name)
        .order_by(*(table.c[each] for each in sought)),
    )


def bars(result: CursorResult[Any], ids: "pd.Series[int]") -> pd.DataFrame:
    """Return a bars frame with known_at, sorted, of rows of instrument_id, session, known_at and
    BAR_VALUES.

    `ids` maps each symbol, sorted, to its instrument. The rows are the driver's own, and hold dates
    as it gives them: a million of them, read one by one, would take seconds, and few are distinct.
    """
    cursor = result.cursor
    assert cursor is not None
    parts = [_bar_part(rows) for rows in iter(lambda: cursor.fetchmany(FETCHED_ROWS), [])]
    result.close()
    rows = pd.concat(parts or [_bar_part([])], ignore_index=True)
    rank = (
        pd.Series(np.arange(len(ids)), index=ids.to_numpy())
        .reindex(rows.pop("instrument_id"))
        .to_numpy()
    )
    order = np.lexsort((rows["session"].to_numpy(), rank))
    sorted_rows = rows.take(order).reset_index(drop=True)
    sorted_rows.insert(0, "symbol", ids.index.take(rank[order]))
    return sorted_rows


def typed(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> pd.DataFrame:
    """Return a driver's rows as a frame: whole numbers stay whole beside
    missing ones (Int64), decimals are float64.
    """
    lists = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    columns = [_plain(values) for values in lists]
    found = pd.concat(columns, axis=1) if columns else pd.DataFrame()
    found.columns = pd.Index(names)
    return found


def as_given(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> pd.DataFrame:
    """Return rows of a driver as objects, each value as it came, whatever else
    is in its column; decimals as floats.
    """
    told = [
        [float(value) if isinstance(value, Decimal) else value for value in row] for row in rows
    ]
    return pd.DataFrame(told, columns=pd.Index(names), dtype=object)


def _plain(values: Sequence[Any]) -> "pd.Series[Any]":
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int}:
        fits = all(abs(value) < 2**63 for value in values if isinstance(value, int))
        return pd.Series(values, dtype=("Int64" if None in values else "int64") if fits else object)
    if kinds and kinds <= {Decimal, int, float}:
        return pd.Series(values, dtype="float64")
    return pd.Series(values, dtype=object).infer_objects()


def _bar_part(rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    lists = list(zip(*rows, strict=True)) if rows else [()] * (3 + len(BAR_VALUES))
    ids, sessions, known, *values = (np.array(each, dtype=object) for each in lists)
    numbers = {name: each.astype("float64") for name, each in zip(BAR_VALUES, values, strict=True)}
    days = _each_distinct(sessions, utc=False).astype("datetime64[ns]")
    moments = _each_distinct(known, utc=True).astype("datetime64[ns, UTC]")
    return pd.DataFrame(
        {"instrument_id": ids.astype("int64"), "session": days, **numbers, "known_at": moments}
    )


def _each_distinct(moments: Any, *, utc: bool) -> pd.DatetimeIndex:
    codes, distinct = pd.factorize(moments)
    return pd.to_datetime(pd.Index(distinct), utc=utc).take(codes)


def _typed(kind: TypeEngine[Any], values: Sequence[object]) -> "pd.Series[Any]":
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
