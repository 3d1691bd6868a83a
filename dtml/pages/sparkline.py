"""Draw a small chart of some lines, without axes, for a cell of a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from markupsafe import Markup, escape
from numpy import ndarray

from dtml.pages.chart_rows import thin
from dtml.pages.colours import colour

WIDTH = 220  # of the drawing, in its own units
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
        parts = [f'<line x1="0" x2="{WIDTH}" y1="{level}" y2="{level}"/>']
        for name in reversed(drawn):
            path = _path(np.asarray(self.lines[name], dtype=float), low, high)
            kind = "main" if name == next(iter(self.lines)) else "other"
            parts.append(f'<path class="{kind}" stroke="{colour(name)}" d="{path}"/>')
        opening = (
            f'<svg class="spark" role="img" aria-label="{escape(self.words)}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">'
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


def _path(values: Float[ndarray, " sessions"], low: float, high: float) -> str:
    """Return the path of a line, which begins again after each gap."""
    steps = max(len(values) - 1, 1)
    parts: list[str] = []
    is_open = False
    for place in thin(values):  # the places of the values to draw
        value = float(values[place])
        if not np.isfinite(value):
            is_open = False
            continue
        x = f"{place / steps * WIDTH:.1f}"
        parts.append(f"{'L' if is_open else 'M'}{x},{_height(value, low, high)}")
        is_open = True
    return "".join(parts)
