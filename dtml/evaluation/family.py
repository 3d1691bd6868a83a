"""Test several comparisons on the same days at once, so that chance alone seldom finds any.

The probability that any comparison is found different although none is stays at 5 %: studentised
resamples of days, with the stepdown of Romano and Wolf ("Stepwise Multiple Testing as Formalized
Data Snooping", Econometrica, 2005; p-values as in their "Efficient Computation of Adjusted p-Values
for Resampling-Based Stepdown Multiple Testing", 2016). All comparisons share the resampled blocks
of days; a resample is studentised by its own blocks (Götze and Künsch, 1996).
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
    """Return the two-sided p-value of each mean gain, adjusted for the whole family of comparisons.

    Days on which any gain is NaN are left out. A block has at least the `overlap` days of an
    outcome, at most a tenth of the days. NaN for a gain that does not vary, and below
    `MINIMUM_DAYS`.
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
    # The stepdown: the largest of each resample among a comparison and all of smaller statistics.
    order = np.argsort(-statistic, kind="stable")
    largest = np.maximum.accumulate(drawn[:, order[::-1]], axis=1)[:, ::-1]
    reached = (largest >= statistic[order]).sum(axis=0)
    p = np.maximum.accumulate((1 + reached) / (1 + len(drawn)))
    adjusted[np.flatnonzero(varies)[order]] = p
    return adjusted


def compared(gain: Any, p: Any) -> str | None:
    """Return the verb that compares two figures by their difference and its p-value of `family_p`.

    None where either is missing.
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

    `gains` has a row a rule: its name in `rule`, the model's figure less the rule's in `name`, its
    95 % interval in `NAME_low, NAME_high`, and perhaps `NAME_p` of `family_p`; without it the ends
    returned are widened to hold for all rules at once (Bonferroni).

    The strongest rule is that of least gain, of equal ones the first by name: chosen in hindsight,
    to the model's disadvantage. Its row is returned with the number of `rules` and the `verb`, None
    without an interval: "beats" only where the model beats every rule, else perhaps
    `BEATS_NOT_ALL`. None without any gain.
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

    A resample is `blocks` blocks of days; size 0 where they are all alike.
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
