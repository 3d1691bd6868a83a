"""DTML asked the relative question: which stocks of a day will end above its median, whatever the market does.

Its windows hold features that are ranked within the day, its label is the outcome's rank, and the epoch that is kept is
that of the best rank IC on the last days before a training. Trained by `dtml.training.fit`, as every network here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from dtml.errors import DtmlError
from dtml.layers.network import Batch
from dtml.model import DTML, ModelConfig, Normalisation
from dtml.ranking.features import FEATURES
from dtml.ranking.models import blend
from dtml.ranking.outcomes import sessions_to
from dtml.ranking.walk import GAP, History
from dtml.training.fit import fit_members, stack_members
from dtml.training.recipe import Member, TrainingConfig
from dtml.windows import Windows

Loss = Literal["binary", "squared", "correlation"]
FeatureSet = Literal["paper", "all"]

OF_THE_PAPER = tuple(name for name in FEATURES if name == "return_1" or name.endswith("_over_close") or "average_" in name)
DEVIATIONS = 12**0.5  # by which ranks in [-0.5, 0.5] have variance 1
SCORED_DAYS = 64  # at once


@dataclass(frozen=True)
class RelativeModelConfig(ModelConfig):
    """The shape of the network, and its loss.

    `binary` is the cross-entropy against the day's median, `squared` the squared error on ranks, `correlation` 1 less
    the day's correlation of score and rank.
    """

    loss: Loss = "correlation"

    def build(self, stocks: int) -> "RelativeDTML":
        """Return the network for so many stocks."""
        return RelativeDTML(self, stocks)


class RelativeDTML(DTML):
    """DTML whose batches hold, as `movement`, the rank of each outcome within its day, in [-0.5, 0.5]."""

    def __init__(self, config: RelativeModelConfig, stocks: int) -> None:
        super().__init__(config, stocks)
        self.loss = config.loss

    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the loss of the configuration; `penalty` weighs the last layer, as in the paper."""
        if self.loss == "binary":
            return super().objective(batch, penalty)
        logits = self.logits(batch.rows, batch.windows, batch.observed)
        if self.loss == "squared":
            found = ((logits - batch.movement).square() * batch.counted).sum() / batch.counted.sum()
        else:
            day = batch.counted.any(dim=-1)
            found = 1 - (correlation(logits, batch.movement, batch.counted) * day).sum() / day.sum()
        return found + penalty * (self.predict.weight.square().sum() + self.predict.bias.square().sum())

    def correct(self, logits: Float[Tensor, "*axes days stocks"], batch: Batch) -> Float[Tensor, "*axes days stocks"]:
        """Return, for each stock, the rank IC of its day."""
        places = logits.masked_fill(~batch.counted, torch.inf).argsort(dim=-1).argsort(dim=-1).to(logits.dtype)
        return correlation(places, batch.movement, batch.counted).unsqueeze(-1).expand_as(logits)


def correlation(
    one: Float[Tensor, "*axes stocks"], other: Float[Tensor, "*days stocks"], counted: Bool[Tensor, "*days stocks"]
) -> Float[Tensor, "*axes"]:
    """Return the correlation of two values over the counted stocks of each day; 0 where either is the same for all."""
    size = counted.sum(dim=-1, keepdim=True).clamp(min=1)
    x, y = (
        torch.where(counted, each - torch.where(counted, each, 0.0).sum(dim=-1, keepdim=True) / size, 0.0)
        for each in (one, other)
    )
    return (x * y).sum(dim=-1) * (x.square().sum(dim=-1) * y.square().sum(dim=-1) + 1e-12).rsqrt()


@dataclass(frozen=True)
class RelativeConfig:
    """Every setting of the ranker: `sessions` are the last before a training, `validation` the last of those."""

    loss: Loss = "correlation"
    features: FeatureSet = "all"
    window: int = 10
    hidden: int = 16
    dropout: float = 0.15
    normalisation: Normalisation = "shared"
    identity: float = 0.0
    sessions: int = 1000
    validation: int = 63
    epochs: int = 10
    batch_days: int = 16
    learning_rate: float = 2e-3
    penalty: float = 0.0
    seeds: int = 3

    @property
    def columns(self) -> list[int]:
        """Return the positions in `FEATURES` of those that the network sees."""
        chosen = OF_THE_PAPER if self.features == "paper" else tuple(FEATURES)
        return [list(FEATURES).index(name) for name in chosen]

    @property
    def model(self) -> RelativeModelConfig:
        """Return the shape of the network; there is no index in what is ranked within the day."""
        return RelativeModelConfig(
            features=len(self.columns), hidden=self.hidden, beta=0.0, dropout=self.dropout,
            normalisation=self.normalisation, identity=self.identity, loss=self.loss,
        )  # fmt: skip

    @property
    def training(self) -> TrainingConfig:
        """Return the recipe: every stock-day with an outcome counts."""
        return TrainingConfig("all", self.epochs, self.batch_days, self.learning_rate, self.penalty, 1, clip=1.0)


@dataclass(frozen=True)
class Relative:
    """Fitted networks: each parameter with a leading axis of seeds."""

    config: RelativeConfig
    weights: Mapping[str, Float[ndarray, "seeds ..."]]

    @torch.no_grad()
    def scores(
        self, features: Float[ndarray, "sessions stocks features"], there: Bool[ndarray, "sessions stocks"], days: slice
    ) -> Float[ndarray, "days stocks"]:
        """Return the mean over the seeds of the rank of each stock of some days that is there; NaN for the others."""
        first, stop, _ = days.indices(len(there))
        rows = _rows(features, self.config)[first : stop + self.config.window - 1]
        windows = torch.arange(stop - first).unsqueeze(1) + torch.arange(self.config.window)
        observed = torch.from_numpy(there[days])
        found = {}
        for seed in range(self.config.seeds):
            network = self.config.model.build(there.shape[1]).eval()
            network.load_state_dict({name: torch.from_numpy(value[seed]) for name, value in self.weights.items()})
            parts = [
                network.logits(rows[each[0, 0] : each[-1, -1] + 1], each - each[0, 0], seen)
                for each, seen in zip(windows.split(SCORED_DAYS), observed.split(SCORED_DAYS), strict=True)
            ]
            found[str(seed)] = np.where(there[days], torch.cat(parts).double().numpy(), np.nan)
        return blend(found)


def fit_relative(history: History, days: slice, config: RelativeConfig) -> Relative:
    """Return the networks fitted on the last `config.sessions` of some days; DtmlError where these are too few."""
    first, stop, _ = days.indices(len(history.there))
    begin, cut = max(first, stop - config.sessions), stop - config.validation
    end = cut - GAP - sessions_to(history.leg) + 1
    if end <= begin:
        raise DtmlError(f"{stop - begin} sessions, of which {config.validation} choose the epoch: too few to train on")
    members = [Member(seed, config.model, config.training) for seed in range(config.seeds)]
    train, validation = (windows_of(history, config, slice(*span)) for span in ((begin, end), (cut, stop)))
    fits = fit_members(train, validation, members, device=torch.device("cpu"))
    return Relative(config, {name: value.numpy() for name, value in stack_members(fits).items()})


def windows_of(history: History, config: RelativeConfig, days: slice) -> Windows:
    """Return windows of ranked features whose `movement` is the rank of the outcome; the index is 0 throughout."""
    views = _rows(history.features, config).unfold(0, config.window, 1).permute(0, 1, 3, 2)[days]
    sessions = history.panel.sessions[days]
    return Windows(
        stocks=views[:, :-1],
        index=views[:, -1],
        observed=torch.from_numpy(history.there[days]),
        movement=torch.from_numpy(history.relative[days]).float(),
        as_of=sessions,
        target=sessions,  # only named in errors: the outcome's own end depends on its leg
        symbols=history.panel.symbols,
    )


def _rows(
    features: Float[ndarray, "sessions stocks all"], config: RelativeConfig
) -> Float[Tensor, "rows symbols features"]:
    """Return what the network sees: a missing rank is the middle, as are the sessions before the first."""
    seen = DEVIATIONS * np.nan_to_num(features[..., config.columns])
    return torch.from_numpy(np.pad(seen, ((config.window - 1, 0), (0, 1), (0, 0))).astype(np.float32))
