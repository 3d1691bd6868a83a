"""Time the resampling of days for many models at once, against a loop over models and resamples."""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from benchmarks.timing import median_seconds
from dtml.evaluation.bootstrap import interval, multiplicities
from dtml.evaluation.metrics import accuracy, mcc

DAYS = 252
MODELS = 100
STOCKS = 67
RESAMPLES = 10_000
# Resamples that the loop draws, for one model; its time for all is extrapolated from them.
LOOPED = 200
REPEATS = 5


def made_counts(generator: np.random.Generator) -> Int[ndarray, "days models 4"]:
    """Return the confusion counts of models without skill that share a market."""
    chance_of_rise = np.clip(0.5 + 0.2 * generator.standard_normal((DAYS, 1)), 0, 1)
    rises = np.broadcast_to(generator.binomial(STOCKS, chance_of_rise), (DAYS, MODELS))
    falls = STOCKS - rises
    chance = np.where(generator.random((DAYS, MODELS)) < 0.5, 0.9, 0.1)
    true_rises = generator.binomial(rises, chance)
    false_rises = generator.binomial(falls, chance)
    false_falls = rises - true_rises
    true_falls = falls - false_rises
    return np.stack([true_rises, false_rises, false_falls, true_falls], axis=-1)


def looped(
    counts: Int[ndarray, "days 4"], generator: np.random.Generator
) -> Float[ndarray, "resamples 2"]:
    """Return ACC and MCC of resamples of one model, one after the other.

    The days of each are drawn, gathered, added up and scored.
    """
    scores = np.empty((LOOPED, 2))
    for resample in range(LOOPED):
        days = drawn_days(len(counts), 2.0, generator)
        total = counts[days].sum(axis=0)
        scores[resample] = accuracy(total), mcc(total)
    return scores


def drawn_days(days: int, block: float, generator: np.random.Generator) -> Int[ndarray, " days"]:
    """Return the days of one resample of the stationary bootstrap."""
    place = np.arange(days)
    is_first = generator.random(days) < 1 / block
    starts = generator.integers(0, days, days)
    is_first[0] = True
    first = np.maximum.accumulate(np.where(is_first, place, 0))  # of each place's block
    drawn: Int[ndarray, " days"] = (starts[first] + place - first) % days
    return drawn


def main() -> None:
    """Print the times of one matrix product and of the loop, and their ratio."""
    generator = np.random.default_rng(0)
    counts = made_counts(generator)

    def together() -> None:
        multiplicities.cache_clear()  # the draws are part of the work
        for statistic in (accuracy, mcc):
            interval(counts, statistic, resamples=RESAMPLES)

    matrix = median_seconds(together, REPEATS)
    one_loop = median_seconds(lambda: looped(counts[:, 0], generator), REPEATS)
    loop = one_loop * MODELS * RESAMPLES / LOOPED
    print(
        f"{RESAMPLES} resamples of {MODELS} models on {DAYS} days, intervals of ACC and MCC, "
        f"median of {REPEATS}"
    )
    print(f"  one matrix product   {matrix:8.2f} s")
    print(
        f"  plain loop           {loop:8.0f} s, extrapolated from {LOOPED} resamples of one model"
    )
    print(f"  ratio                {loop / matrix:8.0f}")


if __name__ == "__main__":
    main()
