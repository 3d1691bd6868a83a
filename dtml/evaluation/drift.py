"""When to stop trusting a model: its inputs left what it learned from, or its skill or coverage left what they were.

Inputs are judged by the day, since stocks of a day move together: by the size of each feature, and of a stock-day as a
whole, in the mean of some sessions, beside such means in the sessions that the model was trained on. Skill and coverage
are judged by bets (`dtml.evaluation.champion`); that on coverage is valid at every look.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.champion import WIDEST, YEAR, Daily, evidence

Features = Float[ndarray, "sessions stocks features"]

RECENT = 20  # sessions in a mean
REFERENCE = 504  # sessions up to the training, at most, whose means are the yardstick
BOUND = 4.5  # standard deviations of those means
LEARNED = 60  # nights that say what the skill was
STOCK_DAY, SKILL, COVERAGE = "stock-day", "rank IC", "coverage"


@dataclass(frozen=True)
class Inputs:
    """The inputs of a training: the scale of each feature, and mean and deviation of each measure (`sizes`)."""

    scale: Sequence[float]
    mean: Sequence[float]
    deviation: Sequence[float]

    @classmethod
    def of(cls, features: Features) -> "Inputs":
        """Measure the sessions that a model was trained on, NaN where a feature is missing."""
        scale = np.sqrt(np.nanmean(features**2, axis=(0, 1)))
        means = _means(sizes(features, scale))
        return cls(scale.tolist(), means.mean(axis=0).tolist(), means.std(axis=0, ddof=1).tolist())

    def drift(self, features: Features, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield a row for each feature and for the stock-day: its size in the last sessions, beside the training's."""
        means = _means(sizes(features, np.array(self.scale)))
        measures = zip((*names, STOCK_DAY), self.mean, self.deviation, means[-1] if len(means) else (), strict=False)
        for name, mean, deviation, recent in measures:
            if np.isfinite(recent - mean) and deviation > 0:
                score = abs(recent - mean) / deviation
                yield _row(name, float(np.exp(recent)), float(np.exp(mean)), float(score), BOUND)


def sizes(features: Features, scale: Float[ndarray, " features"]) -> Float[ndarray, "known measures"]:
    """Return the log of the mean size of each feature on each session, and of a stock-day: its mean square in units."""
    known = features[np.isfinite(features).any(axis=1).all(axis=1)]  # sessions on which each feature has a value
    units = known / np.where(scale > 0, scale, 1)
    whole = np.nanmean(units**2, axis=(1, 2))
    return np.asarray(np.log(np.maximum(np.column_stack([np.nanmean(np.abs(units), axis=1), whole]), 1e-6)))


def _means(daily: Float[ndarray, "known measures"]) -> Float[ndarray, "means measures"]:
    """Return the mean of each `RECENT` sessions in a row."""
    total = np.vstack([np.zeros(daily.shape[1]), daily.cumsum(axis=0)])
    return np.asarray((total[RECENT:] - total[:-RECENT]) / RECENT)


def skill_drift(rank_ics: Daily) -> dict[str, Any] | None:
    """Return whether the daily rank IC of the last year is below half of what it was before; None below 120 nights.

    The year moves with the nights, which no theorem covers: how often it is wrong was measured (`benchmarks.drift`).
    """
    known = rank_ics[np.isfinite(rank_ics)]
    split = max(LEARNED, len(known) - YEAR)
    before, since = known[:split], known[split:]
    if len(since) < LEARNED or before.mean() <= 0:
        return None
    half = before.mean() / 2
    found = evidence(SKILL, (half - since) * WIDEST / (1 + half))  # the widest bet that cannot lose more than its stake
    return _row(SKILL, float(since.mean()), float(before.mean()), found.stake, found.needed)


def coverage_drift(covered: Daily, level: float) -> dict[str, Any] | None:
    """Return whether the share of outcomes covered by night is below its level; None without nights."""
    known = covered[np.isfinite(covered)]
    if not len(known):
        return None
    found = evidence(COVERAGE, (level - known) * WIDEST)
    return _row(COVERAGE, float(known[-YEAR:].mean()), level, found.stake, found.needed)


def _row(measure: str, value: float, expected: float, score: float, needed: float) -> dict[str, Any]:
    found = {"measure": measure, "value": value, "expected": expected, "evidence": score, "needed": needed}
    return found | {"drifted": score >= needed}


def drift_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in a sentence which measures of a night have drifted; nothing without measures."""
    if not rows:
        return ""
    drifted = [row for row in rows if row["drifted"]]
    if not drifted:
        return f"No drift in {len(rows)} measures of inputs, skill and coverage."
    said = (f"{row['measure']} ({row['value']:.3g}, expected {row['expected']:.3g})" for row in drifted)
    return f"Drifted from what the model was trained on: {', '.join(said)}."
