"""The map of attention: which stocks look at which, also by sector.

Rows look, columns are looked at. `sectors` maps a symbol to its sector; None, NaN or no entry is none.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dtml.attention.weights import KEPT, Attention
from dtml.pages.charts import Chart, cells
from dtml.pages.figures import figure

MOST = 40  # stocks on a map: more would leave no room for their names
NO_SECTOR = "no sector"
WIDE, SMALLEST, LARGEST = 720, 12, 30  # of a map without its names, and of a cell's side, in pixels

Sectors = Mapping[str, Any]


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
