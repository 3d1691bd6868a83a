"""ACC and MCC of predicted directions, and the intervals of all figures.

The sample is days, because stocks of one day move together. A statistic is a function of totals
over days, [..., totals] to [...]; `summands` are what each day adds to them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.evaluation.bootstrap import (
    Ends,
    PerModel,
    Statistic,
    Summands,
    difference,
    interval,
    overlapping_interval,
)

# True rises, false rises, false falls, true falls.
Counts = Int[ndarray, "*batch 4"] | Float[ndarray, "*batch 4"]
Scores = Float[ndarray, "*batch"]
Flags = Bool[ndarray, "*batch"]

RESAMPLES = 4000
MINIMUM_DAYS = 20  # fewer cannot show their dependence, and no interval would be wide enough for it


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval, whose ends are NaN below `MINIMUM_DAYS`."""

    value: float
    low: float
    high: float

    def named(self, name: str) -> dict[str, float]:
        """Return the value and its ends as `NAME`, `NAME_low` and `NAME_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


UNKNOWN = Estimate(np.nan, np.nan, np.nan)


def confusion(predicted: Flags, rose: Flags, counted: Flags) -> Int[ndarray, "*batch 4"]:
    """Return each direction as true rise, false rise, false fall, true fall; 0 if not counted."""
    kinds = (predicted & rose, predicted & ~rose, ~predicted & rose, ~predicted & ~rose)
    return np.stack([kind & counted for kind in kinds], axis=-1).astype(np.int32)


def accuracy(counts: Counts) -> Scores:
    """Return the share of correct directions of each row of counts."""
    return np.asarray((counts[..., 0] + counts[..., 3]) / counts.sum(axis=-1))


def mcc(counts: Counts) -> Scores:
    """Return the Matthews correlation of each row of counts; 0 where a class is missing."""
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


STATISTICS = {"acc": accuracy, "mcc": mcc}


def quotient(part: ndarray, whole: ndarray, missing: float = np.nan) -> Scores:
    """Return part / whole, and `missing` where the whole is 0."""
    return np.asarray(np.divide(part, whole, out=np.full(part.shape, missing), where=whole > 0))


def ratio(totals: Float[ndarray, "*batch 2"] | Int[ndarray, "*batch 2"]) -> Scores:
    """Return the first total divided by the second; one half where that is 0: no skill."""
    part, whole = np.moveaxis(np.asarray(totals, dtype=float), -1, 0)
    return quotient(part, whole, missing=0.5)


def day_interval(
    summands: Summands, statistic: Statistic, *, resamples: int = RESAMPLES, overlap: int = 1
) -> Ends:
    """Return the ends of the 95 % interval of each model, from `summands` [days models totals].

    NaN with fewer than `MINIMUM_DAYS` days that add anything; with `overlap`,
    `overlapping_interval`.
    """
    is_enough = summands.any(axis=-1).sum(axis=0) >= MINIMUM_DAYS
    low, high = np.full((2, len(is_enough)), np.nan)
    if is_enough.any():
        of_models = summands[:, is_enough]
        low[is_enough], high[is_enough] = (
            overlapping_interval(of_models, statistic, overlap=overlap)
            if overlap > 1
            else interval(of_models, statistic, resamples=resamples)
        )
    return low, high


def measured(
    name: str, summands: Summands, statistic: Statistic, resamples: int
) -> dict[str, PerModel]:
    """Return a statistic of each model as `NAME`, and its ends as `NAME_low` and `NAME_high`."""
    low, high = day_interval(summands, statistic, resamples=resamples)
    return {name: statistic(summands.sum(axis=0)), f"{name}_low": low, f"{name}_high": high}


def estimate(
    summands: Float[ndarray, "days totals"] | Int[ndarray, "days totals"],
    statistic: Statistic,
    *,
    resamples: int = RESAMPLES,
    overlap: int = 1,
) -> Estimate:
    """Return a statistic of one model with its interval (`day_interval`); NaN without any total."""
    if not summands.any():
        return UNKNOWN
    of_model = summands[:, None]
    low, high = day_interval(of_model, statistic, resamples=resamples, overlap=overlap)
    value = statistic(of_model.sum(axis=0))
    return Estimate(float(value[0]), float(low[0]), float(high[0]))


def gain_in_mcc(
    counts: Int[ndarray, "days 4"], others: Int[ndarray, "days models 4"], resamples: int
) -> dict[str, PerModel]:
    """Return by how much a model's MCC exceeds each other's, on its days, with the ends."""
    # The model beside each of the others, as `difference` takes them: [days models 8].
    paired = np.concatenate([np.broadcast_to(counts[:, None], others.shape), others], axis=-1)
    return measured("model_gain", paired[counts.any(axis=-1)], difference(mcc), resamples)


def told_apart(low: Any, high: Any) -> str | None:
    """Return the verb for two figures by the 95 % interval of their difference, or None."""
    if pd.isna(low) or pd.isna(high):
        return None
    if low > 0:
        return "beats"
    return "is beaten by" if high < 0 else "does not differ significantly from"
