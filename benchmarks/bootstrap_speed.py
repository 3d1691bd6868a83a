"""Time the resampling of the days of many models at once, against a plain loop
over models and resamples.
"""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from benchmarks.timing import median_seconds
from dtml.evaluation.bootstrap import interval, multiplicities
from dtml.evaluation.metrics import accuracy, mcc

DAYS, MODELS, STOCKS, RESAMPLES = 252, 100, 67, 10_000
# resamples that the loop draws for one model; its time for all is extrapolated from them
LOOPED = 200
REPEATS = 5


def made_counts(generator: np.random.Generator) -> Int[ndarray, "days models 4"]:
    """Return the confusion counts of models without skill that share a market."""
    rises = generator.binomial(
        STOCKS, np.clip(0.5 + 0.2 * generator.standard_normal((DAYS, 1)), 0, 1)
    )
    rises = np.broadcast_to(rises, (DAYS, MODELS))
    chance = np.where(generator.random((DAYS, MODELS)) < 0.5, 0.9, 0.1)
    direction, falsely = (
        generator.binomial(rises, chance),
        generator.binomial(STOCKS - rises, chance),
    )
    return np.stack([direction, falsely, rises - direction, STOCKS - rises - falsely], axis=-1)


def looped(
    counts: Int[ndarray, "days 4"], generator: np.random.Generator
) -> Float[ndarray, "resamples 2"]:
    """Return ACC and MCC of one model, a resample at a time: the days are
    drawn, gathered, added up and scored.
    """
    drawn = np.empty((LOOPED, 2))
    for resample in range(LOOPED):
        total = counts[drawn_days(len(counts), 2.0, generator)].sum(axis=0)
        drawn[resample] = accuracy(total), mcc(total)
    return drawn


def drawn_days(days: int, block: float, generator: np.random.Generator) -> Int[ndarray, " days"]:
    """Return the days of one resample of the stationary bootstrap."""
    place = np.arange(days)
    fresh, starts = generator.random(days) < 1 / block, generator.integers(0, days, days)
    fresh[0] = True
    begun = np.maximum.accumulate(np.where(fresh, place, 0))
    drawn: Int[ndarray, " days"] = (starts[begun] + place - begun) % days
    return drawn


def main() -> None:
    """Print both times and their ratio."""
    generator = np.random.default_rng(0)
    counts = made_counts(generator)

    def together() -> None:
        multiplicities.cache_clear()  # the draws are part of the work
        for statistic in (accuracy, mcc):
            interval(counts, statistic, resamples=RESAMPLES)

    matrix = median_seconds(together, REPEATS)
    loop = (
        median_seconds(lambda: looped(counts[:, 0], generator), REPEATS)
        * MODELS
        * RESAMPLES
        / LOOPED
    )
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
