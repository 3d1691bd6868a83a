"""A data folder with a store, its models and a translator, for commands that read them all."""

from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from db.engine import open_store
from dtml.experiments import nightly_of, vary
from dtml.markets import load_market
from dtml.prices.sessions import next_session
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows.nightly.context import MarketContext
from flows.nightly.night import run_night
from tests.support.nights import SMALL, FrameSource
from tests.support.recipe import write_recipe
from translation.recipes import read_recipe
from translation.training.distributed import SINGLE_PROCESS
from translation.training.from_recipe import train_model as train_translator

MARKET = SimulatedMarket(leaders=2, followers=2, start=date(2022, 7, 1))
AS_OF = date(2024, 7, 1)


def fill_folder(folder: Path) -> None:
    """Two nights of the simulated market with six stocks, and a tiny translation model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTML_DATA", str(folder))
        patch.setenv("DTML_REPORTS", str(folder / "reports"))
        patch.delenv("DTML_DATABASE_URL", raising=False)
        engine = open_store()
        market = load_market("simulated").with_symbols(sorted(MARKET.symbols))
        model = nightly_of(market.model, z_close="adjusted", returns="adj_close", max_return=0.35)
        # The rankers need a year of outcomes.
        experiment = vary(model, SMALL | {"train_sessions": 220})
        source = FrameSource(SimulatedSource(market=MARKET).bars(date(2024, 12, 31)))
        context = MarketContext(market, source, engine, experiment, "cpu")
        for night in (AS_OF, next_session("XNYS", AS_OF)):
            run_night(context, night)
        make_translator(folder)
        engine.dispose()


def make_translator(folder: Path) -> None:
    """A tiny translation model, in its place below the data folder."""
    with TemporaryDirectory() as work:
        file = write_recipe(Path(work))
        narrow = file.read_text().replace("d_model = 32", "d_model = 16")
        file.write_text(narrow.replace("d_ff = 64", "d_ff = 32"))
        train_translator(
            read_recipe(file),
            folder / "translation",
            work=Path(work) / "work",
            device=torch.device("cpu"),
            process_group=SINGLE_PROCESS,
        )
