"""Draw charts, each described once in the grammar of Vega-Lite by a file of `templates/charts`, in
two ways.

vl-convert draws a description here as SVG, which needs no script; a browser draws the same one
where a page is `live`, with values under the cursor, zoom, and lines to switch on and off
(`templates/charts.js`, which a page carries or a server sends beside Vega, both out of vl-convert's
wheel). Colours are the page's CSS variables, so that both are right in the dark. Dates are UTC.
"""

import json
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import jinja2
import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from markupsafe import Markup
from numpy import ndarray

from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.pages.figures import WORDS, day, figure, percent

POINTS = 300  # of a line at most in a chart that stands still
WIDTH = 400  # of such a chart, in pixels
PALETTE = 10  # colours of lines
LOGARITHMIC = 3  # from the lowest to the highest value of an equity, from which on its scale is one
SHORT = 14  # days, at most, of an axis of time with a mark for each
COLUMNS = 72  # of a chart of stacked marks
NARROWEST = 0.02  # of a probability from one half, that a scale of probabilities holds in any case
GRAMMAR = "6.4"  # of Vega-Lite, among those in the wheel
TEMPLATES = Path(__file__).parent / "templates"
MODELS = ("lstm", "alstm", "adv_alstm", "stocknet", "logistic_regression", "gradient_boosting")
PLACES = {name: number for number, name in enumerate((MODEL, *NAIVE_RULES, *MODELS))}
PLACES |= {"long": 0, "long-short": 4, "weighted": 5, "probability": 0, "calibrated": 9}
PLACES |= {"account": 0, "account, no costs": 1}
COLOURS = {name: f"var(--s{number})" for name, number in PLACES.items()}
COLOURS |= {"rise": "var(--rise)", "fall": "var(--fall)"} | dict.fromkeys(
    ("index", "close"), "var(--ink)"
)
COLOURS |= dict.fromkeys(("equal weight", "equal parts", "adjusted close"), "var(--faint)")

Form = Literal["ratio", "percent", "price"]


@dataclass(frozen=True)
class Axis:
    """A linear scale from `low` and `high` to 0 and 100 percent, for the marks
    in the cells of tables.
    """

    low: float
    high: float

    def at(self, value: float) -> str:
        """Return the place of a value in percent."""
        return f"{100 * (value - self.low) / (self.high - self.low):.2f}".rstrip("0").rstrip(".")


def probability_axis(values: Iterable[float]) -> Axis:
    """Return a scale of probabilities with one half in its middle that holds
    all values, never beyond 0 and 1.
    """
    off = [abs(float(value) - 0.5) for value in values if not pd.isna(value)]
    reach = min(1.08 * max([NARROWEST, *off]), 0.5)
    return Axis(0.5 - reach, 0.5 + reach)


def colour(name: str) -> str:
    """Return the colour of a model, a rule or a form of portfolio: the same one on every page."""
    form = name.partition(",")[0]
    return COLOURS.get(form) or f"var(--s{crc32(form.encode()) % PALETTE})"


# A line's entry below its chart: its name in the description, its name, colour, last value in
# words.
Key = namedtuple("Key", "id name colour last is_shown is_dashed")


@dataclass(frozen=True)
class Chart:
    """A chart: its title, what it shows in words, which file describes it, that
    file's values, and rows by name.
    """

    title: str
    words: str
    file: str
    data: Mapping[str, pd.DataFrame]
    values: Mapping[str, Any] = field(default_factory=dict)
    keys: Sequence[Key] = ()

    @property
    def svg(self) -> Markup:
        """Return it as SVG that fills its place, of `POINTS` a line."""
        rows = {
            name: [_known(row) for row in _thinned(each).to_dict("records")]
            for name, each in self.data.items()
        }
        return Markup(_drawn(json.dumps(self._described(live=False) | {"datasets": rows})))  # noqa: S704 - Vega escapes

    @property
    def json(self) -> Markup:
        """Return its description for a script element, rows without their
        names, which `charts.js` puts to them.
        """
        rows = {
            name: {
                "names": list(each),
                "rows": [[_short(value) for value in row] for row in each.to_numpy(object)],
            }
            for name, each in self.data.items()
        }
        text = json.dumps(
            self._described(live=True) | {"datasets": rows},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - no tag can end the element

    def _described(self, *, live: bool) -> dict[str, Any]:
        template = _descriptions().get_template(f"{self.file}.json")
        found: dict[str, Any] = json.loads(
            template.render(self.values, keys=self.keys, live=live, width=WIDTH)
        )
        return found


@dataclass(frozen=True)
class Panel:
    """Lines over sessions upwards on one scale, whose title says the unit; what is NaN is skipped.

    `base` is a value that the scale holds in any case, drawn as a line. `bands` have the `low` and
    `high` of a line by session. With `labels` the lines are rows of ticks, at 1 for the first
    label.
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
        """Return whether a value that compounds grows so far that equal ratios
        need equal distances.
        """
        ends = [
            end
            for line in self.lines.values()
            for end in (line.min(), line.max())
            if self.base == 1
        ]
        return bool(ends) and min(ends) > 0 and max(ends) / min(ends) > LOGARITHMIC

    def rows(self, ids: Mapping[str, str]) -> pd.DataFrame:
        """Return a row a session: its day as `t`, the lines by their ids, the
        ends of the bands as low and high.
        """
        columns = {ids[name]: line.dropna() for name, line in self.lines.items() if name in ids}
        bands = {ids[name]: band for name, band in self.bands.items() if name in ids}
        columns |= {
            f"{end}{name}": band[end].dropna()
            for name, band in bands.items()
            for end in ("low", "high")
        }
        frame = pd.DataFrame(
            {name: line[~line.index.duplicated()] for name, line in columns.items()}
        )
        frame = frame.dropna(how="all").sort_index()
        frame.insert(0, "t", [day(each) for each in frame.index])
        return frame

    def said(self, name: str) -> tuple[str, str]:
        """Return the last value of a line in words, and its extremes; of ticks,
        how many there are.
        """
        line = self.lines[name].dropna()
        if self.labels:
            return f"{len(line)}", f"{len(line)} times"
        digits = {"price": 2, "ratio": 3}.get(self.form)
        ends = [float(each) for each in (line.iloc[-1], line.min(), line.max())]
        last, low, high = (
            percent(each) if digits is None else figure(each, digits) for each in ends
        )
        return last, f"{low} to {high}"


def over_sessions(
    title: str, panels: Sequence[Panel], *, hidden: Iterable[str] = (), dashed: Iterable[str] = ()
) -> Chart | None:
    """Return panels one below the other on one axis of time; lines without a value are left out.

    `hidden` lines wait to be switched on, `dashed` ones are drawn so. None without two sessions.
    """
    names = list(
        dict.fromkeys(
            name for panel in panels for name, line in panel.lines.items() if line.notna().any()
        )
    )
    ids = {name: f"v{number}" for number, name in enumerate(names)}
    drawn = [(panel, rows) for panel in panels if len(rows := panel.rows(ids))]
    days = sorted({each for _, rows in drawn for each in rows["t"]})
    if len(days) < 2:
        return None
    said = [
        (panel, name, *panel.said(name))
        for panel, _ in drawn
        for name in panel.lines
        if name in ids
    ]
    last = {name: end for _, name, end, _ in reversed(said)}  # of the first panel that has it
    off, dashes = set(hidden), set(dashed)
    keys = [
        Key(ids[name], name, colour(name), last[name], name not in off, name in dashes)
        for name in names
    ]
    shown = [
        vars(panel) | {"columns": list(rows), "labels": list(panel.labels), "is_log": panel.is_log}
        for panel, rows in drawn
    ]
    words = " ".join(
        f"{panel.title}, {name}: {end} at the end, {way} on the way;"
        for panel, name, end, way in said
    )
    data = {f"panel{number}": rows for number, (_, rows) in enumerate(drawn)}
    is_short = pd.Timestamp(days[-1]) - pd.Timestamp(days[0]) <= pd.Timedelta(days=SHORT)
    values = {"panels": shown, "thick": ids.get(MODEL, ""), "is_short": is_short}
    return Chart(title, f"{days[0]} to {days[-1]}. {words}", "sessions", data, values, keys)


def square(
    title: str,
    words: str,
    rows: pd.DataFrame,
    axes: tuple[str, str],
    domain: Sequence[float],
    *,
    joined: bool = True,
) -> Chart:
    """Return a square in which the diagonal is agreement: rows `x, y`, maybe
    `low, high`, `n` and `chosen`.
    """
    values = {"axes": axes, "domain": domain, "joined": joined, "columns": list(rows)}
    return Chart(title, words, "square", {"rows": rows}, values)


def calibration(curves: Mapping[str, pd.DataFrame]) -> dict[str, Chart]:
    """Return a square for each curve of `mean_probability, share_risen, n`, with its ends where it
    has them.

    One scale holds every point, and of wide intervals the part near the points.
    """
    points = [
        found[["mean_probability", "share_risen"]].to_numpy(dtype=float).ravel()
        for found in curves.values()
    ]
    known = np.concatenate([np.array([0.5]), *points])
    low, high = float(np.nanmin(known)), float(np.nanmax(known))
    margin = max(0.3 * max(high - 0.5, 0.5 - low), 0.02)
    domain = [round(max(low - margin, 0), 3), round(min(high + margin, 1), 3)]
    short = {
        "mean_probability": "x",
        "share_risen": "y",
        "share_risen_low": "low",
        "share_risen_high": "high",
    }
    drawn = {}
    for name, found in curves.items():
        rows = (
            found.rename(columns=short)
            .reindex(columns=["x", "y", "low", "high", "n"])
            .dropna(axis=1, how="all")
        )
        told = rows.reindex(columns=["x", "y", "n"]).itertuples(index=False, name=None)
        words = "; ".join(
            f"said {figure(x, 3)}, rose {figure(y, 3)} of {n:,.0f}" for x, y, n in told
        )
        axes = ("predicted probability", "share that rose")
        drawn[name] = square(
            f"Predicted and actual share of rises, {name}", words, rows, axes, domain
        )
    return drawn


def stacked(
    title: str, words: str, rows: pd.DataFrame, axis: Axis, band: tuple[float, float] | None
) -> Chart:
    """Return a mark for each known `value` of `value, kind, words`, stacked in
    `COLUMNS` columns over the axis.
    """
    known = rows.dropna(subset=["value"]).sort_values("value", kind="stable")
    step = (axis.high - axis.low) / COLUMNS
    place = ((known["value"] - axis.low) / step).astype(int).clip(0, COLUMNS - 1)
    known = known.assign(
        place=axis.low + (place + 0.5) * step, row=known.groupby(place).cumcount() + 0.5
    )
    highest = float(known["row"].max() + 0.5) if len(known) else 1.0
    values = {"axis": axis, "band": band, "rows": max(highest, 8), "height": max(60, 7 * highest)}
    return Chart(title, words, "stacked", {"rows": known}, values)


def cells(
    title: str, words: str, rows: pd.DataFrame, side: tuple[int, int], form: Form, **looks: bool
) -> Chart:
    """Return a map of cells `x, y, value` in their order: darker for more, `side` pixels each.

    With `is_signed` one colour stands above 0 and another below, with `is_written` the values are
    in the cells.
    """
    size, shares = rows["value"].abs(), (0.0 if looks.get("is_signed") else 0.02, 0.98)
    low, high = (float(size.quantile(share)) if len(rows) else 0.0 for share in shares)
    ends = [0.0 if looks.get("is_signed") else low, max(high, low + 1e-9)]
    order = {"across": list(dict.fromkeys(rows["x"])), "upwards": list(dict.fromkeys(rows["y"]))}
    values = (
        {"side": side, "form": form, "ends": ends, "is_signed": False, "is_written": False}
        | order
        | looks
    )
    return Chart(title, words, "cells", {"rows": rows}, values)


def thin(values: Float[ndarray, " sessions"]) -> Int[ndarray, " kept"]:
    """Return which values to draw, `POINTS` at most: the first, the last, the
    lowest and highest of each stretch.
    """
    if len(values) <= POINTS:
        return np.arange(len(values))
    stretches = np.array_split(np.arange(len(values)), POINTS // 2 - 1)
    finite = np.where(np.isfinite(values), values, np.nanmean(values))
    ends = [
        stretch[choose(finite[stretch])]
        for stretch in stretches
        for choose in (np.argmin, np.argmax)
    ]
    return np.unique([0, *ends, len(values) - 1])


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    if "t" not in frame or len(frame) <= POINTS:
        return frame
    lines = frame.drop(columns="t").to_numpy(dtype=float).T
    return frame.iloc[
        np.unique(np.concatenate([thin(line) for line in lines if np.isfinite(line).any()]))
    ]


def _known(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): _short(value) for name, value in row.items() if not pd.isna(value)}


def _short(value: Any) -> Any:
    """Return a number with five digits, None where it is missing; words as they are."""
    if pd.isna(value):
        return None
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.5g}")
    return value.item() if isinstance(value, np.generic) else value


@lru_cache(256)
def _drawn(spec: str) -> str:
    """Return a description as SVG as wide as its place, without what only a script reads."""
    import vl_convert

    text = vl_convert.vegalite_to_svg(spec, vl_version=GRAMMAR)
    unread = (
        r' (?:(?:aria-[a-z]+|role|pointer-events|opacity)="(?:[a-z '
        r'-]+|1)"|(?:xmlns|version)[a-z:]*="[^"]*")'
    )
    text = re.sub(unread, "", text)
    text = re.sub(r'<path(?: class="\w+")? d="(?:M0,0h0v0h0Z)?"(?: display="none")?/>', "", text)
    text = re.sub(
        r'<path([^>]*?) d="M([\d.]+),0A\2,\2,0,1,1,-\2,0A\2,\2,0,1,1,\2,0Z?"',
        r'<circle\1 r="\2"',
        text,
    )
    wide = re.search(r'width="([\d.]+)"', text)
    begun = (
        f'<svg aria-hidden="true" style="max-width:{1.4 * float(wide[1]):.0f}px" '
        if wide
        else "<svg "
    )
    return text.replace("<svg ", begun, 1)


@cache
def script() -> str:
    """Return the JavaScript that draws the charts of a live page: Vega's, and a page of our own."""
    import vl_convert

    vega: str = vl_convert.javascript_bundle(vl_version=GRAMMAR)  # type: ignore[call-arg]
    return f"{vega}\n{(TEMPLATES / 'charts.js').read_text(encoding='utf-8')}"


@cache
def _descriptions() -> jinja2.Environment:
    files = jinja2.FileSystemLoader(TEMPLATES / "charts")
    found = jinja2.Environment(loader=files, undefined=jinja2.StrictUndefined)  # noqa: S701 - JSON, by `tojson`
    found.filters["combined"] = lambda one, other: one | other
    return found


def environment(*filters: Callable[..., Any], folder: Path | None = None) -> jinja2.Environment:
    """Return the templates of this folder, and of `folder` before it.

    They may call the words of `figures` and `filters` by their names; all is escaped.
    """
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES] if folder else TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update({function.__name__: function for function in (*WORDS, *filters)})
    found.filters["zip"] = zip
    found.tests["missing"] = lambda value: bool(pd.isna(value))
    found.globals.update(palette=PALETTE, live=False)
    return found
