"""Count how often chance makes any of ten models without skill look better than another.

`python -m benchmarks.family_wise_error [--markets 200]`. The prices are those of
`benchmarks.ranking_noise`, in which nothing predicts the order of a day. Each market is ranked by
ten models that know nothing: some keep their opinion of a stock for long, some for a day, one for
ever, and two are nearly the same as others. On each leg all 45 pairs are compared, once by the
95 % interval of each difference alone, once by p-values adjusted for all pairs. For `earned`, the
first model is the champion and the others challenge it on each night of a year.
"""

import argparse
from collections import Counter

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from benchmarks.ranking_noise import BEFORE, SCORED, STOCKS, noise
from dtml.evaluation.bootstrap import interval
from dtml.evaluation.evidence import TENURE, evidence, promoted
from dtml.evaluation.family import ALPHA, family_p
from dtml.evaluation.metrics import ratio
from dtml.evaluation.ranking import both_known, rank_ics
from dtml.ranking.outcomes import Leg, outcomes, overlap_of

MARKETS = 200
LEGS_COMPARED: tuple[Leg, ...] = ("next_close", "five_days", "second_close")
RESAMPLES = 2000
# How much of a model's opinion of a stock is left a day later.
PERSISTENCE = (0.0, 0.0, 0.3, 0.6, 0.9, 0.95, 0.99, 1.0)
Scores = Float[ndarray, "models days stocks"]


def opinions(generator: np.random.Generator) -> Scores:
    """Return the scores that ten models give the stocks, of which none knows anything."""
    drawn = generator.standard_normal((len(PERSISTENCE), SCORED, STOCKS))
    for model, kept in enumerate(PERSISTENCE):
        for day in range(1, SCORED):
            fresh = np.sqrt(1 - kept**2) * drawn[model, day]
            drawn[model, day] = kept * drawn[model, day - 1] + fresh
    copy = drawn[4] + 0.2 * generator.standard_normal((SCORED, STOCKS))
    blend = drawn[2:6].mean(axis=0)
    return np.concatenate([drawn, copy[None], blend[None]])


def daily_rank_ics(seed: int, leg: Leg) -> Float[ndarray, "days models"]:
    """Return the rank IC of each model on each day of one market."""
    scores = opinions(np.random.default_rng(10_000 + seed))
    outcome = outcomes(noise(seed), leg)[BEFORE : BEFORE + SCORED]
    return np.stack([rank_ics(*both_known(score, outcome)) for score in scores], axis=1)


def differences(rank_ic: Float[ndarray, "days models"]) -> Float[ndarray, "days pairs"]:
    """Return the difference of each pair of models on each day."""
    first, second = np.triu_indices(rank_ic.shape[1], k=1)
    return np.asarray(rank_ic[:, first] - rank_ic[:, second])


def found_alone(gains: Float[ndarray, "days pairs"]) -> int:
    """Return the number of pairs whose own 95 % interval excludes 0."""
    summands = np.stack([gains, np.ones_like(gains)], axis=-1)
    low, high = interval(summands, ratio, resamples=RESAMPLES)
    return int(((low > 0) | (high < 0)).sum())


def is_promoted(rank_ic: Float[ndarray, "days models"]) -> bool:
    """Return whether any challenger replaces the first model on any night of the year."""
    gains = rank_ic[:, 1:] - rank_ic[:, :1]
    for nights in range(TENURE, len(gains) + 1):
        gathered = [
            evidence(str(model), gain[:nights], challengers=gains.shape[1])
            for model, gain in enumerate(gains.T)
        ]
        if promoted(gathered) is not None:
            return True
    return False


def errors(seed: int, leg: Leg) -> dict[str, bool]:
    """Return which ways of comparing find any difference on one market."""
    rank_ic = daily_rank_ics(seed, leg)
    gains = differences(rank_ic)
    adjusted = family_p(gains, overlap=overlap_of(leg), resamples=RESAMPLES)
    return {
        "alone": found_alone(gains) > 0,
        "family": bool((adjusted <= ALPHA).any()),
    }


def main() -> None:
    """Print the shares of markets, by leg and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markets", type=int, default=MARKETS)
    markets = parser.parse_args().markets
    replaced = sum(is_promoted(daily_rank_ics(seed, "next_close")) for seed in range(markets))
    print(f"earned: champion replaced within a year in {replaced} of {markets} markets", flush=True)
    for leg in LEGS_COMPARED:
        counts: Counter[str] = Counter()
        for seed in range(markets):
            for way, is_error in errors(seed, leg).items():
                counts[way] += is_error
        shares = ", ".join(
            f"{way} {count} ({count / markets:.1%})" for way, count in counts.items()
        )
        print(f"{leg:13s}{markets} markets, any pair different: {shares}", flush=True)


if __name__ == "__main__":
    main()
