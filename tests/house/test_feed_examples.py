"""The examples of "A feed of your own", whole: a folder that a vendor fills, and an API."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from dtml.markets import load_market_file
from dtml.prices.sessions import sessions_between
from dtml.sources import Source, open_source
from dtml.sources.own_feed.admission import admit
from dtml.sources.own_feed.source import OwnFeed
from tests.support.commands import Command
from tests.support.nights import BARS
from tests.support.places import ROOT
from tests.support.vendor import KEY, Vendor, vendor

PAGE = (ROOT / "dtml" / "README.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## A feed of your own\n")[1].split("\n## ")[0]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
FILES = {block.split("\n")[0][2:]: block for block in BLOCKS}
HOME, AWAY = re.findall(r"^```toml\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
COMMANDS = [
    block
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
    if not language
]
LAST = date(2024, 7, 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every file of the section."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "home.toml").write_text(HOME)
    (tmp_path / "away.toml").write_text(AWAY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "reports"))
    return tmp_path


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    with vendor(BARS) as served:
        monkeypatch.setenv("VENDOR_URL", served.url)
        monkeypatch.setenv("VENDOR_KEY", KEY)
        yield served


def feed_of(file: str) -> OwnFeed:
    market = load_market_file(Path(file))
    source: Source = open_source(market.source, market)
    assert isinstance(source, OwnFeed)
    return source


def fill(folder: Path, first: str) -> pd.DataFrame:
    """Put the bars since a day into the vendor's folder, as `fill.py` does."""
    (folder / "vendor").mkdir(exist_ok=True)
    bars = BARS[(BARS["session"] >= first) & (BARS["session"] <= str(LAST))]
    for session, rows in bars.groupby("session"):
        file = folder / "vendor" / f"{session:%Y-%m-%d}.csv"
        rows.drop(columns=["session", "adj_close"]).to_csv(file, index=False)
    return bars


@pytest.mark.soak
def test_an_api_is_asked_with_its_key_page_by_page_and_not_too_often(
    folder: Path, api: Vendor
) -> None:
    api.page = 25
    feed = feed_of("away.toml")
    first = {"SIMX": date(2024, 4, 1), "F01A": date(2024, 6, 3), "L01": date(2024, 6, 3)}
    assert admit(feed, first, LAST) is None
    api.asked.clear()
    fetched = feed.fetch(first, LAST)
    sessions = len(sessions_between("XNYS", date(2024, 4, 1), LAST))
    assert fetched.outcomes[["symbol", "status"]].to_numpy().tolist() == [
        [symbol, "ok"] for symbol in first
    ]
    assert [place for symbol, place, _ in api.asked if symbol == "SIMX"] == [
        *range(0, sessions, api.page)
    ]
    moments = [moment for _, _, moment in api.asked]
    assert min(later - earlier for earlier, later in pairwise(moments)) > 0.045
    wanted = BARS[BARS["symbol"].eq("F01A") & BARS["session"].between("2024-06-03", str(LAST))]
    given = fetched.bars[fetched.bars["symbol"] == "F01A"]
    pd.testing.assert_frame_equal(
        given.reset_index(drop=True), wanted.reset_index(drop=True), check_exact=True
    )


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_from_an_empty_folder_the_commands_of_the_section_store_a_night(
    folder: Path, command: Command
) -> None:
    """With a year and a half of the vendor's five, and a model of 300 sessions: the program, the
    feed and the commands are those of the page, whose own years are enough for its own model.
    """
    program, night, *query = COMMANDS[0].splitlines()
    assert program == "python fill.py"
    (begins,) = re.findall(r'"session"\] >= "([0-9-]+)"', FILES["fill.py"])
    (sessions,) = re.findall(r"train_sessions = (\d+)", HOME)
    now = datetime.now(UTC).date()
    years = sessions_between("XNYS", date.fromisoformat(begins), now)
    assert len(years) > int(sessions) + 252  # for validation, and for what a window looks back
    later = now - timedelta(days=600)
    (folder / "fill.py").write_text(FILES["fill.py"].replace(begins, str(later)))
    (folder / "home.toml").write_text(HOME.replace(sessions, "300"))
    subprocess.run([sys.executable, "fill.py"], cwd=folder, check=True)
    code, said, complaint = command(*shlex.split(night)[1:])
    assert code == 0, complaint
    assert "night of " in said
    code, said, _ = command(*shlex.split("\n".join(query))[1:], "--json")
    assert len(json.loads(said)) == 30
