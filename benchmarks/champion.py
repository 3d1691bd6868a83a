"""How soon a champion whose edge is gone is replaced, and how often an equal is: python -m
benchmarks.champion.

200 runs each. The break: in the simulated market each follower's leader changes on a day; the
champion goes on looking at the old one, one of three challengers looked at the new one all along,
two guess. The equals: four candidates see the same leaders through independent noise of one size, a
year of nights.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.evidence import TENURE, YEAR, evidence, promoted
from dtml.evaluation.ranking import rank_ics
from dtml.sources.simulated import SimulatedMarket

RUNS, WITHIN, LATEST = 200, 60, 500
Daily = Float[ndarray, "nights candidates"]


def looked_at(
    market: SimulatedMarket, returns: Float[ndarray, "days stocks"], shift: int
) -> Float[ndarray, "days stocks"]:
    """Return the last return of the leader whom each follower copies after its
    leaders were shifted; 0 for leaders.
    """
    leaders = np.roll(returns[:, : market.leaders], -shift, axis=1)
    copied = np.repeat(leaders, market.followers, axis=1)
    return np.hstack([np.zeros((len(returns), market.leaders)), copied])


def ics(
    scores: list[Float[ndarray, "days stocks"]], returns: Float[ndarray, "days stocks"]
) -> Daily:
    """Return the rank IC of each night and candidate."""
    return np.stack([rank_ics(each[:-1], returns[1:]) for each in scores], axis=1)


def replaced(daily: Daily) -> tuple[int, int] | None:
    """Return after how many nights the first candidate is replaced, and by
    which; None where it never is.
    """
    gains = daily[:, 1:] - daily[:, :1]
    for night in range(TENURE, len(daily) + 1):
        found = [
            evidence(str(i), gains[:night, i], challengers=gains.shape[1])
            for i in range(gains.shape[1])
        ]
        if (best := promoted(found)) is not None:
            return night, int(best.challenger) + 1
    return None


def after_a_break(seed: int) -> tuple[int, int, int] | None:
    """Return the nights before the break, those until the champion was replaced, and by whom."""
    market, random = SimulatedMarket(seed=seed), np.random.default_rng(seed)
    before = int(random.integers(0, 400))
    returns = market.returns(before + LATEST)
    returns[before:, : market.leaders] = np.roll(returns[before:, : market.leaders], 1, axis=1)
    guesses = [random.normal(size=returns.shape) for _ in range(2)]
    found = replaced(
        ics([looked_at(market, returns, 0), looked_at(market, returns, 1), *guesses], returns)
    )
    return None if found is None else (before, *found)


def among_equals(seed: int) -> tuple[int, int] | None:
    """Return when the champion was replaced within a year of four equals; None where it was not."""
    market, random = SimulatedMarket(seed=seed), np.random.default_rng(seed)
    returns = market.returns(YEAR + 1)
    seen = looked_at(market, returns, 0)
    return replaced(ics([seen + 0.02 * random.normal(size=seen.shape) for _ in range(4)], returns))


def main() -> None:
    """Print both."""
    broken = [after_a_break(seed) for seed in range(RUNS)]
    delays = np.array([each[1] - each[0] if each else np.inf for each in broken])
    right = np.mean([each is not None and each[2] == 1 for each in broken])
    in_time = np.mean((delays > 0) & (delays <= WITHIN))
    print(
        f"break: replaced within {WITHIN} nights in {in_time:.1%} of {RUNS} runs, before in "
        f"{np.mean(delays <= 0):.1%};"
    )
    print(f"after {np.median(delays):.0f} nights at the median, by the right one in {right:.1%}")
    equal = [among_equals(seed) for seed in range(RUNS)]
    print(
        f"equals: replaced within a year in {np.mean([each is not None for each in equal]):.1%} of "
        f"{RUNS} runs"
    )


if __name__ == "__main__":
    main()
