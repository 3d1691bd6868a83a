"""The published experiment: its data sets and their spans, the recipe of each model, and the
published figures.

They stand in `published.toml`, with where each comes from.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.errors import UsageError
from dtml.layers.network import NetworkConfig
from dtml.markets import Market, load_market
from dtml.model import ModelConfig
from dtml.training.recipe import TrainingConfig

CONFIGS: dict[str, type[NetworkConfig]] = {"dtml": ModelConfig, "stocknet": StockNetConfig}
CONFIGS |= dict.fromkeys(("lstm", "alstm", "adv_alstm"), RecurrentConfig)


@dataclass(frozen=True)
class Recipe:
    """One configuration of one network: the sessions it sees, its shape, and how it is trained."""

    window: int
    model: NetworkConfig
    training: TrainingConfig


@dataclass(frozen=True)
class Figure:
    """Published ACC and MCC, mean and standard deviation over 10 seeds (Yoo et
    al., KDD 2021, table 2).
    """

    acc: float
    acc_sd: float
    mcc: float
    mcc_sd: float


@dataclass(frozen=True)
class PublishedSet:
    """A public data set: spans of sessions predicted, both ends included, and the models trained on
    it.

    `notes` say how the public files compare with the paper's set; `data_until` is their last
    session, where they end before the test span does.
    """

    market: str
    stocks: int  # in the public files
    train: tuple[date, date]
    validation: tuple[date, date]
    test: tuple[date, date]
    recipes: Mapping[str, Recipe]
    published: Mapping[str, Figure]
    notes: tuple[str, ...] = ()
    data_until: date | None = None

    @property
    def last_session(self) -> date:
        """Return the last session that the data must reach."""
        return self.data_until or self.test[1]


def require_set(market: Market, paper: PublishedSet) -> None:
    """Raise UsageError unless the market has the set's stocks.

    They are those that the set's market lists or, where its list is of another time, as many as the
    public files hold.
    """
    listed = set(load_market(paper.market).symbols)
    named = listed if len(listed) == paper.stocks else set(market.symbols)
    if len(market.symbols) != paper.stocks or named != set(market.symbols):
        theirs = (
            f"{len(market.symbols)} stocks, {len(listed & set(market.symbols))} of them in "
            "its market's list"
        )
        ours = f"the set has {paper.stocks}: name its files with --prices and --index"
        raise UsageError(f"this is not {paper.market}'s data: {theirs}; {ours}")


def _recipe(network: str, settings: Mapping[str, Any]) -> Recipe:
    kinds: tuple[type, ...] = (CONFIGS[network], TrainingConfig)
    model, training = (
        kind(**{f.name: settings[f.name] for f in fields(kind) if f.name in settings})
        for kind in kinds
    )
    return Recipe(settings["window"], model, training)


def _read_sets() -> dict[str, PublishedSet]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    shared = tables.pop("networks")
    found = {}
    for market, table in tables.items():
        recipes = {
            name: _recipe(name, shared[name] | mine) for name, mine in table.pop("recipes").items()
        }
        published = {name: Figure(*figures) for name, figures in table.pop("published").items()}
        rest: dict[str, Any] = {
            key: tuple(each) if isinstance(each, list) else each for key, each in table.items()
        }
        found[market] = PublishedSet(market, recipes=recipes, published=published, **rest)
    return found


SETS: Mapping[str, PublishedSet] = _read_sets()


def name_of(model: NetworkConfig) -> str:
    """Return the name of a network in the published table."""
    if isinstance(model, RecurrentConfig):
        return ("adv_alstm" if model.epsilon else "alstm") if model.attention else "lstm"
    return "stocknet" if isinstance(model, StockNetConfig) else "dtml"


def grid(recipe: Recipe) -> list[Recipe]:
    """Return the published grid around DTML's recipe: window, hidden size, beta, learning rate.

    Its fifth axis, 100 or 200 epochs, is left out: the best epoch on validation is kept in any
    case.
    """
    assert isinstance(recipe.model, ModelConfig)
    axes = product((10, 15), (64, 128), (0.01, 0.1, 1.0), (1e-3, 1e-4))
    return [
        Recipe(
            window,
            replace(recipe.model, hidden=hidden, beta=beta),
            replace(recipe.training, learning_rate=rate),
        )
        for window, hidden, beta, rate in axes
    ]


def shortened(paper: PublishedSet, epochs: int | None) -> PublishedSet:
    """Return the same experiment with at most so many epochs of training: for a
    quick look, not for a table.
    """
    if epochs is None:
        return paper
    recipes = {}
    for name, recipe in paper.recipes.items():
        fewer = min(epochs, recipe.training.epochs)
        recipes[name] = replace(recipe, training=replace(recipe.training, epochs=fewer))
    return replace(paper, recipes=recipes)
