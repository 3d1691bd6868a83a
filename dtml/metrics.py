"""How good the calls were: ACC, MCC and what resampling the days says of both.

Stocks of one day move together, so the sample is days, not stock-days: every interval resamples whole days.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray

Counts = Int[ndarray, "*batch 4"]  # true rises, false rises, false falls, true falls
Scores = Float[ndarray, "*batch"] | float  # a float for a single row of counts

MINIMUM_DAYS = 20  # with fewer, 95 % intervals are far too narrow (benchmarks/coverage.py: 78 % with 5 days)


@dataclass(frozen=True)
class Score:
    """Scores of a set of calls; `acc` in [0, 1], `mcc` in [-1, 1], each with a 95 % interval (low, high)."""

    days: int
    calls: int
    acc: float
    mcc: float
    acc_interval: tuple[float, float]
    mcc_interval: tuple[float, float]


def score(calls: pd.DataFrame, *, resamples: int = 2000, seed: int = 0) -> Score:
    """Score calls given as rows of `session`, `called` and `rose` (booleans).

    ACC and MCC are scikit-learn's, pooled over all rows; MCC is 0 when one class is never called. The intervals are
    percentiles over day resamples, missing (NaN) below `MINIMUM_DAYS`.
    """
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    if calls.empty:
        raise ValueError("there are no calls to score")
    counts = confusion_by_day(calls)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a single class; its MCC is 0 by definition
        pooled = float(matthews_corrcoef(calls["rose"], calls["called"]))
    drawn = resample_days(counts, resamples, np.random.default_rng(seed))
    return Score(
        days=len(counts),
        calls=len(calls),
        acc=float(accuracy_score(calls["rose"], calls["called"])),
        mcc=pooled,
        acc_interval=_interval(accuracy(drawn), len(counts)),
        mcc_interval=_interval(mcc(drawn), len(counts)),
    )


def confusion_by_day(calls: pd.DataFrame) -> Int[ndarray, "days 4"]:
    """Count true rises, false rises, false falls and true falls of each session, in the order of the sessions."""
    day = np.unique(calls["session"].to_numpy(), return_inverse=True)[1]
    kind = 2 * (~calls["called"].to_numpy(dtype=bool)) + (calls["called"].to_numpy() != calls["rose"].to_numpy())
    cell = np.array([0, 1, 3, 2])[kind]  # a false fall is counted before a true one
    return np.bincount(4 * day + cell, minlength=4 * (day.max() + 1)).reshape(-1, 4)


def accuracy(counts: Counts) -> Scores:
    """Share of right calls of each row of counts."""
    shares: Scores = (counts[..., 0] + counts[..., 3]) / counts.sum(axis=-1)
    return shares


def mcc(counts: Counts) -> Scores:
    """Matthews correlation of each row of counts; 0 when one class is never called or never happens."""
    rises, false_rises, false_falls, falls = np.moveaxis(counts.astype(float), -1, 0)
    product = (rises + false_rises) * (rises + false_falls) * (falls + false_rises) * (falls + false_falls)
    covariance = rises * falls - false_rises * false_falls
    found: Scores = np.divide(covariance, np.sqrt(product), out=np.zeros_like(covariance), where=product > 0)
    return found


def resample_days(
    counts: Int[ndarray, "days 4"], resamples: int, generator: np.random.Generator
) -> Int[ndarray, "resamples 4"]:
    """Sum the counts of days drawn by the stationary bootstrap (Politis & Romano, 1994).

    Days are drawn in blocks of geometric length, of mean days^(1/3), that wrap around the end.
    """
    days = len(counts)
    fresh = generator.random((resamples, days)) < 1 / max(1.0, days ** (1 / 3))
    fresh[:, 0] = True
    starts = generator.integers(0, days, (resamples, days))
    begun = np.maximum.accumulate(np.where(fresh, np.arange(days), 0), axis=1)  # where the current block began
    drawn = (np.take_along_axis(starts, begun, axis=1) + np.arange(days) - begun) % days
    place = drawn + days * np.arange(resamples)[:, None]
    times = np.bincount(place.ravel(), minlength=resamples * days).reshape(resamples, days)
    sums: Int[ndarray, "resamples 4"] = times @ counts
    return sums


def _interval(drawn: Scores, days: int) -> tuple[float, float]:
    if days < MINIMUM_DAYS:
        return float("nan"), float("nan")
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)
