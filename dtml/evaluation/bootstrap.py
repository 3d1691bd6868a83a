"""Intervals that resample days, for many models at once.

They are those of the stationary bootstrap (Politis & Romano, 1994). All models share the same
resamples: one matrix product multiplies how often each resample holds a day with what the day adds
to the totals of each model. Three measures keep the intervals from being too narrow (`python -m
benchmarks.interval_coverage` measures what they leave): the mean block follows the dependence in
the data; the quantiles lie as far out as Student's t requires for the number of blocks; and the
dependence that blocks of that length cut off is added back.

Where outcomes overlap, a block cuts off what lies beyond it, so `overlapping_interval` draws
nothing: its long-run variance is the mean of squared cosine transforms of the days, and its ends
are those of Student's t with as many degrees of freedom (Müller, 2004; Lazarus, Lewis, Stock and
Watson, 2018).
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

# What each day adds to each of some totals over days, for each model.
Summands = Float[ndarray, "days models totals"] | Int[ndarray, "days models totals"]
PerModel = Float[ndarray, " models"]
Ends = tuple[PerModel, PerModel]  # the low and the high one
Statistic = Callable[[ndarray], ndarray]  # maps totals over days, [..., totals], to values [...]

RESAMPLES = 10_000
CONFIDENCE = 0.95
# c of Politis & White (2004): an autocorrelation below c sqrt(log10(days) / days) counts as none
SIGNIFICANT = 2.0
QUIET = 5  # K of that paper: the number of such lags in a row that ends the dependence
CHUNK = 128  # models whose resamples are in memory at once


def interval(summands: Summands, statistic: Statistic, *, resamples: int = RESAMPLES) -> Ends:
    """Return the ends of the 95 % interval of a statistic of totals over two or more days, by
    model.

    They are expanded percentiles as in Hesterberg (2015), with blocks in place of observations.
    """
    from scipy.special import ndtr, stdtrit

    total = summands.sum(axis=0)
    # How much each day changes the statistic, up to a factor.
    mean_block, widening = dependence(statistic(total) - statistic(total - summands))
    blocks = len(summands) / mean_block
    # As far out as Student's t requires for the number of blocks, times the `widening`: the
    # variance of resamples of blocks is too small by the factor (blocks - 1) / blocks.
    student = stdtrit(blocks - 1, (1 + CONFIDENCE) / 2)
    deviations = student * np.sqrt(blocks / (blocks - 1))
    level = np.asarray(ndtr(-deviations * widening))
    low, high = np.empty((2, summands.shape[1]))
    for block in np.unique(mean_block):
        models = np.flatnonzero(mean_block == block)
        chunks = -(-len(models) // CHUNK)  # rounded up
        for chunk in np.array_split(models, chunks):
            totals = resample_days(summands[:, chunk], float(block), resamples)
            low[chunk], high[chunk] = _outer_quantiles(statistic(totals), level[chunk])
    return low, high


def difference(statistic: Statistic) -> Statistic:
    """Return a statistic of two predictors' totals in a row: the first's less the second's."""

    def first_less_second(totals: ndarray) -> ndarray:
        first, second = np.split(totals, 2, axis=-1)
        return statistic(first) - statistic(second)

    return first_less_second


def dependence(influence: Float[ndarray, "days models"]) -> tuple[PerModel, PerModel]:
    """Return the mean block of each model, in days, and the widening of its interval, at least 1.

    `influence` is how much each day changes the statistic. The block is that of Politis & White
    (2004), corrected by Patton, Politis & White (2009), rounded to a power of the square root of 2,
    so that models share resamples. Negative dependence counts as none: blocks never narrow an
    interval. The widening is the long-run standard deviation over that which such blocks reproduce.
    """
    days = len(influence)
    correlation = _autocorrelation(influence)
    lag = np.arange(1, len(correlation) + 1)[:, None]  # [lags 1], to combine with [lags models]
    weighted = correlation * _flat_top(correlation, days)
    # The variance of a total, in units of that of independent days.
    long_run_variance = 1 + 2 * weighted.sum(axis=0)
    variance = np.maximum(long_run_variance, 1)
    lag_weighted = 2 * (lag * weighted).sum(axis=0)  # G of Politis & White
    best_block = np.cbrt(days * (lag_weighted / variance) ** 2)
    block = np.where(long_run_variance > 1, best_block, 1)

    # The bounds of Patton's code for that paper; the second is lower above 81 days.
    longest_block = np.ceil(min(days / 3, 3 * np.sqrt(days)))
    half_powers = np.round(2 * np.log2(np.maximum(block, 1)))
    half_powers = np.clip(half_powers, 0, np.floor(2 * np.log2(longest_block)))
    block = 2 ** (half_powers / 2)

    # Days of different blocks are drawn independently, so a resample reproduces a correlation only
    # as far as two days at that lag are in one block.
    same_block_probability = (1 - 1 / block) ** lag
    reproduced_variance = 1 + 2 * (weighted * same_block_probability).sum(axis=0)
    # At least 1, as that of independent days, and no more than the variance that was estimated.
    reproduced_variance = np.clip(reproduced_variance, 1, variance)
    return block, np.sqrt(variance / reproduced_variance)


def resample_days(
    summands: Float[ndarray, "days *models totals"] | Int[ndarray, "days *models totals"],
    block: float,
    resamples: int,
) -> Float[ndarray, "resamples *models totals"]:
    """Return totals over days drawn in blocks of geometric length, of mean `block` days.

    Blocks wrap around the end. Totals of whole numbers are exact below 2^24, others have seven
    digits.
    """
    flat_summands = summands.reshape(len(summands), -1).astype(np.float32)
    totals = multiplicities(len(summands), block, resamples) @ flat_summands
    return totals.astype(float).reshape(resamples, *summands.shape[1:])


@lru_cache(maxsize=8)
def multiplicities(days: int, block: float, resamples: int) -> Float[ndarray, "resamples days"]:
    """Return how often each resample holds each day, read-only, the same each time."""
    generator = np.random.default_rng(0)
    place = np.arange(days, dtype=np.int32)
    drawn_day = generator.integers(0, days, (resamples, days), dtype=np.int32)
    if block > 1:
        # Only the day drawn for the start of a block counts; the days after it follow in order.
        is_block_start = generator.random((resamples, days), dtype=np.float32) < 1 / block
        is_block_start[:, 0] = True
        block_start = np.maximum.accumulate(np.where(is_block_start, place, 0), axis=1)
        first_of_block = np.take_along_axis(drawn_day, block_start, axis=1)
        drawn_day = (first_of_block + place - block_start) % days
    multiplicity = counts_of(drawn_day, days).astype(np.float32)
    multiplicity.flags.writeable = False
    return multiplicity


def counts_of(drawn: Int[ndarray, "resamples draws"], days: int) -> Int[ndarray, "resamples days"]:
    """Return how often each resample has drawn each of so many days."""
    # Number the pairs of resample and day, to count those of all resamples at once.
    cell = drawn + days * np.arange(len(drawn))[:, None]
    return np.bincount(cell.ravel(), minlength=len(drawn) * days).reshape(len(drawn), days)


def _autocorrelation(series: Float[ndarray, "days models"]) -> Float[ndarray, "lags models"]:
    """Return the autocorrelation at the lags 1, 2, ... (in days) that the choice of a block reads.

    The square root of the days and `QUIET` more, but fewer than the days; 0 for a constant series.
    """
    days = len(series)
    lags = min(int(np.ceil(np.sqrt(days))) + QUIET, days - 1)
    centred = series - series.mean(axis=0)
    variance, *covariances = (
        (centred[lag:] * centred[: days - lag]).sum(axis=0) for lag in range(lags + 1)
    )
    none = np.zeros((lags, series.shape[1]))
    return np.asarray(np.divide(covariances, variance, out=none, where=variance > 0))


def _flat_top(
    correlation: Float[ndarray, "lags models"], days: int
) -> Float[ndarray, "lags models"]:
    """Return the weights of the lags: 1 up to the last that counts, falling to 0 at twice that lag.

    The first lag and significant ones count; after `QUIET` others in a row, no more do.
    """
    is_significant = np.abs(correlation) > SIGNIFICANT * np.sqrt(np.log10(days) / days)
    padded = np.pad(is_significant, ((0, QUIET), (0, 0)))
    # Row r looks at the lags r + 1 .. r + QUIET, so the first row without a significant one is the
    # last lag that counts.
    continues = np.lib.stride_tricks.sliding_window_view(padded, QUIET, axis=0).any(axis=-1)
    last = np.argmin(continues, axis=0)
    lag = np.arange(1, len(correlation) + 1)[:, None]
    return np.asarray(np.clip(2 - lag / np.maximum(last, 1), 0, 1))


def _outer_quantiles(drawn: Float[ndarray, "resamples models"], level: PerModel) -> Ends:
    """Return the interpolated quantiles at each model's `level` and at 1 - `level`."""
    ordered = np.sort(drawn.T, axis=1)
    position = level * (len(drawn) - 1)
    rank = np.floor(position).astype(int)
    fraction = position - rank
    model = np.arange(len(ordered))
    low, above_low = ordered[model, rank], ordered[model, rank + 1]
    high, below_high = ordered[model, -1 - rank], ordered[model, -2 - rank]
    return low + fraction * (above_low - low), high - fraction * (high - below_high)


# Of Lazarus et al.: degrees of freedom are .41 days^(2/3), where the outcomes do not overlap.
SHARE = 0.41
# A wave of a transform is at least so many times as long as an outcome, because the variance of
# shorter ones is below the long-run variance.
WAVES = 4
FEWEST = 3  # transforms


def overlapping_interval(summands: Summands, statistic: Statistic, *, overlap: int) -> Ends:
    """Return the ends of the 95 % interval of a smooth statistic of totals over days, by model.

    An outcome spans `overlap` days, 1 or more. At least two days are needed.
    """
    from scipy.special import stdtrit

    days = len(summands)
    value = statistic(summands.sum(axis=0))
    # The wave of the j-th transform is 2 days / j long: up to this j the waves are long enough.
    last_long_enough = 2 * days // (WAVES * overlap)
    wanted = max(min(int(SHARE * days ** (2 / 3)), last_long_enough), FEWEST)
    # The number of transforms is that of the degrees of freedom; so many days have no more.
    count = min(wanted, days - 1)
    frequency = np.pi * np.arange(1, count + 1) / days
    phase = frequency[:, None] * (np.arange(days) + 0.5)  # [transforms days]
    series = pseudo_values(summands, statistic)
    coordinates = np.sqrt(2 / days) * np.cos(phase) @ (series - series.mean(axis=0))
    variance = (coordinates**2).mean(axis=0)
    half_width = stdtrit(count, (1 + CONFIDENCE) / 2) * np.sqrt(variance / days)
    return value - half_width, value + half_width


def pseudo_values(summands: Summands, statistic: Statistic) -> Float[ndarray, "days models"]:
    """Return what each day adds to a statistic of totals over days: the jackknife's values."""
    days = len(summands)
    total = summands.sum(axis=0)
    return np.asarray(days * statistic(total) - (days - 1) * statistic(total - summands))
