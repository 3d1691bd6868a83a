"""Decide which challenger is promoted: one that has shown that it is better than the champion.

The test is valid however often it is looked at (testing by betting: Waudby-Smith and Ramdas, 2024;
restarts as in the e-detectors of Shin, Ramdas and Rinaldo, 2024). A bet on the daily gain, a
difference of two rank ICs, multiplies its stake by 1 + rate * gain. Where the mean gain is not
positive, the probability that it ever reaches 1 / alpha is at most alpha.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

Daily = Float[ndarray, " nights"]

WIDEST = 2.0  # a gain lies in [-2, 2], so that a rate below 1/2 cannot lose more than the stake
RATES = (0.1, 0.45)  # among which the stake is divided
YEAR = 252  # sessions
# Sessions from one bet of a year to the next: older nights do not hide the evidence of a change.
RESTART = 10
TENURE = 20  # sessions for which a new champion stays at least
ALPHA = 0.05  # probability, a year, that any challenger no better than the champion is promoted


@dataclass(frozen=True)
class Evidence:
    """The evidence for a challenger: the value of an initial stake of 1, and the value `needed`."""

    challenger: str
    stake: float
    needed: float
    nights: int
    gain: float  # mean of the daily gains

    @property
    def suffices(self) -> bool:
        """Return whether the stake suffices and the champion has stayed for `TENURE` nights."""
        return self.stake >= self.needed and self.nights >= TENURE


def evidence(
    challenger: str,
    gains: Daily,
    *,
    challengers: int = 1,
    overlap: int = 1,
) -> Evidence:
    """Return the evidence for a challenger on the nights since the champion was chosen.

    `gains`, oldest first, are the challenger's rank ICs less the champion's, in [-2, 2]; NaN is
    left out. `challengers` share `ALPHA` equally. Half of the stake is bet from the first night on,
    the other on the present year (`YEAR` nights) alone, in parts that begin every `RESTART` nights;
    each bet is divided between the `RATES`. Where outcomes of `overlap` nights share a session, so
    many bettors each bet on every `overlap`-th night.
    """
    known_gains = gains[np.isfinite(gains)]
    # Every RESTART nights of the present year a bet starts from 1; those that start later in the
    # year are still worth 1.
    year_start = len(known_gains) - len(known_gains) % YEAR
    starts = np.arange(year_start, year_start + YEAR, RESTART)
    begun_starts = starts[starts <= len(known_gains)]
    stakes = []
    for first in range(overlap):
        bets = np.zeros((len(RATES), len(known_gains)))
        bets[:, first::overlap] = np.log1p(np.outer(RATES, known_gains[first::overlap]))
        # [rates nights + 1]: before the first night, and after each.
        log_stakes = np.pad(bets.cumsum(axis=1), ((0, 0), (1, 0)))
        lasting = np.exp(log_stakes[:, -1]).mean()
        since_start = np.exp(log_stakes[:, -1:] - log_stakes[:, begun_starts]).mean(axis=0)
        recent = (since_start.sum() + len(starts) - len(begun_starts)) / len(starts)
        stakes.append((lasting + recent) / 2)
    return Evidence(
        challenger=challenger,
        stake=float(np.mean(stakes)),
        needed=challengers / ALPHA,
        nights=len(known_gains),
        gain=float(known_gains.mean()) if len(known_gains) else np.nan,
    )


def promoted(candidates: Sequence[Evidence]) -> Evidence | None:
    """Return the challenger with the highest stake of those whose evidence suffices, or None."""
    sufficient = [candidate for candidate in candidates if candidate.suffices]
    return max(sufficient, key=lambda candidate: candidate.stake, default=None)
