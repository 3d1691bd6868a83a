"""Train the models of the published experiment, and decide everything before its test span is read.

Until the scores are made, only `PublishedExperiment.read_test` loads bars of the test span, and
`flows.benchmark.results` calls it once. Models, epochs, configurations and the naive rule to beat
are chosen on the training and validation spans, which lie before it.
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
from dtml.machine import torch_build
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
    """Hold one seed of one configuration, and its figures on validation.

    A classifier has the accuracy alone: it has no loss and no epochs.
    """

    seed: int
    validation_acc: float
    validation_loss: float | None = None
    best_epoch: int | None = None
    epochs: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Trial:
    """Hold one configuration of one model, a network or a classifier, fitted with every seed.

    `window` is the length of its windows in sessions. `probability` predicts windows with all its
    members, [members days stocks].
    """

    settings: dict[str, Any]
    window: int
    members: list[TrainedMember]
    probability: Probabilities
    tried: int = 1  # settings that the fit of a classifier compared on validation
    ensemble: Ensemble | None = None  # the weights, of a network

    @property
    def validation_acc(self) -> float:
        """Return the mean accuracy over the seeds, by which a configuration is chosen."""
        return float(np.mean([member.validation_acc for member in self.members]))


@dataclass(frozen=True)
class PublishedExperiment:
    """Hold a published set, the models to train on it, and the prices before its test span.

    Prices and windows are read and built when they are first asked for.
    """

    context: MarketContext
    paper: PublishedSet
    seeds: tuple[int, ...]
    with_grid: bool = False  # whether DTML is trained with other configurations too
    # The windows of the days up to the end of validation, by their length.
    _windows: dict[int, Windows] = field(default_factory=dict, repr=False)

    @cached_property
    def known(self) -> tuple[pd.DataFrame, datetime]:
        """Return the bars up to the end of validation, and their watermark."""
        return stored_bars(self.context, date.min, self.paper.validation[1])

    @cached_property
    def last_session(self) -> date | None:
        """Return the last session that the index and at least half of the stocks reach.

        It is at most the end of the test span. It is None if the store lacks the index or more than
        half of the stocks.
        """
        with reading(self.context.engine) as conn:
            stored = prices.last_sessions(conn, self.context.name)
        stocks = self.context.market.symbols
        index = self.context.market.index.symbol
        latest_first = sorted(stored[stored.index.isin(stocks)], reverse=True)
        if index not in stored or 2 * len(latest_first) < len(stocks):
            return None
        # The last session of the stock in the middle: half of the stocks, rounded up, reach it.
        half_of_stocks = (len(stocks) + 1) // 2
        of_half_the_stocks = latest_first[half_of_stocks - 1].date()
        of_index = stored[index].date()
        return min(of_half_the_stocks, of_index, self.paper.test[1])

    def require_test_span(self) -> None:
        """Raise DtmlError unless the store holds the test span to its end.

        If the last prices of a set are not public, the end is that of the public prices.
        """
        due = self.paper.last_session
        last = self.last_session
        if last is None or last < due:
            name = self.paper.market
            index = self.context.market.index.symbol
            stored = f"has prices of {name} up to {last}"
            if last is None:
                with reading(self.context.engine) as conn:
                    has_index = index in prices.last_sessions(conn, name)
                lacking = "more than half of the stocks" if has_index else f"the index {index}"
                stored = f"lacks {lacking} of {name}"
            raise DtmlError(
                f"the store {stored}, but the test span, which is read only once, ends on {due}: "
                f"run `dtml benchmark {name} --prices FILE --index FILE` with files of the whole "
                "set"
            )

    @property
    def window(self) -> int:
        """Return the length of DTML's window, in sessions.

        Classifiers see as many sessions, and all models are scored on the days of these windows.
        """
        return self.paper.recipes["dtml"].window

    @property
    def windows(self) -> list[int]:
        """Return every length of window among the models, the longest first."""
        lengths: set[int] = set()
        for recipes in self.recipes.values():
            lengths.update(recipe.window for recipe in recipes)
        return sorted(lengths, reverse=True)

    @cached_property
    def recipes(self) -> dict[str, list[Recipe]]:
        """Return the configurations of each network, the published one first."""
        recipes = {name: [published] for name, published in self.paper.recipes.items()}
        if self.with_grid:
            published = self.paper.recipes["dtml"]
            recipes["dtml"] += [recipe for recipe in grid(published) if recipe != published]
        return recipes

    @cached_property
    def id(self) -> str:
        """Return the name of the experiment: its set, and a digest of all that decides the scores.

        Of the prices in the test span, the digest has only the last session: they are not read yet.
        """
        settings_of_recipes = {
            name: [recipe_settings(recipe) for recipe in recipes]
            for name, recipes in self.recipes.items()
        }
        settings_of_windows = [asdict(self.window_config(window)) for window in self.windows]
        spans = [self.paper.train, self.paper.validation, self.paper.test, self.last_session]
        device = choose_device(self.context.device).type
        made_by = [version("dtml-nightshift"), torch_build(), version("scikit-learn"), device]
        settings = [
            settings_of_recipes,
            settings_of_windows,
            spans,
            self.seeds,
            self.context.market.index.symbol,
            self.context.market.symbols,
            made_by,
        ]
        bars, _watermark = self.known
        row_hashes = pd.util.hash_pandas_object(bars, index=False)
        digest = hashlib.sha256(json.dumps(settings, default=str).encode())
        digest.update(row_hashes.to_numpy().tobytes())
        return f"{self.paper.market}-{digest.hexdigest()[:8]}"

    def spans(self, window: int) -> tuple[Windows, Windows]:
        """Return the training days and the validation days, in windows of this length.

        Raises DtmlError if no day of one of the two has a label.
        """
        if window not in self._windows:
            bars, _watermark = self.known
            self._windows[window] = self._build_windows(bars, window)
        windows = self._windows[window]
        train = self._days_of(windows, self.paper.train)
        validation = self._days_of(windows, self.paper.validation)
        return train, validation

    def read_test(self) -> tuple[dict[int, Windows], pd.DataFrame, datetime]:
        """Return the test days by the length of their windows, and the bars up to their end.

        The third value is the watermark of these bars. Until the scores are made, nothing else
        loads bars of the test span. Raises DtmlError if no test day has a label.
        """
        bars, known_at = stored_bars(self.context, date.min, self.paper.test[1])
        test_days: dict[int, Windows] = {}
        for window in self.windows:
            days = self._days_of(self._build_windows(bars, window), self.paper.test)
            # Without this, the day after the last bar would be the last one, with no outcome.
            has_return = days.movement.isfinite().any(dim=1)  # [days], of any stock
            day_places = has_return.nonzero()  # [days with a return, 1]
            test_days[window] = days.days(slice(int(day_places[0]), int(day_places[-1]) + 1))
        return test_days, bars, known_at

    def _days_of(self, windows: Windows, span: tuple[date, date]) -> Windows:
        """Return the days of a span; raise DtmlError if none of them has a label."""
        first, last = span
        days = windows.between(pd.Timestamp(first), pd.Timestamp(last))
        if not days.labelled("published").any():
            raise DtmlError(
                f"the store has no outcome of {self.paper.market} from {first} to {last}: run "
                f"`dtml fetch {self.paper.market} --again --prices FILE --index FILE` with files "
                "of the whole set"
            )
        return days

    def _build_windows(self, bars: pd.DataFrame, window: int) -> Windows:
        return windows_of(
            self.context, bars, self.window_config(window), self.context.market.symbols
        )

    def window_config(self, window: int) -> WindowConfig:
        """Return the settings by which the market's bars become windows of this length."""
        return replace(self.context.experiment.windows, window=window)

    def rule_directions(self, bars: pd.DataFrame, windows: Windows) -> pd.DataFrame:
        """Return the direction that each naive rule predicts for each day of these windows."""
        return directions_on(windows.as_of, bars, self.context.market.index.symbol)

    def best_rule(self) -> str:
        """Return the name of the naive rule that was best on the training span."""
        train, _validation = self.spans(self.window)
        bars, _watermark = self.known
        return choose_rule(self.rule_directions(bars, train), train.movement.numpy())


def recipe_settings(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values, for a digest or a row."""
    return {
        "window": recipe.window,
        "network": type(recipe.model).__name__,
        **asdict(recipe.model),
        **asdict(recipe.training),
    }


def train_models(
    experiment: PublishedExperiment, on_epoch: EpochReport = no_report
) -> dict[str, list[Trial]]:
    """Fit every configuration of every model with every seed, and return the trials by model.

    The logistic regression, which no seed changes, is fitted once. The training of a network that
    was interrupted resumes after the last epoch that was kept.
    """
    fits: dict[tuple[str, Recipe, int], Fit] = {}
    for window in experiment.windows:
        train, validation = experiment.spans(window)
        members = members_of(experiment, window)
        fits_of_window = fit_members(
            train,
            validation,
            list(members.values()),
            device=choose_device(experiment.context.device),
            state_folder=_state_folder(experiment.paper.market, train, validation),
            on_epoch=on_epoch,
        )
        fits.update(zip(members, fits_of_window, strict=True))
    trials: dict[str, list[Trial]] = {}
    for name, recipes in experiment.recipes.items():
        trials[name] = []
        for recipe in recipes:
            fits_of_recipe = [fits[name, recipe, seed] for seed in experiment.seeds]
            trials[name].append(_network_trial(experiment, recipe, fits_of_recipe))
    for kind in get_args(Kind):
        trials[kind] = [_train_classifier(experiment, kind)]
    return trials


def was_begun(experiment: PublishedExperiment) -> bool:
    """Return whether an earlier process left the state of a training, which then resumes."""
    device = choose_device(experiment.context.device)
    for window in experiment.windows:
        train, validation = experiment.spans(window)
        folder = _state_folder(experiment.paper.market, train, validation)
        members = members_of(experiment, window)
        if any(folder.file(member, device).exists() for member in members.values()):
            return True
    return False


def members_of(
    experiment: PublishedExperiment, window: int | None = None
) -> dict[tuple[str, Recipe, int], Member]:
    """Return the networks to train, by the model's name, the configuration and the seed.

    They are those with a window of this length, or all if `window` is None.
    """
    members: dict[tuple[str, Recipe, int], Member] = {}
    for name, recipes in experiment.recipes.items():
        for recipe in recipes:
            if window not in (None, recipe.window):
                continue
            for seed in experiment.seeds:
                members[name, recipe, seed] = Member(seed, recipe.model, recipe.training)
    return members


def _network_trial(experiment: PublishedExperiment, recipe: Recipe, fits: list[Fit]) -> Trial:
    """Return the trial of a configuration whose seeds were fitted."""
    ensemble = Ensemble(
        market=experiment.paper.market,
        symbols=experiment.context.market.symbols,
        seeds=experiment.seeds,
        model=recipe.model,
        windows=experiment.window_config(recipe.window),
        weights=stack_members(fits),
    )
    device = choose_device(experiment.context.device)

    def probability(windows: Windows) -> Float[ndarray, "members days stocks"]:
        return member_probabilities(ensemble, windows, device).double().numpy()

    return Trial(
        settings=recipe_settings(recipe),
        window=recipe.window,
        members=[_trained_member(fit) for fit in fits],
        probability=probability,
        ensemble=ensemble,
    )


def _trained_member(fit: Fit) -> TrainedMember:
    best = fit.epochs[fit.best_epoch - 1]  # epochs are numbered from 1
    return TrainedMember(
        seed=fit.member.seed,
        validation_acc=best.validation_acc,
        validation_loss=best.validation_loss,
        best_epoch=best.number,
        epochs=tuple(asdict(epoch) for epoch in fit.epochs),
    )


def _train_classifier(experiment: PublishedExperiment, kind: Kind) -> Trial:
    """Fit a classifier on DTML's windows, with every seed.

    A logistic regression has one solution, whatever the seed: it is fitted once.
    """
    train, validation = experiment.spans(experiment.window)
    seeds = experiment.seeds[:1] if kind == "logistic_regression" else experiment.seeds
    classifiers: list[Fitted] = []
    members: list[TrainedMember] = []
    for seed in seeds:
        log.info("fitting %s, seed %d", kind, seed)
        classifier = fit_classifier(kind, train, validation, "published", seed)
        classifiers.append(classifier)
        members.append(TrainedMember(seed, classifier.validation_acc))

    def probability(windows: Windows) -> Float[ndarray, "members days stocks"]:
        return np.stack([classifier.probability(windows) for classifier in classifiers])

    return Trial(
        settings={
            "window": experiment.window,
            "chosen": [dict(classifier.chosen) for classifier in classifiers],
        },
        window=experiment.window,
        members=members,
        probability=probability,
        tried=classifiers[0].tried,  # the same number for every seed
    )


def _state_folder(market: str, train: Windows, validation: Windows) -> StateFolder:
    """Return the folder from which trainings on exactly these days resume.

    Its name has a digest of the days and of the versions that compute, so that a training never
    resumes from a state of other days or versions.
    """
    versions = f"{version('dtml-nightshift')} {version('torch')}"
    digest = hashlib.sha256(versions.encode())
    for windows in (train, validation):
        for values in (windows.rows(), windows.observed, windows.movement):
            digest.update(values.contiguous().numpy().tobytes())
    name = f"paper-{market}-{train.window}-{digest.hexdigest()[:8]}"
    return StateFolder(data_folder() / "training" / name, write_whole)
