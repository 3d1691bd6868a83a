"""The rankers of a market's nights.

They are fitted together, kept in one checkpoint, and asked for the order of one day.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy import ndarray

from dtml.checkpoints import WriteWhole, hash_of, read_tensors, sha256, write_tensors
from dtml.errors import DtmlError
from dtml.own.code import OwnCode
from dtml.own.process import Fitted
from dtml.ranking.features import FEATURES
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
from dtml.ranking.relative import NETWORKS, Relative, RelativeConfig, fit_relative
from dtml.ranking.walk import GAP, MINIMUM_TRAIN_DAYS, Fold, History

VALIDATION_DAYS = 126  # the last days before a training, from which probabilities are measured
BLEND = "blend"
RELATIVE = "dtml_relative"  # `dtml` is the order of the probabilities of a rise
BLEND_RELATIVE = "blend_relative"  # the blend of these three
KINDS: Mapping[str, type[Ranker]] = {"ridge": Ridge, "boosting": Boosting}
PerStock = Float[ndarray, "days stocks"]
Scores = dict[str, PerStock]
Train = Callable[[], PerStock]


@dataclass(frozen=True)
class RankersConfig:
    """Every setting of a market's rankers; the leg is the return whose order they learn.

    Networks are asked beside the others when named: they train for minutes, those for seconds.
    """

    leg: Leg = "next_close"
    ridge: RidgeConfig = field(default_factory=RidgeConfig)
    boosting: BoostingConfig = field(default_factory=BoostingConfig)
    networks: tuple[RelativeConfig, ...] = ()

    @classmethod
    def asking(cls, leg: Leg, *rankers: str) -> "RankersConfig":
        """Return the settings of a market whose nights show the order of one of these rankers."""
        asked = {
            "dtml" if name == BLEND_RELATIVE else name.removesuffix("_relative")
            for name in rankers
            if name.endswith("_relative")
        }
        networks = [RelativeConfig.asking(name) for name in NETWORKS if name in asked]
        return cls(leg, networks=tuple(networks))

    @property
    def trained(self) -> dict[str, int]:
        """Return the models that learn, and for how many folds of a walk a training serves."""
        folds = dict.fromkeys(KINDS, 1)
        for network in self.networks:
            folds[network.name] = network.folds
        return folds


@dataclass(frozen=True)
class Rankers:
    """Fitted rankers by name, and for each, and for their blend, the slope of its probabilities.

    A stock whose score has the rank r of its day, in [-0.5, 0.5], ends above the day's median with
    probability 1 / (1 + exp(-slope * r)).
    """

    models: Mapping[str, Ranker | Relative]
    slopes: Mapping[str, float]
    own: Fitted | None = None  # a user's own, which a process of its own asks

    def scores(self, features: Features, there: There, days: slice) -> Scores:
        """Return the score of each stock that is there on some days, by ranker and by blend.

        NaN for the others.
        """
        scores = {
            name: _scores(model, features, there, days) for name, model in self.models.items()
        }
        return _blended(scores)


def fit_rankers(history: History, config: RankersConfig) -> Rankers:
    """Fit every ranker on all days of a history whose outcomes are known.

    Slopes are measured on its last `VALIDATION_DAYS`, by rankers fitted on the days before them.
    Raises DtmlError for a history too short for that.
    """
    (first, days), whole = spans_of(history)
    tried = Rankers(_fit_all(history, first, config), slopes={})
    relative = history.relative[days]
    slopes = {
        name: slope_of(ranked(scores), relative)
        for name, scores in tried.scores(history.features, history.there, days).items()
    }
    return Rankers(_fit_all(history, whole, config), slopes)


def _fit_all(history: History, days: slice, config: RankersConfig) -> dict[str, Ranker | Relative]:
    return {name: _fit(name, history, days, config) for name in config.trained}


def spans_of(history: History) -> tuple[tuple[slice, slice], slice]:
    """Return days to try rankers on, fitted and scored, and all days with an outcome.

    DtmlError for too few.
    """
    known = np.flatnonzero(np.isfinite(history.relative).any(axis=1))
    stop = int(known[-1]) + 1 if len(known) else 0
    cut = stop - VALIDATION_DAYS
    end = cut - GAP - sessions_to(history.leg) + 1
    if end < MINIMUM_TRAIN_DAYS:
        raise DtmlError(
            f"{max(stop, 0)} sessions have an outcome, but rankers need {MINIMUM_TRAIN_DAYS} "
            f"before the last {VALIDATION_DAYS}: fetch a longer history"
        )
    return (slice(0, end), slice(cut, stop)), slice(0, stop)


def _fit(name: str, history: History, days: slice, config: RankersConfig) -> Ranker | Relative:
    if name == "ridge":
        return fit_ridge(*history.rows(days), config.ridge)
    if name == "boosting":
        return fit_boosting(*history.rows(days), config.boosting)
    network = next(network for network in config.networks if network.name == name)
    return fit_relative(history, days, network)


def _scores(model: Ranker | Relative, features: Features, there: There, days: slice) -> PerStock:
    if isinstance(model, Relative):
        return model.scores(features, there, days)
    observed = there[days]
    scores = np.full(observed.shape, np.nan)
    scores[observed] = model.score(features[days][observed])
    return scores


def _blended(scores: Scores) -> Scores:
    """Return scores with those of their blends."""
    blended = {**scores, BLEND: blend({name: scores[name] for name in KINDS})}
    if RELATIVE in scores:
        blended[BLEND_RELATIVE] = blend({name: scores[name] for name in (*KINDS, RELATIVE)})
    return blended


def walk(
    history: History,
    walked: Sequence[Fold],
    config: RankersConfig,
    once: Callable[[str, Train], PerStock] = lambda _name, train: train(),
) -> Scores:
    """Return the scores of rankers trained anew as they walk, and of their blends.

    NaN outside the folds. `once` gets the name of each training, and what trains and returns its
    scores; it may know them already.
    """
    scores: Scores = {name: np.full_like(history.outcome, np.nan) for name in config.trained}
    for training in trainings(history, walked, config):
        train = partial(training.run, history, config)
        scores[training.predictor][training.days] = once(training.name, train)
    return _blended(scores)


@dataclass(frozen=True)
class Training:
    """One training of a walk: a predictor, the days it learns from, and those it scores."""

    predictor: str
    name: str
    learnt: slice
    days: slice

    def run(self, history: History, config: RankersConfig) -> PerStock:
        """Train, and return the scores of its days; the same wherever it runs."""
        model = _fit(self.predictor, history, self.learnt, config)
        return _scores(model, history.features, history.there, self.days)


def trainings(
    history: History, walked: Sequence[Fold], config: RankersConfig
) -> Iterator[Training]:
    """Yield every training of a walk."""
    for predictor, folds in config.trained.items():
        for begin in range(0, len(walked), folds):
            served = walked[begin : begin + folds]
            start = served[0].scored.start
            yield Training(
                predictor=predictor,
                name=f"{predictor}-{history.panel.sessions[start].date()}",
                learnt=served[0].trained,
                days=slice(start, served[-1].scored.stop),
            )


def slope_of(ranks: PerStock, relative: PerStock) -> float:
    """Return the slope of a logistic regression of "above the median" on the score's rank.

    It has no intercept.
    """
    known = np.isfinite(ranks) & np.isfinite(relative)
    rank = ranks[known]
    above = relative[known] > 0
    slope = 0.0
    for _ in range(20):  # Newton's method: the likelihood has one maximum
        probability = 1 / (1 + np.exp(-slope * rank))
        curve = float((rank**2 * probability * (1 - probability)).sum())
        slope += float((rank * (above - probability)).sum()) / curve if curve > 0 else 0.0
    return slope


def order_of(
    scores: Mapping[str, Float[ndarray, " stocks"]],
    slopes: Mapping[str, float],
    symbols: tuple[str, ...],
) -> pd.DataFrame:
    """Return the order of one day, a row a predictor and stock.

    Columns: `predictor, symbol, score, place, probability`. Place 1 is the best; of equal scores
    the symbol that comes first in the alphabet. `probability` is of a return above the day's
    median, NaN for a predictor without a slope.
    """
    parts: list[pd.DataFrame] = []
    for name, score in scores.items():
        part = pd.DataFrame({"predictor": name, "symbol": symbols, "score": score})
        part = part[np.isfinite(part["score"])].sort_values("symbol", ignore_index=True)
        known = part["score"].to_numpy(dtype=float)[None]
        rank = ranked(known)[0]
        probability = 1 / (1 + np.exp(-slopes[name] * rank)) if name in slopes else np.nan
        part = part.assign(place=places(known)[0].astype(int), probability=probability)
        parts.append(part.sort_values("place", ignore_index=True))
    return pd.concat(parts, ignore_index=True)


def save_rankers(
    rankers: Rankers, settings: Mapping[str, Any], stem: Path, write: WriteWhole
) -> tuple[Path, str]:
    """Write the checkpoint, and return its file and SHA-256.

    `settings`, `market` and `config` among them, are in it. The file is named after `stem` and its
    content: rankers trained again with other last bits lie beside the first.
    """
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, Any] = {}
    for name, model in rankers.models.items():
        parts = model.weights if isinstance(model, Relative) else asdict(model)
        for part, value in parts.items():
            if isinstance(value, ndarray):
                tensors[f"{name}.{part}"] = torch.from_numpy(value)
            else:
                scalars[f"{name}.{part}"] = value
    card = {**settings, "slopes": dict(rankers.slopes), "scalars": scalars}
    if rankers.own is not None:
        for name, value in rankers.own.arrays.items():
            tensors[name] = torch.from_numpy(value)
        card["own"] = {"code": asdict(rankers.own.code), "told": rankers.own.told}
    sha = hash_of(tensors, card)
    file = stem.with_name(f"{stem.name}-{sha[:8]}-order.safetensors")
    write_tensors(file, tensors, card, write)
    return file, sha


def load_rankers(file: Path, *, market: str, sha: str) -> Rankers:
    """Read the checkpoint whose SHA-256 is `sha`.

    Raises DtmlError where it is missing or changed.
    """
    if not file.exists() or sha256(file) != sha:
        raise DtmlError(
            f"checkpoint {file} is missing or changed: "
            f"restore it from a backup, or train again with `dtml train {market}`"
        )
    tensors, card = read_tensors(file)
    if card["market"] != market or card["config"]["features"] != list(FEATURES):
        raise DtmlError(
            f"checkpoint {file} belongs to another market or to other features: "
            f"train again with `dtml train {market}`"
        )
    arrays = {name: value.numpy() for name, value in tensors.items()}
    parts: dict[str, Any] = {**arrays, **card["scalars"]}
    models: dict[str, Ranker | Relative] = {}
    for name, kind in KINDS.items():
        models[name] = kind(**{part.name: parts[f"{name}.{part.name}"] for part in fields(kind)})
    for network in card["config"]["networks"]:
        config = RelativeConfig.read(network)
        models[config.name] = Relative(config, _under(f"{config.name}.", parts))
    own = None
    if "own" in card:
        own = Fitted(
            code=OwnCode(**card["own"]["code"]),
            told=card["own"]["told"],
            arrays={name: value for name, value in parts.items() if name.startswith("own.")},
        )
    return Rankers(models=models, slopes=card["slopes"], own=own)


def _under(prefix: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts whose names begin with a prefix, by the rest of their names."""
    return {
        name.removeprefix(prefix): value for name, value in parts.items() if name.startswith(prefix)
    }
