"""Who looked at whom: the attention between the stocks of a day.

A weight is the share of its attention, 0 to 1, that one stock gives another, or itself. It is not
symmetric. What the test of attention found is said here too, in one word and in sentences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

KEPT = 5  # drivers of a stock
STOCK_DAYS = 50_000  # at most, on which a model is tested


@dataclass(frozen=True)
class Attention:
    """The attention between stocks.

    `weights[u, v]` is how much stock u of `symbols` looks at v, NaN where unknown.
    """

    symbols: tuple[str, ...]
    weights: Float[ndarray, "stocks stocks"]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Attention":
        """Read rows `symbol, source, weight`, all pairs or only the strongest, each once.

        Stocks are sorted by symbol.
        """
        symbols = sorted({*rows["symbol"], *rows["source"]})
        weights = rows.pivot(index="symbol", columns="source", values="weight")
        weights = weights.reindex(index=symbols, columns=symbols)
        return cls(symbols=tuple(symbols), weights=weights.to_numpy(dtype=float))

    def rows(self) -> pd.DataFrame:
        """Return a row a pair, `symbol, source, weight`: a stock and one that it looks at."""
        looking, seen = np.indices(self.weights.shape).reshape(2, -1)
        names = pd.Index(self.symbols)
        return pd.DataFrame(
            {"symbol": names[looking], "source": names[seen], "weight": self.weights.ravel()}
        )

    @property
    def is_whole(self) -> bool:
        """Return whether the weight of every pair is known, and there is any."""
        return bool(len(self.symbols) and np.isfinite(self.weights).all())

    @property
    def own(self) -> Float[ndarray, " stocks"]:
        """Return how much each stock looks at itself."""
        return np.diag(self.weights)

    @cached_property
    def others(self) -> Float[ndarray, "stocks stocks"]:
        """Return the weights on other stocks, NaN on the diagonal."""
        return np.where(np.eye(len(self.symbols), dtype=bool), np.nan, self.weights)

    @cached_property
    def looked_at(self) -> "pd.Series[float]":
        """Return each stock's mean weight for the others, highest first.

        An unknown weight counts as 0.
        """
        other_stocks = max(len(self.symbols) - 1, 1)
        mean = np.nansum(self.others, axis=0) / other_stocks
        by_symbol = pd.Series(mean, index=list(self.symbols), dtype=float)
        return by_symbol.sort_values(ascending=False, kind="stable")

    def drivers(self, most: int = KEPT) -> dict[str, list[tuple[str, float]]]:
        """Return the other stocks that each looks at most, with their weights.

        The strongest come first, equal ones by symbol.
        """
        held = np.where(np.isnan(self.others), -np.inf, self.others)
        order = np.argsort(-held, axis=1, kind="stable")[:, :most]
        return {
            symbol: [
                (self.symbols[v], float(held[u, v])) for v in order[u] if np.isfinite(held[u, v])
            ]
            for u, symbol in enumerate(self.symbols)
        }


def verdict(row: Mapping[str, Any] | None) -> Literal["untested", "holds", "fails"]:
    """Return whether attention explains: it differs from nonsense and agrees with importance.

    Nonsense is the attention of models trained on shuffled labels.
    """
    if row is None:
        return "untested"
    return "holds" if row["told_apart"] and _agrees(row) else "fails"


def _agrees(row: Mapping[str, Any]) -> bool:
    """Return whether the agreement lies above 0 with its whole interval, and above chance."""
    of_unrelated_rows = 2 / np.sqrt(row["stocks"])
    return bool((row["agreement_low"] or 0) > 0 and row["agreement"] >= of_unrelated_rows)


def words(row: Mapping[str, Any] | None) -> str:
    """Put a row of the table `explanation` into sentences; None is a model never tested."""
    if row is None:
        return "The attention of this model has not been tested: run dtml explain MARKET."
    groups = (
        f"{row['seeds']} networks trained on true labels, {row['shuffles']} on labels of "
        "shuffled days"
    )
    apart = "differs from" if row["told_apart"] else "does not differ significantly from"
    sentences = [
        f"The attention of this model {apart} that of models trained on nonsense ({groups}: "
        f"energy distance {row['distance']:.3f}, p = {row['distance_p']:.2g}).",
        _agreement_in_words(row, agrees=_agrees(row)),
    ]
    if row["drivers"] is not None and np.isfinite(row["drivers"]):
        sentences.append(
            f"{row['drivers']:.0%} of the stocks whose driver is known have it among the "
            f"{row['top']} they look at most, {row['drivers_importance']:.0%} among the "
            f"{row['top']} that change their prediction most; chance gives "
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
    what = f"Spearman's correlation with permutation importance {row['agreement']:+.2f}"
    if pd.isna(low):
        return (
            f"It is not known whether it agrees with what changes predictions: {what}, with too "
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
    return f"It {verb} what changes predictions: {what} [{low:+.2f}, {high:+.2f}]."
