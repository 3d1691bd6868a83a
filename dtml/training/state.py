"""The state of one member in training, from its first weights to its last epoch, and that state on disk."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dtml.checkpoints import Weights, WriteWhole, read_tensors, write_tensors
from dtml.errors import DtmlError
from dtml.layers.network import Network
from dtml.model import ContextNormalisation
from dtml.training.recipe import Epoch, Member


@dataclass
class Fit:
    """The state of one member in training; `weights` are its parameters by name, in the memory of its stack."""

    member: Member
    weights: Weights
    optimiser: torch.optim.Adam
    order: torch.Generator  # shuffles days
    random: torch.Generator  # of dropout and latent variables
    best: Weights = field(default_factory=dict)
    best_epoch: int = 0
    steps: int = 0
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def best_acc(self) -> float:
        """Return the validation accuracy of the epoch that is kept; -1 before there is one."""
        return self.epochs[self.best_epoch - 1].validation_acc if self.best_epoch else -1.0

    @property
    def finished(self) -> bool:
        """Return whether all epochs are done, or patience has run out."""
        config, done = self.member.training, len(self.epochs)
        stale = config.patience is not None and self.best_epoch > 0 and done - self.best_epoch >= config.patience
        return done >= config.epochs or stale

    def step(self, gradients: Weights) -> None:
        """Take one step of the optimiser."""
        for name, parameter in self.weights.items():
            parameter.grad = gradients[name]
        if self.member.training.clip is not None:
            nn.utils.clip_grad_norm_(self.weights.values(), self.member.training.clip)
        self.optimiser.step()
        self.steps += 1

    def end_epoch(self, loss: float, validation_loss: float, validation_acc: float) -> None:
        """Record the epoch, and keep its weights if best on validation; raise DtmlError for a loss not finite."""
        number, config = len(self.epochs) + 1, self.member.training
        if not np.isfinite(loss):
            raise DtmlError(f"the loss of seed {self.member.seed} is {loss} in epoch {number}: lower the learning rate")
        self.epochs.append(Epoch(number, loss, validation_loss, validation_acc))
        before = self.best_acc
        if number >= min(config.first_kept_epoch, config.epochs) and validation_acc > before:
            self.best_epoch = number
            self.best = {name: value.detach().cpu().clone() for name, value in self.weights.items()}


def initialise(network: Network, generator: torch.Generator) -> None:
    """Draw every linear map uniform in +-1/sqrt(inputs), torch's default, from the caller's generator.

    The offsets of DTML's context normalisation, one row a stock, are normal with the standard deviation configured.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
    for module in network.modules():
        if isinstance(module, ContextNormalisation) and module.deviation:
            nn.init.normal_(module.offset, std=module.deviation, generator=generator)


def start(member: Member, stocks: int, device: torch.device) -> Fit:
    """Return a member before its first epoch: weights, order and random numbers come from its seed alone."""
    first, order, drawn = (int(state) for state in np.random.SeedSequence(member.seed).generate_state(3))
    network = member.model.build(stocks)
    initialise(network, torch.Generator().manual_seed(first))
    weights = {name: value.detach() for name, value in network.named_parameters()}
    shuffling, random = torch.Generator().manual_seed(order), torch.Generator(device).manual_seed(drawn)
    return Fit(member, weights, optimiser_of(member, weights), shuffling, random)


def optimiser_of(member: Member, weights: Weights) -> torch.optim.Adam:
    """Return the optimiser of these parameters."""
    return torch.optim.Adam(weights.values(), lr=member.training.learning_rate, fused=True)


@dataclass(frozen=True)
class StateFolder:
    """A folder that keeps the state of trainings after each epoch, so that an interrupted one resumes.

    The members trained in one stack share a file: members of different epochs could not resume in the stack that they
    began in, and in another one their sums are grouped otherwise, which changes last bits.
    """

    path: Path
    write: WriteWhole

    def file(self, members: Sequence[Member]) -> Path:
        """Return the file that holds the state of these members, trained together."""
        names = " ".join(member.name for member in members)
        return self.path / f"stack-{hashlib.sha256(names.encode()).hexdigest()[:12]}.safetensors"

    def save(self, fits: Sequence[Fit]) -> None:
        """Write all that the next epoch of these fits needs, whole or not at all."""
        tensors, cards = Weights(), []
        for position, fit in enumerate(fits):
            tensors |= {f"{position}.{name}": value for name, value in _tensors(fit).items()}
            cards.append({"best_epoch": fit.best_epoch, "steps": fit.steps, "epochs": list(map(asdict, fit.epochs))})
        write_tensors(self.file([fit.member for fit in fits]), tensors, {"members": cards}, self.write)

    def restore(self, fits: Sequence[Fit]) -> bool:
        """Put these fits where `save` left them, and say whether it left anything.

        They end with the weights of a training that nothing interrupted. Raises DtmlError for a file that is damaged.
        """
        file = self.file([fit.member for fit in fits])
        if not file.exists():
            return False
        try:
            tensors, card = read_tensors(file)
            for position, (fit, told) in enumerate(zip(fits, card["members"], strict=True)):
                _put_back(fit, _under(f"{position}.", tensors), told)
        except (DtmlError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DtmlError(f"the state of a training is damaged ({error}): delete {file} to begin anew") from error
        return True


def _tensors(fit: Fit) -> Weights:
    states = fit.optimiser.state_dict()["state"].items()
    moments = {f"adam.{i}.{name}": value for i, state in states for name, value in state.items()}
    generators = {"order": fit.order.get_state(), "random": fit.random.get_state()}
    weights = {f"weights.{name}": value for name, value in fit.weights.items()}
    return weights | {f"best.{name}": value for name, value in fit.best.items()} | moments | generators


def _put_back(fit: Fit, tensors: Weights, card: Mapping[str, Any]) -> None:
    fit.weights = _under("weights.", tensors)
    fit.best = _under("best.", tensors)
    fit.best_epoch, fit.steps = card["best_epoch"], card["steps"]
    fit.epochs = [Epoch(**epoch) for epoch in card["epochs"]]
    fit.order.set_state(tensors["order"])
    fit.random.set_state(tensors["random"])
    fit.optimiser = optimiser_of(fit.member, fit.weights)
    state = fit.optimiser.state_dict()
    for name, value in _under("adam.", tensors).items():
        parameter, moment = name.split(".")
        state["state"].setdefault(int(parameter), {})[moment] = value
    fit.optimiser.load_state_dict(state)


def _under(prefix: str, tensors: Weights) -> Weights:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
