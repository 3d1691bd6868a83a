"""Who looked at whom: the share of its attention, 0 to 1, that a stock gives another, or itself."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

KEPT = 5  # drivers of a stock


@dataclass(frozen=True)
class Attention:
    """The attention between stocks: `weights[u, v]` is how much u looks at v, NaN unknown."""

    symbols: tuple[str, ...]
    weights: Float[ndarray, "stocks stocks"]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Attention":
        """Read rows `symbol, source, weight`, one a pair; stocks are sorted, others NaN."""
        symbols = sorted({*rows["symbol"], *rows["source"]})
        weights = rows.pivot(index="symbol", columns="source", values="weight")
        weights = weights.reindex(index=symbols, columns=symbols)
        return cls(symbols=tuple(symbols), weights=weights.to_numpy(dtype=float))

    def rows(self) -> pd.DataFrame:
        """Return a row for each pair, `symbol, source, weight`: a stock and one it looks at."""
        # The row and the column of each weight, in the order of `ravel`.
        row, column = np.indices(self.weights.shape).reshape(2, -1)
        names = pd.Index(self.symbols)
        return pd.DataFrame(
            {"symbol": names[row], "source": names[column], "weight": self.weights.ravel()}
        )

    @property
    def is_whole(self) -> bool:
        """Return whether there are stocks and the weight of every pair is known."""
        is_known = np.isfinite(self.weights)
        return bool(len(self.symbols) and is_known.all())

    @property
    def own(self) -> Float[ndarray, " stocks"]:
        """Return how much each stock looks at itself."""
        return np.diag(self.weights)

    @cached_property
    def others(self) -> Float[ndarray, "stocks stocks"]:
        """Return the weights on other stocks, NaN on the diagonal."""
        is_own = np.eye(len(self.symbols), dtype=bool)
        return np.where(is_own, np.nan, self.weights)

    @cached_property
    def looked_at(self) -> "pd.Series[float]":
        """Return each stock's mean weight for the others, highest first; unknown counts as 0."""
        other_stocks = max(len(self.symbols) - 1, 1)
        mean = np.nansum(self.others, axis=0) / other_stocks
        by_symbol = pd.Series(mean, index=list(self.symbols), dtype=float)
        return by_symbol.sort_values(ascending=False, kind="stable")

    def drivers(self, most: int = KEPT) -> dict[str, list[tuple[str, float]]]:
        """Return the others, at most `most`, that each stock looks at most, strongest first."""
        # Unknown weights, and those of a stock on itself, come last and are left out below.
        weights = np.where(np.isnan(self.others), -np.inf, self.others)
        order = np.argsort(-weights, axis=1, kind="stable")[:, :most]
        drivers = {}
        for u, symbol in enumerate(self.symbols):
            columns = [v for v in order[u] if np.isfinite(weights[u, v])]
            drivers[symbol] = [(self.symbols[v], float(weights[u, v])) for v in columns]
        return drivers
