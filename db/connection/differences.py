"""Given rows beside the stored ones: which are new, which differ.

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

# A figure computed again on another thread count agrees to this; one that is 0 agrees to the
# second.
FIGURE_TOLERANCE = 1e-6
FIGURE_ZERO = 1e-12


def require_distinct(rows: pd.DataFrame, key: list[str]) -> None:
    """Raise StoreError, naming one, for rows of the same key."""
    repeated = rows[rows.duplicated(key)]
    if len(repeated):
        raise StoreError(f"{named(repeated, key)} is duplicated")


def named(rows: pd.DataFrame, key: list[str]) -> str:
    """Return the first row's key, to be shown."""
    values = (rows.iloc[0][name] for name in key)
    return " ".join(f"{each:%Y-%m-%d}" if isinstance(each, date) else str(each) for each in values)


def alongside(rows: pd.DataFrame, stored: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return for each row, in order, the stored one of its key; missing values
    where there is none.
    """
    if stored.empty:  # as for every new night: a merge would take most of the time of storing it
        return (
            rows[key]
            .reset_index(drop=True)
            .join(stored.drop(columns=key))
            .assign(_merge="left_only")
        )
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
    """Return which rows are stored with a value beyond the relative tolerance,
    or `zero`; NaN equals NaN.
    """
    names = list(values)
    stored, given = (each[names].astype("float64") for each in (before, rows))
    equal = np.isclose(stored, given, rtol=tolerance, atol=zero, equal_nan=True).all(axis=1)
    return np.asarray(is_stored(before) & ~equal)


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

    Raises StoreError where one is stored with another value, as `differ` finds: `wrong`, with the
    first one's columns `shown` in its braces.
    """
    before = alongside(rows, stored, key)
    differing = rows[differ(rows, before, values, tolerance, zero=zero)]
    if len(differing):
        raise StoreError(wrong.replace("{}", named(differing, shown)))
    return rows[~is_stored(before)]


def stored_on(conn: Connection, table: sa.Table, rows: pd.DataFrame, owner: str) -> pd.DataFrame:
    """Return what a table holds of each owner and target among the rows: few
    pairs, many rows of each.
    """
    pairs = rows[[owner, "target"]].drop_duplicates().itertuples(index=False)
    mine = (
        sa.select(table).where(table.c[owner] == name, table.c.target == target)
        for name, target in pairs
    )
    return pd.concat([frame(conn, each) for each in mine], ignore_index=True)


def save_figures(
    conn: Connection, table: sa.Table, owner: str, name: str, given: pd.DataFrame, *, why: str
) -> int:
    """Insert the rows that are not stored for `name`, the value of the column `owner`; return how
    many were.

    Numbers of those that are must be equal: else StoreError, naming the first row and saying why.
    """
    columns = [each for each in table.c if each.name != owner]
    key = [each.name for each in table.primary_key if each.name != owner]
    figures = [
        each.name
        for each in columns
        if isinstance(each.type, sa.Float | sa.Integer) and each.name not in key
    ]
    require_distinct(given, key)
    rows = given[[each.name for each in columns]].reset_index(drop=True)
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
    if any(isinstance(each.type, sa.JSON) for each in columns):
        return insert_missing(conn, table, records(table, new))
    return insert_frame(conn, table, new)
