"""The recipe of a training, one seed of one configuration, and the figures of an epoch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dtml.errors import UsageError
from dtml.layers.network import NetworkConfig
from dtml.markets.definition import LabelProtocol


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe; the defaults are the paper's."""

    protocol: LabelProtocol = "published"  # the stock-days that the loss and the validation count
    epochs: int = 200
    batch_days: int = 64
    learning_rate: float = 1e-3
    penalty: float = 1.0  # weight of the network's own regularisation: lambda, for DTML
    first_kept_epoch: int = 10  # earlier ones are never kept
    patience: int | None = None  # epochs without a better validation accuracy before the fit stops
    clip: float | None = None  # largest norm of a step's gradient
    # Stocks drawn for each step, for a universe of thousands; None: all stocks.
    stocks_a_step: int | None = None

    def __post_init__(self) -> None:
        # None is valid for `patience`, `stocks_a_step` and `clip`.
        for name in ("epochs", "batch_days", "first_kept_epoch", "patience", "stocks_a_step"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise UsageError(f"{name} must be 1 or more, got {count}")
        for name in ("learning_rate", "clip"):
            size = getattr(self, name)
            if size is not None and size <= 0:
                raise UsageError(f"{name} must be above 0, got {size}")
        if self.penalty < 0:
            raise UsageError(f"penalty must be 0 or more, got {self.penalty}")


@dataclass(frozen=True)
class Member:
    """One seed of one configuration, whose training no other member changes."""

    seed: int
    model: NetworkConfig
    training: TrainingConfig

    def __post_init__(self) -> None:
        # A step of drawn stocks has no fixed list of stocks, to which gains of each stock are tied.
        if (
            self.training.stocks_a_step is not None
            and getattr(self.model, "normalisation", "") == "per_stock"
        ):
            raise UsageError(
                f"stocks_a_step is {self.training.stocks_a_step}, but normalisation is "
                '"per_stock", with gains for a fixed list of stocks: in [model] of the market\'s '
                'file, set normalisation = "shared", or leave out stocks_a_step'
            )

    @property
    def name(self) -> str:
        """Return the seed and a digest of the configuration.

        The same member has the same name in every run.
        """
        config = [
            type(self.model).__name__,
            asdict(self.model),
            asdict(self.training),
        ]
        digest = hashlib.sha256(json.dumps(config).encode()).hexdigest()
        return f"{self.seed}-{digest[:12]}"


@dataclass(frozen=True)
class Epoch:
    """The figures of one pass over the training days.

    `loss` is the mean of the objective over batches. The others are means over the counted
    stock-days of the validation days: the cross-entropy, and what `Network.correct` returns.
    """

    number: int
    loss: float
    validation_loss: float
    validation_acc: float


class ResumedEpoch(Epoch):
    """The last epoch that a resumed fit had done in an earlier run, when it is reported again."""


def settings_of(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of a configuration, which is a dataclass or one of it."""
    return {each.name: values[each.name] for each in fields(config) if each.name in values}
