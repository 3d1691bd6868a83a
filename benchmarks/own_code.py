"""Measure what a user's own features cost, and whether any can see a later price.

`python -m benchmarks.own_code`: for examples of `dtml/own/README.md`, the seconds of a first pass
over 1,006 sessions of 60 simulated stocks, and those of one more session; then how many of the
tests' attempts to look ahead have another value where later bars differ. `python -m
benchmarks.own_code FILE.py STOCKS`: the first pass of one example over as many stocks.
"""

import re
import sys
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dtml.markets import load_market
from dtml.own.code import OwnCode
from dtml.own.process import IsolatedCode
from dtml.ranking.panel import Panel
from dtml.ranking.walk import market_panel
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from tests.support.own_code import LEAKS
from tests.support.own_code_leaks import LEAKS as LEAKS_BY_KIND
from tests.support.own_code_market import sees_later

PAGE = Path(__file__).parents[1] / "dtml" / "own" / "README.md"
# A block of Python on the page, whose first line is a comment that names it.
EXAMPLE = re.compile(r"^```python\n# (.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def panel_of_stocks(stocks: int) -> Panel:
    """Return four years of a simulated market of so many stocks."""
    simulated = SimulatedMarket(leaders=stocks // 3, followers=2, start=date(2020, 1, 2))
    market = load_market("simulated").with_symbols(simulated.symbols)
    return market_panel(market, SimulatedSource(market=simulated).bars(date(2023, 12, 29)))


def time_example(name: str, text: str, panel: Panel) -> None:
    """Print the seconds of all sessions but the last, and then of the last."""
    last = len(panel.sessions) - 1
    with TemporaryDirectory() as folder:
        own = IsolatedCode(OwnCode(name, text), Path(folder))
        begun = time.perf_counter()
        own.values(panel, range(last))
        once = time.perf_counter()
        own.values(panel, [last])
        night = time.perf_counter()
    print(
        f"{name}, {len(panel.symbols)} stocks: {last} sessions once {once - begun:.1f} s, "
        f"one more {night - once:.2f} s",
        flush=True,
    )


def main() -> None:
    """Print the seconds and the counts."""
    examples = dict(EXAMPLE.findall(PAGE.read_text(encoding="utf-8")))
    if sys.argv[1:]:
        name, stocks = sys.argv[1:]
        time_example(name, examples[name], panel_of_stocks(int(stocks)))
        return
    panel = panel_of_stocks(60)
    for name in ("mine.py", "fifty.py"):
        time_example(name, examples[name], panel)
    leaks = LEAKS | {name: text for each in LEAKS_BY_KIND.values() for name, text in each.items()}
    seeing = [name for name, text in leaks.items() if sees_later(text, panel)]
    print(f"{len(seeing)} of {len(leaks)} see a later price: {np.array(seeing)}")


if __name__ == "__main__":
    main()
