"""A small market with every night at hand, for tests of the stages of a night."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from hashlib import sha256
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import Engine, text

from db.engine import open_engine, reading, upgrade
from dtml.experiments import nightly_of, vary
from dtml.markets import load_market
from dtml.sources import Fetched
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows.nightly.context import MarketContext
from flows.nightly.night import run_night
from flows.replay import Archive, Receipt
from flows.settings import data_folder, reports_folder
from tests.support.run_folder import made_once

AS_OF = date(2024, 7, 1)
SMALL = {
    "window": 3,
    "hidden": 8,
    "heads": 2,
    "epochs": 2,
    "first_kept_epoch": 1,
    "seeds": 2,
    "train_sessions": 90,
    "validation_sessions": 19,
    "batch_days": 31,
}
SIMULATED = SimulatedSource(market=SimulatedMarket(leaders=3, followers=2, start=date(2022, 1, 3)))
BARS = SIMULATED.bars(date(2024, 12, 31))


@dataclass
class FrameSource:
    """Bars of a frame, and what was asked for."""

    bars: pd.DataFrame
    name: str = "simulated"
    asked: list[Mapping[str, date]] = field(default_factory=list)

    def symbols(self) -> list[str]:
        return list(SIMULATED.market.symbols)

    def last_session(self) -> date | None:
        return None

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        self.asked.append(dict(first))
        start = self.bars["symbol"].map(
            {symbol: pd.Timestamp(day) for symbol, day in first.items()}
        )
        chosen = self.bars[
            (self.bars["session"] >= start) & (self.bars["session"] <= pd.Timestamp(last))
        ]
        rows = [int((chosen["symbol"] == symbol).sum()) for symbol in first]
        status = ["ok" if count else "no_data" for count in rows]
        outcomes = pd.DataFrame(
            {"symbol": list(first), "status": status, "rows": rows, "detail": "nothing there"}
        )
        return Fetched(chosen.reset_index(drop=True), outcomes)


@dataclass
class LimitedSource(FrameSource):
    """A source that says to wait where `limited`, given how often it was asked, is true."""

    limited: Callable[[int], bool] = lambda asked: asked > 1

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        whole = super().fetch(first, last)
        if not self.limited(len(self.asked)):
            return whole
        return Fetched(whole.bars.iloc[:0], whole.outcomes.assign(status="rate_limited", rows=0))


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "reports"))


@pytest.fixture
def context(engine: Engine) -> MarketContext:
    market = load_market("simulated").with_symbols(sorted(SIMULATED.market.symbols))
    experiment = vary(
        nightly_of(market.model, z_close="adjusted", returns="adj_close", max_return=0.35), SMALL
    )
    return MarketContext(market, FrameSource(BARS), engine, experiment, "cpu")


@pytest.fixture
def ranking_context(context: MarketContext) -> MarketContext:
    """The same market with history enough for rankers."""
    return replace(context, experiment=vary(context.experiment, {"train_sessions": 270}))


def after_nights(context: MarketContext, *days: date) -> None:
    """Run these nights as the first of a market's store, or copy the store and folders of a process
    that ran them.

    They are copied on SQLite alone, and only while the market's source gives the bars of this
    module.
    """
    untouched = (
        isinstance(context.source, FrameSource)
        and context.source.bars is BARS
        and not context.source.asked
    )
    if context.engine.dialect.name != "sqlite" or not untouched:
        for day in days:
            run_night(context, day)
        return
    told = repr((context.market, context.experiment, days))
    kept = made_once(
        f"nights-{sha256(told.encode()).hexdigest()[:16]}",
        lambda folder: _run_in(folder, context, days),
    )
    copy_kept(kept, context.engine)


def copy_kept(kept: Path, engine: Engine) -> None:
    """Give a test the store and the folders that `apart` left in a folder; on SQLite alone."""
    with (
        closing(sqlite3.connect(kept / "store.sqlite")) as made,
        closing(_connected(engine)) as own,
    ):
        made.backup(own)
    shutil.copytree(kept / "data", data_folder(), dirs_exist_ok=True)
    shutil.copytree(kept / "reports", reports_folder(), dirs_exist_ok=True)


@contextmanager
def apart(folder: Path, context: MarketContext) -> Iterator[MarketContext]:
    """The same market with a store and folders of its own, all in one folder."""
    for name in ("data", "reports"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    engine = open_engine(f"sqlite:///{folder / 'store.sqlite'}")
    upgrade(engine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTML_DATA", str(folder / "data"))
        patch.setenv("DTML_REPORTS", str(folder / "reports"))
        yield replace(context, engine=engine, source=FrameSource(BARS))
    engine.dispose()


def _run_in(folder: Path, context: MarketContext, days: tuple[date, ...]) -> None:
    """Run the last night of a market after those before it, in a store and folders of their own."""
    *before, last = days
    with apart(folder, context) as own:
        if before:
            after_nights(own, *before)
        run_night(own, last)


def _connected(engine: Engine) -> sqlite3.Connection:
    return sqlite3.connect(str(engine.url.database))


@pytest.fixture
def archive(reader: Engine) -> Archive:
    """The past of that market in the store of the test."""
    return Archive(reader, load_market("simulated"), "cpu")


def small_market(
    title: str = "A small market",
    source: str = "simulated",
    retrain: str | int = '"missing"',
    more: str = "",
) -> str:
    """The text of a market's file with such settings; `more` goes on from them."""
    return f"""
title = "{title}"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
source = "{source}"
retrain = {retrain}
[index]
symbol = "SIMX"
name = "An index"
[model]
window = 3
hidden = 8
heads = 2
epochs = 2
first_kept_epoch = 1
seeds = 2
train_sessions = 90
validation_sessions = 19
{more}
"""


def without(bars: pd.DataFrame, symbols: list[str], day: date = AS_OF) -> pd.DataFrame:
    return bars[~(bars["symbol"].isin(symbols) & (bars["session"] == pd.Timestamp(day)))]


def receipt_of(context: MarketContext, symbol: str) -> Receipt:
    """The receipt that the view shows, of the last night."""
    with reading(context.engine) as conn:
        shown = conn.execute(
            text("select receipt from latest_prediction where symbol = :symbol"), {"symbol": symbol}
        )
        return Receipt.read(shown.scalar_one())
