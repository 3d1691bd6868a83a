"""Measure how often the 95 % intervals hold the truth, on simulated markets without any signal.

The 67 stocks of a market share its direction: each day has its own chance of a rise, normal around
one half with a standard deviation of .2. Predictors know nothing of it, so the truth is exact: ACC
1/2, MCC 0, and 0 for the difference between any two. The difference is to a rule that predicts one
direction for the whole market, anew each day.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.evaluation.bootstrap import Statistic, difference, interval
from dtml.evaluation.metrics import accuracy, mcc

MARKETS, STOCKS, RESAMPLES, DIRECTION_STD = 4000, 67, 2000, 0.2
DAYS = (5, 10, 20, 64, 252)


@dataclass(frozen=True)
class World:
    """How the direction of the market follows itself from day to day."""

    name: str
    persistence: float = 0.0  # AR(1) of the direction
    # standard deviation of the logarithm of the volatility, itself AR(1) with .9
    clustering: float = 0.0

    def rises(
        self, days: int, markets: int, generator: np.random.Generator
    ) -> Int[ndarray, "days markets"]:
        """Return how many stocks rise on each day of each market."""
        direction = autoregressive(self.persistence, days, markets, generator)
        volatility = np.exp(
            self.clustering * autoregressive(0.9, days, markets, generator) - self.clustering**2
        )
        return np.asarray(
            generator.binomial(STOCKS, np.clip(0.5 + DIRECTION_STD * volatility * direction, 0, 1))
        )


@dataclass(frozen=True)
class Predictor:
    """A predictor without skill: a view of the market, and the share of the
    stocks that follow it.
    """

    name: str
    change: float | None  # chance of a new view each day; None: it always says rise
    # chance that a stock's predicted direction is the view's; 1/2 is a coin for each stock
    following: float

    def counts(
        self, rises: Int[ndarray, "days markets"], generator: np.random.Generator
    ) -> Int[ndarray, "days markets 4"]:
        """Return the confusion counts of its directions, in the order of
        `dtml.evaluation.metrics`.
        """
        view = self._view(rises.shape, generator)
        chance = np.where(view, self.following, 1 - self.following)
        direction = generator.binomial(rises, chance)
        falsely = generator.binomial(STOCKS - rises, chance)
        return np.stack([direction, falsely, rises - direction, STOCKS - rises - falsely], axis=-1)

    def _view(
        self, shape: tuple[int, ...], generator: np.random.Generator
    ) -> Bool[ndarray, "days markets"]:
        if self.change is None:
            return np.ones(shape, dtype=bool)
        turns = generator.random(shape) < self.change
        turns[0] = generator.random(shape[1]) < 0.5
        return np.asarray(np.cumsum(turns, axis=0) % 2 == 1)


WORLDS = (
    World("independent days"),
    World("clustered volatility", clustering=0.4),
    World("direction AR(1) .1", persistence=0.1),
    World("both", persistence=0.1, clustering=0.4),
    World("direction AR(1) .3", persistence=0.3),
)
COIN, ONE_WAY = Predictor("a coin a stock", 0.5, 0.5), Predictor("one way, anew each day", 0.5, 1.0)
ONE_WAY_LONG, MIXED = (
    Predictor("one way for 10 days", 0.1, 1.0),
    Predictor("90 % one way", 0.5, 0.9),
)
MIXED_LONG, ALWAYS_UP = (
    Predictor("90 % one way for 5 days", 0.2, 0.9),
    Predictor("always up", None, 1.0),
)
PREDICTORS = (COIN, ONE_WAY, ONE_WAY_LONG, MIXED, MIXED_LONG, ALWAYS_UP)


def autoregressive(
    persistence: float, days: int, markets: int, generator: np.random.Generator
) -> Float[ndarray, "days markets"]:
    """Return standard normal series that remember a share of the day before."""
    series = generator.standard_normal((days, markets))
    for day in range(1, days):
        series[day] = persistence * series[day - 1] + np.sqrt(1 - persistence**2) * series[day]
    return series


def coverage(
    counts: Int[ndarray, "days markets sums"], statistic: Statistic, truth: float
) -> float:
    """Return the share of the markets whose interval holds the truth."""
    low, high = interval(counts, statistic, resamples=RESAMPLES)
    return float(np.mean((low <= truth) & (truth <= high)))


def coverages(
    world: World,
    predictors: tuple[Predictor, ...],
    days: int,
    *,
    markets: int = MARKETS,
    seed: int = 0,
) -> dict[str, tuple[float, float, float, float]]:
    """Return the coverage of ACC, MCC and of their differences to the rule, by
    the name of the predictor.
    """
    generator = np.random.default_rng(seed)
    rises = world.rises(days, markets, generator)
    rule = ONE_WAY.counts(rises, generator)
    found = {}
    for predictor in predictors:
        counts = predictor.counts(rises, generator)
        paired = np.concatenate([counts, rule], axis=-1)
        found[predictor.name] = (
            coverage(counts, accuracy, 0.5),
            coverage(counts, mcc, 0.0),
            coverage(paired, difference(accuracy), 0.0),
            coverage(paired, difference(mcc), 0.0),
        )
    return found


def main() -> None:
    """Print the table; with so many markets its figures have a standard error
    of a third of a point.
    """
    print(
        f"{'world':22s}{'predictor':26s}{'days':>5s}{'ACC':>8s}{'MCC':>8s}"
        f"{'ACC diff':>10s}{'MCC diff':>10s}"
    )
    for world in WORLDS:
        for days in DAYS:
            for name, (acc, phi, acc_gain, phi_gain) in coverages(world, PREDICTORS, days).items():
                shares = f"{acc:8.1%}{phi:8.1%}{acc_gain:10.1%}{phi_gain:10.1%}"
                print(f"{world.name:22s}{name:26s}{days:5d}{shares}", flush=True)


if __name__ == "__main__":
    main()
