"""Intervals of figures over days whose outcomes overlap, such as returns over five sessions.

Neighbouring days share most of such an outcome, and a block of the bootstrap cuts off what lies
beyond it. Here the long-run variance is the mean of squared cosine transforms of the days, and the
interval is that of Student's t with as many degrees of freedom as there are transforms ("equal-
weighted cosine" with fixed-b critical values: Müller, 2004; Lazarus, Lewis, Stock and Watson,
"HAR Inference: Recommendations for Practice", 2018). Nothing is drawn. `python -m
benchmarks.overlapping_coverage` measures what the intervals hold.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.bootstrap import CONFIDENCE, Ends, PerModel, Statistic, Summands

# Of Lazarus et al.: degrees of freedom are .41 days^(2/3), where the outcomes do not overlap.
SHARE = 0.41
# A wave of a transform is at least so many times as long as an outcome, because the variance of
# shorter ones is below the long-run variance.
WAVES = 4
FEWEST = 3  # transforms


def overlapping_interval(summands: Summands, statistic: Statistic, *, overlap: int) -> Ends:
    """Return the ends of the 95 % interval of a statistic of totals over days, for each model.

    `summands` and `statistic` are as in `dtml.evaluation.bootstrap.interval`. `overlap` is the
    number of days that an outcome spans, 1 or more. The statistic is taken to be smooth: what each
    day adds to it is found by leaving the day out. At least two days are needed.
    """
    from scipy.special import stdtrit

    days = len(summands)
    total = summands.sum(axis=0)
    value = statistic(total)
    pseudo_values = days * value - (days - 1) * statistic(total - summands)
    count = transforms(days, overlap)
    variance = long_run_variance(pseudo_values, count)
    half_width = stdtrit(count, (1 + CONFIDENCE) / 2) * np.sqrt(variance / days)
    return value - half_width, value + half_width


def transforms(days: int, overlap: int) -> int:
    """Return the number of cosine transforms, which are the degrees of freedom of the variance."""
    usual = int(SHARE * days ** (2 / 3))
    # The wave of the j-th transform is 2 days / j long: up to this j the waves are long enough.
    last_long_enough = 2 * days // (WAVES * overlap)
    wanted = max(min(usual, last_long_enough), FEWEST)
    return min(wanted, days - 1)  # a series of so many days has no more


def long_run_variance(series: Float[ndarray, "days models"], count: int) -> PerModel:
    """Return the long-run variance of each series: the mean of its squared cosine transforms."""
    days = len(series)
    middle_of_day = np.arange(days) + 0.5
    frequency = np.pi * np.arange(1, count + 1) / days
    phase = frequency[:, None] * middle_of_day  # [transforms days]
    cosines = np.sqrt(2 / days) * np.cos(phase)
    coordinates = cosines @ (series - series.mean(axis=0))
    return np.asarray((coordinates**2).mean(axis=0))
