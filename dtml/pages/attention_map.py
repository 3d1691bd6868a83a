"""The map of attention: which stocks look at which, also by sector, and the drivers of each stock.

A weight is the share of its attention, 0 to 1, that one stock gives another, or itself. It is not symmetric: rows look,
columns are looked at. `sectors` maps a symbol to its sector; None, NaN or no entry is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

MOST = 60  # stocks on a map: more would leave no room for their names
SHADES = 9
TAIL = 0.01  # share of the weights at either end that share the lightest and the darkest shade
KEPT = 5  # drivers of a stock
NO_SECTOR = "no sector"
WIDE, SMALLEST, LARGEST = 720, 12, 30  # of a map without its names, and of a cell's side, in pixels
LETTER = 7.7  # width of a letter of a name, at most nearly, in pixels

Sectors = Mapping[str, Any]


@dataclass(frozen=True)
class Attention:
    """The attention between stocks: `weights[u, v]` is how much stock u of `symbols` looks at v, NaN where unknown."""

    symbols: tuple[str, ...]
    weights: Float[ndarray, "stocks stocks"]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Attention":
        """Read rows `symbol, source, weight`, all pairs or only the strongest, each once; stocks sorted by symbol."""
        both = pd.concat([rows["symbol"], rows["source"]], ignore_index=True).astype(object)
        place, symbols = pd.factorize(both, sort=True)
        weights = np.full((len(symbols), len(symbols)), np.nan)
        weights[place[: len(rows)], place[len(rows) :]] = rows["weight"].to_numpy(dtype=float)
        return cls(tuple(str(symbol) for symbol in symbols), weights)

    @property
    def is_whole(self) -> bool:
        """Return whether the weight of every pair is known, and there is any."""
        return bool(len(self.symbols) and np.isfinite(self.weights).all())

    @property
    def even(self) -> float:
        """Return the weight that each stock has for one without any preference."""
        return 1 / len(self.symbols)

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


@dataclass(frozen=True)
class HeatMap:
    """The attention between some stocks, for drawing.

    `shade[u, v]`, of how much stock u of `symbols` looks at stock v, counts from 0, light, to `SHADES` - 1, dark; -1 is
    unknown. `edges` are the weights at which each shade begins and the darkest ends: a weight outside, as a stock's for
    itself mostly is, has the nearest shade. `blocks` are runs of one sector: its name, the position of its first stock,
    the number of stocks. `strongest` are the largest weights for other stocks: the two stocks and the weight.
    """

    symbols: tuple[str, ...]
    shade: Int[ndarray, "stocks stocks"]
    edges: tuple[float, ...]
    blocks: tuple[tuple[str, int, int], ...]
    strongest: tuple[tuple[str, str, float], ...]

    @property
    def cell(self) -> int:
        """Return the side of a cell in pixels: as large as fits on a desktop, and never too small for a name."""
        return max(SMALLEST, min(LARGEST, WIDE // len(self.symbols)))

    @property
    def margin(self) -> int:
        """Return the room for the longest name, in pixels."""
        return 10 + round(LETTER * max(map(len, self.symbols)))

    @property
    def right(self) -> int:
        """Return the room for the longest name of a sector, in pixels; hardly any without sectors."""
        return 14 + round(LETTER * max(len(name) for name, _, _ in self.blocks)) if len(self.blocks) > 1 else 4

    @property
    def paths(self) -> list[str]:
        """Return the outline of each shade's cells, in cells from the upper left; neighbours in a row are joined."""
        return [_outline(self.shade == number) for number in range(SHADES)]


@dataclass(frozen=True)
class SectorMap:
    """Attention between sectors.

    `share[s, t]` is what the stocks of sector s of `names` give all stocks of sector t together, the mean over s, so
    that a row adds up to 1; `times` is that in units of what t would get without any preference; `shade` is that of
    `times`, as in `HeatMap`; `sizes` counts the stocks of each sector.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    share: Float[ndarray, "sectors sectors"]
    times: Float[ndarray, "sectors sectors"]
    shade: Int[ndarray, "sectors sectors"]


def heat_map(attention: Attention, sectors: Sectors, most: int = MOST) -> HeatMap | None:
    """Return the map of the `most` stocks that the others look at most, by sector and symbol; None without stocks."""
    chosen = sorted(attention.looked_at.index[:most], key=lambda symbol: (*_place(sectors, symbol), symbol))
    if not chosen:
        return None
    at = pd.Index(attention.symbols).get_indexer(pd.Index(chosen))
    weights, others = attention.weights[np.ix_(at, at)], attention.others[np.ix_(at, at)]
    edges = _edges(others)
    blocks, first = [], 0
    for (_, name), held in groupby(_place(sectors, symbol) for symbol in chosen):
        count = len(list(held))
        blocks.append((name, first, count))
        first += count
    strongest = np.argsort(np.where(np.isnan(others), np.inf, -others), axis=None, kind="stable")[:KEPT]
    pairs = [divmod(int(place), len(chosen)) for place in strongest]
    return HeatMap(
        symbols=tuple(chosen),
        shade=_shades(weights, edges),
        edges=edges,
        blocks=tuple(blocks),
        strongest=tuple((chosen[u], chosen[v], float(others[u, v])) for u, v in pairs if np.isfinite(others[u, v])),
    )


def sector_map(attention: Attention, sectors: Sectors) -> SectorMap | None:
    """Return the map between sectors; None with fewer than two, or where a pair of stocks has no weight."""
    places = [_place(sectors, symbol) for symbol in attention.symbols]
    names = [name for _, name in sorted(set(places))]
    if len(names) < 2 or not attention.is_whole:
        return None
    belongs = np.array([[name == other for other in names] for _, name in places], dtype=float)  # [stocks sectors]
    sizes = belongs.sum(axis=0)
    share = (belongs / sizes).T @ attention.weights @ belongs
    times = share / (sizes / len(places))
    return SectorMap(tuple(names), tuple(map(int, sizes)), share, times, _shades(times, _edges(times)))


def _place(sectors: Sectors, symbol: str) -> tuple[bool, str]:
    """Return the key that orders a stock by sector, those without one last; it ends in the sector's name."""
    name = sectors.get(symbol)
    missing = name is None or bool(pd.isna(name))
    return missing, NO_SECTOR if missing else str(name)


def _edges(values: Float[ndarray, "rows columns"]) -> tuple[float, ...]:
    """Return where each shade begins and the last one ends."""
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, [TAIL, 1 - TAIL]) if len(known) else (0.0, 1.0)
    return tuple(np.linspace(low, max(high, low + 1e-6), SHADES + 1).tolist())


def _shades(values: Float[ndarray, "rows columns"], edges: tuple[float, ...]) -> Int[ndarray, "rows columns"]:
    known = np.isfinite(values)
    shade = np.searchsorted(edges, np.where(known, values, 0), side="right") - 1
    return np.where(known, np.clip(shade, 0, SHADES - 1), -1)


def _outline(held: Bool[ndarray, "rows columns"]) -> str:
    pieces = []
    for row, line in enumerate(held):
        steps = np.diff(np.concatenate([[0], line.astype(int), [0]]))
        begins, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
        pieces += [f"M{begin} {row}h{end - begin}v1H{begin}z" for begin, end in zip(begins, ends, strict=True)]
    return "".join(pieces)
