"""How often a drift is told: on markets that never change, and when volatility doubles, or skill or
coverage ends.

python -m benchmarks.drift [--runs 200] [--prices FOLDER]
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dtml.evaluation.drift import RECENT, REFERENCE, Inputs, coverage_drift, skill_drift
from dtml.features import FEATURES, HISTORY, Panel, features
from dtml.prices.returns import on_grid

YEAR, STOCKS, LEVEL = 252, 30, 0.8
RETRAINED = 63  # sessions after which a model is trained again, and the yardstick with it


def market(rng: np.random.Generator, sessions: int, change: float = 1.0) -> Panel:
    """Return prices whose volatility clusters, and is `change` times as high in the last year."""
    calm = np.zeros(sessions)
    for day in range(1, sessions):
        calm[day] = 0.95 * calm[day - 1] + 0.1 * rng.standard_normal()
    level = 0.015 * np.exp(calm)
    level[-YEAR:] *= change
    common = 0.5 * rng.standard_normal((sessions, 1)) + rng.standard_normal((sessions, STOCKS))
    close = 100 * np.exp((level[:, None] * common).cumsum(axis=0))
    spread = level[:, None] * np.abs(rng.standard_normal((sessions, STOCKS)))
    opened = close * np.exp(0.5 * level[:, None] * rng.standard_normal((sessions, STOCKS)))
    return Panel(
        opened,
        np.maximum(opened, close) * (1 + spread),
        np.minimum(opened, close) * (1 - spread),
        close,
        close,
    )


def told(panel: Panel) -> Iterator[int]:
    """Yield how many inputs had drifted on each session of the last year."""
    seen = features(panel, z_close="adjusted")
    first = len(seen) - YEAR
    for day in range(first, len(seen)):
        trained = first + (day - first) // RETRAINED * RETRAINED
        if day == first or (day - first) % RETRAINED == 0:
            inputs = Inputs.of(seen[trained - REFERENCE : trained])
        yield sum(
            row["drifted"] for row in inputs.drift(seen[day + 1 - RECENT : day + 1], FEATURES)
        )


def first_told(rows: Iterable[Mapping[str, Any] | None]) -> int | None:
    """Return the first night of a year on which a measure has drifted; None if it never does."""
    return next(
        (night for night, row in enumerate(rows) if row is not None and row["drifted"]), None
    )


def words(first: Sequence[int | None]) -> str:
    """Say in which share of years a drift was told, and after how many sessions or nights."""
    found = [day for day in first if day is not None]
    after = f"after {np.median(found):.0f}" if found else "after no"
    return (
        f"told within a year in {len(found) / len(first):.1%} of {len(first)}, at the "
        f"median {after}"
    )


def real(file: Path) -> str:
    """Return on how many of a file's sessions an input had drifted, and when
    first in each spell.
    """
    bars = pd.read_parquet(file).rename(columns={"date": "session"})
    bars = bars[bars["close"] > 0].assign(symbol=lambda frame: frame["symbol"].astype(str))
    days, symbols = (
        pd.DatetimeIndex(sorted(bars["session"].unique())),
        tuple(sorted(bars["symbol"].unique())),
    )
    own = bars.assign(adjusted=bars["adj_close"].fillna(bars["close"]))
    panel = Panel(
        *(
            on_grid(own, name, days, symbols)
            for name in ("open", "high", "low", "close", "adjusted")
        )
    )
    seen, alarms = features(panel, z_close="adjusted", max_return=0.35), []
    for day in range(REFERENCE + HISTORY, len(seen)):
        if (day - REFERENCE - HISTORY) % RETRAINED == 0:
            inputs = Inputs.of(seen[day - REFERENCE : day])
        drifted = any(
            row["drifted"] for row in inputs.drift(seen[day + 1 - RECENT : day + 1], FEATURES)
        )
        alarms.append(drifted)
    told = np.array(alarms)
    begun = days[REFERENCE + HISTORY :][told & ~np.concatenate([[False], told[:-1]])]
    shown = ", ".join(f"{each:%Y-%m}" for each in begun)
    return f"{file.stem}: {told.sum()} of {len(told)} sessions, in {len(begun)} spells: {shown}"


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--prices", type=Path)
    asked = parser.parse_args()
    rng, sessions = np.random.default_rng(24), REFERENCE + HISTORY + YEAR
    for change in (1.0, 2.0, 3.0):
        years = [list(told(market(rng, sessions, change))) for _ in range(asked.runs)]
        first = [next((day for day, count in enumerate(year) if count), None) for year in years]
        print(f"inputs, volatility x {change:g}: {words(first)} sessions")
    for mean in (0.05, 0.0):
        drawn = (
            np.concatenate([rng.normal(each, 0.1, YEAR) for each in (0.05, mean)])
            for _ in range(asked.runs)
        )
        ends = [
            first_told(skill_drift(ics[: YEAR + night]) for night in range(YEAR)) for ics in drawn
        ]
        print(f"rank IC of .05, then {mean:g}: {words(ends)} nights")
    for held in (0.82, 0.65):
        shares = (np.clip(rng.normal(held, 0.1, YEAR), 0, 1) for _ in range(asked.runs))
        kept = (rng.binomial(STOCKS, share) / STOCKS for share in shares)
        ends = [
            first_told(coverage_drift(each[:night], LEVEL) for night in range(YEAR))
            for each in kept
        ]
        print(f"coverage of {held:.0%} at level {LEVEL:.0%}: {words(ends)} nights")
    for file in sorted(asked.prices.glob("*.parquet")) if asked.prices else ():
        print(real(file))


if __name__ == "__main__":
    main()
