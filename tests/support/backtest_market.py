"""A small market in a file, with memberships that begin and end, and a store
that holds its bars.
"""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import Engine

from flows.markets.opened import RunRequest
from flows.nightly.context import MarketContext, open_context
from flows.nightly.fetch import fetch_bars
from flows.studies.backtest import Backtest, Plan, open_backtest
from tests.support.nights import BARS, FrameSource, apart, copy_kept, small_market
from tests.support.run_folder import made_once

FIRST, LAST = date(2024, 3, 4), date(2024, 3, 25)
MORE = """batch_days = 31
normalisation = "{normalisation}"
[constituents]
as_of = 2024-06-03
complete = true
symbols = [
  "L01", "L02", "L03", "F01A", "F01B", "F02A",
  {{symbol = "F02B", until = 2024-03-13}},
  {{symbol = "F02B", since = 2024-03-20}},
  {{symbol = "F03A", since = 2024-03-11}},
  "F03B",
]
"""
MARKET = small_market("A small market with a past", retrain=7, more=MORE)


@pytest.fixture(params=["shared"])
def run_request(
    request: pytest.FixtureRequest, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> RunRequest:
    """A run request for that market, whose bars are stored to the end of May 2024."""
    monkeypatch.setenv("DTML_DATABASE_URL", engine.url.render_as_string(hide_password=False))
    file = tmp_path / "past.toml"
    file.write_text(MARKET.format(normalisation=request.param))
    run_request = RunRequest("past", market_file=file, source="simulated", device="cpu")
    context = context_of(run_request)
    if engine.dialect.name == "sqlite":
        kept = made_once(f"past-{request.param}", lambda folder: _fetch_in(folder, context))
        copy_kept(kept, engine)
    else:
        _fetch(context)
    return run_request


def _fetch_in(folder: Path, context: MarketContext) -> None:
    with apart(folder, context) as own:
        _fetch(own)


def _fetch(context: MarketContext) -> None:
    for day in (date(2024, 1, 31), date(2024, 5, 31)):
        fetch_bars(context, day)


def context_of(run_request: RunRequest) -> MarketContext:
    """The market context of a night of that market, over the bars of `made_nights`."""
    return replace(open_context(run_request), source=FrameSource(BARS), notice=None)


def backtest_of(run_request: RunRequest, **changes: object) -> Backtest:
    """Three folds of seven sessions, or a plan with changes."""
    plan = Plan(first=FIRST, last=LAST, retrain_every=7, top=2, max_weight=0.5)
    return open_backtest(run_request, replace(plan, **changes))
