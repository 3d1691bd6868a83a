"""The rows of a chart: as many of them, and as many digits, as can be seen."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray

POINTS = 300  # of a line at most in a chart that stands still


def thin(values: Float[ndarray, " sessions"]) -> Int[ndarray, " kept"]:
    """Return which values to draw, `POINTS` at most.

    They are the first, the last, and the lowest and highest of each stretch.
    """
    if len(values) <= POINTS:
        return np.arange(len(values))
    finite = np.where(np.isfinite(values), values, np.nanmean(values))
    kept = [0, len(values) - 1]
    for stretch in np.array_split(np.arange(len(values)), POINTS // 2 - 1):
        stretch_values = finite[stretch]
        lowest = np.argmin(stretch_values)
        highest = np.argmax(stretch_values)
        kept.append(stretch[lowest])
        kept.append(stretch[highest])
    return np.unique(kept)


def thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows to draw of lines over sessions, `t`; all rows of anything else."""
    if "t" not in frame or len(frame) <= POINTS:
        return frame
    lines = frame.drop(columns="t").to_numpy(dtype=float).T
    kept = [thin(line) for line in lines if np.isfinite(line).any()]
    return frame.iloc[np.unique(np.concatenate(kept))]


def known_values(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row without what is missing, each number with five digits."""
    known = {}
    for name, value in row.items():
        if not pd.isna(value):
            known[str(name)] = short(value)
    return known


def short(value: Any) -> Any:
    """Return a number with five digits, None where it is missing; words as they are."""
    if pd.isna(value):
        return None
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.5g}")
    if isinstance(value, np.generic):
        return value.item()
    return value
