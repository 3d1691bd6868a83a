"""Compare new rows with the stored ones: which are new, and which differ from a stored row.

A figure, once stored, is never changed. A stored row belongs to the run, study or ranker that its
owner column names.
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
FIGURE_ABSOLUTE_TOLERANCE = 1e-12

# How to compute a stored figure again as it is: the end of messages about another one.
SAME_AGAIN = (
    "use the version of dtml and the kind of machine that stored it or, if prices have changed "
    "since, move the store away and restore a backup from before that change with `dtml db restore`"
)


def require_distinct(rows: pd.DataFrame, key: list[str]) -> None:
    """Raise StoreError, naming the first repeated key, where two rows have the same key."""
    repeated = rows[rows.duplicated(key)]
    if len(repeated):
        raise StoreError(
            f"{first_key_text(repeated, key)} is duplicated: give only one row for each "
            f"{', '.join(key)}"
        )


def first_key_text(rows: pd.DataFrame, key: list[str]) -> str:
    """Return the first row's values of the columns `key` as text for a message."""
    words = []
    for name in key:
        value = rows.iloc[0][name]
        words.append(f"{value:%Y-%m-%d}" if isinstance(value, date) else str(value))
    return " ".join(words)


def stored_counterparts(rows: pd.DataFrame, stored: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the stored row with the key of each of `rows`, in their order.

    Where there is none, its values are missing. The column _merge says "both" where there is one,
    else "left_only"; `is_stored` reads it.
    """
    # Of a new night nothing is stored: a merge would take most of the time of storing it.
    if stored.empty:
        keys = rows[key].reset_index(drop=True)
        return keys.join(stored.drop(columns=key)).assign(_merge="left_only")
    return rows[key].merge(stored, on=key, how="left", indicator=True)


def is_stored(counterparts: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which rows have a stored row; `counterparts` is what `stored_counterparts` returns."""
    return (counterparts["_merge"] == "both").to_numpy()


def is_changed(
    rows: pd.DataFrame,
    counterparts: pd.DataFrame,
    values: Sequence[str],
    relative_tolerance: float,
    *,
    absolute_tolerance: float = 0.0,
) -> NDArray[np.bool_]:
    """Return which rows are stored with another number in one of the columns `values`.

    Numbers differ if they lie further apart than the sum of both tolerances; the relative one is a
    share of the new number. NaN equals NaN. `counterparts` is what `stored_counterparts` returns. A
    row that is not stored is not changed.
    """
    names = list(values)
    stored_values = counterparts[names].astype("float64")
    new_values = rows[names].astype("float64")
    is_close = np.isclose(
        stored_values,
        new_values,
        rtol=relative_tolerance,
        atol=absolute_tolerance,
        equal_nan=True,
    )
    return np.asarray(is_stored(counterparts) & ~is_close.all(axis=1))


def new_rows_of(
    rows: pd.DataFrame,
    stored: pd.DataFrame,
    key: list[str],
    values: Sequence[str],
    relative_tolerance: float,
    *,
    absolute_tolerance: float = 0.0,
    named_columns: list[str],
    message: str,
) -> pd.DataFrame:
    """Return the rows whose `key` is not stored yet.

    `stored` has the stored rows that may have those keys. Raises StoreError where a row is stored
    with other `values`, as `is_changed` finds. The error's text is `message`, in which the first
    such row's values of `named_columns` replace the braces.
    """
    counterparts = stored_counterparts(rows, stored, key)
    is_different = is_changed(
        rows,
        counterparts,
        values,
        relative_tolerance,
        absolute_tolerance=absolute_tolerance,
    )
    differing = rows[is_different]
    if len(differing):
        raise StoreError(message.replace("{}", first_key_text(differing, named_columns)))
    return rows[~is_stored(counterparts)]


def stored_of_targets(
    conn: Connection, table: sa.Table, rows: pd.DataFrame, owner_column: str
) -> pd.DataFrame:
    """Return the stored rows of every pair of owner and target that occurs in `rows`.

    There are few such pairs, with many rows each, so that each pair is read by its own statement.
    `rows` has at least one row.
    """
    pairs = rows[[owner_column, "target"]].drop_duplicates()
    stored_parts = []
    for owner, target in pairs.itertuples(index=False):
        statement = sa.select(table).where(table.c[owner_column] == owner, table.c.target == target)
        stored_parts.append(frame(conn, statement))
    return pd.concat(stored_parts, ignore_index=True)


def save_figures(
    conn: Connection,
    table: sa.Table,
    owner_column: str,
    name: str,
    new_rows: pd.DataFrame,
    *,
    reason: str,
) -> int:
    """Insert the rows that are not stored yet, with `name` in their owner column; return how many.

    `new_rows` has the table's other columns. Stored numbers are the same as new ones within
    `FIGURE_TOLERANCE` and `FIGURE_ABSOLUTE_TOLERANCE`; columns of other types are not compared.
    Raises StoreError for two rows with the same key, and for a row that is stored with other
    numbers; this second message names the table and the row, and ends with the `reason` why it
    cannot change.
    """
    columns = [column for column in table.c if column.name != owner_column]
    key = [column.name for column in table.primary_key if column.name != owner_column]
    figures = [
        column.name
        for column in columns
        if isinstance(column.type, sa.Float | sa.Integer) and column.name not in key
    ]
    require_distinct(new_rows, key)
    rows = new_rows[[column.name for column in columns]].reset_index(drop=True)
    # As floats, None becomes NaN and a whole number can be compared with one read back.
    rows = rows.astype(dict.fromkeys(figures, "float64"))
    new = new_rows_of(
        rows,
        rows_of(conn, table, owner_column, name),
        key,
        figures,
        FIGURE_TOLERANCE,
        absolute_tolerance=FIGURE_ABSOLUTE_TOLERANCE,
        named_columns=key,
        message=f"{table.name}: {name} {{}} is already stored with a different figure, which "
        f"stays: {reason}",
    )
    new = new.assign(**{owner_column: name})
    # `insert_frame` hands values to the driver, which cannot convert a JSON column's mappings.
    if any(isinstance(column.type, sa.JSON) for column in columns):
        return insert_missing(conn, table, records(table, new))
    return insert_frame(conn, table, new)
