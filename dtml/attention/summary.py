"""The findings of the test of attention, in one word and in sentences, for pages and the console."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

STOCK_DAYS = 50_000  # at most, on which a model is tested


def verdict(row: Mapping[str, Any] | None) -> Literal["untested", "holds", "fails"]:
    """Return whether attention explains: it differs from that on shuffled labels, and agrees with importance."""
    if row is None:
        return "untested"
    return "holds" if row["told_apart"] and _agrees(row) else "fails"


def _agrees(row: Mapping[str, Any]) -> bool:
    """Return whether the agreement lies above 0 with its whole interval, and above that of unrelated rows."""
    return bool(_figure(row["agreement_low"]) > 0 and row["agreement"] >= 2 / np.sqrt(row["stocks"]))


def words(row: Mapping[str, Any] | None) -> str:
    """Put a row of the table `explanation` into sentences; None is a model that was never tested."""
    if row is None:
        return "What this model looks at has not been tested: run dtml explain MARKET."
    groups = f"{row['seeds']} networks trained on true labels, {row['shuffles']} on labels of shuffled days"
    apart = "differs from" if row["told_apart"] else "cannot be told from"
    said = [
        f"What this model looks at {apart} what models trained on nonsense look at ({groups}: energy distance "
        f"{row['distance']:.3f}, p = {row['distance_p']:.2g}).",
        _agreement_in_words(row, agrees=_agrees(row)),
    ]
    if row["drivers"] is not None and np.isfinite(row["drivers"]):
        said.append(
            f"{row['drivers']:.0%} of the stocks whose driver is known have it among the {row['top']} they look at "
            f"most, {row['drivers_importance']:.0%} among the {row['top']} that change their prediction most; chance "
            f"gives {row['drivers_chance']:.0%}."
        )
    if verdict(row) == "fails":
        said.append("Do not read its attention as an explanation.")
    said.append(
        f"Tested on networks with the model's settings, not on the model: {row['stocks']} stocks, at most "
        f"{STOCK_DAYS:,} stock-days, {row['epochs']} epochs, {row['days']} days of validation."
    )
    return " ".join(said)


def _agreement_in_words(row: Mapping[str, Any], *, agrees: bool) -> str:
    low, high = _figure(row["agreement_low"]), _figure(row["agreement_high"])
    what = f"Spearman's correlation with permutation importance {row['agreement']:+.2f}"
    if np.isnan(low):
        return f"Whether it agrees with what changes predictions is open: {what}, of too few days for an interval."
    against = "contradicts" if high < 0 else "does not agree with"
    verdict = "agrees with" if agrees else "hardly agrees with" if low > 0 else against
    return f"It {verdict} what changes predictions: {what} [{low:+.2f}, {high:+.2f}]."


def _figure(value: float | None) -> float:
    """Return NaN for a missing value of the store."""
    return np.nan if value is None else float(value)
