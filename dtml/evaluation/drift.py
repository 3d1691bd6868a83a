"""When to stop trusting a model: its inputs left what it learned from, or its skill or coverage
left what they were.

Inputs are judged by the day, since stocks of a day move together: by the size of each feature, and
of a stock-day as a whole, in the mean of some sessions, beside such means in the sessions that the
model was trained on. Skill and coverage are judged by bets (`dtml.evaluation.drift`); that on
coverage is valid at every look.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

Daily = Float[ndarray, " nights"]

WIDEST = 2.0  # a gain lies in [-2, 2], so that a rate below 1/2 cannot lose more than the stake
RATES = (0.1, 0.45)  # of which the stake is shared out
YEAR = 252  # sessions
# sessions from one bet of a year to the next: evidence of a change is not drowned by what was
# before
RESTART = 10
TENURE = 20  # sessions that a new champion speaks at least
ALPHA = 0.05  # probability, a year, that any challenger no better than the champion is promoted
Features = Float[ndarray, "sessions stocks features"]

RECENT = 20  # sessions in a mean
REFERENCE = 504  # sessions up to the training, at most, whose means are the yardstick
BOUND = 4.5  # standard deviations of those means
LEARNED = 60  # nights that say what the skill was
STOCK_DAY, SKILL, COVERAGE = "stock-day", "rank IC", "coverage"


@dataclass(frozen=True)
class Inputs:
    """The inputs of a training: the scale of each feature, and mean and
    deviation of each measure (`sizes`).
    """

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
        """Yield a row for each feature and for the stock-day: its size in the
        last sessions, beside the training's.
        """
        means = _means(sizes(features, np.array(self.scale)))
        measures = zip(
            (*names, STOCK_DAY),
            self.mean,
            self.deviation,
            means[-1] if len(means) else (),
            strict=False,
        )
        for name, mean, deviation, recent in measures:
            if np.isfinite(recent - mean) and deviation > 0:
                score = abs(recent - mean) / deviation
                yield _row(name, float(np.exp(recent)), float(np.exp(mean)), float(score), BOUND)


def sizes(
    features: Features, scale: Float[ndarray, " features"]
) -> Float[ndarray, "known measures"]:
    """Return the log of the mean size of each feature on each session, and of a
    stock-day: its mean square in units.
    """
    known = features[
        np.isfinite(features).any(axis=1).all(axis=1)
    ]  # sessions on which each feature has a value
    units = known / np.where(scale > 0, scale, 1)
    whole = np.nanmean(units**2, axis=(1, 2))
    return np.asarray(
        np.log(np.maximum(np.column_stack([np.nanmean(np.abs(units), axis=1), whole]), 1e-6))
    )


def _means(daily: Float[ndarray, "known measures"]) -> Float[ndarray, "means measures"]:
    """Return the mean of each `RECENT` sessions in a row."""
    total = np.vstack([np.zeros(daily.shape[1]), daily.cumsum(axis=0)])
    return np.asarray((total[RECENT:] - total[:-RECENT]) / RECENT)


def skill_drift(rank_ics: Daily) -> dict[str, Any] | None:
    """Return whether the daily rank IC of the last year is below half of what it was before; None
    below 120 nights.

    The year moves with the nights, which no theorem covers: how often it is wrong was measured
    (`benchmarks.drift`).
    """
    known = rank_ics[np.isfinite(rank_ics)]
    split = max(LEARNED, len(known) - YEAR)
    before, since = known[:split], known[split:]
    if len(since) < LEARNED or before.mean() <= 0:
        return None
    half = before.mean() / 2
    found = evidence(
        SKILL, (half - since) * WIDEST / (1 + half)
    )  # the widest bet that cannot lose more than its stake
    return _row(SKILL, float(since.mean()), float(before.mean()), found.stake, found.needed)


def coverage_drift(covered: Daily, level: float) -> dict[str, Any] | None:
    """Return whether the share of outcomes covered by night is below its level;
    None without nights.
    """
    known = covered[np.isfinite(covered)]
    if not len(known):
        return None
    found = evidence(COVERAGE, (level - known) * WIDEST)
    return _row(COVERAGE, float(known[-YEAR:].mean()), level, found.stake, found.needed)


def _row(
    measure: str, value: float, expected: float, score: float, needed: float
) -> dict[str, Any]:
    found = {
        "measure": measure,
        "value": value,
        "expected": expected,
        "evidence": score,
        "needed": needed,
    }
    return found | {"drifted": score >= needed}


def drift_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in a sentence which measures of a night have drifted; nothing without measures."""
    if not rows:
        return ""
    drifted = [row for row in rows if row["drifted"]]
    if not drifted:
        return f"No drift in {len(rows)} measures of inputs, skill and coverage."
    said = (
        f"{row['measure']} ({row['value']:.3g}, expected {row['expected']:.3g})" for row in drifted
    )
    return f"Drifted from what the model was trained on: {', '.join(said)}."


@dataclass(frozen=True)
class Evidence:
    """What a challenger has shown against a champion: the stake that 1 has
    become, and what it must become.
    """

    challenger: str
    stake: float
    needed: float
    nights: int
    gain: float  # mean of the daily gains

    @property
    def suffices(self) -> bool:
        """Return whether the challenger is promoted, the champion having spoken for long enough."""
        return self.stake >= self.needed and self.nights >= TENURE


def evidence(
    challenger: str, gains: Daily, *, challengers: int = 1, alpha: float = ALPHA
) -> Evidence:
    """Return what a challenger has shown on the nights since the champion began to speak, oldest
    first.

    `gains` are the rank ICs of the challenger less the champion's, each in [-2, 2]; NaN, a night on
    which either is unknown, is left out. With several `challengers` each has its share of `alpha`.
    Half of the stake is bet from the first night on, for small gains that last; half on the last
    year alone, from each of its restarts on.
    """
    known = gains[np.isfinite(gains)]
    if np.abs(known).max(initial=0) > WIDEST:
        raise ValueError("a gain lies in [-2, 2]: rank ICs in [-1, 1] are expected")
    rates = np.array(RATES)[:, None]
    grown = np.concatenate(
        [np.zeros((len(RATES), 1)), np.log1p(rates * known).cumsum(axis=1)], axis=1
    )
    lasting = np.exp(grown[:, -1]).mean()
    year = len(known) - len(known) % YEAR
    starts = np.arange(year, year + YEAR, RESTART)
    begun = starts[starts <= len(known)]
    recent = np.exp(grown[:, -1:] - grown[:, begun]).mean(axis=0).sum() + len(starts) - len(begun)
    stake = (lasting + recent / len(starts)) / 2
    gain = float(known.mean()) if len(known) else np.nan
    return Evidence(challenger, float(stake), challengers / alpha, len(known), gain)


def promoted(candidates: Sequence[Evidence]) -> Evidence | None:
    """Return the challenger with the highest stake of those whose evidence
    suffices; None where none does.
    """
    return max(
        [each for each in candidates if each.suffices], key=lambda each: each.stake, default=None
    )
