"""Count how often a drift is reported on markets that never change, and on markets that do.

There volatility doubles or trebles, or skill or coverage ends.

python -m benchmarks.drift [--runs 200] [--prices FOLDER]
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dtml.evaluation.drift import RECENT, REFERENCE, Inputs, coverage_drift, skill_drift
from dtml.features import FEATURES, HISTORY, Features, Panel, features
from dtml.prices.returns import on_grid

YEAR = 252
STOCKS = 30
LEVEL = 0.8
RETRAINED = 63  # sessions after which a model is trained again, on a new reference span


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
        open=opened,
        high=np.maximum(opened, close) * (1 + spread),
        low=np.minimum(opened, close) * (1 - spread),
        close=close,
        adjusted=close,
    )


def drifted_inputs(values: Features, first: int) -> list[int]:
    """Return how many inputs have drifted on each day from `first` on.

    They are compared with the reference span before the day on which a model was trained last.
    """
    counts = []
    for day in range(first, len(values)):
        if (day - first) % RETRAINED == 0:
            inputs = Inputs.of(values[day - REFERENCE : day])
        rows = inputs.drift(values[day + 1 - RECENT : day + 1], FEATURES)
        counts.append(sum(row["drifted"] for row in rows))
    return counts


def first_input_drift(panel: Panel) -> int | None:
    """Return the first day of the last year on which an input has drifted; None without one."""
    values = features(panel, z_close="adjusted")
    counts = drifted_inputs(values, first=len(values) - YEAR)
    return next((day for day, count in enumerate(counts) if count), None)


def first_drift(rows: Iterable[Mapping[str, Any] | None]) -> int | None:
    """Return the first night of a year on which a measure has drifted; None if it never does."""
    for night, row in enumerate(rows):
        if row is not None and row["drifted"]:
            return night
    return None


def words(first_days: Sequence[int | None]) -> str:
    """Return the share of years with an alarm, and the median of its day or night, in words."""
    alarm_days = [day for day in first_days if day is not None]
    after = f"after {np.median(alarm_days):.0f}" if alarm_days else "after no"
    return (
        f"told within a year in {len(alarm_days) / len(first_days):.1%} of {len(first_days)}, "
        f"at the median {after}"
    )


def real(file: Path) -> str:
    """Return on how many of a file's sessions an input had drifted, and each spell's beginning."""
    bars = pd.read_parquet(file).rename(columns={"date": "session"})
    bars = bars[bars["close"] > 0]
    bars = bars.assign(
        symbol=bars["symbol"].astype(str),
        adjusted=bars["adj_close"].fillna(bars["close"]),
    )
    days = pd.DatetimeIndex(sorted(bars["session"].unique()))
    symbols = tuple(sorted(bars["symbol"].unique()))
    panel = Panel(
        open=on_grid(bars, "open", days, symbols),
        high=on_grid(bars, "high", days, symbols),
        low=on_grid(bars, "low", days, symbols),
        close=on_grid(bars, "close", days, symbols),
        adjusted=on_grid(bars, "adjusted", days, symbols),
    )
    values = features(panel, z_close="adjusted", max_return=0.35)
    first = REFERENCE + HISTORY
    has_drifted = np.array(drifted_inputs(values, first)) > 0
    had_drifted = np.concatenate([[False], has_drifted[:-1]])
    spells = days[first:][has_drifted & ~had_drifted]
    months = ", ".join(f"{day:%Y-%m}" for day in spells)
    return (
        f"{file.stem}: {has_drifted.sum()} of {len(has_drifted)} sessions, "
        f"in {len(spells)} spells: {months}"
    )


def rank_ic_drift(rng: np.random.Generator, mean: float) -> int | None:
    """Return the first drift in a year of rank ICs around a mean, after a year around .05."""
    ics = np.concatenate([rng.normal(0.05, 0.1, YEAR), rng.normal(mean, 0.1, YEAR)])
    return first_drift(skill_drift(ics[: YEAR + night]) for night in range(YEAR))


def band_coverage_drift(rng: np.random.Generator, coverage: float) -> int | None:
    """Return the first drift of a year's coverages around a mean."""
    share = np.clip(rng.normal(coverage, 0.1, YEAR), 0, 1)
    coverages = rng.binomial(STOCKS, share) / STOCKS
    return first_drift(coverage_drift(coverages[:night], LEVEL) for night in range(YEAR))


def main() -> None:
    """Print the shares of years in which a drift is told."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--prices", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng(24)
    sessions = REFERENCE + HISTORY + YEAR
    for change in (1.0, 2.0, 3.0):
        days = [first_input_drift(market(rng, sessions, change)) for _ in range(options.runs)]
        print(f"inputs, volatility x {change:g}: {words(days)} sessions")
    for mean in (0.05, 0.0):
        nights = [rank_ic_drift(rng, mean) for _ in range(options.runs)]
        print(f"rank IC of .05, then {mean:g}: {words(nights)} nights")
    for coverage in (0.82, 0.65):
        nights = [band_coverage_drift(rng, coverage) for _ in range(options.runs)]
        print(f"coverage of {coverage:.0%} at level {LEVEL:.0%}: {words(nights)} nights")
    if options.prices:
        for file in sorted(options.prices.glob("*.parquet")):
            print(real(file))


if __name__ == "__main__":
    main()
