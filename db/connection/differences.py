"""Compare new rows with the stored ones: which are new, which differ.

A figure, once stored, is never changed.
"""

from collections.abc import Sequence
from datetime import date

import numpy as np
import pandas as pd
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import Connection

from db.connection.bulk import insert_frame, insert_missing, records
from db.connection.frames import frame, rows_of
from db.errors import StoreError

# A figure computed again with another number of threads agrees to this relative tolerance; one
# that is 0 agrees to this absolute tolerance.
FIGURE_TOLERANCE = 1e-6
FIGURE_ZERO = 1e-12


def require_distinct(rows: pd.DataFrame, key: list[str]) -> None:
    """Raise StoreError, naming one, for rows of the same key."""
    repeated = rows[rows.duplicated(key)]
    if len(repeated):
        raise StoreError(f"{named(repeated, key)} is duplicated")


def named(rows: pd.DataFrame, key: list[str]) -> str:
    """Return the first row's key as text for a message."""
    words = []
    for name in key:
        value = rows.iloc[0][name]
        words.append(f"{value:%Y-%m-%d}" if isinstance(value, date) else str(value))
    return " ".join(words)


def alongside(rows: pd.DataFrame, stored: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the stored row of each row's key, in order; missing values where there is none."""
    # Nothing is stored of a new night: a merge would take most of the time of storing it.
    if stored.empty:
        keys = rows[key].reset_index(drop=True)
        return keys.join(stored.drop(columns=key)).assign(_merge="left_only")
    return rows[key].merge(stored, on=key, how="left", indicator=True)


def is_stored(before: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which rows have a stored one `alongside`."""
    return (before["_merge"] == "both").to_numpy()


def differ(
    rows: pd.DataFrame,
    before: pd.DataFrame,
    values: Sequence[str],
    tolerance: float,
    *,
    zero: float = 0.0,
) -> NDArray[np.bool_]:
    """Return which rows are stored with a value that differs by more than the tolerances.

    `tolerance` is relative and `zero` absolute; NaN equals NaN. `before` is what `alongside`
    returns.
    """
    names = list(values)
    stored_values = before[names].astype("float64")
    new_values = rows[names].astype("float64")
    is_close = np.isclose(stored_values, new_values, rtol=tolerance, atol=zero, equal_nan=True)
    return np.asarray(is_stored(before) & ~is_close.all(axis=1))


def unstored(
    rows: pd.DataFrame,
    stored: pd.DataFrame,
    key: list[str],
    values: Sequence[str],
    tolerance: float,
    *,
    zero: float = 0.0,
    shown: list[str],
    wrong: str,
) -> pd.DataFrame:
    """Return the rows whose key is not among the stored ones.

    Raises StoreError where a row is stored with another value, as `differ` finds. Its message is
    `wrong`, where the values of the first such row's columns `shown` replace the braces.
    """
    before = alongside(rows, stored, key)
    differing = rows[differ(rows, before, values, tolerance, zero=zero)]
    if len(differing):
        raise StoreError(wrong.replace("{}", named(differing, shown)))
    return rows[~is_stored(before)]


def stored_on(conn: Connection, table: sa.Table, rows: pd.DataFrame, owner: str) -> pd.DataFrame:
    """Return a table's rows of every pair of owner and target that the rows have.

    There are few such pairs, with many rows each, so that each pair is read by its own statement.
    """
    pairs = rows[[owner, "target"]].drop_duplicates()
    stored_parts = []
    for name, target in pairs.itertuples(index=False):
        statement = sa.select(table).where(table.c[owner] == name, table.c.target == target)
        stored_parts.append(frame(conn, statement))
    return pd.concat(stored_parts, ignore_index=True)


def save_figures(
    conn: Connection, table: sa.Table, owner: str, name: str, new_rows: pd.DataFrame, *, why: str
) -> int:
    """Insert the rows that are not stored yet, with `name` in the column `owner`; return how many.

    A row that is stored must have equal numbers: else raises StoreError, naming it and saying why.
    """
    columns = [column for column in table.c if column.name != owner]
    key = [column.name for column in table.primary_key if column.name != owner]
    figures = [
        column.name
        for column in columns
        if isinstance(column.type, sa.Float | sa.Integer) and column.name not in key
    ]
    require_distinct(new_rows, key)
    rows = new_rows[[column.name for column in columns]].reset_index(drop=True)
    rows = rows.astype(dict.fromkeys(figures, "float64"))
    new = unstored(
        rows,
        rows_of(conn, table, owner, name),
        key,
        figures,
        FIGURE_TOLERANCE,
        zero=FIGURE_ZERO,
        shown=key,
        wrong=f"{name} {{}} is already stored with a different figure: {why}",
    )
    new = new.assign(**{owner: name})
    if any(isinstance(column.type, sa.JSON) for column in columns):
        return insert_missing(conn, table, records(table, new))
    return insert_frame(conn, table, new)
