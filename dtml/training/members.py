"""One member of a training: its recipe, its state from epoch to epoch, and that state on disk."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dtml.checkpoints import Weights, read_tensors, write_tensors
from dtml.errors import DtmlError, UsageError
from dtml.layers.network import Network, NetworkConfig
from dtml.markets.definition import LabelProtocol
from dtml.model import ContextNormalisation


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

    def __post_init__(self) -> None:
        counts = (self.epochs, self.batch_days, self.first_kept_epoch, 1 if self.patience is None else self.patience)
        if min(counts) < 1:
            raise UsageError(f"epochs, batch_days, first_kept_epoch and patience are 1 or more; got {counts}")
        if self.learning_rate <= 0 or self.penalty < 0 or (self.clip is not None and self.clip <= 0):
            raise UsageError(
                "learning_rate and clip are above 0, penalty 0 or more; "
                f"got {self.learning_rate}, {self.clip}, {self.penalty}"
            )


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training days left behind.

    `loss` is the objective, `validation_loss` the cross-entropy: means over batches and over counted stock-days.
    """

    number: int
    loss: float
    validation_loss: float
    validation_acc: float


@dataclass(frozen=True)
class Member:
    """One column of a stacked training."""

    seed: int
    model: NetworkConfig
    training: TrainingConfig

    @property
    def name(self) -> str:
        """Seed and a digest of the configuration: the same member has the same name in every run."""
        config = [type(self.model).__name__, asdict(self.model), asdict(self.training)]
        return f"{self.seed}-{hashlib.sha256(json.dumps(config).encode()).hexdigest()[:12]}"


@dataclass
class Fit:
    """The state of one member in training; `weights` are its parameters by name, in the memory of its program."""

    member: Member
    weights: Weights
    optimiser: torch.optim.Adam
    order: torch.Generator  # shuffles days
    noise: torch.Generator
    best: Weights = field(default_factory=dict)
    best_epoch: int = 0
    steps: int = 0
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def best_acc(self) -> float:
        """Validation accuracy of the epoch that is kept; below every real one before there is one."""
        return self.epochs[self.best_epoch - 1].validation_acc if self.best_epoch else -1.0

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience has run out."""
        config, done = self.member.training, len(self.epochs)
        stale = config.patience is not None and self.best_epoch > 0 and done - self.best_epoch >= config.patience
        return done >= config.epochs or stale

    def start_from(self, weights: Weights) -> None:
        """Begin from these weights in place of those drawn."""
        for name, value in self.weights.items():
            value.copy_(weights[name])

    def step(self, gradients: Weights) -> None:
        """One step of the optimiser."""
        for name, parameter in self.weights.items():
            parameter.grad = gradients[name]
        if self.member.training.clip is not None:
            nn.utils.clip_grad_norm_(self.weights.values(), self.member.training.clip)
        self.optimiser.step()
        self.steps += 1

    def end_epoch(self, loss: float, validation_loss: float, validation_acc: float) -> None:
        """Note the epoch, and keep its weights if none was better on validation."""
        number, config = len(self.epochs) + 1, self.member.training
        if not np.isfinite(loss):
            raise DtmlError(f"the loss of seed {self.member.seed} is {loss} in epoch {number}: lower the learning rate")
        self.epochs.append(Epoch(number, loss, validation_loss, validation_acc))
        before = self.best_acc
        if number >= min(config.first_kept_epoch, config.epochs) and validation_acc > before:
            self.best_epoch = number
            self.best = {name: value.detach().cpu().clone() for name, value in self.weights.items()}


def initialise(network: Network, generator: torch.Generator) -> None:
    """Draw every linear map uniform in +-1/sqrt(inputs), torch's default, from a generator of the caller's.

    The offsets of DTML's context normalisation, one row a stock, are normal with the spread of its configuration.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
    for module in network.modules():
        if isinstance(module, ContextNormalisation) and module.spread:
            nn.init.normal_(module.offset, std=module.spread, generator=generator)


def start(member: Member, stocks: int, device: torch.device) -> Fit:
    """A member before its first epoch: weights, order and noise come from its seed alone."""
    first, order, noise = (int(state) for state in np.random.SeedSequence(member.seed).generate_state(3))
    network = member.model.build(stocks)
    initialise(network, torch.Generator().manual_seed(first))
    weights = {name: value.detach() for name, value in network.named_parameters()}
    return Fit(
        member,
        weights,
        optimiser_of(member, weights),
        torch.Generator().manual_seed(order),
        torch.Generator(device).manual_seed(noise),
    )


def optimiser_of(member: Member, weights: Weights) -> torch.optim.Adam:
    """The optimiser of these parameters."""
    return torch.optim.Adam(weights.values(), lr=member.training.learning_rate, fused=True)


def state_file(folder: Path, members: Sequence[Member]) -> Path:
    """Where the state of the members of one program lies.

    One file for all: members of different epochs could not go on in the stack that they began in, and in another one
    their sums are grouped otherwise, which changes last bits.
    """
    names = " ".join(member.name for member in members)
    return folder / f"program-{hashlib.sha256(names.encode()).hexdigest()[:12]}.safetensors"


def save_state(fits: Sequence[Fit], file: Path) -> None:
    """Write all that the next epoch of a program needs, whole or not at all."""
    tensors: Weights = {}
    for position, fit in enumerate(fits):
        moments = {
            f"adam.{i}.{name}": value
            for i, state in fit.optimiser.state_dict()["state"].items()
            for name, value in state.items()
        }
        generators = {"order": fit.order.get_state(), "noise": fit.noise.get_state()}
        weights = {f"weights.{name}": value for name, value in fit.weights.items()}
        best = {f"best.{name}": value for name, value in fit.best.items()}
        tensors |= {f"{position}.{name}": value for name, value in (weights | best | moments | generators).items()}
    cards = [
        {"best_epoch": fit.best_epoch, "steps": fit.steps, "epochs": list(map(asdict, fit.epochs))} for fit in fits
    ]
    write_tensors(file, tensors, {"members": cards})


def restore_state(fits: Sequence[Fit], file: Path) -> None:
    """Go on from what `save_state` wrote; fits end with the weights that undisturbed ones would have.

    Raises DtmlError for a file that is damaged.
    """
    try:
        tensors, card = read_tensors(file)
        for position, (fit, told) in enumerate(zip(fits, card["members"], strict=True)):
            _put_back(fit, _under(f"{position}.", tensors), told)
    except (DtmlError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DtmlError(f"the state of a training is damaged ({error}): delete {file} to begin anew") from error


def _put_back(fit: Fit, tensors: Weights, card: Mapping[str, Any]) -> None:
    fit.weights = _under("weights.", tensors)
    fit.best = _under("best.", tensors)
    fit.best_epoch, fit.steps = card["best_epoch"], card["steps"]
    fit.epochs = [Epoch(**epoch) for epoch in card["epochs"]]
    fit.order.set_state(tensors["order"])
    fit.noise.set_state(tensors["noise"])
    fit.optimiser = optimiser_of(fit.member, fit.weights)
    state = fit.optimiser.state_dict()
    for name, value in _under("adam.", tensors).items():
        parameter, moment = name.split(".")
        state["state"].setdefault(int(parameter), {})[moment] = value
    fit.optimiser.load_state_dict(state)


def _under(prefix: str, tensors: Weights) -> Weights:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
