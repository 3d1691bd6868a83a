"""The findings of the test of attention: as a row, in one word and in sentences."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

STOCK_DAYS = 50_000  # at most, on which a model is tested


@dataclass(frozen=True)
class Findings:
    """The findings of the three tests of `significance.py`: columns of the table `explanation`.

    `distance` and its p-value are those of `distance_test`, `agreement` and its ends those of
    `agreement` (NaN: too few days), `drivers` and `drivers_importance` shares of `share_found`,
    None where no driver is known.
    """

    stocks: int
    days: int
    seeds: int
    shuffles: int
    distance: float
    distance_p: float
    told_apart: bool
    agreement: float
    agreement_low: float
    agreement_high: float
    top: int
    drivers: float | None
    drivers_chance: float | None
    drivers_importance: float | None


def verdict(row: Mapping[str, Any] | None) -> Literal["untested", "holds", "fails"]:
    """Return whether attention explains: it differs from nonsense and agrees with importance.

    Nonsense is the attention of models trained on shuffled labels.
    """
    if row is None:
        return "untested"
    explains = row["told_apart"] and _agrees(row)
    return "holds" if explains else "fails"


def _agrees(row: Mapping[str, Any]) -> bool:
    """Return whether the whole interval of the agreement is above 0, and its value above chance."""
    of_unrelated_rows = 2 / np.sqrt(row["stocks"])
    lowest = row["agreement_low"] or 0
    return bool(lowest > 0 and row["agreement"] >= of_unrelated_rows)


def words(row: Mapping[str, Any] | None) -> str:
    """Describe a row of the table `explanation` in sentences; None is a model never tested."""
    if row is None:
        return "The attention of this model has not been tested: run dtml explain MARKET."
    groups = (
        f"{row['seeds']} networks trained on true labels, {row['shuffles']} on labels of "
        "shuffled days"
    )
    apart = "differs from" if row["told_apart"] else "does not differ significantly from"
    sentences = [
        f"The attention of this model {apart} that of models trained on shuffled labels ({groups}: "
        f"energy distance {row['distance']:.3f}, p = {row['distance_p']:.2g}).",
        _agreement_in_words(row, agrees=_agrees(row)),
    ]
    if row["drivers"] is not None and np.isfinite(row["drivers"]):
        sentences.append(
            f"{row['drivers']:.0%} of the stocks with a known driver have it among the "
            f"{row['top']} stocks that they attend to most, and {row['drivers_importance']:.0%} "
            f"among the {row['top']} that change their prediction most; chance gives "
            f"{row['drivers_chance']:.0%}."
        )
    if verdict(row) == "fails":
        sentences.append("Do not read its attention as an explanation.")
    sentences.append(
        "The test used networks with the model's settings, not the model itself: "
        f"{row['stocks']} stocks, "
        f"at most {STOCK_DAYS:,} stock-days, {row['epochs']} epochs, {row['days']} validation "
        "days."
    )
    return " ".join(sentences)


def _agreement_in_words(row: Mapping[str, Any], *, agrees: bool) -> str:
    low = row["agreement_low"]
    high = row["agreement_high"]
    measure = f"Spearman's correlation with permutation importance {row['agreement']:+.2f}"
    if pd.isna(low):
        return (
            f"It is not known whether it agrees with what changes predictions: {measure}, with too "
            "few days for an interval."
        )
    if agrees:
        verb = "agrees with"
    elif low > 0:
        verb = "agrees only weakly with"
    elif high < 0:
        verb = "contradicts"
    else:
        verb = "does not agree with"
    return f"It {verb} what changes predictions: {measure} [{low:+.2f}, {high:+.2f}]."
