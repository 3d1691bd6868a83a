"""Compare new rows with the stored ones: which are new, and which differ from a stored row."""

from collections.abc import Sequence
from datetime import date

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from db.errors import StoreError


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
    """Return the stored row with each key of `rows`; missing where _merge is "left_only"."""
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

    The tolerances add up; the relative one is a share of the new number. NaN equals NaN, and a row
    without a counterpart is not changed.
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
