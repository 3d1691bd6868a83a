"""The examples of "A feed of your own", whole: a folder that a vendor fills, and an API."""

import json
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest

from dtml.markets import load_market_file
from dtml.prices.sessions import sessions_between
from tests.support.nights import BARS
from tests.support.places import ROOT

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
def folder(tmp_path, monkeypatch):
    """A folder with every file of the section."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "home.toml").write_text(HOME)
    (tmp_path / "away.toml").write_text(AWAY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "reports"))
    return tmp_path


def test_an_api_is_asked_with_its_key_page_by_page_and_not_too_often(folder, monkeypatch):
    assert load_market_file(folder / "away.toml").feed.environment == ("VENDOR_URL", "VENDOR_KEY")
    wanted = BARS[BARS["symbol"].eq("F01A") & BARS["session"].between("2024-04-01", str(LAST))]
    held = wanted.drop(columns="symbol").assign(session=wanted["session"].dt.strftime("%Y-%m-%d"))
    asked = []
    waited = []

    def answer(request, timeout):
        """The vendor gives at most 25 bars at once."""
        assert request.get_header("Authorization") == "Bearer a key"
        query = dict(parse_qsl(urlsplit(request.full_url).query))
        asked.append(query.pop("place"))
        assert query == {"symbol": "F01A", "from": "2024-04-01", "to": str(LAST)}
        begin = int(asked[-1])
        page = held.iloc[begin : begin + 25].astype(object)
        rows = page.where(page.notna(), None).to_dict("records")
        following = begin + 25 if begin + 25 < len(held) else None
        return BytesIO(json.dumps({"bars": rows, "next": following}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setenv("VENDOR_URL", "http://vendor.example")
    monkeypatch.setenv("VENDOR_KEY", "a key")
    feed = {}
    exec(FILES["api.py"], feed)
    fetched = feed["fetch"]({"F01A": date(2024, 4, 1)}, LAST)
    assert (asked, waited) == (["0", "25", "50"], [0.05] * 3)
    assert fetched.outcomes[["symbol", "status"]].to_numpy().tolist() == [["F01A", "ok"]]
    bars = fetched.bars.assign(session=pd.to_datetime(fetched.bars["session"]))[[*wanted]]
    bars = bars.astype(wanted.dtypes.to_dict())
    pd.testing.assert_frame_equal(bars, wanted.reset_index(drop=True), check_exact=True)


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_from_an_empty_folder_the_commands_of_the_section_store_a_night(folder, command):
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
