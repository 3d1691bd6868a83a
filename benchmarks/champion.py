"""Measure how soon a champion without skill is replaced, and how often one of equal skill is.

`python -m benchmarks.champion`: 200 runs each. The break: in the simulated market each follower's
leader changes on a day; the champion goes on looking at the old leader, one of three challengers
looked at the new one all along, and two guess. The equals: for a year of nights four candidates see
the same leaders through independent noise of the same size.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.evidence import TENURE, YEAR, evidence, promoted
from dtml.evaluation.ranking import rank_ics
from dtml.sources.simulated import SimulatedMarket

RUNS = 200
WITHIN = 60  # nights after the break in which the champion should be replaced
NIGHTS_AFTER_BREAK = 500
Daily = Float[ndarray, "nights candidates"]


def looked_at(
    market: SimulatedMarket, returns: Float[ndarray, "days stocks"], shift: int
) -> Float[ndarray, "days stocks"]:
    """Return the last return of the leader that each follower copies; 0 for leaders.

    The leaders are shifted by `shift` places: a shift of 0 is the order before the break, of 1 the
    order after it.
    """
    leaders = np.roll(returns[:, : market.leaders], -shift, axis=1)
    copied = np.repeat(leaders, market.followers, axis=1)
    return np.hstack([np.zeros((len(returns), market.leaders)), copied])


def ics(
    scores: list[Float[ndarray, "days stocks"]], returns: Float[ndarray, "days stocks"]
) -> Daily:
    """Return the rank IC of each night and candidate."""
    next_returns = returns[1:]
    return np.stack([rank_ics(score[:-1], next_returns) for score in scores], axis=1)


def replaced(daily: Daily) -> tuple[int, int] | None:
    """Return after how many nights the first candidate is replaced, and by which candidate.

    None where it is never replaced.
    """
    gains = daily[:, 1:] - daily[:, :1]
    challengers = gains.shape[1]
    for night in range(TENURE, len(daily) + 1):
        evidences = [
            evidence(str(place), gains[:night, place], challengers=challengers)
            for place in range(challengers)
        ]
        best = promoted(evidences)
        if best is not None:
            return night, int(best.challenger) + 1
    return None


def after_a_break(seed: int) -> tuple[int, int, int] | None:
    """Return the nights before the break and until the champion was replaced, and by which one.

    None where it was never replaced.
    """
    market = SimulatedMarket(seed=seed)
    random = np.random.default_rng(seed)
    before = int(random.integers(0, 400))
    returns = market.returns(before + NIGHTS_AFTER_BREAK)
    returns[before:, : market.leaders] = np.roll(returns[before:, : market.leaders], 1, axis=1)
    guesses = [random.normal(size=returns.shape) for _ in range(2)]
    scores = [looked_at(market, returns, 0), looked_at(market, returns, 1), *guesses]
    replacement = replaced(ics(scores, returns))
    if replacement is None:
        return None
    night, challenger = replacement
    return before, night, challenger


def among_equals(seed: int) -> tuple[int, int] | None:
    """Return when the champion was replaced within a year of four equals, and by which one.

    None where it was not replaced.
    """
    market = SimulatedMarket(seed=seed)
    random = np.random.default_rng(seed)
    returns = market.returns(YEAR + 1)
    leader_returns = looked_at(market, returns, 0)
    scores = [leader_returns + 0.02 * random.normal(size=leader_returns.shape) for _ in range(4)]
    return replaced(ics(scores, returns))


def main() -> None:
    """Print how often the champion is replaced after a break, and among equals."""
    delays = np.full(RUNS, np.inf)
    is_right = np.zeros(RUNS, dtype=bool)
    for seed in range(RUNS):
        replacement = after_a_break(seed)
        if replacement is not None:
            before, night, challenger = replacement
            delays[seed] = night - before
            is_right[seed] = challenger == 1
    in_time = np.mean((delays > 0) & (delays <= WITHIN))
    print(
        f"break: replaced within {WITHIN} nights in {in_time:.1%} of {RUNS} runs, before in "
        f"{np.mean(delays <= 0):.1%};"
    )
    print(
        f"after {np.median(delays):.0f} nights at the median, by the right one in "
        f"{np.mean(is_right):.1%}"
    )
    is_replaced = [among_equals(seed) is not None for seed in range(RUNS)]
    print(f"equals: replaced within a year in {np.mean(is_replaced):.1%} of {RUNS} runs")


if __name__ == "__main__":
    main()
