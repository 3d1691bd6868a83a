"""Draw charts in two ways, each described once by a file of `templates/charts`, in Vega-Lite.

vl-convert draws a description as SVG; a browser draws it where a page is `live`, with values, zoom,
and lines to switch (`templates/charts.js`, beside Vega from vl-convert's wheel). Colours are the
page's CSS variables. Dates are UTC.
"""

import calendar
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import jinja2
import numpy as np
import pandas as pd
from jaxtyping import Int
from markupsafe import Markup
from numpy import ndarray

from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.pages.figures import day, fmt, named, percent

# Attributes that only a script reads.
UNREAD_ATTRIBUTE = re.compile(
    r' (?:(?:aria-[a-z]+|role|pointer-events|opacity)="(?:[a-z -]+|1)"'
    r'|(?:xmlns|version)[a-z:]*="[^"]*")'
)
# Paths that draw nothing.
EMPTY_PATH = re.compile(r'<path(?: class="\w+")? d="(?:M0,0h0v0h0Z)?"(?: display="none")?/>')
# A circle as two arcs.
CIRCULAR_PATH = re.compile(r'<path([^>]*?) d="M([\d.]+),0A\2,\2,0,1,1,-\2,0A\2,\2,0,1,1,\2,0Z?"')
_SVG_WIDTH = re.compile(r'width="([\d.]+)"')


def compact(svg: str) -> str:
    """Return a drawing as wide as its place, without attributes that only a script reads."""
    svg = EMPTY_PATH.sub("", UNREAD_ATTRIBUTE.sub("", svg))
    svg = CIRCULAR_PATH.sub(r'<circle\1 r="\2"', svg)
    # A drawing is enlarged so far and no further.
    widest = 1.4 * float(_SVG_WIDTH.findall(svg)[0])
    return svg.replace("<svg ", f'<svg aria-hidden="true" style="max-width:{widest:.0f}px" ', 1)


POINTS = 150  # of a line, at most, in a static chart
LIVE_POINTS = 400  # of a line, at most, in a chart that can be zoomed
# A line is broken where it has no value for longer than both: no exchange is closed for so many
# days, and values of each month or year are further apart.
BREAK_DAYS = 21
BREAK_STEPS = 5  # times the median distance of its values


def stretches(sessions: "pd.Index[Any]") -> Int[ndarray, " sessions"]:
    """Return for each of some ascending sessions the number of its stretch, from 0.

    One ends where no session follows for longer than BREAK_DAYS and BREAK_STEPS.
    """
    steps = np.diff(pd.DatetimeIndex(sessions).to_numpy()) / np.timedelta64(1, "D")
    if not len(steps):
        return np.zeros(len(sessions), dtype=int)
    is_break = steps > max(BREAK_DAYS, BREAK_STEPS * float(np.median(steps)))
    return np.concatenate([[0], np.cumsum(is_break)])


def thinned(frame: pd.DataFrame, points: int = POINTS) -> pd.DataFrame:
    """Return the rows of a chart that are drawn: at most `points` for each line over sessions `t`.

    Those are the first and the last row, and the lowest and the highest of stretches of equal
    length; a gap (NaN) keeps its first row. Charts of anything else keep all rows.
    """
    if "t" not in frame or len(frame) <= points:
        return frame
    lines = frame.drop(columns="t").astype(float).reset_index(drop=True)
    # Two values of each stretch, and the two ends.
    stretch = lines.index * (points // 2 - 1) // len(lines)
    lowest = lines.fillna(np.inf).groupby(stretch).idxmin()
    highest = lines.fillna(-np.inf).groupby(stretch).idxmax()
    extremes = np.concatenate([lowest.to_numpy().ravel(), highest.to_numpy().ravel()])
    return frame.iloc[np.unique([0, len(lines) - 1, *extremes])]


def short(value: Any) -> Any:
    """Return a number with five digits, None where it is missing or infinite; words unchanged."""
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        value = float(f"{value:.5g}")  # the largest numbers become infinite, which JSON lacks
        return value if np.isfinite(value) else None
    return None if pd.isna(value) else value


PALETTE = 10  # colours of lines
MODELS = ("lstm", "alstm", "adv_alstm", "stocknet", "logistic_regression", "gradient_boosting")
# Positions in the palette.
PLACES = {
    **{name: number for number, name in enumerate((MODEL, *NAIVE_RULES, *MODELS))},
    "long": 0,
    "long-short": 4,
    "weighted": 5,
    "probability": 0,
    "calibrated": 9,
    "account": 0,
    "account, no costs": 1,
}
COLOURS = {
    **{name: f"var(--s{number})" for name, number in PLACES.items()},
    "rise": "var(--rise)",
    "fall": "var(--fall)",
    "rise, wrong": "var(--faint)",
    "fall, wrong": "var(--faint)",
    "index": "var(--ink)",
    "close": "var(--ink)",
    "equal weight": "var(--faint)",
    "equal parts": "var(--faint)",
    "adjusted close": "var(--faint)",
}


def colour(name: str) -> str:
    """Return the colour of a model, a rule or a form of portfolio: the same one on every page."""
    form = name.partition(",")[0]
    number = crc32(form.encode()) % PALETTE
    return COLOURS.get(name) or COLOURS.get(form, f"var(--s{number})")


WIDTH = 400  # of a chart over sessions, in pixels
LOGARITHMIC = 3  # ratio of the highest to the lowest equity above which its scale is logarithmic
SHORT = 14  # days, at most, of a time axis with a mark for each day
COLUMNS = 72  # in which a chart stacks its marks
NARROWEST = 0.02  # distance from one half that a scale of probabilities always holds
GRAMMAR = "6.4"  # of Vega-Lite, among those in the wheel
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Axis:
    """A linear scale from `low` and `high` to 0 and 100 percent, for marks in cells of tables."""

    low: float
    high: float

    def at(self, value: float) -> str:
        """Return the place of a value in percent."""
        percent_of_scale = 100 * (value - self.low) / (self.high - self.low)
        return f"{percent_of_scale:.2f}".rstrip("0").rstrip(".")

    def inside(self, value: float) -> float:
        """Return a value, or the end of the scale that it is beyond."""
        return min(max(value, self.low), self.high)


def probability_axis(values: Iterable[float]) -> Axis:
    """Return a scale of probabilities that holds all values, one half in its middle."""
    distances = [abs(float(value) - 0.5) for value in values if not pd.isna(value)]
    furthest = max([NARROWEST, *distances])
    reach = min(1.08 * furthest, 0.5)
    return Axis(low=0.5 - reach, high=0.5 + reach)


class Key(NamedTuple):
    """A line's entry below its chart: its name in the description, and its last value in words."""

    id: str
    name: str
    colour: str
    last: str
    is_shown: bool
    is_dashed: bool


@dataclass(frozen=True)
class Chart:
    """A chart: its title, its content in words, and the template that describes it.

    `values` are its variables, `data` its data sets by name, `keys` the entries of its lines.
    """

    title: str
    words: str
    file: str
    data: Mapping[str, pd.DataFrame]
    values: Mapping[str, Any] = field(default_factory=dict)
    keys: Sequence[Key] = ()

    @property
    def svg(self) -> Markup:
        """Return the chart as SVG that fills its place; `thinned` leaves out rows of long lines."""
        description = self._described(live=False)
        for name, (columns, rows) in self._datasets(POINTS):
            pairs = [zip(columns, row, strict=True) for row in rows]
            description["datasets"][name] = [
                {column: value for column, value in row if value is not None} for row in pairs
            ]
        return Markup(_drawn(json.dumps(description)))  # noqa: S704 - Vega escapes

    @property
    def json(self) -> Markup:
        """Return the description for a script element, whose rows `charts.js` names."""
        description = self._described(live=True)
        for name, (columns, rows) in self._datasets(LIVE_POINTS):
            description["datasets"][name] = {"names": columns, "rows": rows}
        text = json.dumps(description, ensure_ascii=False, separators=(",", ":"))
        return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - no tag can end the element

    def _datasets(self, points: int) -> Iterator[tuple[str, tuple[list[str], list[list[Any]]]]]:
        for name, frame in self.data.items():
            rows = thinned(frame, points).to_numpy(object)
            yield name, (list(map(str, frame)), [list(map(short, row)) for row in rows])

    def _described(self, *, live: bool) -> dict[str, Any]:
        template = _descriptions().get_template(f"{self.file}.json")
        text = template.render(self.values, keys=self.keys, live=live, width=WIDTH)
        return {**json.loads(text), "datasets": {}}


@dataclass(frozen=True)
class Panel:
    """Lines over sessions on one vertical scale, whose title gives the unit; NaN is skipped.

    `form` is the kind of the values: "coefficient", "percent", "ratio" or "price".
    `base` is a value always held, drawn as a line. `bands` have `low` and `high` by session, by
    line. With `labels` each line is ticks: its values are a label's number, from 1 at the bottom.
    """

    title: str
    lines: Mapping[str, "pd.Series[float]"]
    form: str = "coefficient"
    base: float | None = None
    bands: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    labels: Sequence[str] = ()
    height: int = 190

    @property
    def is_log(self) -> bool:
        """Return whether a value that compounds grows so far that its scale is logarithmic."""
        # Only values of an initial 1 compound, and only their panels have the base 1.
        values = pd.concat(self.lines.values()) if self.base == 1 and self.lines else pd.Series(1.0)
        return bool(values.min() > 0 and values.max() / values.min() > LOGARITHMIC)

    def rows(self, ids: Mapping[str, str]) -> pd.DataFrame:
        """Return a row for each session with a value: its day as `t`, and the lines by their ids.

        Line v0 has the column `v0`, its band `lowv0` and `highv0`; broken, the stretch's number in
        `partv0` or `partlowv0`.
        """
        columns = {ids[name]: line for name, line in self.lines.items() if name in ids}
        for name, band in self.bands.items():
            if name in ids:
                columns[f"low{ids[name]}"] = band["low"]
                columns[f"high{ids[name]}"] = band["high"]
        distinct = {}  # a frame of several lines needs one value a session
        for column, values in columns.items():
            distinct[column] = _in_order(values)
            stretch = stretches(distinct[column].index)
            if stretch[-1:].any():  # the last stretch is not number 0: the line is broken
                distinct[f"part{column}"] = pd.Series(stretch, distinct[column].index)
        frame = pd.DataFrame(distinct).dropna(how="all").sort_index()
        frame.insert(0, "t", [day(session) for session in frame.index])
        return frame

    def in_words(self, name: str) -> tuple[str, str]:
        """Return the last value of a line in words, and its extremes; for ticks, their number."""
        line = _in_order(self.lines[name])
        if self.labels:
            return f"{len(line)}", f"{len(line)} times"
        values = (line.iloc[-1], line.min(), line.max())
        last, low, high = (fmt(value, self.form) for value in values)
        return last, f"{low} to {high}"


def _in_order(line: "pd.Series[float]") -> "pd.Series[float]":
    """Return the values of a line as they are drawn, of several of a session the first."""
    known = line.dropna()
    return known[~known.index.duplicated()].sort_index()


def over_sessions(
    title: str, panels: Sequence[Panel], *, hidden: Iterable[str] = (), dashed: Iterable[str] = ()
) -> Chart | None:
    """Return panels one below the other on one time axis.

    None where fewer than two days have a value. `hidden` lines are drawn once a reader switches
    them on.
    """
    known = [
        (panel, name) for panel in panels for name in panel.lines if panel.lines[name].notna().any()
    ]
    ids = {name: f"v{number}" for number, name in enumerate(dict.fromkeys(n for _, n in known))}
    drawn = [(panel, rows) for panel in panels if len(rows := panel.rows(ids))]
    days = sorted({day for _, rows in drawn for day in rows["t"]})
    if len(days) < 2:
        return None
    words = [f"{days[0]} to {days[-1]}."]
    last: dict[str, str] = {}  # value in the first panel that has the line
    for panel, name in known:
        newest, extremes = panel.in_words(name)
        last.setdefault(name, newest)
        words.append(f"{panel.title}, {named(name)}: {newest} at the end, range {extremes};")
    length = pd.Timestamp(days[-1]) - pd.Timestamp(days[0])
    return Chart(
        title=title,
        words=" ".join(words),
        file="sessions",
        data={f"panel{number}": rows for number, (_, rows) in enumerate(drawn)},
        values={
            "panels": [
                {
                    **vars(panel),
                    "columns": list(rows),
                    "labels": list(panel.labels),
                    "is_log": panel.is_log,
                }
                for panel, rows in drawn
            ],
            "thick": ids.get(MODEL, ""),
            "is_short": length <= pd.Timedelta(days=SHORT),
            "last_day": days[-1],
        },
        keys=[
            Key(
                id=line_id,
                name=named(name),
                colour=colour(name),
                last=last[name],
                is_shown=name not in set(hidden),
                is_dashed=name in set(dashed),
            )
            for name, line_id in ids.items()
        ],
    )


def square(
    title: str,
    words: str,
    rows: pd.DataFrame,
    axes: tuple[str, str],
    domain: Sequence[float],
    *,
    joined: bool = True,
) -> Chart:
    """Return a square chart of points, with a diagonal on which `y` equals `x`.

    `x, y` are shares, in percent; rows may have `low, high` (of `y`), `n` (size) and `chosen`
    (another colour). `axes` are titles, `domain` the ends of both; `joined` points have a line.
    """
    return Chart(
        title=title,
        words=words,
        file="square",
        data={"rows": rows},
        values={"axes": axes, "domain": domain, "joined": joined, "columns": list(rows)},
    )


def calibration(curves: Mapping[str, pd.DataFrame]) -> dict[str, Chart]:
    """Return a square chart for each calibration curve, by name, all on one scale.

    Columns of a curve: `mean_probability, share_risen, n`, and perhaps the interval in
    `share_risen_low, share_risen_high`, which is cut off at the ends of the scale.
    """
    short_names = {
        "mean_probability": "x",
        "share_risen": "y",
        "share_risen_low": "low",
        "share_risen_high": "high",
    }
    drawn = {name: curve.rename(columns=short_names) for name, curve in curves.items()}
    points = [curve[["x", "y"]].to_numpy(dtype=float).ravel() for curve in drawn.values()]
    values = np.concatenate([[0.5], *points])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = max(0.3 * max(high - 0.5, 0.5 - low), 0.02)  # room for parts of the intervals
    domain = [round(max(low - margin, 0), 3), round(min(high + margin, 1), 3)]
    squares = {}
    for name, curve in drawn.items():
        # Without the columns of the ends, no interval is drawn.
        rows = curve.reindex(columns=["x", "y", "low", "high", "n"]).dropna(axis=1, how="all")
        words = [
            f"predicted {percent(x)}, rose {percent(y)} of {n:,.0f}"
            for x, y, n in curve[["x", "y", "n"]].to_numpy(dtype=float)
        ]
        squares[name] = square(
            title=f"Predicted and actual share of rises, {name}",
            words="; ".join(words),
            rows=rows,
            axes=("predicted probability", "share that rose"),
            domain=domain,
        )
    return squares


def stacked(
    title: str, words: str, rows: pd.DataFrame, axis: Axis, band: tuple[float, float] | None
) -> Chart:
    """Return a chart with a mark for each of the rows `value, kind, words` whose value is known.

    Stacked in `COLUMNS` columns over the axis; `band` is an interval to be shaded.
    """
    # Sorted, so that the values rise within a column too.
    known_rows = rows.dropna(subset=["value"]).sort_values("value", kind="stable")
    width = (axis.high - axis.low) / COLUMNS  # of a column, in units of the axis
    position = (known_rows["value"] - axis.low) / width
    column = position.astype(int).clip(0, COLUMNS - 1)
    marks = known_rows.assign(  # each is drawn in the middle of its column and row
        place=axis.low + (column + 0.5) * width,
        row=known_rows.groupby(column).cumcount() + 0.5,
    )
    highest = float(marks["row"].max() + 0.5) if len(marks) else 1.0  # marks in the fullest column
    return Chart(
        title=title,
        words=words,
        file="stacked",
        data={"rows": marks},
        values={
            "axis": axis,
            "band": band,
            # At least 8 rows, so that few marks lie as close together as many.
            "rows": max(highest, 8),
            "height": max(60, 7 * highest),  # pixels
        },
    )


def cells(
    title: str,
    words: str,
    matrix: pd.DataFrame,
    side: tuple[int, int],
    form: str,
    *,
    is_signed: bool = False,
    is_written: bool = False,
) -> Chart:
    """Return a map of the values of a matrix, in a stronger colour for a larger size; NaN is blank.

    `side` is a cell's width and height in pixels. `is_signed`: two colours; else no value is below
    0. `is_written`: with values, in `form`.
    """
    rows = matrix.rename_axis("y").reset_index().melt("y", var_name="x").dropna()
    # Quantiles, so that a few extremes do not leave the other cells without colour.
    size = rows["value"].abs()
    low = 0.0 if is_signed else float(size.quantile(0.02))
    return Chart(
        title=title,
        words=words,
        file="cells",
        data={"rows": rows},
        values={
            "side": side,
            "form": form,
            "ends": [low, max(float(size.quantile(0.98)), low + 1e-9)],  # never the same
            "is_signed": is_signed,
            "is_written": is_written,
            "across": list(matrix.columns),
            "downwards": list(matrix.index),
        },
    )


def months_map(title: str, values: "pd.Series[float]", form: str) -> Chart:
    """Return a map of the values of months, by names such as 2016-06, with a row for each year."""
    months = pd.PeriodIndex(values.index, freq="M")
    year_and_month = pd.MultiIndex.from_arrays([months.year.astype(str), months.month])
    matrix = values.set_axis(year_and_month).unstack().reindex(columns=range(1, 13))
    matrix = matrix.set_axis(calendar.month_abbr[1:], axis=1)
    words = "; ".join(f"{month} {fmt(value, form)}" for month, value in values.items())
    side = (44, 24)  # width and height of a cell, in pixels
    return cells(title, words, matrix, side, form, is_signed=True, is_written=True)


def histogram(title: str, axis: str, values: "pd.Series[float]", bars: int, form: str) -> Chart:
    """Return how often each value of a session occurred."""
    counts, edges = np.histogram(values, bins=bars)
    rows = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "sessions": counts})
    ends = [fmt(value, form) for value in values.quantile([0, 0.05, 0.5, 0.95, 1])]
    words = (
        f"{len(values)} sessions, from {ends[0]} to {ends[4]}: median {ends[2]}, nine in ten from "
        f"{ends[1]} to {ends[3]}"
    )
    return Chart(title, words, "histogram", {"rows": rows}, {"title": axis, "form": form})


@lru_cache(256)
def _drawn(spec: str) -> str:
    """Return a description as SVG as wide as its place, without what only scripts read."""
    import vl_convert

    return compact(vl_convert.vegalite_to_svg(spec, vl_version=GRAMMAR))


@cache
def script() -> str:
    """Return the JavaScript that draws the charts of a live page: Vega's and our own."""
    import vl_convert

    vega: str = vl_convert.javascript_bundle(vl_version=GRAMMAR)  # type: ignore[call-arg]
    ours = (TEMPLATES / "charts.js").read_text(encoding="utf-8")
    return f"{vega}\n{ours}"


@cache
def _descriptions() -> jinja2.Environment:
    files = jinja2.FileSystemLoader(TEMPLATES / "charts")
    descriptions = jinja2.Environment(loader=files, undefined=jinja2.StrictUndefined)  # noqa: S701 - JSON, by `tojson`
    descriptions.filters["combined"] = lambda values, others: values | others
    return descriptions


def sparkline(words: str, lines: pd.DataFrame, base: float) -> Chart:
    """Return a small chart without axes of a frame's columns, the main line first; NaN is a gap.

    `base` is drawn as a level line.
    """
    keys = [
        Key(f"v{number}", named(name), colour(str(name)), "", is_shown=True, is_dashed=False)
        for number, name in enumerate(lines)
    ]
    rows = lines.set_axis([key.id for key in keys], axis=1).reset_index(drop=True)
    data = {"rows": rows.rename_axis("x").reset_index()}
    return Chart("", words, "spark", data, {"base": base}, keys)
