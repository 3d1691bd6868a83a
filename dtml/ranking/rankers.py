"""The rankers of a market's nights: fitted together, kept in one checkpoint,
and asked for the order of one day.
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
        relative = [each for each in rankers if each.endswith("_relative")]
        asked = {
            "dtml" if each == BLEND_RELATIVE else each.removesuffix("_relative")
            for each in relative
        }
        return cls(
            leg, networks=tuple(RelativeConfig.asking(name) for name in NETWORKS if name in asked)
        )

    @property
    def trained(self) -> dict[str, int]:
        """Return the models that learn, and for how many folds of a walk one
        training of each serves.
        """
        return dict.fromkeys(KINDS, 1) | {each.name: each.folds for each in self.networks}


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
        """Return the score of each stock that is there on some days, by ranker
        and by blend; NaN for the others.
        """
        return _blended(
            {name: _scores(model, features, there, days) for name, model in self.models.items()}
        )


def fit_rankers(history: History, config: RankersConfig) -> Rankers:
    """Fit every ranker on all days of a history whose outcomes are known.

    Slopes are measured on its last `VALIDATION_DAYS`, by rankers fitted on the days before them.
    Raises DtmlError for a history too short for that.
    """
    (first, days), whole = spans_of(history)
    tried = Rankers({name: _fit(name, history, first, config) for name in config.trained}, {})
    scores = tried.scores(history.features, history.there, days)
    slopes = {name: slope_of(ranked(each), history.relative[days]) for name, each in scores.items()}
    return Rankers({name: _fit(name, history, whole, config) for name in config.trained}, slopes)


def spans_of(history: History) -> tuple[tuple[slice, slice], slice]:
    """Return days to try rankers on, fitted and scored, and all days with an
    outcome; DtmlError for too few.
    """
    known = np.flatnonzero(np.isfinite(history.relative).any(axis=1))
    stop = int(known[-1]) + 1 if len(known) else 0
    cut = stop - VALIDATION_DAYS
    end = cut - GAP - sessions_to(history.leg) + 1
    if end < MINIMUM_TRAIN_DAYS:
        needed = f"rankers need {MINIMUM_TRAIN_DAYS} before the last {VALIDATION_DAYS}"
        raise DtmlError(
            f"{max(stop, 0)} sessions have an outcome, and {needed}: fetch a longer history"
        )
    return (slice(0, end), slice(cut, stop)), slice(0, stop)


def _fit(name: str, history: History, days: slice, config: RankersConfig) -> Ranker | Relative:
    if name == "ridge":
        return fit_ridge(*history.rows(days), config.ridge)
    if name == "boosting":
        return fit_boosting(*history.rows(days), config.boosting)
    return fit_relative(history, days, next(each for each in config.networks if each.name == name))


def _scores(model: Ranker | Relative, features: Features, there: There, days: slice) -> PerStock:
    if isinstance(model, Relative):
        return model.scores(features, there, days)
    found = np.full(there[days].shape, np.nan)
    found[there[days]] = model.score(features[days][there[days]])
    return found


def _blended(scores: Scores) -> Scores:
    blends = {BLEND: blend({name: scores[name] for name in KINDS})}
    if RELATIVE in scores:
        blends[BLEND_RELATIVE] = blend({name: scores[name] for name in (*KINDS, RELATIVE)})
    return scores | blends


def walk(
    history: History,
    walked: Sequence[Fold],
    config: RankersConfig,
    once: Callable[[str, Train], PerStock] = lambda _name, train: train(),
) -> Scores:
    """Return the scores of rankers trained anew as they walk, and of their blends; NaN outside the
    folds.

    `once` gets the name of each training, and what trains and returns its scores; it may know them
    already.
    """
    found: Scores = {name: np.full_like(history.outcome, np.nan) for name in config.trained}
    for each in trainings(history, walked, config):
        found[each.predictor][each.days] = once(each.name, partial(each.run, history, config))
    return _blended(found)


@dataclass(frozen=True)
class Training:
    """One training of a walk: which predictor, the days that it learns from,
    and those that it scores.
    """

    predictor: str
    name: str
    learnt: slice
    days: slice

    def run(self, history: History, config: RankersConfig) -> PerStock:
        """Train, and return the scores of its days; the same wherever it runs."""
        return _scores(
            _fit(self.predictor, history, self.learnt, config),
            history.features,
            history.there,
            self.days,
        )


def trainings(
    history: History, walked: Sequence[Fold], config: RankersConfig
) -> Iterator[Training]:
    """Yield every training of a walk."""
    for predictor, folds in config.trained.items():
        for first, last in (
            (walked[i], walked[i : i + folds][-1]) for i in range(0, len(walked), folds)
        ):
            name = f"{predictor}-{history.panel.sessions[first.scored.start].date()}"
            yield Training(
                predictor, name, first.trained, slice(first.scored.start, last.scored.stop)
            )


def slope_of(ranks: PerStock, relative: PerStock) -> float:
    """Return the slope of a logistic regression, without an intercept, of
    "above the median" on the score's rank.
    """
    known = np.isfinite(ranks) & np.isfinite(relative)
    rank, above, slope = ranks[known], relative[known] > 0, 0.0
    for _ in range(20):  # Newton's method: the likelihood has one maximum
        said = 1 / (1 + np.exp(-slope * rank))
        curve = float((rank**2 * said * (1 - said)).sum())
        slope += float((rank * (above - said)).sum()) / curve if curve > 0 else 0.0
    return slope


def order_of(
    scores: Mapping[str, Float[ndarray, " stocks"]],
    slopes: Mapping[str, float],
    symbols: tuple[str, ...],
) -> pd.DataFrame:
    """Return the order of one day: `predictor, symbol, score, place, probability`, a row a
    predictor and stock.

    Place 1 is the best; of equal scores the symbol that comes first in the alphabet. `probability`
    is of a return above the day's median, NaN for a predictor without a slope.
    """
    parts: list[pd.DataFrame] = []
    for name, score in scores.items():
        part = pd.DataFrame({"predictor": name, "symbol": symbols, "score": score})
        part = part[np.isfinite(part["score"])].sort_values("symbol", ignore_index=True)
        known = part["score"].to_numpy(dtype=float)[None]
        rank = ranked(known)[0]
        said = 1 / (1 + np.exp(-slopes[name] * rank)) if name in slopes else np.nan
        part = part.assign(place=places(known)[0].astype(int), probability=said)
        parts.append(part.sort_values("place", ignore_index=True))
    return pd.concat(parts, ignore_index=True)


def save_rankers(
    rankers: Rankers, settings: Mapping[str, Any], stem: Path, write: WriteWhole
) -> tuple[Path, str]:
    """Write the checkpoint, and return its file and SHA-256; `settings`, `market` and `config`
    among them, are in it.

    The file is named after `stem` and its content: rankers trained again with other last bits lie
    beside the first.
    """
    tensors, scalars = {}, {}
    for name, model in rankers.models.items():
        parts = model.weights if isinstance(model, Relative) else asdict(model)
        for part, value in parts.items():
            if isinstance(value, ndarray):
                tensors[f"{name}.{part}"] = torch.from_numpy(value)
            else:
                scalars[f"{name}.{part}"] = value
    card = {**settings, "slopes": dict(rankers.slopes), "scalars": scalars}
    if rankers.own is not None:
        tensors |= {name: torch.from_numpy(value) for name, value in rankers.own.arrays.items()}
        card["own"] = {"code": asdict(rankers.own.code), "told": rankers.own.told}
    sha = hash_of(tensors, card)
    file = stem.with_name(f"{stem.name}-{sha[:8]}-order.safetensors")
    write_tensors(file, tensors, card, write)
    return file, sha


def load_rankers(file: Path, *, market: str, sha: str) -> Rankers:
    """Read the checkpoint whose SHA-256 is `sha`; raise DtmlError where it is
    missing or changed.
    """
    if not file.exists() or sha256(file) != sha:
        raise DtmlError(
            f"checkpoint {file} is missing or changed: restore it from a backup, or `dtml train "
            f"{market}`"
        )
    tensors, card = read_tensors(file)
    if card["market"] != market or card["config"]["features"] != list(FEATURES):
        raise DtmlError(
            f"checkpoint {file} is of another market or of other features: `dtml train {market}`"
        )
    held: dict[str, Any] = {name: value.numpy() for name, value in tensors.items()} | card[
        "scalars"
    ]
    models: dict[str, Ranker | Relative] = {
        name: kind(**{part.name: held[f"{name}.{part.name}"] for part in fields(kind)})
        for name, kind in KINDS.items()
    }
    for config in map(RelativeConfig.read, card["config"]["networks"]):
        under = f"{config.name}."
        weights = {
            name.removeprefix(under): value
            for name, value in held.items()
            if name.startswith(under)
        }
        models[config.name] = Relative(config, weights)
    mine = {name: each for name, each in held.items() if name.startswith("own.")}
    own = (
        Fitted(OwnCode(**card["own"]["code"]), card["own"]["told"], mine) if "own" in card else None
    )
    return Rankers(models, card["slopes"], own)
