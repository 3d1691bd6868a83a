"""When to stop trusting a model: its inputs, its skill or its coverage have changed.

Inputs are judged by the day: the mean size of each feature, and of a stock-day, over the last
sessions beside such means in the training. Skill and coverage are judged by bets
(`dtml.evaluation.evidence`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.evidence import WIDEST, YEAR, Daily, evidence

Features = Float[ndarray, "sessions stocks features"]

RECENT = 20  # sessions in a mean
REFERENCE = 504  # sessions up to the training, at most, whose means are the yardstick
BOUND = 4.5  # standard deviations of those means
LEARNED = 60  # nights from which the earlier skill is estimated, at least
STOCK_DAY = "stock-day"
SKILL = "rank IC"
COVERAGE = "coverage"


@dataclass(frozen=True)
class Inputs:
    """A summary of the inputs of a training.

    `scale`: the root mean square of each feature; `mean`, `deviation`: those of means over `RECENT`
    sessions of each measure of `sizes`.
    """

    scale: Sequence[float]
    mean: Sequence[float]
    deviation: Sequence[float]

    @classmethod
    def of(cls, features: Features) -> "Inputs":
        """Measure the sessions that a model was trained on; a missing feature is NaN there."""
        scale = np.sqrt(np.nanmean(features**2, axis=(0, 1)))
        means = _rolling_means(sizes(features, scale))
        return cls(
            scale=scale.tolist(),
            mean=means.mean(axis=0).tolist(),
            deviation=means.std(axis=0, ddof=1).tolist(),
        )

    def drift(self, features: Features, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield a row (`_row`) for each feature, named in `names`, and one for the stock-day.

        `evidence` is the distance of the log mean sizes, of the last `RECENT` sessions and of the
        training, in standard deviations. No row with fewer known sessions, or for a measure unknown
        or constant in the training.
        """
        latest = _rolling_means(sizes(features, np.array(self.scale)))[-1:]
        for recent in latest:
            of_training = zip((*names, STOCK_DAY), self.mean, self.deviation, recent, strict=True)
            for name, mean, deviation, now in of_training:
                if np.isfinite(now - mean) and deviation > 0:
                    # The means are of logarithms; the row has the sizes themselves.
                    yield _row(
                        name,
                        value=float(np.exp(now)),
                        expected=float(np.exp(mean)),
                        evidence=float(abs(now - mean) / deviation),
                        needed=BOUND,
                    )


def sizes(
    features: Features, scale: Float[ndarray, " features"]
) -> Float[ndarray, "known measures"]:
    """Return the log of the mean size of each feature, then of a stock-day, on each known session.

    In units of `scale`: absolute values, for a stock-day the mean square of its features. A session
    is known where some stock has every feature.
    """
    has_each_feature = np.isfinite(features).any(axis=1).all(axis=1)
    units = features[has_each_feature] / np.where(scale > 0, scale, 1)
    of_features = np.nanmean(np.abs(units), axis=1)
    of_stock_day = np.nanmean(units**2, axis=(1, 2))
    measures = np.column_stack([of_features, of_stock_day])
    return np.asarray(np.log(np.maximum(measures, 1e-6)))  # a size of 0 has no logarithm


def _rolling_means(daily: Float[ndarray, "known measures"]) -> Float[ndarray, "means measures"]:
    """Return the mean of each `RECENT` sessions in a row; no row where there are fewer."""
    total = np.vstack([np.zeros(daily.shape[1]), daily.cumsum(axis=0)])
    return np.asarray((total[RECENT:] - total[:-RECENT]) / RECENT)


def skill_drift(rank_ics: Daily, *, overlap: int = 1) -> dict[str, Any] | None:
    """Say in a row (`_row`) whether the last year's rank IC is below half of the earlier one.

    `rank_ics` has a value a night, NaN where it is not known; `overlap` is as in `evidence`.
    Returns None with fewer than twice `LEARNED` known nights, or where the earlier mean is not
    above 0. Each night the last year begins a night later, which the theorem behind `evidence` does
    not cover; how often the answer is wrong was measured instead (`benchmarks/README.md`).
    """
    known_ics = rank_ics[np.isfinite(rank_ics)]
    # The nights before are at least LEARNED, so the last "year" may be shorter than a year.
    split = max(LEARNED, len(known_ics) - YEAR)
    before = known_ics[:split]
    since = known_ics[split:]
    if len(since) < LEARNED or before.mean() <= 0:
        return None
    half = before.mean() / 2
    # A bet wins on a rank IC below half of the earlier mean. The rank IC may be -1, so the bets are
    # scaled for the largest win to be WIDEST, the limit of `evidence`.
    bets = (half - since) * WIDEST / (1 + half)
    against = evidence(SKILL, bets, overlap=overlap)
    return _row(
        SKILL,
        value=float(since.mean()),
        expected=float(before.mean()),
        evidence=against.stake,
        needed=against.needed,
    )


def coverage_drift(covered: Daily, level: float) -> dict[str, Any] | None:
    """Say in a row (`_row`) whether the share of outcomes covered is below its level.

    `covered` has a share a night, NaN unknown; `value` is the mean of the last year. None without
    any.
    """
    known_shares = covered[np.isfinite(covered)]
    if not len(known_shares):
        return None
    # A bet wins on a night below the level; shares and level lie in [0, 1].
    against = evidence(COVERAGE, (level - known_shares) * WIDEST)
    return _row(
        COVERAGE,
        value=float(known_shares[-YEAR:].mean()),
        expected=level,
        evidence=against.stake,
        needed=against.needed,
    )


def _row(
    measure: str, *, value: float, expected: float, evidence: float, needed: float
) -> dict[str, Any]:
    return {
        "measure": measure,
        "value": value,
        "expected": expected,
        "evidence": evidence,
        "needed": needed,
        "drifted": evidence >= needed,
    }


def drift_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in a sentence which measures of a night have drifted; an empty text without measures."""
    if not rows:
        return ""
    drifted = [row for row in rows if row["drifted"]]
    if not drifted:
        return f"There is no drift in {len(rows)} measures of inputs, skill and coverage."
    measures = ", ".join(
        f"{row['measure']} ({row['value']:.3g}, expected {row['expected']:.3g})" for row in drifted
    )
    return f"The following have drifted from what the model was trained on: {measures}."
