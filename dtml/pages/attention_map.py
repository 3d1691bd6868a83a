"""The map of attention: which stocks look at which, also by sector, and the drivers of each stock.

A weight is the share of its attention, 0 to 1, that one stock gives another, or itself. It is not symmetric: rows look,
columns are looked at. `sectors` maps a symbol to its sector; None, NaN or no entry is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.pages.charts import Chart, cells
from dtml.pages.figures import figure

MOST = 40  # stocks on a map: more would leave no room for their names
KEPT = 5  # drivers of a stock
NO_SECTOR = "no sector"
WIDE, SMALLEST, LARGEST = 720, 12, 30  # of a map without its names, and of a cell's side, in pixels

Sectors = Mapping[str, Any]


@dataclass(frozen=True)
class Attention:
    """The attention between stocks: `weights[u, v]` is how much stock u of `symbols` looks at v, NaN where unknown."""

    symbols: tuple[str, ...]
    weights: Float[ndarray, "stocks stocks"]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Attention":
        """Read rows `symbol, source, weight`, all pairs or only the strongest, each once; stocks sorted by symbol."""
        symbols = sorted({*rows["symbol"], *rows["source"]})
        weights = rows.pivot(index="symbol", columns="source", values="weight").reindex(index=symbols, columns=symbols)
        return cls(tuple(symbols), weights.to_numpy(dtype=float))

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
        """Return each stock's mean weight for the others, highest first; an unknown weight counts as 0."""
        mean = np.nansum(self.others, axis=0) / max(len(self.symbols) - 1, 1)
        return pd.Series(mean, index=list(self.symbols), dtype=float).sort_values(ascending=False, kind="stable")

    def drivers(self, most: int = KEPT) -> dict[str, list[tuple[str, float]]]:
        """Return the other stocks that each looks at most, with weights, strongest first; equal ones by symbol."""
        held = np.where(np.isnan(self.others), -np.inf, self.others)
        order = np.argsort(-held, axis=1, kind="stable")[:, :most]
        return {
            symbol: [(self.symbols[v], float(held[u, v])) for v in order[u] if np.isfinite(held[u, v])]
            for u, symbol in enumerate(self.symbols)
        }


def heat_map(attention: Attention, sectors: Sectors, most: int = MOST) -> Chart | None:
    """Return the map of the `most` stocks that the others look at most, by sector and symbol; None without stocks."""
    chosen = sorted(attention.looked_at.index[:most], key=lambda symbol: (*_place(sectors, symbol), symbol))
    if not chosen:
        return None
    at = pd.Index(attention.symbols).get_indexer(pd.Index(chosen))
    weights = pd.DataFrame(attention.weights[np.ix_(at, at)], index=chosen, columns=chosen)
    rows = weights.rename_axis("y").reset_index().melt("y", var_name="x").dropna()
    strongest = rows[rows["x"] != rows["y"]].nlargest(KEPT, "value")[["y", "x", "value"]]
    said = "; ".join(f"{y} at {x} {figure(value)}" for y, x, value in strongest.itertuples(index=False))
    words = f"{len(chosen)} stocks; a row looks, a column is looked at. The strongest: {said}."
    side = max(SMALLEST, min(LARGEST, WIDE // len(chosen)))
    return cells("Attention between stocks", words, rows, (side, side), "ratio")


def sector_map(attention: Attention, sectors: Sectors) -> Chart | None:
    """Return how much the stocks of each sector give those of another, relative to attention without any preference.

    A row looks. None with fewer than two sectors, or where a pair of stocks has no weight.
    """
    places = [_place(sectors, symbol) for symbol in attention.symbols]
    names = [name for _, name in sorted(set(places))]
    if len(names) < 2 or not attention.is_whole:
        return None
    belongs = np.array([[name == other for other in names] for _, name in places], dtype=float)  # [stocks sectors]
    sizes = belongs.sum(axis=0)
    share = (belongs / sizes).T @ attention.weights @ belongs
    times = pd.DataFrame(share / (sizes / len(places)), index=names, columns=names)
    rows = times.rename_axis("y").reset_index().melt("y", var_name="x")
    words = f"{len(names)} sectors; 1 is attention without any preference, {figure(rows['value'].max(), 2)} the highest"
    return cells("Attention between sectors", words, rows, (66, 26), "ratio", is_written=True)


def _place(sectors: Sectors, symbol: str) -> tuple[bool, str]:
    """Return the key that orders a stock by sector, those without one last; it ends in the sector's name."""
    name = sectors.get(symbol)
    missing = name is None or bool(pd.isna(name))
    return missing, NO_SECTOR if missing else str(name)
