"""Make the SVG of vl-convert smaller, and as wide as its place on a page."""

import re

# Attributes that only a script reads.
UNREAD_ATTRIBUTE = re.compile(
    r' (?:(?:aria-[a-z]+|role|pointer-events|opacity)="(?:[a-z -]+|1)"'
    r'|(?:xmlns|version)[a-z:]*="[^"]*")'
)
# Paths that draw nothing.
EMPTY_PATH = re.compile(r'<path(?: class="\w+")? d="(?:M0,0h0v0h0Z)?"(?: display="none")?/>')
# A circle as two arcs.
CIRCULAR_PATH = re.compile(r'<path([^>]*?) d="M([\d.]+),0A\2,\2,0,1,1,-\2,0A\2,\2,0,1,1,\2,0Z?"')
WIDTH = re.compile(r'width="([\d.]+)"')


def compact(svg: str) -> str:
    """Return a drawing as wide as its place, without attributes that only a script reads."""
    svg = UNREAD_ATTRIBUTE.sub("", svg)
    svg = EMPTY_PATH.sub("", svg)
    svg = CIRCULAR_PATH.sub(r'<circle\1 r="\2"', svg)
    width = WIDTH.search(svg)
    if width is None:
        return svg
    widest = 1.4 * float(width[1])  # a drawing is enlarged so far and no further
    opening = f'<svg aria-hidden="true" style="max-width:{widest:.0f}px" '
    return svg.replace("<svg ", opening, 1)
