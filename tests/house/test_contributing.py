"""The examples of CONTRIBUTING.md, whole: a market, a source, a model and a view of one's own."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from jaxtyping import Bool, Float, Int
from sqlalchemy import text
from torch import Tensor, nn

from dtml.features import FEATURES
from dtml.markets import load_market_file
from dtml.network import Batch, Network, NetworkConfig, cross_entropy
from dtml.prices.bars import BAR_COLUMNS
from dtml.prices.sessions import sessions_between
from dtml.sources import OUTCOME_COLUMNS, Fetched, Source
from dtml.training import Member, TrainingConfig, fit_members
from flows.nightly.context import MarketContext
from flows.nightly.fetch import fetch_bars
from tests.support.places import ROOT

DAY = date(2024, 7, 1)
NAMED = re.compile(r"`((?:dtml|db|flows|tests|benchmarks)/[\w/.]+|[A-Z]+\.md|\w+\.(?:toml|txt))`")

MARKET = """
title = "Home"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
source = "simulated"
[index]
symbol = "SIMX"
name = "Index of home"
[constituents]
as_of = 2024-01-02
symbols = ["L01", "F01A"]
"""

VIEW = """-- How many predictions each session has: one row per market and session.
--
-- market  text     Name of the market.
-- target  date     Session predicted.
-- n       integer  Predictions for it, of every model.
select r.market, p.target, count(*) as n
from prediction p join run r on r.id = p.run_id
group by r.market, p.target
"""


@dataclass(frozen=True)
class Ladder:
    """A source whose prices rise by one a session, from a hundred a letter of the symbol."""

    name: str = "ladder"

    def symbols(self) -> list[str] | None:
        return ["ONE", "TWO"]

    def last_session(self) -> date | None:
        return None

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        bars = [self._bars(symbol, since, last) for symbol, since in first.items()]
        said = [(symbol, "ok", len(each), "") for symbol, each in zip(first, bars, strict=True)]
        return Fetched(
            pd.concat(bars, ignore_index=True), pd.DataFrame(said, columns=list(OUTCOME_COLUMNS))
        )

    def _bars(self, symbol: str, since: date, last: date) -> pd.DataFrame:
        sessions = sessions_between("XNYS", since, last)
        close = 100.0 * len(symbol) + np.arange(len(sessions))
        prices = dict.fromkeys(("open", "high", "low", "close", "adj_close"), close)
        told = prices | {
            "symbol": symbol,
            "session": sessions,
            "volume": 1.0,
            "dividend": np.nan,
            "split": np.nan,
        }
        return pd.DataFrame(told)[list(BAR_COLUMNS)]


@dataclass(frozen=True)
class LastSessionConfig(NetworkConfig):
    """The shape of `LastSession`, which has none."""

    def build(self, stocks: int) -> "LastSession":  # noqa: ARG002 - the same for any number of stocks
        return LastSession()


class LastSession(Network):
    """A straight line over the features of a stock's last session."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(len(FEATURES), 1)

    def logits(
        self,
        rows: Float[Tensor, "sessions symbols features"],
        windows: Int[Tensor, "days window"],
        observed: Bool[Tensor, "days stocks"],  # noqa: ARG002 - no stock sees another
    ) -> Float[Tensor, "days stocks"]:
        scores: Tensor = self.line(rows[windows[:, -1], :-1]).squeeze(-1)
        return scores

    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        fit = cross_entropy(
            self.logits(batch.rows, batch.windows, batch.observed), batch.rises, batch.counted
        )
        return fit + penalty * self.line.weight.square().sum()


def test_a_market_is_a_file(tmp_path: Path) -> None:
    (file := tmp_path / "home.toml").write_text(MARKET)
    market = load_market_file(file)
    assert (market.name, market.symbols, market.index.symbol) == ("home", ("L01", "F01A"), "SIMX")


def test_a_source_is_four_methods(context: MarketContext) -> None:
    source: Source = Ladder()
    mine = replace(
        context, source=source, market=context.market.with_symbols(source.symbols() or [])
    )
    caught = fetch_bars(mine, DAY)
    assert caught.failures.empty
    with context.engine.connect() as conn:
        told = conn.execute(text("select distinct source from price")).scalars().all()
        last = conn.execute(
            text("select symbol, close from price_latest where session = :day"), {"day": DAY}
        ).all()
    assert told == ["ladder"]
    assert {symbol for symbol, _ in last} == {"ONE", "TWO", context.market.index.symbol}


@pytest.mark.soak
@pytest.mark.slow
def test_a_model_learns_what_there_is_to_learn() -> None:
    from tests.support.windows import random_windows

    train, validation = random_windows(60), random_windows(30, seed=1)
    for windows in (train, validation):  # tomorrow is as the first feature of today
        windows.movement.copy_(0.02 * windows.stocks[:, :, -1, 0].sign())
    recipe = TrainingConfig(
        protocol="all", epochs=30, learning_rate=0.05, batch_days=10, first_kept_epoch=1
    )
    fits = fit_members(
        train,
        validation,
        [Member(seed, LastSessionConfig(), recipe) for seed in (0, 1)],
        device=torch.device("cpu"),
    )
    for fit in fits:
        assert max(epoch.validation_acc for epoch in fit.epochs) > 0.9


@pytest.mark.soak
def test_a_view_is_a_file_and_the_dictionary(tmp_path: Path) -> None:
    """In a copy of the house, whose own tests then hold."""
    for room in ("db", "dtml", "flows", "translation", "tests", "benchmarks"):
        shutil.copytree(
            ROOT / room,
            tmp_path / room,
            ignore=shutil.ignore_patterns("__pycache__", "screenshots"),
        )
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    (tmp_path / "db" / "views" / "busiest_session.sql").write_text(VIEW)
    page = tmp_path / "db" / "README.md"
    page.write_text(page.read_text() + "\n`busiest_session`\n")
    printed = ran(tmp_path, "-c", "from flows.cli import main; main()", "db", "dictionary")
    assert "**`busiest_session`** (view)" in printed
    files = [
        f"tests/{name}.py"
        for name in ("stores/test_schema", "stores/test_view_files", "house/test_readmes")
    ]
    about = "db_ or dictionary or every_market"  # a page of pictures is not copied
    told = ran(
        tmp_path, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", *files, "-k", about
    )
    assert re.search(r"\d+ passed", told), told


def ran(folder: Path, *words: str) -> str:
    """What Python prints in a folder, whose packages come first."""
    own = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_contributing_names_what_is_there() -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    for name in re.findall(
        r"`((?:dtml|db|flows|tests|benchmarks)/[\w/.]+|[A-Z]+\.md|\w+\.(?:toml|txt))`",
        "\n".join(lines),
    ):
        assert name == "home.toml" or (ROOT / name).exists(), name
    own = Path(__file__).read_text(encoding="utf-8")
    for name in ("MARKET", "Ladder", "LastSession", "VIEW"):
        assert f"the example `{name}`" in " ".join(lines)
        assert name in own
