"""Directions given one by one, counted by day and scored."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from dtml.evaluation.metrics import Estimate, accuracy, confusion, estimate, mcc


class Scored(NamedTuple):
    """The scores of some directions."""

    days: int
    directions: int
    acc: Estimate
    mcc: Estimate


def confusion_by_day(directions: pd.DataFrame) -> np.ndarray:
    """The counts of each session, from rows of session, predicted and rose."""
    predicted, rose = (directions[name].to_numpy(dtype=bool) for name in ("predicted", "rose"))
    kinds = pd.DataFrame(confusion(predicted, rose, np.ones_like(rose)))
    return kinds.groupby(directions["session"].to_numpy()).sum().to_numpy(dtype=np.int64)


def score_days(counts: np.ndarray) -> Scored:
    """The scores of counts by day."""
    counts = counts[counts.any(axis=1)]
    figures = (estimate(counts, statistic) for statistic in (accuracy, mcc))
    return Scored(len(counts), int(counts.sum()), *figures)


def score(directions: pd.DataFrame) -> Scored:
    """The scores of directions one by one."""
    return score_days(confusion_by_day(directions))
