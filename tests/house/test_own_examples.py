"""The examples of the page on own code, whole, and the notebook of a first analysis."""

import json
import re
from datetime import date

import numpy as np
import pytest

from benchmarks.notebook import notebook_of
from dtml.markets import load_market
from dtml.own.code import OwnCode
from dtml.own.process import IsolatedCode
from dtml.ranking.outcomes import outcomes
from dtml.ranking.panel import ranked
from dtml.ranking.walk import market_panel
from dtml.sources import simulated
from tests.support.nights import SIMULATED
from tests.support.places import ROOT

PAGE = (ROOT / "dtml" / "own" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = {block.split("\n")[0][2:]: block for block in BLOCKS if block.startswith("# ")}


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """A folder with every file of the page, and a smaller simulated market."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (home,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "home.toml").write_text(home)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulated.SimulatedSource, "market", SIMULATED.market, raising=False)
    monkeypatch.setattr(
        simulated.SimulatedSource.__init__,
        "__defaults__",
        ("XNYS", "SIMX", SIMULATED.market, "simulated"),
    )
    return tmp_path


@pytest.mark.by_quarters
@pytest.mark.soak
@pytest.mark.parametrize("name", ["mine.py", "fifty.py", "pairs.py", "windows.py"])
def test_every_file_of_the_page_scores_a_day(name):
    market = load_market("simulated").with_symbols(SIMULATED.market.symbols)
    panel = market_panel(market, SIMULATED.bars(date(2023, 12, 29)))
    relative = ranked(np.where(panel.observed, outcomes(panel, "next_close"), np.nan))
    own = IsolatedCode(OwnCode(name, FILES[name]))
    scores, _ = own.walk(panel, panel.observed, relative, [(slice(300, 420), slice(430, 432))])
    assert np.isfinite(scores[430:432]).all()


@pytest.mark.soak
def test_what_the_page_does_in_a_notebook_runs(examples, capsys):
    held = {"__name__": "page"}
    for block in BLOCKS:
        if not block.startswith("# "):
            exec(compile(block, "README.md", "exec"), held)
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Ridge:.*IC .+\[.+\], t.+ days", said[0])
    assert "pairs.py: rank IC ." in said[1]
    assert re.fullmatch("home: complete, 9 .*2024-07-02", said[2])
    assert set(held["store"].rankings("home")["predictor"]) == {
        "ridge",
        "boosting",
        "blend",
        "dtml",
        "own",
    }
    for each in ("walked", "night", "store"):
        assert "<table" in held[each]._repr_html_()
    assert "<polyline" in held["walked"]._repr_html_()
    assert "home" in held["store"]._repr_html_()


@pytest.mark.soak
def test_the_notebook_is_made_from_its_script_and_the_script_runs(examples):
    script = (ROOT / "benchmarks" / "first_analysis.py").read_text(encoding="utf-8")
    kept = json.loads((ROOT / "benchmarks" / "first_analysis.ipynb").read_text(encoding="utf-8"))
    assert kept == notebook_of(script), "write it again: python -m benchmarks.notebook"
    exec(compile(script, "first_analysis.py", "exec"), {"__name__": "analysis"})
