"""Test several comparisons on the same days at once, so that chance alone seldom finds any.

Where ten models without skill are compared, each at 95 %, one of them is often "better". Here the
probability that any comparison is found different although none is stays at 5 %: studentised
resamples of days, with the stepdown of Romano and Wolf ("Stepwise Multiple Testing as Formalized
Data Snooping", Econometrica, 2005; p-values as in their "Efficient Computation of Adjusted p-Values
for Resampling-Based Stepdown Multiple Testing", 2016). All comparisons share the same resamples of
blocks of days, which keep how they depend on one another; a resample is studentised by its own
blocks (Götze and Künsch, 1996).
"""

from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.bootstrap import counts_of, dependence
from dtml.evaluation.metrics import MINIMUM_DAYS, told_apart

PerComparison = Float[ndarray, " comparisons"]

RESAMPLES = 10_000
ALPHA = 0.05  # probability that chance alone finds any difference in a family
# Compares with the strongest of several rules where some other rule is not told apart.
BEATS_NOT_ALL = "is not proven to beat every rule, but beats"
CHUNK = 1000  # resamples that are in memory at once


def family_p(
    gains: Float[ndarray, "days comparisons"],
    *,
    overlap: int = 1,
    resamples: int = RESAMPLES,
) -> PerComparison:
    """Return the p-value of each mean gain, adjusted for the whole family of comparisons.

    `gains` are what each day adds to each comparison, in its unit; their means are compared with 0,
    on both sides. Days on which any gain is missing (NaN) are left out. `overlap` is the number of
    days that an outcome spans: a block is at least as long, unless that is more than a tenth of the
    days, the longest block allowed. A p-value is NaN for a gain that does not vary, and all are NaN
    below `MINIMUM_DAYS`.
    """
    gains = gains[np.isfinite(gains).all(axis=1)]
    adjusted = np.full(gains.shape[1], np.nan)
    varies = gains.std(axis=0) > 0 if len(gains) else np.zeros(gains.shape[1], dtype=bool)
    if len(gains) < MINIMUM_DAYS or not varies.any():
        return adjusted
    varying = gains[:, varies]
    # All comparisons are resampled together, so that the blocks are as long as any of them needs,
    # but there are ten or more.
    wanted, widening = dependence(varying)
    longest = max(len(varying) // 10, 1)
    block = min(int(np.ceil(max(wanted.max(), overlap))), longest)
    # The mean of the block that begins on each day, less that of all days. Blocks wrap around.
    centred = varying - varying.mean(axis=0)
    wrapped = np.concatenate([centred, centred[: block - 1]])
    sums_before = np.concatenate([np.zeros((1, varying.shape[1])), wrapped.cumsum(axis=0)])
    block_means = np.asarray((sums_before[block:] - sums_before[:-block]) / block)
    blocks = max(round(len(varying) / block), 2)
    # The same estimate of the error as `_resampled_statistics` makes from the blocks of a resample.
    error = np.sqrt(block_means.var(axis=0) / (blocks - 1))
    statistic = np.abs(varying.mean(axis=0)) / (error * widening)
    drawn = _resampled_statistics(block_means, blocks, resamples)
    adjusted[varies] = _stepdown(statistic, drawn)
    return adjusted


def compared(gain: Any, p: Any) -> str | None:
    """Return the verb that compares two figures of a family: whether the first beats the second.

    `gain` is the first less the second, and `p` its p-value of `family_p`. Returns None where
    either is missing (NaN or None).
    """
    if pd.isna(gain) or pd.isna(p):
        return None
    if p > ALPHA:
        return "does not differ significantly from"
    return "beats" if gain > 0 else "is beaten by"


def beside_strongest_rule(
    gains: pd.DataFrame, name: str = "gain", rule: str = "other"
) -> dict[str, Any] | None:
    """Return how far a model is ahead of the strongest of several rules on the days scored.

    `gains` has a row a rule: its name in the column `rule`, the model's figure less the rule's on
    the same days in `name`, and the ends of its own 95 % interval in `NAME_low` and `NAME_high`.
    `NAME_p` may have its p-value of `family_p`. Without it, the ends that are returned are widened,
    so that those of all rules hold at once (Bonferroni).

    The strongest rule is the one over which the model gains least, of equal ones the first by name:
    it is chosen in hindsight, on the days scored themselves, which is to the model's disadvantage.
    Its row is returned, with the number of `rules` and the `verb` that compares, None without an
    interval. The verb is "beats" only if the model beats every rule, and `BEATS_NOT_ALL` if it
    beats this one but not all. Without any gain, the result is None.
    """
    known = gains[gains[name].notna()]
    ends = [f"{name}_low", f"{name}_high"]
    # How many times as far out the end of an interval lies at a level of ALPHA / rules.
    normal = NormalDist()
    level = 1 - ALPHA / 2 / max(len(known), 1)
    widening = normal.inv_cdf(level) / normal.inv_cdf(1 - ALPHA / 2)
    rows = []
    for found in known.to_dict("records"):
        row: dict[str, Any] = {str(column): value for column, value in found.items()}
        gain, p = row[name], row.get(f"{name}_p")
        if pd.isna(p):
            row |= {end: gain + widening * (row[end] - gain) for end in ends}
            verb = told_apart(*(row[end] for end in ends))
        else:
            verb = compared(gain, p)
        rows.append({**row, "rules": len(known), "verb": verb})
    strongest = min(rows, key=lambda row: (row[name], row[rule]), default=None)
    if strongest and strongest["verb"] == "beats" and any(row["verb"] != "beats" for row in rows):
        strongest["verb"] = BEATS_NOT_ALL
    return strongest


def _resampled_statistics(
    block_means: Float[ndarray, "days comparisons"], blocks: int, resamples: int
) -> Float[ndarray, "resamples comparisons"]:
    """Return the size of each studentised mean gain in resamples in which no gain exists.

    A resample is `blocks` blocks of days; its error is that of its own blocks. A mean whose blocks
    are all alike has no error, and size 0.
    """
    days = len(block_means)
    generator = np.random.default_rng(0)
    squares = block_means**2
    sizes = []
    for start in range(0, resamples, CHUNK):
        rows = min(CHUNK, resamples - start)
        first_day = generator.integers(0, days, (rows, blocks))
        counts = counts_of(first_day, days)  # how often each resample has the block of a day
        mean = counts @ block_means / blocks
        variance = np.maximum(counts @ squares / blocks - mean**2, 0)
        error = np.sqrt(variance / (blocks - 1))
        sizes.append(np.divide(np.abs(mean), error, out=np.zeros_like(mean), where=error > 0))
    return np.concatenate(sizes)


def _stepdown(
    statistic: PerComparison, drawn: Float[ndarray, "resamples comparisons"]
) -> PerComparison:
    """Return the adjusted p-values of the stepdown of Romano and Wolf.

    The largest statistic is compared with the largest of each resample, the second with the largest
    of the others, and so on; no p-value is below that of a larger statistic.
    """
    order = np.argsort(-statistic, kind="stable")
    # The largest of each resample among a comparison and all whose statistics are smaller.
    largest = np.maximum.accumulate(drawn[:, order[::-1]], axis=1)[:, ::-1]
    reached = (largest >= statistic[order]).sum(axis=0)
    p = np.maximum.accumulate((1 + reached) / (1 + len(drawn)))
    adjusted = np.empty_like(p)
    adjusted[order] = p
    return adjusted
