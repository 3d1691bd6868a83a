"""A page as a browser reads it, and a calibration curve to draw."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import parse_qsl, urlsplit

import pandas as pd

from tests.support.browser import Answer, Page

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


class Reader(Page):
    """Fails on unbalanced elements."""

    VOID = ("meta", "br", "input")

    def __init__(self, text: str) -> None:
        self.open: list[str] = []
        super().__init__(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())


def assert_whole_and_accessible(page: Page) -> None:
    """No value is missing, ids are unique, and what is drawn or filled in has a name in words."""
    assert not re.search(r"\b(nan|NaN|NaT|None|NA)\b", page.seen.replace("<nan>", ""))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in page.tags:
        role = attrs.get("role")
        assert tag != "th" or attrs.get("scope") in ("col", "row")
        assert role not in ("img", "region") or attrs["aria-label"]
        assert role != "region" or attrs["tabindex"] == "0"
    labels = {attrs["for"] for tag, attrs in page.tags if tag == "label" and "for" in attrs}
    fields = [attrs for tag, attrs in page.tags if tag in ("input", "select", "textarea")]
    named = [each for each in fields if each.get("type") not in ("hidden", "checkbox")]
    assert {each["id"] for each in named} == labels
    assert [tag for tag, _ in page.tags].count("h1") == 1


def follow(
    ask: Callable[[str], Answer], begin: Iterable[str], *, plain: int, asked: int
) -> Iterator[tuple[str, Answer, Page]]:
    """Follow links and forms from these addresses on: what each leads to, as an answer and a page.

    Addresses of one kind differ in names and values alone; so many of a kind are followed: of those
    that are `plain`, and of those at which something is `asked`.
    """
    waiting = list(begin)
    seen, counts = set(waiting), Counter(map(kind_of, waiting))
    while waiting:
        answer = ask(address := waiting.pop(0))
        page = Page(answer.body if "html" in answer.headers.get("content-type", "") else "")
        yield address, answer, page
        for whole in (*page.links, *page.sent):
            target = whole.partition("#")[0]  # a browser sends no fragment
            kind, most = kind_of(target), asked if "?" in target else plain
            if target.startswith("/") and target not in seen and counts[kind] < most:
                seen.add(target)
                counts[kind] += 1
                waiting.append(target)


def kind_of(address: str) -> tuple[str, ...]:
    """The words of an address without names, which are every second of its path, and values."""
    parts = urlsplit(address)
    room, *rest = parts.path[1:].split("/")
    return room, str(len(rest)), *rest[1::2], *sorted({name for name, _ in parse_qsl(parts.query)})
