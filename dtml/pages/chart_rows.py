"""The rows of a chart, reduced to the rows and digits that can be seen."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray

POINTS = 150  # of a line, at most, in a static chart
LIVE_POINTS = 400  # of a line, at most, in a chart that can be zoomed
# A line is broken where it has no value for longer than both: no exchange is closed for so many
# days, and values of each month or year are further apart.
BREAK_DAYS = 21
BREAK_STEPS = 5  # times the median distance of its values


def thin(values: Float[ndarray, " sessions"], points: int = POINTS) -> Int[ndarray, " kept"]:
    """Return the positions of the values to draw, at most `points`, ascending.

    If there are more values, they are the first, the last, and the lowest and highest of each of
    some stretches of equal length. A stretch of missing values (NaN) keeps its first place, where
    the line is broken.
    """
    if len(values) <= points:
        return np.arange(len(values))
    places = [0, len(values) - 1]
    # Two values of each stretch, and the two ends.
    for stretch in np.array_split(np.arange(len(values)), points // 2 - 1):
        known = stretch[np.isfinite(values[stretch])]
        if len(known) == 0:
            places.append(stretch[0])
            continue
        lowest = known[np.argmin(values[known])]
        highest = known[np.argmax(values[known])]
        places += [lowest, highest]
    return np.unique(places)


def stretches(sessions: "pd.Index[Any]") -> Int[ndarray, " sessions"]:
    """Return for each of some ascending sessions the number of its stretch, from 0.

    A stretch ends where no session follows for longer than BREAK_DAYS and BREAK_STEPS.
    """
    steps = np.diff(pd.DatetimeIndex(sessions).to_numpy()) / np.timedelta64(1, "D")
    if not len(steps):
        return np.zeros(len(sessions), dtype=int)
    is_break = steps > max(BREAK_DAYS, BREAK_STEPS * float(np.median(steps)))
    return np.concatenate([[0], np.cumsum(is_break)])


def thinned(frame: pd.DataFrame, points: int = POINTS) -> pd.DataFrame:
    """Return the rows to draw of lines over sessions `t`; all rows of any other chart.

    A row is drawn if `thin` keeps it for any of the lines, each with at most `points`.
    """
    if "t" not in frame or len(frame) <= points:
        return frame
    lines = frame.drop(columns="t").to_numpy(dtype=float).T  # [lines sessions]
    places_of_lines = [thin(line, points) for line in lines if np.isfinite(line).any()]
    return frame.iloc[np.unique(np.concatenate(places_of_lines))]


def known_values(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row without missing values, each number with five digits."""
    shortened = {str(name): short(value) for name, value in row.items()}
    return {name: value for name, value in shortened.items() if value is not None}


def short(value: Any) -> Any:
    """Return a number with five digits, None where it is missing or infinite; words unchanged."""
    if pd.isna(value):
        return None
    if isinstance(value, (float, np.floating)):
        rounded = float(f"{value:.5g}")  # the largest numbers become infinite, which JSON lacks
        return rounded if np.isfinite(rounded) else None
    if isinstance(value, np.generic):
        return value.item()
    return value
