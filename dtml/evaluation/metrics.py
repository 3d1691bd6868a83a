"""The metrics of predicted directions, ACC and MCC, with intervals.

Stocks of one day move together, so the sample is days, not stock-days: every interval resamples
whole days.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.evaluation.bootstrap import Ends, PerModel, Statistic, Summands, difference, interval

# True rises, false rises, false falls, true falls.
Counts = Int[ndarray, "*batch 4"] | Float[ndarray, "*batch 4"]
Scores = Float[ndarray, "*batch"]
Flags = Bool[ndarray, "*batch"]

RESAMPLES = 4000
MINIMUM_DAYS = 20  # fewer cannot show their dependence, and no interval would be wide enough for it


@dataclass(frozen=True)
class Score:
    """Scores of predicted directions: `acc` in [0, 1], `mcc` in [-1, 1].

    Each has a 95 % interval (low, high).
    """

    days: int
    directions: int
    acc: float
    mcc: float
    acc_interval: tuple[float, float]
    mcc_interval: tuple[float, float]


def score(directions: pd.DataFrame) -> Score:
    """Score directions given as rows of `session`, `predicted` and `rose` (booleans).

    ACC and MCC are pooled over all rows and equal scikit-learn's; MCC is 0 when one class is never
    predicted or never happens. The intervals resample days (`dtml.evaluation.bootstrap`), and are
    missing (NaN) below `MINIMUM_DAYS`. Raises ValueError where there is no row.
    """
    if directions.empty:
        raise ValueError(
            "there are no directions to score: pass one or more rows of session, predicted and rose"
        )
    return score_days(confusion_by_day(directions))


def score_days(counts: Int[ndarray, "days 4"]) -> Score:
    """Score directions counted by day, as `confusion_by_day` does; see `score`.

    A day without directions does not count. Without any direction, ACC is NaN and MCC is 0.
    """
    counts = counts[counts.sum(axis=1) > 0]
    pooled = counts.sum(axis=0)
    return Score(
        days=len(counts),
        directions=int(pooled.sum()),
        acc=float(accuracy(pooled)),
        mcc=float(mcc(pooled)),
        acc_interval=_ends(counts, accuracy),
        mcc_interval=_ends(counts, mcc),
    )


def confusion_by_day(directions: pd.DataFrame) -> Int[ndarray, "days 4"]:
    """Count true rises, false rises, false falls and true falls of each session.

    Rows are in the order of the sessions.
    """
    predicted = directions["predicted"].to_numpy(dtype=bool)
    rose = directions["rose"].to_numpy(dtype=bool)
    kinds = pd.DataFrame(confusion(predicted, rose, np.ones_like(rose)))
    return kinds.groupby(directions["session"].to_numpy()).sum().to_numpy(dtype=np.int64)


def confusion(predicted: Flags, rose: Flags, counted: Flags) -> Int[ndarray, "*batch 4"]:
    """Return each direction as a true rise, false rise, false fall or true fall.

    One of the four numbers is 1; all are 0 for a direction that is not counted.
    """
    kinds = (
        predicted & rose,
        predicted & ~rose,
        ~predicted & rose,
        ~predicted & ~rose,
    )
    return np.stack([kind & counted for kind in kinds], axis=-1).astype(np.int32)


def accuracy(counts: Counts) -> Scores:
    """Return the share of correct directions of each row of counts."""
    return np.asarray((counts[..., 0] + counts[..., 3]) / counts.sum(axis=-1))


def mcc(counts: Counts) -> Scores:
    """Return the Matthews correlation of each row of counts.

    It is 0 when one class is never predicted or never happens.
    """
    rises, false_rises, false_falls, falls = np.moveaxis(counts.astype(float), -1, 0)
    product = (
        (rises + false_rises)
        * (rises + false_falls)
        * (falls + false_rises)
        * (falls + false_falls)
    )
    covariance = rises * falls - false_rises * false_falls
    # Where the product is 0, so is the covariance.
    return np.asarray(covariance / np.sqrt(np.where(product > 0, product, 1)))


def ratio(totals: Float[ndarray, "*batch 2"] | Int[ndarray, "*batch 2"]) -> Scores:
    """Return the first total divided by the second.

    It is one half where the second is 0, such as the number of pairs when no day has any: one half
    is the share of pairs ranked correctly without skill.
    """
    part, whole = np.moveaxis(np.asarray(totals, dtype=float), -1, 0)
    half = np.full_like(part, 0.5)
    return np.asarray(np.divide(part, whole, out=half, where=whole > 0))


def day_interval(summands: Summands, statistic: Statistic, *, resamples: int, seed: int) -> Ends:
    """Return the ends that `interval` gives for each model, missing (NaN) below `MINIMUM_DAYS`.

    `summands` is what each day adds to the totals of the statistic, [days models totals].
    """
    if len(summands) < MINIMUM_DAYS:
        missing = np.full(summands.shape[1], np.nan)
        return missing, missing.copy()
    return interval(summands, statistic, resamples=resamples, seed=seed)


def measured(
    name: str, summands: Summands, statistic: Statistic, resamples: int
) -> dict[str, PerModel]:
    """Return a statistic of each model and the ends of its interval.

    They are named `NAME`, `NAME_low` and `NAME_high`, where NAME is `name`. `summands` is as in
    `day_interval`.
    """
    low, high = day_interval(summands, statistic, resamples=resamples, seed=0)
    return {
        name: statistic(summands.sum(axis=0)),
        f"{name}_low": low,
        f"{name}_high": high,
    }


def gain_in_mcc(
    counts: Int[ndarray, "days 4"],
    others: Int[ndarray, "days models 4"],
    *,
    resamples: int = RESAMPLES,
) -> tuple[Scores, Scores, Scores]:
    """Return by how much the MCC of one predictor exceeds that of each other on the same days.

    `counts` are those of the one predictor, `others` those of the others. Returns three values for
    each of the others: the gain and the ends of its interval, missing (NaN) below `MINIMUM_DAYS`. A
    day on which the one predictor has no direction does not count.
    """
    has_directions = counts.sum(axis=-1) > 0
    # The one predictor beside each of the others, as `difference` takes them: [days models 8].
    repeated = np.broadcast_to(counts[:, None], others.shape)
    paired = np.concatenate([repeated, others], axis=-1)[has_directions]
    gain = difference(mcc)
    low, high = day_interval(paired, gain, resamples=resamples, seed=0)
    return gain(paired.sum(axis=0)), low, high


def told_apart(low: Any, high: Any) -> str | None:
    """Return the verb that compares two figures: whether the first beats the second.

    `low` and `high` are the ends of the 95 % interval of their difference on the same days. Returns
    None where an end is missing (NaN or None).
    """
    if pd.isna(low) or pd.isna(high):
        return None
    if low > 0:
        return "beats"
    if high < 0:
        return "is beaten by"
    return "does not differ significantly from"


def _ends(counts: Int[ndarray, "days 4"], statistic: Statistic) -> tuple[float, float]:
    """Return the ends of the interval of a single predictor, as numbers."""
    low, high = day_interval(counts[:, None], statistic, resamples=RESAMPLES, seed=0)
    return float(low[0]), float(high[0])
