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
Watson, 2018). `python -m benchmarks.overlapping_coverage` measures them.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

# What each day adds to each of some totals over days, for each model.
Summands = Float[ndarray, "days models totals"] | Int[ndarray, "days models totals"]
DaySummands = Float[ndarray, "days *models totals"] | Int[ndarray, "days *models totals"]
PerModel = Float[ndarray, " models"]
Ends = tuple[PerModel, PerModel]  # the low and the high one
Statistic = Callable[[ndarray], ndarray]  # maps totals over days, [..., totals], to values [...]

RESAMPLES = 10_000
CONFIDENCE = 0.95
# c of Politis & White (2004): an autocorrelation below c sqrt(log10(days) / days) counts as none
SIGNIFICANT = 2.0
QUIET = 5  # K of that paper: the number of such lags in a row that ends the dependence
CHUNK = 128  # models whose resamples are in memory at once


def interval(
    summands: Summands, statistic: Statistic, *, resamples: int = RESAMPLES, seed: int = 0
) -> Ends:
    """Return the ends of the 95 % interval of a statistic of totals over days, for each model.

    `summands` holds what each day adds to the totals, finite, [days models totals]; `statistic`
    maps totals [..., totals] to values [...]. For a paired difference, the last axis holds the
    summands of both predictors, one after the other (`difference`). At least two days are needed,
    and with few days the interval is rough. The ends are expanded percentiles as in Hesterberg
    (2015), with blocks in place of observations.
    """
    total = summands.sum(axis=0)
    # How much each day changes the statistic, up to a factor.
    without_day = total - summands
    influence = statistic(total) - statistic(without_day)
    mean_block, widening = dependence(influence)
    blocks = len(summands) / mean_block
    # As far out as Student's t requires for the number of blocks, times the `widening`: the
    # variance of resamples of blocks is too small by the factor (blocks - 1) / blocks.
    from scipy.special import ndtr, stdtrit

    student = stdtrit(blocks - 1, (1 + CONFIDENCE) / 2)
    deviations = student * np.sqrt(blocks / (blocks - 1))
    level = np.asarray(ndtr(-deviations * widening))
    low = np.empty(summands.shape[1])
    high = np.empty(summands.shape[1])
    for block in np.unique(mean_block):
        models = np.flatnonzero(mean_block == block)
        chunks = -(-len(models) // CHUNK)  # rounded up
        for chunk in np.array_split(models, chunks):
            totals = resample_days(
                summands[:, chunk],
                float(block),
                resamples=resamples,
                seed=seed,
            )
            low[chunk], high[chunk] = _outer_quantiles(statistic(totals), level[chunk])
    return low, high


def difference(statistic: Statistic) -> Statistic:
    """Return a statistic of two predictors: that of the first less that of the second.

    The last axis of its totals holds those of the first predictor and then those of the second, on
    the same days.
    """

    def first_less_second(totals: ndarray) -> ndarray:
        first, second = np.split(totals, 2, axis=-1)
        return statistic(first) - statistic(second)

    return first_less_second


def dependence(influence: Float[ndarray, "days models"]) -> tuple[PerModel, PerModel]:
    """Return the mean block of each model, in days, and the widening of its interval.

    `influence` is how much each day changes the statistic of each model. The block is that of
    Politis & White (2004), corrected by Patton, Politis & White (2009), and rounded to a power of
    the square root of 2, so that models share resamples. It is 1 where the days seem independent,
    and at most a third of the days, or three times their square root if that is fewer, rounded up.
    Days that seem negatively dependent count as independent: blocks may widen an interval but never
    narrow it. The widening, at least 1, is the long-run standard deviation in units of the one that
    blocks of that length reproduce.
    """
    days = len(influence)
    correlation = _autocorrelation(influence)
    lag = np.arange(1, len(correlation) + 1)[:, None]  # [lags 1], to combine with [lags models]
    weighted = correlation * _flat_top(correlation, days)
    # The variance of a total, in units of that of independent days: below 1 if days are negatively
    # dependent, which counts as independent.
    long_run_variance = 1 + 2 * weighted.sum(axis=0)
    variance = np.maximum(long_run_variance, 1)
    lag_weighted = 2 * (lag * weighted).sum(axis=0)  # G of Politis & White
    best_block = np.cbrt(days * (lag_weighted / variance) ** 2)
    block = np.where(long_run_variance > 1, best_block, 1)

    # The bounds of Patton's code for that paper. With days / 3, a sample has about three blocks or
    # more, of which `_level` needs several; the other bound is lower above 81 days.
    longest_block = np.ceil(min(3 * np.sqrt(days), days / 3))
    at_least_a_day = np.maximum(block, 1)
    half_powers = np.round(2 * np.log2(at_least_a_day))
    largest_half_powers = np.floor(2 * np.log2(longest_block))
    half_powers = np.clip(half_powers, 0, largest_half_powers)
    block = 2 ** (half_powers / 2)

    # Days of different blocks are drawn independently, so a resample reproduces a correlation only
    # as far as two days at that lag are in one block.
    same_block_probability = (1 - 1 / block) ** lag
    reproduced_variance = 1 + 2 * (weighted * same_block_probability).sum(axis=0)
    # At least 1, as that of independent days, and no more than the variance that was estimated.
    reproduced_variance = np.clip(reproduced_variance, 1, variance)
    widening = np.sqrt(variance / reproduced_variance)
    return block, widening


def resample_days(
    summands: DaySummands, block: float, *, resamples: int = RESAMPLES, seed: int = 0
) -> Float[ndarray, "resamples *models totals"]:
    """Return totals over days drawn in blocks of geometric length, of mean `block` days.

    Blocks wrap around the end. The totals are computed in single precision: those of whole numbers
    are exact below 2^24, others have seven digits.
    """
    multiplicity = multiplicities(len(summands), block, resamples, seed)
    flat_summands = summands.reshape(len(summands), -1).astype(np.float32)
    totals = multiplicity @ flat_summands
    return totals.astype(float).reshape(resamples, *summands.shape[1:])


@lru_cache(maxsize=8)
def multiplicities(
    days: int, block: float, resamples: int, seed: int
) -> Float[ndarray, "resamples days"]:
    """Return how often each resample holds each day; rows sum to `days`.

    The same arguments give the same draws. The result is shared by all callers, and so read-only.
    """
    generator = np.random.default_rng(seed)
    place = np.arange(days, dtype=np.int32)
    drawn_day = generator.integers(0, days, (resamples, days), dtype=np.int32)
    if block > 1:
        # Only the day drawn for the start of a block counts; the days after it follow in order.
        is_block_start = generator.random((resamples, days), dtype=np.float32) < 1 / block
        is_block_start[:, 0] = True
        block_start = np.maximum.accumulate(np.where(is_block_start, place, 0), axis=1)
        since_start = place - block_start
        first_of_block = np.take_along_axis(drawn_day, block_start, axis=1)
        drawn_day = (first_of_block + since_start) % days
    # Number the pairs of resample and day, to count the days of all resamples at once.
    cell = drawn_day + days * np.arange(resamples)[:, None]
    counts = np.bincount(cell.ravel(), minlength=resamples * days)
    multiplicity = counts.reshape(resamples, days).astype(np.float32)
    multiplicity.flags.writeable = False
    return multiplicity


def _autocorrelation(series: Float[ndarray, "days models"]) -> Float[ndarray, "lags models"]:
    """Return the autocorrelation at the lags 1, 2, ... (in days), one a row.

    There are as many lags as the choice of a block reads: the square root of the days, rounded up,
    and `QUIET` more, but fewer than the days. All are 0 for a series that does not vary.
    """
    days = len(series)
    lags = min(int(np.ceil(np.sqrt(days))) + QUIET, days - 1)
    centred = series - series.mean(axis=0)
    products_by_lag = []
    for lag in range(lags + 1):
        later = centred[lag:]
        earlier = centred[: days - lag]
        products_by_lag.append((later * earlier).sum(axis=0))
    products = np.array(products_by_lag)
    variance = products[0]
    covariances = products[1:]
    return np.asarray(
        np.divide(
            covariances,
            variance,
            out=np.zeros_like(covariances),
            where=variance > 0,
        )
    )


def _flat_top(
    correlation: Float[ndarray, "lags models"], days: int
) -> Float[ndarray, "lags models"]:
    """Return the weights of the lags: 1 up to the last that counts, falling to 0 at twice that lag.

    A lag counts if its correlation is significant, and the first lag always does. After `QUIET`
    lags in a row without significance, no more count.
    """
    threshold = SIGNIFICANT * np.sqrt(np.log10(days) / days)
    is_significant = np.abs(correlation) > threshold
    none_beyond = np.zeros((QUIET, is_significant.shape[1]), dtype=bool)
    padded = np.concatenate([is_significant, none_beyond])
    # Whether any of the next QUIET lags is significant.
    continues = np.lib.stride_tricks.sliding_window_view(padded, QUIET, axis=0).any(axis=-1)
    # Row r looks at the lags r + 1 .. r + QUIET, so the first row without a significant one is the
    # last lag that counts.
    last = np.argmin(continues, axis=0)
    lag = np.arange(1, len(correlation) + 1)[:, None]
    return np.asarray(np.clip(2 - lag / np.maximum(last, 1), 0, 1))


def _outer_quantiles(drawn: Float[ndarray, "resamples models"], level: PerModel) -> Ends:
    """Return the quantiles at each model's `level` and at 1 - `level`.

    They are interpolated between the values next to them, as numpy's quantiles are.
    """
    ordered = np.sort(drawn.T, axis=1)
    position = level * (len(drawn) - 1)
    rank = np.floor(position).astype(int)
    fraction = position - rank
    model = np.arange(len(ordered))
    # The two values next to the low quantile, and as far from the other end those next to the high.
    below_low = ordered[model, rank]
    above_low = ordered[model, rank + 1]
    above_high = ordered[model, -1 - rank]
    below_high = ordered[model, -2 - rank]
    low = below_low + fraction * (above_low - below_low)
    high = above_high - fraction * (above_high - below_high)
    return low, high


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
