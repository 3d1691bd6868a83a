"""Train the models of the published experiment, and decide everything before its test span is read.

Only `PublishedExperiment.read_test` loads bars of the test span, and `flows.benchmark.results`
calls it once: models, epochs, configurations and the rule to beat are chosen on the spans before
it.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from importlib.metadata import version
from typing import Any, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from db.engine import reading
from db.rows import prices
from dtml.baselines.classifiers import Fitted, Kind, fit_classifier
from dtml.baselines.naive_rules import choose_rule, directions_on
from dtml.checkpoints import Ensemble
from dtml.errors import DtmlError
from dtml.inference import choose_device, member_probabilities
from dtml.published import PublishedSet, Recipe, grid
from dtml.training.fit import EpochReport, fit_members, no_report, stack_members
from dtml.training.recipe import Member
from dtml.training.state import Fit, StateFolder
from dtml.windows import WindowConfig, Windows
from flows.nightly.context import MarketContext, stored_bars
from flows.nightly.train import windows_of
from flows.settings import data_folder
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)

Probabilities = Callable[[Windows], Float[ndarray, "members days stocks"]]


@dataclass(frozen=True)
class TrainedMember:
    """Hold one seed of one configuration, and how it did on validation."""

    seed: int
    validation_acc: float
    validation_loss: float | None = None
    best_epoch: int | None = None
    epochs: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Trial:
    """Hold one configuration of one model, fitted with every seed: networks and
    classifiers alike.
    """

    settings: dict[str, Any]
    window: int
    members: list[TrainedMember]
    probability: Probabilities
    tried: int = 1  # configurations that a fit compared on validation
    ensemble: Ensemble | None = None  # the weights, of a network

    @property
    def validation_acc(self) -> float:
        """Return the mean over the seeds, by which a configuration is chosen."""
        return float(np.mean([member.validation_acc for member in self.members]))


@dataclass(frozen=True)
class PublishedExperiment:
    """Hold a set, the models to train on it, and what is known before its test span."""

    context: MarketContext
    paper: PublishedSet
    seeds: tuple[int, ...]
    with_grid: bool = False
    _windows: dict[int, Windows] = field(default_factory=dict, repr=False)

    @cached_property
    def known(self) -> tuple[pd.DataFrame, datetime]:
        """Return the bars up to the end of validation, and their watermark."""
        return stored_bars(self.context, date.min, self.paper.validation[1])

    @cached_property
    def last_session(self) -> date | None:
        """Return the last session of the prices that will be read: half of the
        stocks and the index reach it.
        """
        with reading(self.context.engine) as conn:
            stored = prices.last_sessions(conn, self.context.name)
        stocks, index = self.context.market.symbols, self.context.market.index.symbol
        reached = sorted(stored[stored.index.isin(stocks)], reverse=True)
        if index not in stored or 2 * len(reached) < len(stocks):
            return None
        return min(reached[(len(stocks) - 1) // 2].date(), stored[index].date(), self.paper.test[1])

    def require_test_span(self) -> None:
        """Raise DtmlError unless the store holds the test span to its end, or
        to the end of what is public of it.
        """
        due, last = self.paper.last_session, self.last_session
        if last is None or last < due:
            held = "no prices" if last is None else f"prices up to {last}"
            raise DtmlError(
                f"the store holds {held} of {self.paper.market}, and a test span is read once and "
                f"whole, up to {due}: "
                "fetch the whole set, with --prices and --index"
            )

    @property
    def window(self) -> int:
        """Return the window of DTML: classifiers see as many sessions, and
        scores are of its days.
        """
        return self.paper.recipes["dtml"].window

    @property
    def windows(self) -> list[int]:
        """Return every length of window among the models, the longest first."""
        return sorted(
            {recipe.window for recipes in self.recipes.values() for recipe in recipes}, reverse=True
        )

    @cached_property
    def recipes(self) -> dict[str, list[Recipe]]:
        """Return the configurations of each network, the published one first."""
        return {
            name: [recipe, *(other for other in grid(recipe) if other != recipe)]
            if self.with_grid and name == "dtml"
            else [recipe]
            for name, recipe in self.paper.recipes.items()
        }

    @cached_property
    def id(self) -> str:
        """Return a name that ends in a digest of all that decides the scores;
        of the test span, its last session.
        """
        recipes = {
            name: [recipe_settings(each) for each in trials]
            for name, trials in self.recipes.items()
        }
        spans = [self.paper.train, self.paper.validation, self.paper.test, self.last_session]
        device = choose_device(self.context.device).type
        made_by = [version("dtml-nightshift"), version("torch"), version("scikit-learn"), device]
        configs = [asdict(self.window_config(window)) for window in self.windows]
        said = [
            recipes,
            configs,
            spans,
            self.seeds,
            self.context.market.index.symbol,
            self.context.market.symbols,
            made_by,
        ]
        digest = hashlib.sha256(json.dumps(said, default=str).encode())
        digest.update(pd.util.hash_pandas_object(self.known[0], index=False).to_numpy().tobytes())
        return f"{self.paper.market}-{digest.hexdigest()[:8]}"

    def spans(self, window: int) -> tuple[Windows, Windows]:
        """Return training and validation days, for models that see so many sessions."""
        if window not in self._windows:
            self._windows[window] = self._built(self.known[0], window)
        windows = self._windows[window]
        train, validation = (
            self._some(windows, span) for span in (self.paper.train, self.paper.validation)
        )
        return train, validation

    def read_test(self) -> tuple[dict[int, Windows], pd.DataFrame, datetime]:
        """Read the test days for each length of window, the bars and their
        watermark: nothing else loads them.
        """
        bars, known_at = stored_bars(self.context, date.min, self.paper.test[1])
        found = {
            window: self._some(self._built(bars, window), self.paper.test)
            for window in self.windows
        }
        return {window: _with_outcomes(days) for window, days in found.items()}, bars, known_at

    def _some(self, windows: Windows, span: tuple[date, date]) -> Windows:
        """Return the days of a span, of which some must have a label."""
        found = windows.between(*map(pd.Timestamp, span))
        if not found.labelled("paper").any():
            raise DtmlError(
                f"the store holds no outcome of {self.paper.market} from {span[0]} to {span[1]}: "
                "fetch the whole set, with --prices and --index"
            )
        return found

    def _built(self, bars: pd.DataFrame, window: int) -> Windows:
        return windows_of(
            self.context, bars, self.window_config(window), self.context.market.symbols
        )

    def window_config(self, window: int) -> WindowConfig:
        """Return how the market's bars become windows of this length."""
        return replace(self.context.experiment.windows, window=window)

    def rule_directions(self, bars: pd.DataFrame, windows: Windows) -> pd.DataFrame:
        """Return what each naive rule says of each day of these windows."""
        return directions_on(windows.as_of, bars, self.context.market.index.symbol)

    def best_rule(self) -> str:
        """Return the naive rule that was best on the training span."""
        train, _ = self.spans(self.window)
        return choose_rule(self.rule_directions(self.known[0], train), train.movement.numpy())


def _with_outcomes(windows: Windows) -> Windows:
    """Return the days from the first to the last with a known return: none follows the last bar."""
    known = windows.movement.isfinite().any(dim=1).nonzero()
    return windows.days(slice(int(known[0]), int(known[-1]) + 1))


def recipe_settings(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values, for a digest or a row."""
    model = asdict(recipe.model)
    return {
        "window": recipe.window,
        "network": type(recipe.model).__name__,
        **model,
        **asdict(recipe.training),
    }


def train_models(
    experiment: PublishedExperiment, on_epoch: EpochReport = no_report
) -> dict[str, list[Trial]]:
    """Fit every configuration of every model with every seed; when interrupted,
    resume where it stopped.
    """
    networks = _train_networks(experiment, on_epoch)
    return networks | {kind: [_train_classifier(experiment, kind)] for kind in get_args(Kind)}


def was_begun(experiment: PublishedExperiment) -> bool:
    """Return whether an earlier process left the state of a training: then
    nobody has measured all of it.
    """
    device = choose_device(experiment.context.device)
    for window in experiment.windows:
        train, validation = experiment.spans(window)
        folder, members = (
            _state_folder(experiment.paper.market, train, validation),
            members_of(experiment, window),
        )
        if any(folder.file(member, device).exists() for member in members.values()):
            return True
    return False


def members_of(
    experiment: PublishedExperiment, window: int | None = None
) -> dict[tuple[str, Recipe, int], Member]:
    """Return the networks that see so many sessions (None: all), by model,
    configuration and seed.
    """
    return {
        (name, recipe, seed): Member(seed, recipe.model, recipe.training)
        for name, recipes in experiment.recipes.items()
        for recipe in recipes
        for seed in experiment.seeds
        if window in (None, recipe.window)
    }


def _train_networks(
    experiment: PublishedExperiment, on_epoch: EpochReport
) -> dict[str, list[Trial]]:
    """Train the networks of every window; those of one window side by side."""
    fits: dict[tuple[str, Recipe, int], Fit] = {}
    for window in experiment.windows:
        train, validation = experiment.spans(window)
        mine = members_of(experiment, window)
        found = fit_members(
            train,
            validation,
            list(mine.values()),
            device=choose_device(experiment.context.device),
            state_folder=_state_folder(experiment.paper.market, train, validation),
            on_epoch=on_epoch,
        )
        fits |= dict(zip(mine, found, strict=True))
    return {
        name: [
            _network_trial(
                experiment, recipe, [fits[name, recipe, seed] for seed in experiment.seeds]
            )
            for recipe in recipes
        ]
        for name, recipes in experiment.recipes.items()
    }


def _network_trial(experiment: PublishedExperiment, recipe: Recipe, fits: list[Fit]) -> Trial:
    config = experiment.window_config(recipe.window)
    symbols = experiment.context.market.symbols
    ensemble = Ensemble(
        experiment.paper.market,
        symbols,
        experiment.seeds,
        recipe.model,
        config,
        stack_members(fits),
    )
    device = choose_device(experiment.context.device)
    members = []
    for fit in fits:
        best = fit.epochs[fit.best_epoch - 1]
        epochs = tuple(asdict(epoch) for epoch in fit.epochs)
        members.append(
            TrainedMember(
                fit.member.seed, best.validation_acc, best.validation_loss, best.number, epochs
            )
        )
    return Trial(
        recipe_settings(recipe),
        recipe.window,
        members,
        ensemble=ensemble,
        probability=lambda windows: (
            member_probabilities(ensemble, windows, device).double().numpy()
        ),
    )


def _train_classifier(experiment: PublishedExperiment, kind: Kind) -> Trial:
    """Fit a classifier on DTML's windows; a logistic regression has one
    solution, whatever the seed.
    """
    train, validation = experiment.spans(experiment.window)
    seeds = experiment.seeds[:1] if kind == "logistic_regression" else experiment.seeds
    fitted: list[Fitted] = []
    for seed in seeds:
        log.info("fitting %s, seed %d", kind, seed)
        fitted.append(fit_classifier(kind, train, validation, "paper", seed))
    return Trial(
        settings={"window": experiment.window, "chosen": [dict(each.chosen) for each in fitted]},
        window=experiment.window,
        tried=fitted[0].tried,
        members=[
            TrainedMember(seed, each.validation_acc)
            for seed, each in zip(seeds, fitted, strict=True)
        ],
        probability=lambda windows: np.stack([each.probability(windows) for each in fitted]),
    )


def _state_folder(market: str, train: Windows, validation: Windows) -> StateFolder:
    """Return where trainings on exactly these days keep their state, to resume from."""
    digest = hashlib.sha256(f"{version('dtml-nightshift')} {version('torch')}".encode())
    for windows in (train, validation):
        for values in (windows.rows(), windows.observed, windows.movement):
            digest.update(values.contiguous().numpy().tobytes())
    folder = data_folder() / "training" / f"paper-{market}-{train.window}-{digest.hexdigest()[:8]}"
    return StateFolder(folder, write_whole)
