"""A page as a browser reads it, and a calibration curve to draw."""

import re
from html.parser import HTMLParser

import pandas as pd

NAN = float("nan")


def curve() -> pd.DataFrame:
    bins = {
        "bin_low": [0.4, 0.5, 0.6],
        "bin_high": [0.5, 0.6, 0.7],
        "mean_probability": [0.47, 0.53, NAN],
    }
    return pd.DataFrame(bins | {"share_risen": [0.51, 0.52, NAN], "n": [300, 700, 0]})


def without_script(text: str) -> str:
    """A page without its descriptions of charts, whose tags are escaped, and
    without the script that draws them.
    """
    return re.sub(
        r'<script type="application/json">[^<]*</script>|<script>.*</script>',
        "",
        text,
        flags=re.DOTALL,
    )


class Reader(HTMLParser):
    """Fails on unbalanced elements; keeps ids, attributes and what is seen."""

    VOID = ("meta", "br", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.seen = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.seen += data

    def count(self, tag: str, name: str) -> int:
        return sum(
            found == tag and name in (attrs.get("class") or "").split()
            for found, attrs in self.found
        )
