"""Find runs of a few bars at another level than their neighbours: a wrong unit, a misplaced point.

A single such bar looks like a jump and its reversal. In a longer run the bars agree with each
other, and only the bar after them shows that they were wrong. No real stock of nine public sets
(4.7 million bars) leaves its level by a factor of 3 in one session and comes back within `LONGEST`:
the nearest, ASPS in January 2015, fell to .61 of its price for three sessions on news.
"""

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

FACTOR = 3.0  # by which every bar of a run is above both neighbours, or below both, at least
LONGEST = 5  # bars; a longer run is a level of its own

Prices = Float[ndarray, "bars"]


def brief_jumps(
    price: Prices, explained: Bool[ndarray, " bars"], max_return: float
) -> Bool[ndarray, " bars"]:
    """Return which bars of one symbol are a run away from its level, of `LONGEST` bars at most.

    `price` is above 0, in the order of time; `explained` marks bars whose move a recorded split
    explains. The bars before and after a run agree with each other: they differ by at most
    `max_return`, a ratio. The newest bar is never marked, as no later bar has come back.
    """
    level = np.log(price)
    is_leap = np.abs(np.diff(level)) >= np.log(FACTOR)
    unexplained_leaps = np.flatnonzero(is_leap & ~explained[1:]) + 1
    marked = np.zeros(len(price), dtype=bool)
    for first in unexplained_leaps:
        if marked[first - 1]:
            continue  # within an earlier run, or the bar after it, which came back
        end = _first_bar_back(level, int(first), max_return)
        # A split in the run, or on the bar that comes back, explains it.
        is_explained = explained[first : end + 1].any()
        marked[first:end] = not is_explained  # no bar where none came back
    return marked


def _first_bar_back(level: Prices, first: int, max_return: float) -> int:
    """Return the position of the first bar that is back at the level of the bar before `first`.

    It is `first` itself where none comes back in time, or where the run ends at a third level.
    `level` is the logarithm of the price.
    """
    level_before = level[first - 1]
    direction = np.sign(level[first] - level_before)
    next_bars = level[first : first + LONGEST + 1]
    distance = (next_bars - level_before) * direction  # above 0 on the side of the leap
    near_bars = np.flatnonzero(distance < np.log(FACTOR))
    if not len(near_bars):
        return first
    # The run ends at the first near bar. If that bar is at a third level, there is no run.
    end = first + int(near_bars[0])
    came_back = abs(np.exp(level[end] - level_before) - 1) <= max_return
    run = level[first:end]
    far_from_end = np.abs(run - level[end]) >= np.log(FACTOR)
    if came_back and far_from_end.all():
        return end
    return first
