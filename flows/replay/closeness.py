"""Compare figures that were stored with the same figures computed again.

They are equal to the last bit where the same versions and the same processor compute them.
Elsewhere sums are added in another order, and figures may differ by rounding.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

# Largest difference between two figures that count as close. Probabilities are computed in float32,
# whose spacing below 1 is 6e-8: this leaves room for the rounding of some twenty sums.
TOLERANCE = 1e-6


def same(stored: ArrayLike, again: ArrayLike) -> NDArray[np.bool_]:
    """Return, for each figure, whether both are the same to the last bit; NaN equals NaN."""
    then = np.asarray(stored, dtype=float)
    now = np.asarray(again, dtype=float)
    return np.asarray((then == now) | np.isnan(then) & np.isnan(now))


def close(stored: ArrayLike, again: ArrayLike) -> NDArray[np.bool_]:
    """Return, for each figure, whether both differ by at most TOLERANCE; NaN equals NaN."""
    then = np.asarray(stored, dtype=float)
    now = np.asarray(again, dtype=float)
    return np.asarray(same(then, now) | (np.abs(then - now) <= TOLERANCE))


@dataclass(frozen=True)
class RankingDifference:
    """Hold how many stocks of a night's rankings have another place or score, of how many.

    A stock counts once for each predictor. `is_close` says that all scores are within TOLERANCE of
    the stored ones (of a score beyond 1 or -1, within that share of it), and that stocks changed
    places only where their scores are that close.
    """

    differing: int
    total: int
    is_close: bool

    def __str__(self) -> str:
        return f"ranking: {self.differing} of {self.total} places and scores differ"


def ranking_difference(stored: pd.DataFrame, again: pd.DataFrame) -> RankingDifference | None:
    """Return how two frames `predictor, symbol, score, place` differ; None where they do not.

    They are the rankings of one night. A stock that only one of them ranks counts as different, and
    then they are not close.
    """
    beside = stored.merge(again, on=["predictor", "symbol"], how="outer", suffixes=("", "_again"))
    is_same = same(beside[["score", "place"]], beside[["score_again", "place_again"]]).all(axis=1)
    differing = int((~is_same).sum())
    if differing == 0:
        return None
    is_in_both = beside[["place", "place_again"]].notna().all(axis=None)
    # Each stock now has the place `place_again`. Add the stored score of the stock that had this
    # place in the stored ranking.
    score_of_place = stored[["predictor", "place", "score"]].rename(
        columns={"place": "place_again", "score": "score_of_place"}
    )
    beside = beside.merge(score_of_place, on=["predictor", "place_again"], how="left")
    # The stored score of each stock must be close to its new score, and also to the score added
    # above: then the two stocks could change places by rounding alone.
    scale = np.maximum(1.0, beside["score"].abs())
    scores = beside[["score", "score"]].div(scale, axis=0)
    others = beside[["score_again", "score_of_place"]].div(scale, axis=0)
    is_close = bool(is_in_both and close(scores, others).all())
    return RankingDifference(differing=differing, total=len(beside), is_close=is_close)
