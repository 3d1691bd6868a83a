"""What is trained: the recipe of a training, one seed of one configuration, and
the figures of an epoch.
"""

import hashlib
import json
from dataclasses import asdict, dataclass

from dtml.errors import UsageError
from dtml.layers.network import NetworkConfig
from dtml.markets.definition import LabelProtocol


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe; the defaults are the paper's."""

    protocol: LabelProtocol = "paper"  # the stock-days that the loss and the validation count
    epochs: int = 200
    batch_days: int = 64
    learning_rate: float = 1e-3
    penalty: float = 1.0  # weight of the network's own regularisation: lambda, for DTML
    first_kept_epoch: int = 10  # earlier ones are never kept
    patience: int | None = None  # epochs without a better validation accuracy before the fit stops
    clip: float | None = None  # largest norm of a step's gradient
    stocks_a_step: int | None = (
        None  # drawn anew for each step, for a universe of thousands; None: all
    )

    def __post_init__(self) -> None:
        maybe = (1 if each is None else each for each in (self.patience, self.stocks_a_step))
        counts = (self.epochs, self.batch_days, self.first_kept_epoch, *maybe)
        if min(counts) < 1:
            named = "epochs, batch_days, first_kept_epoch, patience and stocks_a_step"
            raise UsageError(f"{named} are 1 or more; got {counts}")
        if (
            self.learning_rate <= 0
            or self.penalty < 0
            or (self.clip is not None and self.clip <= 0)
        ):
            got = f"{self.learning_rate}, {self.clip}, {self.penalty}"
            raise UsageError(f"learning_rate and clip are above 0, penalty 0 or more; got {got}")


@dataclass(frozen=True)
class Member:
    """One seed of one configuration, whose training no other member changes."""

    seed: int
    model: NetworkConfig
    training: TrainingConfig

    def __post_init__(self) -> None:
        if (
            self.training.stocks_a_step is not None
            and getattr(self.model, "normalisation", "") == "per_stock"
        ):
            raise UsageError(
                'stocks_a_step needs gains that all stocks share: set normalisation = "shared"'
            )

    @property
    def name(self) -> str:
        """Return the seed and a digest of the configuration: the same member
        has the same name in every run.
        """
        config = [type(self.model).__name__, asdict(self.model), asdict(self.training)]
        return f"{self.seed}-{hashlib.sha256(json.dumps(config).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Epoch:
    """The figures of one pass: means of the objective over batches, and of the
    rest over counted stock-days.
    """

    number: int
    loss: float
    validation_loss: float
    validation_acc: float
