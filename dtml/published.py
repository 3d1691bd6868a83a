"""The published experiment, from `published.toml`: data sets, recipes, published figures."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from itertools import product
from pathlib import Path

from dtml.errors import UsageError
from dtml.markets import Market, load_market
from dtml.model import ModelConfig
from dtml.network import NetworkConfig
from dtml.networks import NETWORKS
from dtml.training import TrainingConfig, settings_of
from translation.definitions import refuse_unknown


@dataclass(frozen=True)
class Recipe:
    """One configuration of one network: the sessions it sees, its shape, and how it is trained."""

    window: int
    model: NetworkConfig
    training: TrainingConfig


@dataclass(frozen=True)
class Figure:
    """Published ACC and MCC, mean and sd over 10 seeds (table 2 of Yoo et al., KDD 2021)."""

    acc: float
    acc_sd: float
    mcc: float
    mcc_sd: float


@dataclass(frozen=True)
class PublishedSet:
    """A public data set and the models trained on it.

    Spans are of the sessions predicted, both ends included. `recipes` and `published` are by
    network. `notes` compare the files with the paper's set; `data_until` is their end, if before
    the test's.
    """

    market: str
    stocks: int  # in the public files
    train: Sequence[date]
    validation: Sequence[date]
    test: Sequence[date]
    recipes: Mapping[str, Recipe]
    published: Mapping[str, Figure]
    notes: Sequence[str] = ()
    data_until: date | None = None

    @property
    def last_session(self) -> date:
        """Return the last session that the data must reach."""
        return self.data_until or self.test[1]


def require_set(market: Market, published_set: PublishedSet) -> None:
    """Raise UsageError unless the market has the stocks of the set's own market.

    If that list is of another time than the files, only the number of stocks in these is compared.
    """
    listed = set(load_market(published_set.market).symbols)
    symbols = set(market.symbols)
    has_number = len(market.symbols) == published_set.stocks
    is_list_of_files = len(listed) == published_set.stocks
    if not has_number or (is_list_of_files and listed != symbols):
        raise UsageError(
            f"the prices are not those of the data set {published_set.market}: they have "
            f"{len(market.symbols)} stocks, {len(listed & symbols)} of them in the list of its "
            f"market, and the set has {published_set.stocks}; give the files of the set with "
            "--prices and --index"
        )


def _read_sets() -> dict[str, PublishedSet]:
    """Return the sets in `published.toml` by market; its table `networks` has shared settings."""
    file = Path(__file__).with_suffix(".toml")
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    shared = tables.pop("networks")
    sets = {}
    for market, table in tables.items():
        recipes = {}
        for network, own in table.pop("recipes").items():
            model, settings = NETWORKS[network], shared.get(network, {}) | own
            known = (each.name for kind in (model, TrainingConfig) for each in fields(kind))
            refuse_unknown(settings, ["window", *known])
            recipes[network] = Recipe(
                window=settings["window"],
                model=replace(model, **settings_of(model, settings)),
                training=TrainingConfig(**settings_of(TrainingConfig, settings)),
            )
        published = {name: Figure(*figures) for name, figures in table.pop("published").items()}
        sets[market] = PublishedSet(market, recipes=recipes, published=published, **table)
    return sets


SETS: Mapping[str, PublishedSet] = _read_sets()


def grid(recipe: Recipe) -> list[Recipe]:
    """Return the published grid around DTML's recipe: window, hidden size, beta, learning rate.

    Its fifth axis, 100 or 200 epochs, is left out: the best epoch on validation is kept.
    """
    assert isinstance(recipe.model, ModelConfig)
    windows = (10, 15)
    hidden_sizes = (64, 128)
    betas = (0.01, 0.1, 1.0)
    learning_rates = (1e-3, 1e-4)
    recipes = []
    for window, hidden, beta, rate in product(windows, hidden_sizes, betas, learning_rates):
        model = replace(recipe.model, hidden=hidden, beta=beta)
        training = replace(recipe.training, learning_rate=rate)
        recipes.append(Recipe(window=window, model=model, training=training))
    return recipes


def shortened(published_set: PublishedSet, epochs: int | None) -> PublishedSet:
    """Return the same experiment with at most `epochs` epochs (None: no limit)."""
    if epochs is None:
        return published_set
    recipes = {}
    for name, recipe in published_set.recipes.items():
        fewer = min(epochs, recipe.training.epochs)
        recipes[name] = replace(recipe, training=replace(recipe.training, epochs=fewer))
    return replace(published_set, recipes=recipes)
