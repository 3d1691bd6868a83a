"""Measure how often the 95 % interval of rank IC holds the truth where outcomes overlap.

`python -m benchmarks.overlapping_coverage [--markets 1000]`. The scores of 20 stocks know nothing
and follow themselves from day to day (AR(1)); an outcome is the sum of the returns of the next
sessions, so that neighbouring days share all but one. The daily rank ICs are then correlated as far
as the outcome reaches. The truth is 0. Printed are the resampled interval, by which all figures
were given before, and the one that figures of overlapping outcomes have now, with the mean width of
the second in units of the first.
"""

import argparse

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.bootstrap import Ends, interval, overlapping_interval
from dtml.evaluation.metrics import ratio

MARKETS = 1000
STOCKS = 20
RESAMPLES = 1000
DAYS = (120, 250, 1000)
OVERLAPS = (1, 2, 5, 10, 20)
PERSISTENCE = (0.0, 0.7, 0.95)  # of the scores
CHUNK = 100  # markets that are in memory at once


def daily_ics(
    days: int, overlap: int, persistence: float, markets: int, seed: int = 0
) -> Float[ndarray, "days markets"]:
    """Return the correlation of scores and outcomes within each day of each market."""
    generator = np.random.default_rng(seed)
    parts = []
    for start in range(0, markets, CHUNK):
        shape = (days, min(CHUNK, markets - start), STOCKS)
        parts.append(_of_chunk(shape, overlap, persistence, generator))
    return np.concatenate(parts, axis=1)


def _of_chunk(
    shape: tuple[int, int, int],
    overlap: int,
    persistence: float,
    generator: np.random.Generator,
) -> Float[ndarray, "days markets"]:
    days = shape[0]
    scores = generator.standard_normal(shape, dtype=np.float32)
    for day in range(1, days):
        fresh = np.sqrt(1 - persistence**2) * scores[day]
        scores[day] = persistence * scores[day - 1] + fresh
    returns = generator.standard_normal((days + overlap, *shape[1:]), dtype=np.float32)
    prices = returns.cumsum(axis=0)
    outcome = (prices[overlap:] - prices[:-overlap])[:days]
    scores -= scores.mean(axis=2, keepdims=True)
    outcome = outcome - outcome.mean(axis=2, keepdims=True)
    variances = (scores**2).sum(axis=2) * (outcome**2).sum(axis=2)
    return np.asarray((scores * outcome).sum(axis=2) / np.sqrt(variances), dtype=float)


def holds_0(ends: Ends) -> float:
    """Return the share of markets whose interval holds 0."""
    low, high = ends
    return float(np.mean((low <= 0) & (high >= 0)))


def width(ends: Ends) -> float:
    """Return the mean width of the intervals."""
    low, high = ends
    return float(np.mean(high - low))


def main() -> None:
    """Print a row for each length, overlap and persistence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markets", type=int, default=MARKETS)
    markets = parser.parse_args().markets
    print("| days | overlap | persistence | resampled | overlapping | width |")
    print("| --- | --- | --- | --- | --- | --- |")
    for days in DAYS:
        for overlap in OVERLAPS:
            for persistence in PERSISTENCE:
                ics = daily_ics(days, overlap, persistence, markets)
                summands = np.stack([ics, np.ones_like(ics)], axis=-1)
                before = interval(summands, ratio, resamples=RESAMPLES)
                after = overlapping_interval(summands, ratio, overlap=overlap)
                print(
                    f"| {days} | {overlap} | {persistence:g} | {holds_0(before):.1%} | "
                    f"{holds_0(after):.1%} | {width(after) / width(before):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
