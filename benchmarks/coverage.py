"""How often the 95 % interval of ACC holds the truth: 1,500 markets of 30 stocks that move together, no skill.

Each day has its own chance of a right call, normal around one half with a spread of 0.2; days are independent.
"""

import numpy as np

from dtml.metrics import accuracy, resample_days

MARKETS, STOCKS, RESAMPLES, SPREAD = 1500, 30, 400, 0.2
NIGHTS = (5, 20, 60, 250)


def coverage(nights: int, generator: np.random.Generator) -> float:
    """Share of the markets whose interval holds one half."""
    held = 0
    for _ in range(MARKETS):
        chance = np.clip(0.5 + SPREAD * generator.standard_normal(nights), 0, 1)
        right = generator.binomial(STOCKS, chance)
        counts = np.zeros((nights, 4), dtype=np.int64)
        counts[:, 0], counts[:, 1] = right, STOCKS - right
        low, high = np.quantile(accuracy(resample_days(counts, RESAMPLES, generator)), [0.025, 0.975])
        held += int(low <= 0.5 <= high)
    return held / MARKETS


def main() -> None:
    """Print the coverage for each number of nights."""
    generator = np.random.default_rng(0)
    for nights in NIGHTS:
        print(f"{nights} nights: {coverage(nights, generator):.1%}", flush=True)


if __name__ == "__main__":
    main()
