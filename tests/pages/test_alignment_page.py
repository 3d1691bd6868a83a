"""The page of alignments as people meet it: in a real browser, wide and narrow,
with nothing to complain of.
"""

from pathlib import Path

import pytest

from tests.support.browser import axe_source, browser, complaints
from tests.support.commands import Command
from tests.support.recipe import SOURCES

pytestmark = pytest.mark.soak


def test_the_page_of_alignments_has_nothing_wrong(home: Path, translate: Command) -> None:
    texts = [SOURCES[0], " ".join(SOURCES[:12]), "<b>Grüße</b> 🙂 日本 " + "x" * 90, ""]
    assert translate("text", *texts, "--attention-page", "seen.html")[0] == 0
    with browser() as chromium:
        assert complaints(chromium, axe_source(), (home / "seen.html").as_uri()) == []


def test_one_key_opens_every_head(home: Path, translate: Command) -> None:
    assert translate("text", SOURCES[0], "--attention-page", "heads.html")[0] == 0
    with browser() as chromium:
        page = chromium.new_page()
        page.goto((home / "heads.html").as_uri())
        maps = page.locator("svg.head")
        assert maps.count() == 3 * 1 * 2  # of encoder, between and decoder; layers; heads
        assert not maps.first.is_visible()
        page.locator("details summary").focus()
        page.keyboard.press("Enter")
        maps.first.wait_for()
        assert maps.nth(1).locator("title").text_content() == "Layer 1, head 2"
        assert page.locator("svg.head path").count() >= maps.count()  # none is empty
        page.close()
