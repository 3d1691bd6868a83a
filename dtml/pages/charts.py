"""The charts that the pages share, scales and lines over sessions, and the environment of their templates.

The macros that draw are in parts.html: `{% import "parts.html" as parts with context %}` in a template.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray

from dtml.pages.figures import WORDS, figure

SIDE = 180  # of a calibration curve's square, in pixels
WIDTH, HEIGHT = 1000, 260  # of a chart over sessions: units across, stretched to the page, and pixels upwards
POINTS = 400  # of a line at most: about the pixels of a phone
LETTERS = 36  # that fit below such a chart on a phone
PALETTE = 6  # colours of lines
COLUMNS = 72  # of a chart of stacked marks
NARROWEST = 0.02  # of a probability from one half, that a scale of probabilities holds in any case


@dataclass(frozen=True)
class Axis:
    """A linear scale from `low` and `high` to the places `start` and `end`."""

    low: float
    high: float
    start: float = 0.0
    end: float = 100.0

    @classmethod
    def over(cls, values: Iterable[float], start: float = 0.0, end: float = 100.0) -> "Axis":
        """Return the scale that holds all values with a margin; 0 to 1 without values."""
        kept = [float(value) for value in values if not pd.isna(value)]
        if not kept:
            return cls(0.0, 1.0, start, end)
        margin = max(0.08 * (max(kept) - min(kept)), 0.002)
        return cls(min(kept) - margin, max(kept) + margin, start, end)

    def at(self, value: float) -> str:
        """Return the place of a value."""
        return f"{self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low):.2f}".rstrip(
            "0"
        ).rstrip(".")

    @property
    def ticks(self) -> list[tuple[str, str]]:
        """Return places and labels of two to eight round numbers within."""
        rough = (self.high - self.low) / 7
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
        digits = max(1, -math.floor(math.log10(step) + 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(self.at(step * i), figure(step * i, digits)) for i in range(first, last + 1)]


def calibration_axes(curves: Mapping[str, pd.DataFrame]) -> tuple[Axis, Axis]:
    """Return one scale for all curves, across and upwards, so that they compare and the diagonal is calibration."""
    names = ("mean_probability", "share_risen", "share_risen_low", "share_risen_high")
    return square_axes(value for curve in curves.values() for name in names if name in curve for value in curve[name])


def square_axes(values: Iterable[float]) -> tuple[Axis, Axis]:
    """Return the scale that holds all values, across and upwards, of a square of `SIDE` pixels with its labels."""
    values = list(values)
    return Axis.over(values, 30, SIDE - 6), Axis.over(values, SIDE - 20, 6)


def probability_axis(values: Iterable[float]) -> Axis:
    """Return a scale of probabilities with one half in its middle that holds all values, never beyond 0 and 1."""
    off = [abs(float(value) - 0.5) for value in values if not pd.isna(value)]
    reach = min(1.08 * max([NARROWEST, *off]), 0.5)
    return Axis(0.5 - reach, 0.5 + reach)


@dataclass(frozen=True)
class Mark:
    """One of the marks that are stacked above a scale: its column, how many lie below it, CSS class, and its words."""

    column: int
    below: int
    kind: str
    words: str


def stack(values: Iterable[float], kinds: Iterable[str], words: Iterable[str], axis: Axis) -> list[Mark]:
    """Return a mark for each known value, in `COLUMNS` columns over the axis; low values first."""
    known = (row for row in zip(values, words, kinds, strict=True) if not pd.isna(row[0]))
    height = [0] * COLUMNS
    marks = []
    for value, said, kind in sorted(known):
        place = (value - axis.low) / (axis.high - axis.low)
        column = min(max(math.floor(COLUMNS * place), 0), COLUMNS - 1)
        marks.append(Mark(column, height[column], kind, said))
        height[column] += 1
    return marks


@dataclass(frozen=True)
class Line:
    """One line of a chart: the points of its polyline, its band's polygon (or ""), CSS classes, and its last value."""

    name: str
    kind: str
    points: str
    band: str
    last: float
    extremes: tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """Lines over sessions, with the scale upwards, where its base lies, and places (percent across) of dates."""

    upwards: Axis
    base: str
    dates: list[tuple[str, str]]
    first: Any
    last: Any
    lines: list[Line]


def session_chart(
    series: Mapping[str, "pd.Series[float]"],
    kinds: Mapping[str, str],
    bands: Mapping[str, pd.DataFrame],
    baseline: float,
) -> Chart | None:
    """Draw lines over the sessions of all series, equally spaced, thinned to `POINTS`; None without two sessions.

    `series` are by session; what is NaN is skipped. `kinds` are the CSS classes of each line, `bands` the `low` and
    `high` by session of those that have a band. `baseline` is a value that the scale holds in any case.
    """
    kept = {name: line.dropna() for name, line in series.items() if line.notna().any()}
    shaded = {name: band.dropna() for name, band in bands.items() if name in kept}
    sessions = pd.DatetimeIndex(sorted(set().union(*(line.index for line in kept.values()))))
    if len(sessions) < 2:
        return None
    values = [baseline, *(value for line in kept.values() for value in (line.min(), line.max()))]
    values += [value for band in shaded.values() for value in (band["low"].min(), band["high"].max())]
    upwards = Axis.over(values, HEIGHT, 0)
    lines = [
        Line(
            name,
            kinds[name],
            _points(line, sessions, upwards),
            _band(shaded[name], sessions, upwards) if name in shaded else "",
            float(line.iloc[-1]),
            (float(line.min()), float(line.max())),
        )
        for name, line in kept.items()
    ]
    return Chart(upwards, upwards.at(baseline), date_ticks(sessions), sessions[0], sessions[-1], lines)


def _points(line: "pd.Series[float]", sessions: pd.DatetimeIndex, upwards: Axis) -> str:
    across = Axis(0, len(sessions) - 1, 0, WIDTH)
    shown = line.iloc[thin(line.to_numpy(dtype=float))]
    places = sessions.get_indexer(pd.DatetimeIndex(shown.index)).tolist()
    return " ".join(f"{across.at(place)},{upwards.at(value)}" for place, value in zip(places, shown, strict=True))


def _band(band: pd.DataFrame, sessions: pd.DatetimeIndex, upwards: Axis) -> str:
    back = _points(band["high"], sessions, upwards).split()[::-1]
    return f"{_points(band['low'], sessions, upwards)} {' '.join(back)}".strip()


def thin(values: Float[ndarray, " sessions"]) -> Int[ndarray, " kept"]:
    """Return which values to draw, `POINTS` at most: the first, the last, the lowest and highest of each stretch."""
    if len(values) <= POINTS:
        return np.arange(len(values))
    stretches = np.array_split(np.arange(len(values)), POINTS // 2 - 1)
    ends = [stretch[choose(values[stretch])] for stretch in stretches for choose in (np.argmin, np.argmax)]
    return np.unique([0, *ends, len(values) - 1])


def date_ticks(sessions: pd.DatetimeIndex) -> list[tuple[str, str]]:
    """Return places (percent across) and labels of the first sessions of months, quarters or years, to fit a phone."""
    across = Axis(0, max(len(sessions) - 1, 1))
    for unit, form in (("M", "%Y-%m"), ("Q", "%Y-%m"), ("Y", "%Y")):
        periods = sessions.to_period(unit)
        begins = (np.flatnonzero(periods[1:] != periods[:-1]) + 1).tolist()
        ticks = [(across.at(begin), sessions[begin].strftime(form)) for begin in begins]
        if sum(len(label) + 1 for _, label in ticks) <= LETTERS:
            return ticks
    return ticks[:: -(-5 * len(ticks) // LETTERS)]


def environment(*filters: Callable[..., str], folder: Path | None = None) -> jinja2.Environment:
    """Return the templates of this folder, and of `folder` before it.

    They may call the words of `figures` and `filters` by their names; all is escaped.
    """
    shared = Path(__file__).parent / "templates"
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, shared] if folder else shared),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update({function.__name__: function for function in (*WORDS, *filters)})
    found.tests["missing"] = lambda value: bool(pd.isna(value))
    found.globals.update(side=SIDE, width=WIDTH, palette=PALETTE, columns=COLUMNS)
    return found
