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
