"""Decide who may be promoted: a challenger that has shown that it is better than the champion.

The test is valid at every look (testing by betting: Waudby-Smith and Ramdas, 2024; restarts as in
the e-detectors of Shin, Ramdas and Rinaldo, 2024). A bet on the daily gain of a challenger over the
champion, a difference of two rank ICs, multiplies its stake by 1 + rate * gain. Where the gain has
no positive mean, no rate makes the stake grow in the mean, and it reaches 1 / alpha with
probability alpha at most, however often one looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

Daily = Float[ndarray, " nights"]

WIDEST = 2.0  # a gain lies in [-2, 2], so that a rate below 1/2 cannot lose more than the stake
RATES = (0.1, 0.45)  # of which the stake is shared out
YEAR = 252  # sessions
# Sessions from one bet of a year to the next: evidence of a change is not drowned by what was
# before.
RESTART = 10
TENURE = 20  # sessions that a new champion speaks at least
ALPHA = 0.05  # probability, a year, that any challenger no better than the champion is promoted


@dataclass(frozen=True)
class Evidence:
    """What a challenger has shown against a champion.

    `stake` is what 1 has become, `needed` what it must become.
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
    """Return what a challenger has shown on the nights since the champion began to speak.

    `gains`, oldest first, are the rank ICs of the challenger less the champion's, each in [-2, 2];
    NaN, a night on which either is unknown, is left out. With several `challengers` each has its
    share of `alpha`. Half of the stake is bet from the first night on, for small gains that last;
    half on the last year alone, from each of its restarts on.
    """
    known = gains[np.isfinite(gains)]
    if np.abs(known).max(initial=0) > WIDEST:
        raise ValueError("a gain must lie in [-2, 2], because rank ICs lie in [-1, 1]")
    rates = np.array(RATES)[:, None]
    logs = np.log1p(rates * known).cumsum(axis=1)
    grown = np.concatenate([np.zeros((len(RATES), 1)), logs], axis=1)
    lasting = np.exp(grown[:, -1]).mean()

    year = len(known) - len(known) % YEAR
    starts = np.arange(year, year + YEAR, RESTART)
    begun = starts[starts <= len(known)]
    since_start = np.exp(grown[:, -1:] - grown[:, begun]).mean(axis=0)
    recent = since_start.sum() + len(starts) - len(begun)
    return Evidence(
        challenger=challenger,
        stake=float((lasting + recent / len(starts)) / 2),
        needed=challengers / alpha,
        nights=len(known),
        gain=float(known.mean()) if len(known) else np.nan,
    )


def promoted(candidates: Sequence[Evidence]) -> Evidence | None:
    """Return the challenger with the highest stake of those whose evidence suffices.

    None where none does.
    """
    sufficient = [candidate for candidate in candidates if candidate.suffices]
    return max(sufficient, key=lambda candidate: candidate.stake, default=None)
