"""Networks that answer the relative question: which stocks of a day will end above its median?

Features are ranked within the day, the label is the outcome's rank, and the epoch kept is that of
the best rank IC on the last days before. Trained by `dtml.training`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from dtml.devices import Load
from dtml.evaluation.splits import hold_out
from dtml.network import Batch, Network, NetworkConfig, Positions, Rows, Scores, StockDays
from dtml.networks import NETWORKS
from dtml.ranking.features import FEATURES
from dtml.ranking.models import blend
from dtml.ranking.outcomes import sessions_to
from dtml.ranking.panel import Features, There
from dtml.ranking.walk import History
from dtml.training import Member, TrainingConfig, fit_members, stack_members
from dtml.windows import Windows

CPU = torch.device("cpu")
Loss = Literal["own", "correlation"]
# The features of `FEATURES` that stand for those of the DTML paper.
PAPER_FEATURES = (
    "return_1",
    *(name for name in FEATURES if name.endswith("_over_close") or "average_" in name),
)
# Chosen for DTML by the comparison of settings in benchmarks/README.md; the other networks use the
# same settings.
RECIPE = TrainingConfig(
    protocol="all",
    epochs=10,
    batch_days=4,
    learning_rate=6e-3,
    penalty=0.0,
    first_kept_epoch=1,
    clip=1.0,
)
DEVIATIONS = 12**0.5  # the factor that gives ranks in [-0.5, 0.5] variance 1

# What a network has in other ways than elsewhere when it ranks.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "dtml": {"beta": 0.0, "normalisation": "shared"},
    "stocknet": {"latent": 16, "movement_feature": PAPER_FEATURES.index("return_1")},
}
OWN_LOSS = ("adv_alstm", "stocknet")  # these differ from the others by their losses


@dataclass(frozen=True)
class RelativeModelConfig(NetworkConfig):
    """The network that scores stocks, its shape and its loss; no index is used.

    `features` is the number of its inputs, `settings` are further settings of that network. Of the
    losses, `own` is that of its paper with "above the day's median" as the label (for DTML the
    cross-entropy), and `correlation` 1 less the day's correlation of score and rank.
    """

    network: str = "dtml"
    hidden: int = 16
    loss: Loss = "correlation"
    features: int = len(PAPER_FEATURES)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def build(self, stocks: int) -> "RelativeNetwork":
        """Return the network for a number of stocks."""
        settings: dict[str, Any] = {
            "features": self.features,
            "hidden": self.hidden,
            **SETTINGS.get(self.network, {}),
            **self.settings,
        }
        config = replace(NETWORKS[self.network], **settings)
        return RelativeNetwork(config.build(stocks), self.loss)


class RelativeNetwork(Network):
    """A network whose batches hold the rank of each outcome, in [-0.5, 0.5], as `movement`."""

    def __init__(self, network: Network, loss: Loss) -> None:
        super().__init__()
        self.asked = network  # the name is part of the parameters' names in checkpoints
        self.loss = loss

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights of the network that is asked."""
        self.asked.initialise(generator)

    def logits(self, rows: Rows, windows: Positions, observed: StockDays) -> Scores:
        """Return the score of each stock: within a day, a higher one is a higher rank."""
        return self.asked.logits(rows, windows, observed)

    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the loss of the configuration; `penalty` weighs that of the network's own."""
        if self.loss == "own":
            # Ranks above 0 are "above the median", which the network takes for a rise.
            return self.asked.objective(batch, penalty)
        logits = self.logits(batch.rows, batch.windows, batch.observed)
        correlation = self._correlation_of_day(logits, batch)
        return 1 - (correlation * batch.counted).sum() / batch.counted.sum()

    def correct(
        self, logits: Float[Tensor, "*axes days stocks"], batch: Batch
    ) -> Float[Tensor, "*axes days stocks"]:
        """Return each day's rank IC, repeated for its stocks; ties have no certain order."""
        # Stocks that do not count come last, so that the others have the places 0, 1, 2, ...
        counted_logits = logits.masked_fill(~batch.counted, torch.inf)
        places = counted_logits.argsort(dim=-1).argsort(dim=-1)
        return self._correlation_of_day(places.to(logits.dtype), batch)

    def _correlation_of_day(
        self, score: Float[Tensor, "*axes days stocks"], batch: Batch
    ) -> Tensor:
        """Return each day's correlation over counted stocks, repeated; 0 if constant."""
        counted = batch.counted.to(score.dtype)
        size = counted.sum(dim=-1, keepdim=True).clamp(min=1)

        def centred(values: Tensor) -> Tensor:
            mean = (values * counted).sum(-1, keepdim=True) / size
            return (values - mean) * counted

        x = centred(score)
        y = centred(batch.movement)
        x_squares = x.square().sum(-1, keepdim=True)
        y_squares = y.square().sum(-1, keepdim=True)
        scale = (x_squares * y_squares + 1e-12).rsqrt()  # finite where either is 0
        product = (x * y).sum(-1, keepdim=True)
        return (product * scale).expand_as(score)


@dataclass(frozen=True)
class RelativeConfig:
    """All settings of a network as a ranker.

    A training reads the last `sessions`, of which the last `validation` choose the epoch.
    `features` names the inputs of each of `window` sessions. `seeds` networks' ranks are averaged;
    in a walk one training serves `folds` folds.
    """

    features: tuple[str, ...] = PAPER_FEATURES
    window: int = 10
    sessions: int = 1000
    validation: int = 63
    seeds: int = 3
    folds: int = 4
    model: RelativeModelConfig = field(default_factory=RelativeModelConfig)
    training: TrainingConfig = RECIPE

    @classmethod
    def for_network(cls, network: str, seeds: int = seeds) -> "RelativeConfig":
        """Return the settings of the ranker that uses a network, with the loss that suits it."""
        loss: Loss = "own" if network in OWN_LOSS else "correlation"
        return cls(seeds=seeds, model=RelativeModelConfig(network, loss=loss))

    @property
    def name(self) -> str:
        """Return the name of the predictor."""
        return f"{self.model.network}_relative"

    def load(self, stocks: int) -> Load:
        """Return the load of one training."""
        return Load.of(
            self.model,
            self.training,
            seeds=self.seeds,
            days=self.sessions,
            stocks=stocks,
            window=self.window,
        )

    def rows(
        self, features: Float[ndarray, "sessions stocks all"]
    ) -> Float[Tensor, "rows symbols features"]:
        """Return the inputs of the network: a row a session, after `window - 1` rows of 0.

        Ranks of the named features, scaled to variance 1, missing 0; the last symbol, the index, is
        0.
        """
        columns = [list(FEATURES).index(name) for name in self.features]
        inputs = DEVIATIONS * np.nan_to_num(features[..., columns])
        sessions_before = self.window - 1
        added = ((sessions_before, 0), (0, 1), (0, 0))  # before and after: rows, symbols, features
        padded = np.pad(inputs, added)
        return torch.from_numpy(padded.astype(np.float32))


@dataclass(frozen=True)
class Relative:
    """Fitted networks: each parameter with a leading axis of seeds."""

    config: RelativeConfig
    weights: Mapping[str, Float[ndarray, "seeds ..."]]

    @torch.no_grad()
    def scores(
        self, features: Features, there: There, days: slice
    ) -> Float[ndarray, "days stocks"]:
        """Return the mean over the seeds of each stock's rank within its day, for `days`.

        `features` and `there` cover all sessions; NaN where not `there`.
        """
        first, stop, _step = days.indices(len(there))
        window = self.config.window
        # The window of position p is rows p to p + window - 1, whose last one is session p.
        rows = self.config.rows(features)[first : stop + window - 1]
        windows = torch.arange(stop - first).unsqueeze(1) + torch.arange(window)  # [days window]
        observed = torch.from_numpy(there[days])
        network = self.config.model.build(there.shape[1]).eval()
        by_seed = {}
        for seed in range(self.config.seeds):
            weights = {name: torch.from_numpy(value[seed]) for name, value in self.weights.items()}
            network.load_state_dict(weights)
            logits = network.logits(rows, windows, observed)
            by_seed[str(seed)] = np.where(there[days], logits.double().numpy(), np.nan)
        return blend(by_seed)


def fit_relative(
    history: History, days: slice, config: RelativeConfig, device: torch.device = CPU
) -> Relative:
    """Return the networks fitted on the last `config.sessions` of some days, by a device.

    The last `config.validation` of these choose the epoch, and train nothing; nor do sessions whose
    outcomes were not known before them (`hold_out`).
    """
    first, stop, _step = days.indices(len(history.there))
    train_start = max(first, stop - config.sessions)
    split = hold_out(stop, config.validation, horizon=sessions_to(history.leg))
    seeds = range(config.seeds)
    members = [Member(seed, config.model, config.training) for seed in seeds]
    train = windows_of(history, config, slice(train_start, split.trained.stop))
    validation = windows_of(history, config, split.scored)
    fits = fit_members(train, validation, members, device=device)
    stacked = stack_members(fits)
    weights = {name: value.numpy() for name, value in stacked.items()}
    return Relative(config=config, weights=weights)


def windows_of(history: History, config: RelativeConfig, days: slice) -> Windows:
    """Return windows of ranked features, the index 0, whose `movement` is the outcome's rank."""
    first, stop, _step = days.indices(len(history.there))
    # `Windows` needs a target session, which only errors show here: `sessions` stand for it, as
    # the end of a leg may be any later session.
    sessions = history.panel.sessions[days]
    return Windows(
        rows=config.rows(history.features)[first : stop + config.window - 1],
        window=config.window,
        observed=torch.from_numpy(history.there[days]),
        movement=torch.from_numpy(history.relative[days]).float(),
        as_of=sessions,
        target=sessions,
        symbols=history.panel.symbols,
    )
