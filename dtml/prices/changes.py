"""Changes from bar to bar, across halts, and which bars are close enough to be compared."""

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

Column = Float[ndarray, "bars stocks"]
Places = Int[ndarray, "bars stocks"]

MAX_GAP = 5  # sessions that may be missing inside the bars of a feature


def before(values: Column, count: int) -> Column:
    """Return the values of `count` bars earlier; NaN where there are none."""
    earlier = np.full_like(values, np.nan)
    rows = max(len(values) - count, 0)
    earlier[count:] = values[:rows]
    return earlier


def change(values: Column, count: int = 1) -> Column:
    """Return the ratio to the value of `count` bars earlier, minus 1."""
    return np.asarray(values / before(values, count) - 1)


def reads_enough(position: Places, era: Places, count: int) -> Bool[ndarray, "bars stocks"]:
    """Return whether the last `count` bars have at most `MAX_GAP` missing sessions, and one unit.

    `position` is each bar's session; `era` counts changes of the unit.
    """
    back = count - 1
    enough: Bool[ndarray, "bars stocks"] = np.zeros_like(position, dtype=bool)
    earlier = slice(0, max(len(position) - back, 0))
    distance = position[back:] - position[earlier]
    is_close = distance <= back + MAX_GAP
    shares_unit = era[back:] == era[earlier]
    enough[back:] = is_close & shares_unit
    return enough
