"""The state of one member in training, from its first weights to its last
epoch, and that state on disk.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dtml.checkpoints import Weights, WriteWhole, read_tensors, write_tensors
from dtml.errors import DtmlError
from dtml.layers.network import Network, days_at_once, use_generator
from dtml.model import ContextNormalisation
from dtml.training.recipe import Epoch, Member


@dataclass
class Fit:
    """The state of one member in training."""

    member: Member
    network: Network
    penalty: Float[Tensor, ""]
    optimiser: torch.optim.Adam
    order: torch.Generator  # shuffles days
    random: torch.Generator  # of dropout and latent variables
    days_at_once: int  # that go through the network: fewer once a device had no memory for them
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
        stale = (
            config.patience is not None
            and self.best_epoch > 0
            and done - self.best_epoch >= config.patience
        )
        return done >= config.epochs or stale

    @property
    def weights(self) -> Weights:
        """Return the parameters and buffers by name, in the memory of the network."""
        return {name: value.detach() for name, value in self.network.state_dict().items()}

    def step(self) -> None:
        """Take one step of the optimiser along the gradients that were added up."""
        if self.member.training.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.member.training.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.steps += 1

    def end_epoch(self, loss: float, validation_loss: float, validation_acc: float) -> None:
        """Record the epoch, and keep its weights if best on validation; raise
        DtmlError for a loss not finite.
        """
        number, config = len(self.epochs) + 1, self.member.training
        if not np.isfinite(loss):
            raise DtmlError(
                f"the loss of seed {self.member.seed} is {loss} in epoch {number}: lower the "
                "learning rate"
            )
        self.epochs.append(Epoch(number, loss, validation_loss, validation_acc))
        before = self.best_acc
        if number >= min(config.first_kept_epoch, config.epochs) and validation_acc > before:
            self.best_epoch = number
            self.best = {name: value.detach().cpu().clone() for name, value in self.weights.items()}


def initialise(network: Network, generator: torch.Generator) -> None:
    """Draw every linear map uniform in +-1/sqrt(inputs), torch's default, from the caller's
    generator.

    The offsets of DTML's context normalisation, one row a stock, are normal with the standard
    deviation configured.
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
    """Return a member before its first epoch: weights, order and random numbers
    come from its seed alone.
    """
    first, order, drawn = (
        int(state) for state in np.random.SeedSequence(member.seed).generate_state(3)
    )
    network = member.model.build(stocks)
    initialise(network, torch.Generator().manual_seed(first))
    shuffling, random = (
        torch.Generator().manual_seed(order),
        torch.Generator(device).manual_seed(drawn),
    )
    use_generator(network.to(device), random)
    penalty = torch.tensor(member.training.penalty, device=device)
    optimiser = torch.optim.Adam(network.parameters(), lr=member.training.learning_rate, fused=True)
    at_once = days_at_once(min(stocks, member.training.stocks_a_step or stocks), device)
    return Fit(member, network, penalty, optimiser, shuffling, random, at_once)


@dataclass(frozen=True)
class StateFolder:
    """A folder that keeps the state of each member after each epoch, so that an
    interrupted training resumes.
    """

    path: Path
    write: WriteWhole

    def file(self, member: Member, device: torch.device) -> Path:
        """Return the file that holds the state of a member on a device: another
        one draws other random numbers.
        """
        return self.path / f"{member.name}-{device.type}.safetensors"

    def save(self, fit: Fit) -> None:
        """Write all that the next epoch needs, whole or not at all."""
        counts: dict[str, Any] = {
            "best_epoch": fit.best_epoch,
            "steps": fit.steps,
            "days_at_once": fit.days_at_once,
        }
        card = counts | {"epochs": list(map(asdict, fit.epochs))}
        write_tensors(self.file(fit.member, fit.penalty.device), _tensors(fit), card, self.write)

    def restore(self, fit: Fit) -> bool:
        """Put a fit where `save` left it, and say whether it left anything.

        It ends with the weights of a training that nothing interrupted. Raises DtmlError for a file
        that is damaged.
        """
        file = self.file(fit.member, fit.penalty.device)
        if not file.exists():
            return False
        try:
            _put_back(fit, *read_tensors(file))
        except (DtmlError, KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise DtmlError(
                f"the state of a training is damaged ({reason}): delete {file} to begin anew"
            ) from error
        return True


def _tensors(fit: Fit) -> Weights:
    states = fit.optimiser.state_dict()["state"].items()
    moments = {f"adam.{i}.{name}": value for i, state in states for name, value in state.items()}
    generators = {"order": fit.order.get_state(), "random": fit.random.get_state()}
    weights = {f"weights.{name}": value for name, value in fit.weights.items()}
    return (
        weights | {f"best.{name}": value for name, value in fit.best.items()} | moments | generators
    )


def _put_back(fit: Fit, tensors: Weights, card: Mapping[str, Any]) -> None:
    fit.network.load_state_dict(_under("weights.", tensors))
    fit.best = _under("best.", tensors)
    fit.best_epoch, fit.steps, fit.days_at_once = (
        card["best_epoch"],
        card["steps"],
        card["days_at_once"],
    )
    fit.epochs = [Epoch(**epoch) for epoch in card["epochs"]]
    fit.order.set_state(tensors["order"])
    fit.random.set_state(tensors["random"])
    state = fit.optimiser.state_dict()
    for name, value in _under("adam.", tensors).items():
        parameter, moment = name.split(".")
        state["state"].setdefault(int(parameter), {})[moment] = value
    fit.optimiser.load_state_dict(state)


def _under(prefix: str, tensors: Weights) -> Weights:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
