"""Draw charts in two ways, each described once by a file of `templates/charts`.

The files are in the grammar of Vega-Lite. vl-convert draws a description here as SVG, which needs
no script; a browser draws the same one where a page is `live`, with values under the cursor, zoom,
and lines to switch on and off (`templates/charts.js`, which a page carries or a server sends beside
Vega, both from vl-convert's wheel). Colours are the page's CSS variables, so that both drawings fit
dark mode. Dates are UTC.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zlib import crc32

import jinja2
import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from markupsafe import Markup, escape
from numpy import ndarray

from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.pages.figures import WORDS, day, figure, named, percent

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
    svg = UNREAD_ATTRIBUTE.sub("", svg)
    svg = EMPTY_PATH.sub("", svg)
    svg = CIRCULAR_PATH.sub(r'<circle\1 r="\2"', svg)
    width = _SVG_WIDTH.search(svg)
    if width is None:
        return svg
    widest = 1.4 * float(width[1])  # a drawing is enlarged so far and no further
    opening = f'<svg aria-hidden="true" style="max-width:{widest:.0f}px" '
    return svg.replace("<svg ", opening, 1)


POINTS = 150  # of a line, at most, in a static chart
LIVE_POINTS = 400  # of a line, at most, in a chart that can be zoomed
# A line is broken where it has no value for longer than both: no exchange is closed for so many
# days, and values of each month or year are further apart.
BREAK_DAYS = 21
BREAK_STEPS = 5  # times the median distance of its values


def thin(values: Float[ndarray, " sessions"], points: int = POINTS) -> Int[ndarray, " kept"]:
    """Return the positions of the values to draw, at most `points`, ascending.

    If there are more values, they are the first, the last, and the lowest and highest of each of
    some stretches of equal length. A stretch of missing values (NaN) keeps its first place, where
    the line is broken.
    """
    if len(values) <= points:
        return np.arange(len(values))
    places = [0, len(values) - 1]
    # Two values of each stretch, and the two ends.
    for stretch in np.array_split(np.arange(len(values)), points // 2 - 1):
        known = stretch[np.isfinite(values[stretch])]
        if len(known) == 0:
            places.append(stretch[0])
            continue
        lowest = known[np.argmin(values[known])]
        highest = known[np.argmax(values[known])]
        places += [lowest, highest]
    return np.unique(places)


def stretches(sessions: "pd.Index[Any]") -> Int[ndarray, " sessions"]:
    """Return for each of some ascending sessions the number of its stretch, from 0.

    A stretch ends where no session follows for longer than BREAK_DAYS and BREAK_STEPS.
    """
    steps = np.diff(pd.DatetimeIndex(sessions).to_numpy()) / np.timedelta64(1, "D")
    if not len(steps):
        return np.zeros(len(sessions), dtype=int)
    is_break = steps > max(BREAK_DAYS, BREAK_STEPS * float(np.median(steps)))
    return np.concatenate([[0], np.cumsum(is_break)])


def thinned(frame: pd.DataFrame, points: int = POINTS) -> pd.DataFrame:
    """Return the rows to draw of lines over sessions `t`; all rows of any other chart.

    A row is drawn if `thin` keeps it for any of the lines, each with at most `points`.
    """
    if "t" not in frame or len(frame) <= points:
        return frame
    lines = frame.drop(columns="t").to_numpy(dtype=float).T  # [lines sessions]
    places_of_lines = [thin(line, points) for line in lines if np.isfinite(line).any()]
    return frame.iloc[np.unique(np.concatenate(places_of_lines))]


def known_values(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row without missing values, each number with five digits."""
    shortened = {str(name): short(value) for name, value in row.items()}
    return {name: value for name, value in shortened.items() if value is not None}


def short(value: Any) -> Any:
    """Return a number with five digits, None where it is missing or infinite; words unchanged."""
    if pd.isna(value):
        return None
    if isinstance(value, (float, np.floating)):
        rounded = float(f"{value:.5g}")  # the largest numbers become infinite, which JSON lacks
        return rounded if np.isfinite(rounded) else None
    if isinstance(value, np.generic):
        return value.item()
    return value


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
    "index": "var(--ink)",
    "close": "var(--ink)",
    "equal weight": "var(--faint)",
    "equal parts": "var(--faint)",
    "adjusted close": "var(--faint)",
}


def colour(name: str) -> str:
    """Return the colour of a model, a rule or a form of portfolio: the same one on every page."""
    form = name.partition(",")[0]
    if form in COLOURS:
        return COLOURS[form]
    number = crc32(form.encode()) % PALETTE
    return f"var(--s{number})"


WIDTH = 400  # of a chart over sessions, in pixels
LOGARITHMIC = 3  # ratio of the highest to the lowest equity above which its scale is logarithmic
SHORT = 14  # days, at most, of a time axis with a mark for each day
COLUMNS = 72  # in which a chart stacks its marks
NARROWEST = 0.02  # distance from one half that a scale of probabilities always holds
GRAMMAR = "6.4"  # of Vega-Lite, among those in the wheel
TEMPLATES = Path(__file__).parent / "templates"

Form = Literal["ratio", "percent", "price", "number"]


@dataclass(frozen=True)
class Axis:
    """A linear scale from `low` and `high` to 0 and 100 percent.

    It is for the marks in the cells of tables.
    """

    low: float
    high: float

    def at(self, value: float) -> str:
        """Return the place of a value in percent."""
        percent_of_scale = 100 * (value - self.low) / (self.high - self.low)
        return f"{percent_of_scale:.2f}".rstrip("0").rstrip(".")


def probability_axis(values: Iterable[float]) -> Axis:
    """Return a scale of probabilities that holds all values, with one half in its middle.

    It never goes beyond 0 and 1.
    """
    distances = [abs(float(value) - 0.5) for value in values if not pd.isna(value)]
    furthest = max([NARROWEST, *distances])
    reach = min(1.08 * furthest, 0.5)
    return Axis(low=0.5 - reach, high=0.5 + reach)


class Key(NamedTuple):
    """A line's entry below its chart.

    `id` is its name in the description, `last` its last value in words.
    """

    id: str
    name: str
    colour: str
    last: str
    is_shown: bool
    is_dashed: bool


@dataclass(frozen=True)
class Chart:
    """A chart: its title, its content in words, and the file that describes it.

    `values` are the variables of that file, which is a template; `data` are its data sets by name;
    `keys` are the entries of the lines below the chart, if it has lines.
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
        datasets = {}
        for name, frame in self.data.items():
            rows = thinned(frame).to_dict("records")
            datasets[name] = [known_values(row) for row in rows]
        description["datasets"] = datasets
        return Markup(_drawn(json.dumps(description)))  # noqa: S704 - Vega escapes

    @property
    def json(self) -> Markup:
        """Return the chart's description for a script element.

        Its rows are lists without names, which `charts.js` adds.
        """
        description = self._described(live=True)
        datasets = {}
        for name, frame in self.data.items():
            shown = thinned(frame, LIVE_POINTS)
            rows = [list(map(short, row)) for row in shown.to_numpy(object)]
            datasets[name] = {"names": list(frame), "rows": rows}
        description["datasets"] = datasets
        text = json.dumps(description, ensure_ascii=False, separators=(",", ":"))
        return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - no tag can end the element

    def _described(self, *, live: bool) -> dict[str, Any]:
        template = _descriptions().get_template(f"{self.file}.json")
        text = template.render(self.values, keys=self.keys, live=live, width=WIDTH)
        description: dict[str, Any] = json.loads(text)
        return description


@dataclass(frozen=True)
class Panel:
    """Lines over sessions on one vertical scale, whose title gives the unit.

    NaN is skipped. `base` is a value that the scale always holds, drawn as a line. `bands` have the
    columns `low` and `high` by session, by the name of the line that they belong to. With `labels`
    each line is a row of ticks beside one of these labels: its values are that label's number, from
    1 at the bottom.
    """

    title: str
    lines: Mapping[str, "pd.Series[float]"]
    form: Form = "ratio"
    base: float | None = None
    bands: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    labels: Sequence[str] = ()
    height: int = 190

    @property
    def is_log(self) -> bool:
        """Return whether a value that compounds grows so far that its scale is logarithmic."""
        # Only values of an initial 1 compound, and only their panels have the base 1.
        if self.base != 1 or not self.lines:
            return False
        lines = self.lines.values()
        low = min(line.min() for line in lines)
        high = max(line.max() for line in lines)
        return bool(low > 0 and high / low > LOGARITHMIC)

    def rows(self, ids: Mapping[str, str]) -> pd.DataFrame:
        """Return a row for each session with a value: its day as `t`, and the lines by their ids.

        `ids` are those of the lines to be drawn, by name. The line of id v0 has the column `v0`,
        its band the columns `lowv0` and `highv0`. If one of these is broken, the number of each
        row's stretch is in a further column, such as `partv0` or `partlowv0`. Of several values of
        one session the first counts.
        """
        columns = {ids[name]: line for name, line in self.lines.items() if name in ids}
        for name, band in self.bands.items():
            if name in ids:
                columns[f"low{ids[name]}"] = band["low"]
                columns[f"high{ids[name]}"] = band["high"]
        distinct = {}  # a frame of several lines needs one value a session
        for column, values in columns.items():
            line_values = values.dropna()
            is_repeated = line_values.index.duplicated()
            distinct[column] = line_values[~is_repeated].sort_index()
            stretch = stretches(distinct[column].index)
            if stretch[-1:].any():  # the last stretch is not number 0: the line is broken
                distinct[f"part{column}"] = pd.Series(stretch, distinct[column].index)
        frame = pd.DataFrame(distinct)
        frame = frame.dropna(how="all").sort_index()
        frame.insert(0, "t", [day(session) for session in frame.index])
        return frame

    def in_words(self, name: str) -> tuple[str, str]:
        """Return the last value of a line in words, and its extremes.

        For ticks both say how many there are.
        """
        line = self.lines[name].dropna()
        line = line[~line.index.duplicated()].sort_index()  # as it is drawn: it may be newest first
        if self.labels:
            return f"{len(line)}", f"{len(line)} times"
        last = self._written(float(line.iloc[-1]))  # of the newest session
        low = self._written(float(line.min()))
        high = self._written(float(line.max()))
        return last, f"{low} to {high}"

    def _written(self, value: float) -> str:
        if self.form in ("price", "number"):
            return figure(value, digits=2)
        if self.form == "ratio":
            return figure(value, digits=3)
        return percent(value)


class _LineInWords(NamedTuple):
    """A line in words: its panel's title, its name, its last value and its extremes."""

    panel: str
    name: str
    last: str
    extremes: str

    def __str__(self) -> str:
        return f"{self.panel}, {named(self.name)}: {self.last} at the end, range {self.extremes};"


def over_sessions(
    title: str, panels: Sequence[Panel], *, hidden: Iterable[str] = (), dashed: Iterable[str] = ()
) -> Chart | None:
    """Return panels one below the other on one time axis.

    Each panel leaves out its lines without a value; `hidden` lines are drawn once a reader switches
    them on, `dashed` lines are drawn dashed. None where fewer than two days have a value.
    """
    names: list[str] = []  # of the lines that have a value
    for each in panels:
        for name, of_name in each.lines.items():
            if name not in names and of_name.notna().any():
                names.append(name)
    ids = {name: f"v{number}" for number, name in enumerate(names)}
    drawn: list[tuple[Panel, pd.DataFrame]] = []
    days: set[str] = set()
    for panel in panels:
        rows = panel.rows(ids)
        if len(rows):
            drawn.append((panel, rows))
            days.update(rows["t"])
    if len(days) < 2:
        return None

    lines: list[_LineInWords] = []
    for panel, _ in drawn:
        for name, line in panel.lines.items():
            # A line may have values in another panel alone: equal returns have no Sharpe ratio.
            if line.notna().any():
                last, extremes = panel.in_words(name)
                lines.append(_LineInWords(panel.title, name, last, extremes))
    first_day = min(days)
    last_day = max(days)
    words = " ".join(str(line) for line in lines)
    length = pd.Timestamp(last_day) - pd.Timestamp(first_day)
    return Chart(
        title=title,
        words=f"{first_day} to {last_day}. {words}",
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
            "last_day": last_day,
            "is_short": length <= pd.Timedelta(days=SHORT),
        },
        keys=_keys(ids, lines, hidden=set(hidden), dashed=set(dashed)),
    )


def _keys(
    ids: Mapping[str, str],
    lines: Sequence[_LineInWords],
    hidden: Collection[str],
    dashed: Collection[str],
) -> list[Key]:
    """Return the legend's entry of each line in `ids`, which has the lines' ids by their names.

    The last value is that in the first panel that has the line.
    """
    last: dict[str, str] = {}
    for line in lines:
        last.setdefault(line.name, line.last)
    return [
        Key(
            id=line_id,
            name=named(name),
            colour=colour(name),
            last=last[name],
            is_shown=name not in hidden,
            is_dashed=name in dashed,
        )
        for name, line_id in ids.items()
    ]


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

    `x, y` are shares, shown in percent; rows may have `low, high` (an interval of `y`), `n` (the
    size of the point) and `chosen` (another colour). `axes` are the titles of x and y, `domain` the
    lowest and the highest value of both; `joined` points have a line through them.
    """
    return Chart(
        title=title,
        words=words,
        file="square",
        data={"rows": rows},
        values={"axes": axes, "domain": domain, "joined": joined, "columns": list(rows)},
    )


def calibration(curves: Mapping[str, pd.DataFrame]) -> dict[str, Chart]:
    """Return a square chart for each curve of `mean_probability, share_risen, n`, by its name.

    It shows the intervals `share_risen_low, share_risen_high` where a curve has them. All squares
    have one scale, which holds every point; wide intervals are cut off at its ends.
    """
    domain = _domain(curves.values())
    short_names = {
        "mean_probability": "x",
        "share_risen": "y",
        "share_risen_low": "low",
        "share_risen_high": "high",
    }
    squares = {}
    for name, curve in curves.items():
        rows = curve.rename(columns=short_names)
        # Without the columns of the ends, no interval is drawn.
        rows = rows.reindex(columns=["x", "y", "low", "high", "n"]).dropna(axis=1, how="all")
        points = rows.reindex(columns=["x", "y", "n"]).itertuples(index=False, name=None)
        words = [f"predicted {percent(x)}, rose {percent(y)} of {n:,.0f}" for x, y, n in points]
        squares[name] = square(
            title=f"Predicted and actual share of rises, {name}",
            words="; ".join(words),
            rows=rows,
            axes=("predicted probability", "share that rose"),
            domain=domain,
        )
    return squares


def _domain(curves: Iterable[pd.DataFrame]) -> list[float]:
    points = [
        curve[["mean_probability", "share_risen"]].to_numpy(dtype=float).ravel() for curve in curves
    ]
    values = np.concatenate([np.array([0.5]), *points])
    low = float(np.nanmin(values))
    high = float(np.nanmax(values))
    furthest = max(high - 0.5, 0.5 - low)
    margin = max(0.3 * furthest, 0.02)  # room for parts of the intervals
    return [
        round(max(low - margin, 0), 3),
        round(min(high + margin, 1), 3),
    ]


def stacked(
    title: str, words: str, rows: pd.DataFrame, axis: Axis, band: tuple[float, float] | None
) -> Chart:
    """Return a chart with a mark for each of the rows `value, kind, words` whose value is known.

    The marks are stacked in `COLUMNS` columns over the axis of the values. `band` is an interval of
    that axis to be shaded, None without one.
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
    rows: pd.DataFrame,
    side: tuple[int, int],
    form: Form,
    *,
    is_signed: bool = False,
    is_written: bool = False,
    order: Sequence[str] = (),
) -> Chart:
    """Return a map of cells, of a stronger colour for a larger size, from rows `x, y, value`.

    `x` names the column of a cell and `y` its row; both are in this `order`, or without one in that
    in which their names first appear. `side` is the width and the height of a cell in pixels,
    `form` how values are written. With `is_signed` values above and below 0 have different colours;
    without it no value is below 0. With `is_written` the values are in the cells.
    """
    # Quantiles, so that a few extremes do not leave the other cells without colour.
    size = rows["value"].abs()
    low = 0.0
    high = 0.0
    if len(rows):
        high = float(size.quantile(0.98))
        if not is_signed:
            low = float(size.quantile(0.02))
    return Chart(
        title=title,
        words=words,
        file="cells",
        data={"rows": rows},
        values={
            "side": side,
            "form": form,
            "ends": [low, max(high, low + 1e-9)],  # never the same
            "is_signed": is_signed,
            "is_written": is_written,
            "across": list(order or dict.fromkeys(rows["x"])),
            "downwards": list(order or dict.fromkeys(rows["y"])),
        },
    )


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


def environment(*filters: Callable[..., Any], folder: Path | None = None) -> jinja2.Environment:
    """Return the templates of `folder`, if given, and of this package.

    They may use the functions of `figures` and `filters` as filters, and the test `missing` for
    None and NaN. All values are escaped, and one that was not passed is an error.
    """
    folders = [folder, TEMPLATES] if folder else [TEMPLATES]
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (*WORDS, *filters):
        templates.filters[function.__name__] = function
    templates.filters["zip"] = zip
    templates.tests["missing"] = lambda value: bool(pd.isna(value))
    templates.globals.update(palette=PALETTE, live=False)
    return templates


_SPARKLINE_WIDTH = 220  # of the drawing, in its own units
HEIGHT = 48
MARGIN = 3  # so that a line at the edge is drawn whole


@dataclass(frozen=True)
class Sparkline:
    """Lines over the same sessions, the main one first.

    `lines` have the values by name, a number for each session; NaN is a gap. `base` is a value that
    is drawn as a level line. `words` describe the drawing for those who cannot see it.
    """

    words: str
    lines: Mapping[str, Float[ndarray, " sessions"]]
    base: float

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Return the name and the colour of each line, the main one first."""
        return [(name, colour(name)) for name in self.lines]

    @property
    def svg(self) -> Markup:
        """Return the drawing as SVG, as wide as its place; a line has one colour in all charts.

        The main line is drawn last, above the others. A line without a value is left out, and a
        value between two gaps is not visible.
        """
        drawn = [name for name, values in self.lines.items() if np.isfinite(values).any()]
        low, high = self._ends(drawn)
        level = _height(self.base, low, high)
        parts = [f'<line x1="0" x2="{_SPARKLINE_WIDTH}" y1="{level}" y2="{level}"/>']
        for name in reversed(drawn):
            values = np.asarray(self.lines[name], dtype=float)
            steps = max(len(values) - 1, 1)
            steps_drawn: list[str] = []
            is_open = False
            for place in thin(values):  # the places of the values to draw
                value = float(values[place])
                if not np.isfinite(value):
                    is_open = False
                    continue
                x = f"{place / steps * _SPARKLINE_WIDTH:.1f}"
                steps_drawn.append(f"{'L' if is_open else 'M'}{x},{_height(value, low, high)}")
                is_open = True
            path = "".join(steps_drawn)
            kind = "main" if name == next(iter(self.lines)) else "other"
            parts.append(f'<path class="{kind}" stroke="{colour(name)}" d="{path}"/>')
        opening = (
            f'<svg class="spark" role="img" aria-label="{escape(self.words)}" '
            f'viewBox="0 0 {_SPARKLINE_WIDTH} {HEIGHT}" preserveAspectRatio="none">'
        )
        return Markup(f"{opening}{''.join(parts)}</svg>")  # noqa: S704 - the words are escaped

    def _ends(self, drawn: Sequence[str]) -> tuple[float, float]:
        """Return the lowest and the highest value to draw, with the base among them.

        They are never the same, so that `_height` can divide by their difference.
        """
        values = [np.asarray(self.lines[name], dtype=float) for name in drawn]
        whole = np.concatenate([np.array([self.base]), *values])
        low = float(np.nanmin(whole))
        high = float(np.nanmax(whole))
        return low, max(high, low + 1e-9)


def _height(value: float, low: float, high: float) -> str:
    """Return the place of a value in the drawing, counted from the top."""
    share = (value - low) / (high - low)
    return f"{HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN):.1f}"
