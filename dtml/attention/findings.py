"""The findings of the test of attention: as a row, in one word and in sentences."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

STOCK_DAYS = 50_000  # of the history on which a model is tested, at most


@dataclass(frozen=True)
class Findings:
    """The findings of the three tests of `significance.py`: columns of the table `explanation`.

    `days` are those on which attention was measured; `seeds` and `shuffles` are the numbers of
    networks trained on true and on shuffled labels. `distance` and `distance_p` are those of
    `distance_test`; `told_apart` says whether the distance is significant. `agreement` and the ends
    of its interval are those of `significance.agreement`, the ends NaN with too few days. Of the
    stocks with a known driver, `drivers` is the share whose driver is among the `top` largest
    attentions, `drivers_importance` the share whose driver is among the `top` largest importances
    (`share_found`), `drivers_chance` the share by chance; all three are None where no driver is
    known.
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
    """Return whether attention explains the predictions; "untested" without a row.

    The verdict is "holds" if attention differs significantly from that of models trained on
    shuffled labels, and agrees with importance (`_agrees`), else "fails".
    """
    if row is None:
        return "untested"
    explains = row["told_apart"] and _agrees(row)
    return "holds" if explains else "fails"


def _agrees(row: Mapping[str, Any]) -> bool:
    """Return whether the agreement's interval is above 0, and its value is not below chance."""
    # The agreement of two unrelated maps if both prefer a few stocks (`significance.agreement`).
    by_chance = 2 / np.sqrt(row["stocks"])
    # With too few days there is no interval: its low end is NaN here and None in the store.
    low = row["agreement_low"] or 0
    return bool(low > 0 and row["agreement"] >= by_chance)


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
    shares = [row[name] for name in ("drivers", "drivers_importance", "drivers_chance")]
    if not pd.isna(shares).any():  # they are missing where no driver is known
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
    """Say whether attention agrees with importance; `agrees` is the answer of `_agrees`."""
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
