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

MARKETS = 4000
STOCKS = 67
RESAMPLES = 2000
DIRECTION_STD = 0.2
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
        log_volatility = self.clustering * autoregressive(0.9, days, markets, generator)
        volatility = np.exp(log_volatility - self.clustering**2)
        chance_of_rise = np.clip(0.5 + DIRECTION_STD * volatility * direction, 0, 1)
        return np.asarray(generator.binomial(STOCKS, chance_of_rise))


@dataclass(frozen=True)
class Predictor:
    """A predictor without skill: a view of the market, and the share of stocks that follow it."""

    name: str
    change: float | None  # chance of a new view each day; None: it always says rise
    # chance that a stock's predicted direction is the view's; 1/2 is a coin for each stock
    following: float

    def counts(
        self, rises: Int[ndarray, "days markets"], generator: np.random.Generator
    ) -> Int[ndarray, "days markets 4"]:
        """Return the confusion counts of its directions, in the order of `metrics`."""
        view = self._view(rises.shape, generator)
        chance = np.where(view, self.following, 1 - self.following)
        falls = STOCKS - rises
        true_rises = generator.binomial(rises, chance)
        false_rises = generator.binomial(falls, chance)
        false_falls = rises - true_rises
        true_falls = falls - false_rises
        return np.stack([true_rises, false_rises, false_falls, true_falls], axis=-1)

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
COIN = Predictor("a coin a stock", change=0.5, following=0.5)
ONE_WAY = Predictor("one way, anew each day", change=0.5, following=1.0)
ONE_WAY_LONG = Predictor("one way for 10 days", change=0.1, following=1.0)
MIXED = Predictor("90 % one way", change=0.5, following=0.9)
MIXED_LONG = Predictor("90 % one way for 5 days", change=0.2, following=0.9)
ALWAYS_UP = Predictor("always up", change=None, following=1.0)
PREDICTORS = (COIN, ONE_WAY, ONE_WAY_LONG, MIXED, MIXED_LONG, ALWAYS_UP)


def autoregressive(
    persistence: float, days: int, markets: int, generator: np.random.Generator
) -> Float[ndarray, "days markets"]:
    """Return standard normal AR(1) series: `persistence` is the correlation of adjacent days."""
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
    """Return the coverage of ACC, MCC and their differences to the rule, by name of predictor."""
    generator = np.random.default_rng(seed)
    rises = world.rises(days, markets, generator)
    rule = ONE_WAY.counts(rises, generator)
    coverages_by_name = {}
    for predictor in predictors:
        counts = predictor.counts(rises, generator)
        paired = np.concatenate([counts, rule], axis=-1)
        coverages_by_name[predictor.name] = (
            coverage(counts, accuracy, 0.5),
            coverage(counts, mcc, 0.0),
            coverage(paired, difference(accuracy), 0.0),
            coverage(paired, difference(mcc), 0.0),
        )
    return coverages_by_name


def main() -> None:
    """Print the table; the standard error of a figure is a third of a percentage point."""
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
