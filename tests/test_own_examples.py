"""The examples of the page on own code, whole, run as they stand."""

import re
from datetime import date
from pathlib import Path

import pytest
from made_nights import SIMULATED

from dtml.markets import load_market, load_market_file
from dtml.own.admission import admit, past_of
from dtml.own.code import OwnCode, load
from dtml.own.process import Asked

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "dtml" / "own" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = {block.split("\n")[0][2:]: block for block in BLOCKS if block.startswith("# ")}
MARKET = load_market("simulated").with_symbols(SIMULATED.market.symbols)


@pytest.mark.parametrize("name", ["mine.py", "fifty.py", "pairs.py", "windows.py"])
def test_every_file_of_the_page_is_admitted(name: str) -> None:
    past = past_of(MARKET, SIMULATED.bars(date(2023, 12, 29)))
    found = admit(Asked(OwnCode(name, FILES[name])), past, "next_close")
    assert [each["detail"] for each in found if not each["passed"]] == []
    assert found[-1]["what"] == "MODEL"


def test_fifty_features_and_boosting_take_at_most_forty_lines() -> None:
    assert len(load(OwnCode("fifty.py", FILES["fifty.py"])).features) == 50
    assert FILES["fifty.py"].count("\n") <= 40


def test_the_market_file_of_the_page_names_the_idea_beside_it(tmp_path: Path) -> None:
    (home,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "home.toml").write_text(home)
    market = load_market_file(tmp_path / "home.toml")
    assert (market.code, market.ranker) == (tmp_path / "mine.py", "own")
