"""SQL rows as DataFrames with one dtype for each SQL type, the same on both engines.

Date: datetime64[ns]. UtcTimestamp: datetime64[ns, UTC]. Float: float64, missing NaN. Integer:
int64, or Int64 with missing values. Boolean: bool, or boolean with missing values. JSON: Python
values. The others: as pandas infers them.
"""

from collections.abc import Sequence
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
    TextualSelect,
)
from sqlalchemy.types import TypeEngine

from db.tables import BAR_VALUES, UtcTimestamp

FETCHED_ROWS = 100_000  # rows of bars that are converted at once

Statement = Select[Any]


def frame(conn: Connection, statement: Statement | TextualSelect) -> pd.DataFrame:
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


def sql_text(conn: Connection, statement: Statement) -> str:
    """Return the SQL of a statement with its values written out, as a user may run it."""
    values_written_out = {"literal_binds": True, "render_postcompile": True}
    return str(statement.compile(conn, compile_kwargs=values_written_out))


def bars(result: CursorResult[Any], ids: "pd.Series[int]") -> pd.DataFrame:
    """Return bars as a frame: symbol, session, BAR_VALUES, known_at; sorted by symbol and session.

    A row of `result` is instrument_id, session, known_at and BAR_VALUES; `ids` has the
    instrument_id of each symbol, sorted by symbol, and must cover all rows.
    """
    cursor = result.cursor
    assert cursor is not None
    parts = []
    rows_of_driver = cursor.fetchmany(FETCHED_ROWS)
    while rows_of_driver:
        parts.append(_bar_part(rows_of_driver))
        rows_of_driver = cursor.fetchmany(FETCHED_ROWS)
    result.close()  # reading its cursor directly did not close it
    # Of no bars, an empty part has the columns.
    rows = pd.concat(parts or [_bar_part([])], ignore_index=True)
    # Sorting by the place of a symbol among all symbols is faster than sorting by its text.
    place_of_id = pd.Series(np.arange(len(ids)), index=ids.to_numpy())
    place = place_of_id.reindex(rows.pop("instrument_id")).to_numpy()
    order = np.lexsort((rows["session"].to_numpy(), place))  # by its last key first
    sorted_rows = rows.take(order).reset_index(drop=True)
    sorted_rows.insert(0, "symbol", ids.index.take(place[order]))
    return sorted_rows


def typed(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> pd.DataFrame:
    """Return a driver's rows as a frame; names may repeat. Integers with gaps are Int64."""
    columns = [_inferred(values) for values in _transposed(rows, len(names))]
    typed_rows = pd.concat(columns, axis=1) if columns else pd.DataFrame()
    typed_rows.columns = pd.Index(names)
    return typed_rows


def _transposed(rows: Sequence[Sequence[Any]], width: int) -> list[Sequence[Any]]:
    if not rows:
        return [()] * width
    return list(zip(*rows, strict=True))


def _inferred(values: Sequence[Any]) -> "pd.Series[Any]":
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int}:
        fit_int64 = all(abs(value) < 2**63 for value in values if isinstance(value, int))
        if not fit_int64:
            return pd.Series(values, dtype=object)
        return pd.Series(values, dtype="Int64" if None in values else "int64")
    if kinds and kinds <= {Decimal, int, float}:
        return pd.Series(values, dtype="float64")
    return pd.Series(values, dtype=object).infer_objects()


def _bar_part(rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """Return such rows as a frame: instrument_id, session, BAR_VALUES, known_at."""
    # As objects, missing values (None) become NaN when they are converted to floats.
    columns = [np.array(values, dtype=object) for values in _transposed(rows, 3 + len(BAR_VALUES))]
    ids, sessions, known, *bar_values = columns
    numbers = {
        name: values.astype("float64") for name, values in zip(BAR_VALUES, bar_values, strict=True)
    }
    return pd.DataFrame(
        {
            "instrument_id": ids.astype("int64"),
            "session": _parsed_moments(sessions, utc=False).astype("datetime64[ns]"),
            **numbers,
            "known_at": _parsed_moments(known, utc=True).astype("datetime64[ns, UTC]"),
        }
    )


def _parsed_moments(moments: Any, *, utc: bool) -> pd.DatetimeIndex:
    """Return moments as datetimes, parsing each of the few distinct ones once."""
    codes, distinct = pd.factorize(moments)
    return pd.to_datetime(pd.Index(distinct), utc=utc).take(codes)


def _typed(kind: TypeEngine[Any], values: Sequence[object]) -> Any:
    """Return values of this SQL type as an array of its dtype; a Series takes far longer."""
    # `np.array` would make a matrix of values that are lists of one length.
    objects = np.fromiter(values, dtype=object, count=len(values))
    if isinstance(kind, Date):
        return pd.DatetimeIndex(objects.astype("datetime64[D]")).as_unit("ns")
    if isinstance(kind, UtcTimestamp):
        return pd.DatetimeIndex(pd.to_datetime(objects, utc=True)).as_unit("ns")
    if isinstance(kind, Float):
        return objects.astype("float64")  # a missing value becomes NaN
    if isinstance(kind, Integer):
        return pd.array(objects, dtype="Int64") if None in values else objects.astype("int64")
    if isinstance(kind, Boolean):
        return pd.array(objects, dtype="boolean") if None in values else objects.astype("bool")
    return pd.Series(objects, dtype=object).infer_objects().array
