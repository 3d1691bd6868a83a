"""The rankers of a market's nights: fitted together, stored together, asked for a day's ranking."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy import ndarray
from pydantic import TypeAdapter, ValidationError

from dtml.checkpoints import read_checkpoint
from dtml.errors import DtmlError, one_line
from dtml.evaluation.splits import Split, hold_out
from dtml.markets.definition import FeatureSet
from dtml.networks import NETWORKS
from dtml.own.code import OwnCode
from dtml.own.process import Fitted
from dtml.ranking.features import FEATURE_SETS
from dtml.ranking.models import (
    Boosting,
    BoostingConfig,
    Ranker,
    Ridge,
    RidgeConfig,
    blend,
    fit_boosting,
    fit_ridge,
)
from dtml.ranking.outcomes import Leg, sessions_to
from dtml.ranking.panel import Features, There, places, ranked
from dtml.ranking.relative import CPU, Relative, RelativeConfig, fit_relative
from dtml.ranking.walk import MINIMUM_TRAIN_DAYS, History
from translation import artifacts
from translation.artifacts import prefixed, under

VALIDATION_DAYS = 126  # the last days before a training, from which probabilities are measured
BLEND = "blend"
RELATIVE = "dtml_relative"  # `dtml` ranks by the probability of a rise
BLEND_RELATIVE = "blend_relative"  # the blend of ridge, boosting and `dtml_relative`
KINDS: Mapping[str, type[Ranker]] = {"ridge": Ridge, "boosting": Boosting}
PerStock = Float[ndarray, "days stocks"]
Scores = dict[str, PerStock]
Train = Callable[[], PerStock]


@dataclass(frozen=True)
class RankersConfig:
    """All settings of a market's rankers; the leg is the return whose ranking they learn.

    Networks, which train for minutes, are used only when named.
    """

    leg: Leg = "next_close"
    ridge: RidgeConfig = field(default_factory=RidgeConfig)
    boosting: BoostingConfig = field(default_factory=BoostingConfig)
    networks: tuple[RelativeConfig, ...] = ()

    @classmethod
    def for_rankers(cls, leg: Leg, *rankers: str) -> "RankersConfig":
        """Return settings with the networks that these rankers or blends need, and no others."""
        needed = {RELATIVE if name == BLEND_RELATIVE else name for name in rankers}
        networks = map(RelativeConfig.for_network, NETWORKS)
        return cls(leg, networks=tuple(each for each in networks if each.name in needed))

    @property
    def folds_per_training(self) -> dict[str, int]:
        """Return, for each model but blends, how many folds in a row a training serves."""
        folds = dict.fromkeys(KINDS, 1)
        for network in self.networks:
            folds[network.name] = network.folds
        return folds


@dataclass(frozen=True)
class Rankers:
    """Fitted rankers by name, and the slope of the probabilities of each and of their blends.

    Rank r within the day, in [-0.5, 0.5], is above its median with probability 1 / (1 + exp(-slope
    * r)).
    """

    models: Mapping[str, Ranker | Relative]
    slopes: Mapping[str, float]
    own: Fitted | None = None  # a user's own code, which runs in a separate process

    def scores(self, features: Features, there: There, days: slice) -> Scores:
        """Return the scores of some days, [days stocks], by ranker and blend, not of `own` code.

        `features` and `there` cover all sessions; NaN where not `there`.
        """
        scores = {
            name: _scores(model, features, there, days) for name, model in self.models.items()
        }
        return _blended(scores)


def fit_rankers(history: History, config: RankersConfig, device: torch.device = CPU) -> Rankers:
    """Fit every ranker on all days of a history whose outcomes are known; networks by a device.

    Slopes are measured on the last `VALIDATION_DAYS`, by rankers fitted before. Raises DtmlError
    for too short a history.
    """
    split, whole = spans_of(history)
    earlier_rankers = Rankers(_fit_all(history, split.trained, config, device), slopes={})
    relative = history.relative[split.scored]
    scores_by_name = earlier_rankers.scores(history.features, history.there, split.scored)
    slopes = {name: slope_of(ranked(scores), relative) for name, scores in scores_by_name.items()}
    return Rankers(_fit_all(history, whole, config, device), slopes)


def _fit_all(
    history: History, days: slice, config: RankersConfig, device: torch.device
) -> dict[str, Ranker | Relative]:
    return {name: _fit(name, history, days, config, device) for name in config.folds_per_training}


def spans_of(history: History) -> tuple[Split, slice]:
    """Return a split to measure slopes on, and all days up to the last outcome.

    It scores the last `VALIDATION_DAYS` with an outcome. Raises DtmlError for too few before.
    """
    has_outcome = np.isfinite(history.relative).any(axis=1)
    known_days = np.flatnonzero(has_outcome)
    stop = int(known_days[-1]) + 1 if len(known_days) else 0
    split = hold_out(stop, VALIDATION_DAYS, horizon=sessions_to(history.leg))
    if split.trained.stop < MINIMUM_TRAIN_DAYS:
        between = sessions_to(history.leg)
        raise DtmlError(
            f"{stop} sessions have a known outcome, but rankers need "
            f"{MINIMUM_TRAIN_DAYS + between + VALIDATION_DAYS}: {MINIMUM_TRAIN_DAYS} to train on, "
            f"{between} left out and the last {VALIDATION_DAYS} for validation. Fetch a longer "
            "history or choose a later day; if [model] of the market's file sets train_sessions, "
            "which limits the history that is read, raise it"
        )
    return split, slice(0, stop)


def _fit(
    name: str, history: History, days: slice, config: RankersConfig, device: torch.device
) -> Ranker | Relative:
    if name == "ridge":
        return fit_ridge(*history.rows(days), config.ridge)
    if name == "boosting":
        return fit_boosting(*history.rows(days), config.boosting)
    network = next(network for network in config.networks if network.name == name)
    return fit_relative(history, days, network, device)


def _scores(model: Ranker | Relative, features: Features, there: There, days: slice) -> PerStock:
    if isinstance(model, Relative):
        return model.scores(features, there, days)
    observed = there[days]
    scores = np.full(observed.shape, np.nan)
    scores[observed] = model.score(features[days][observed])
    return scores


def _blended(scores: Scores) -> Scores:
    blended = dict(scores)
    blended[BLEND] = blend({name: scores[name] for name in KINDS})
    if RELATIVE in scores:
        parts = (*KINDS, RELATIVE)
        blended[BLEND_RELATIVE] = blend({name: scores[name] for name in parts})
    return blended


def walk(
    history: History,
    walked: Sequence[Split],
    config: RankersConfig,
    train_or_load: Callable[[str, Train], PerStock] = lambda _name, train: train(),
    device: torch.device = CPU,
) -> Scores:
    """Return the scores of rankers that are trained anew as they walk, and of their blends.

    They are [sessions stocks], NaN outside the days that the folds `walked` score. `train_or_load`
    gets a training's name and a function that trains and returns the scores of its days, [days
    stocks]; stored ones may be returned instead.
    """
    scores: Scores = {}
    for name in config.folds_per_training:
        scores[name] = np.full_like(history.outcome, np.nan)
    for training in trainings(history, walked, config):
        train = partial(training.run, history, config, device)
        scores[training.predictor][training.days] = train_or_load(training.name, train)
    return _blended(scores)


@dataclass(frozen=True)
class Training:
    """One training of a walk: a predictor, the days it learns from, and those it scores.

    Its `name` is of the predictor and the first day scored.
    """

    predictor: str
    name: str
    train_days: slice
    days: slice

    def run(self, history: History, config: RankersConfig, device: torch.device) -> PerStock:
        """Train, and return the scores of the days, which are the same in every process."""
        model = _fit(self.predictor, history, self.train_days, config, device)
        return _scores(model, history.features, history.there, self.days)


def trainings(
    history: History, walked: Sequence[Split], config: RankersConfig
) -> Iterator[Training]:
    """Yield every training of a walk, which learns from the days of its first fold."""
    for predictor, folds in config.folds_per_training.items():
        for begin in range(0, len(walked), folds):
            served_folds = walked[begin : begin + folds]
            start = served_folds[0].scored.start
            stop = served_folds[-1].scored.stop
            yield Training(
                predictor=predictor,
                name=f"{predictor}-{history.panel.sessions[start].date()}",
                train_days=served_folds[0].trained,
                days=slice(start, stop),
            )


def slope_of(ranks: PerStock, relative: PerStock) -> float:
    """Return the slope of a logistic regression, without intercept, of "above the median" on ranks.

    Both are ranks within their day, in [-0.5, 0.5]. 0 if no stock has both.
    """
    is_known = np.isfinite(ranks) & np.isfinite(relative)
    rank = ranks[is_known]
    above = relative[is_known] > 0
    slope = 0.0
    for _ in range(20):  # Newton's method: the likelihood has one maximum
        probability = 1 / (1 + np.exp(-slope * rank))
        curvature = float((rank**2 * probability * (1 - probability)).sum())
        gradient = float((rank * (above - probability)).sum())
        slope += gradient / curvature if curvature > 0 else 0.0
    return slope


def ranking_of_day(
    scores: Mapping[str, Float[ndarray, " stocks"]],
    slopes: Mapping[str, float],
    symbols: tuple[str, ...],
) -> pd.DataFrame:
    """Return the ranking of one day, a row for each predictor and stock scored, by place.

    `scores` are in the order of `symbols`, NaN without one. Columns: `predictor, symbol, score,
    place` (1 is best, ties by symbol), `probability` (above the day's median, NaN without a slope).
    """
    parts: list[pd.DataFrame] = []
    for name, score in scores.items():
        part = pd.DataFrame({"predictor": name, "symbol": symbols, "score": score})
        has_score = np.isfinite(part["score"])
        # `places` ranks equal scores in the order of the columns.
        part = part[has_score].sort_values("symbol", ignore_index=True)
        known_scores = part["score"].to_numpy(dtype=float)[None]  # [1 stocks], a single day
        rank = ranked(known_scores)[0]
        place = places(known_scores)[0].astype(int)
        probability = 1 / (1 + np.exp(-slopes[name] * rank)) if name in slopes else np.nan
        part = part.assign(place=place, probability=probability)
        parts.append(part.sort_values("place", ignore_index=True))
    return pd.concat(parts, ignore_index=True)


def save_rankers(rankers: Rankers, settings: Mapping[str, Any], stem: Path) -> tuple[Path, str]:
    """Write the checkpoint of some rankers, and return its file and SHA-256.

    It holds arrays, slopes, `settings` and own code; its name is `stem` with a digest of the
    content.
    """
    arrays: dict[str, ndarray] = {}
    for name, model in rankers.models.items():
        # The settings of a network are in the card's `config`.
        of_model = model.weights if isinstance(model, Relative) else vars(model)
        arrays |= prefixed(f"{name}.", of_model)
    card = {**settings, "slopes": dict(rankers.slopes)}
    if rankers.own is not None:
        arrays |= rankers.own.arrays  # their names begin with "own."
        # In the checkpoints, the description is called `told`.
        card["own"] = {"code": asdict(rankers.own.code), "told": rankers.own.description}
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
    sha = artifacts.hash_of(tensors, card)
    file = stem.with_name(f"{stem.name}-{sha[:8]}-rankers.safetensors")
    artifacts.write(file, tensors, card)
    return file, sha


def load_rankers(
    file: Path, *, market: str, sha: str, feature_set: FeatureSet = "usual"
) -> Rankers:
    """Read the rankers of a market from the checkpoint that `save_rankers` wrote.

    Raises DtmlError where it is missing, changed, or of another market, other features or settings.
    """
    train_new = f"train new rankers for the nights to come with `dtml train {market}`"
    tensors, card = read_checkpoint(
        file, market=market, sha=sha, remedy=f"restore it from a backup, or {train_new}"
    )
    if card["config"]["features"] != list(FEATURE_SETS[feature_set]):
        raise DtmlError(
            f'checkpoint {file} was trained with other features than the set "{feature_set}" has '
            f"now: {train_new} or, if you changed `features` in the market's file, set it back"
        )
    arrays = {name: value.numpy() for name, value in tensors.items()}
    models: dict[str, Ranker | Relative] = {
        name: kind(**under(f"{name}.", arrays)) for name, kind in KINDS.items()
    }
    for network in card["config"]["networks"]:
        try:
            config = TypeAdapter(RelativeConfig).validate_python(network)
        except ValidationError as error:
            raise DtmlError(
                f"checkpoint {file} has other settings of a network than this version knows "
                f"({one_line(error)}): use the version that wrote it, or {train_new}"
            ) from error
        models[config.name] = Relative(config, under(f"{config.name}.", arrays))
    own = None
    if "own" in card:
        own = Fitted(
            code=OwnCode(**card["own"]["code"]),
            description=card["own"]["told"],
            arrays={name: value for name, value in arrays.items() if name.startswith("own.")},
        )
    return Rankers(models=models, slopes=card["slopes"], own=own)
