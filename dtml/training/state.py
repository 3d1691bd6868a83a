"""The state of one member in training, from first weights to last epoch, and that state on disk."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dtml.checkpoints import Weights, WriteWhole, read_tensors, under, write_tensors
from dtml.errors import DtmlError
from dtml.layers.network import Network, days_at_once
from dtml.layers.random import use_generator
from dtml.model import ContextNormalisation
from dtml.training.recipe import Epoch, Member


@dataclass
class Fit:
    """The state of one member in training."""

    member: Member
    network: Network
    penalty: Float[Tensor, ""]  # of the recipe, on the device that trains
    optimiser: torch.optim.Adam
    order: torch.Generator  # shuffles days
    random: torch.Generator  # of dropout and latent variables
    days_at_once: int  # days that go through the network at once: fewer where memory ran out
    best: Weights = field(default_factory=dict)  # of the best epoch, on CPU
    best_epoch: int = 0  # counted from 1; 0 before there is one
    steps: int = 0
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def best_acc(self) -> float:
        """Return the validation accuracy of the best epoch; -1 before there is one."""
        if self.best_epoch == 0:
            return -1.0
        return self.epochs[self.best_epoch - 1].validation_acc

    @property
    def finished(self) -> bool:
        """Return whether all epochs are done, or patience has run out."""
        config = self.member.training
        epochs_done = len(self.epochs)
        if epochs_done >= config.epochs:
            return True
        if config.patience is None or self.best_epoch == 0:
            return False
        return epochs_done - self.best_epoch >= config.patience

    @property
    def weights(self) -> Weights:
        """Return the parameters and buffers by name, which share the network's memory."""
        return {name: value.detach() for name, value in self.network.state_dict().items()}

    def step(self) -> None:
        """Take one step of the optimiser along the accumulated gradients."""
        if self.member.training.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.member.training.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.steps += 1

    def end_epoch(self, loss: float, validation_loss: float, validation_acc: float) -> None:
        """Record the epoch, and keep its weights if it is the best on validation so far.

        No epoch before `first_kept_epoch` is kept, except the last one of a shorter training. Of
        equally good epochs, the first is kept.
        Raises DtmlError for a loss that is not finite.
        """
        number = len(self.epochs) + 1
        config = self.member.training
        if not np.isfinite(loss):
            raise DtmlError(
                f"the loss of seed {self.member.seed} is {loss} in epoch {number}, at a learning "
                f"rate of {config.learning_rate:g}: lower learning_rate in [model] of the market's "
                "file or, where the rate is fixed (audits, benchmarks, networks that rank), look "
                "for extreme prices"
            )
        self.epochs.append(
            Epoch(
                number=number,
                loss=loss,
                validation_loss=validation_loss,
                validation_acc=validation_acc,
            )
        )
        # The last epoch may be kept in any case, so that a short training has weights.
        may_be_kept = number >= min(config.first_kept_epoch, config.epochs)
        if may_be_kept and validation_acc > self.best_acc:
            self.best_epoch = number
            self.best = {name: value.detach().cpu().clone() for name, value in self.weights.items()}


def initialise(network: Network, generator: torch.Generator) -> None:
    """Draw every linear map uniform in +-1/sqrt(inputs), torch's default.

    The offsets of DTML's context normalisation are drawn normal with the standard deviation
    configured, or stay 0 if that is 0. All numbers come from the caller's generator.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
    # Drawn last: so all linear maps get the same numbers with and without offsets.
    for module in network.modules():
        if isinstance(module, ContextNormalisation) and module.deviation:
            nn.init.normal_(module.offset, std=module.deviation, generator=generator)


def start(member: Member, stocks: int, device: torch.device) -> Fit:
    """Return a member before its first epoch.

    Its weights, its order of days and its random numbers come from its seed alone.
    """
    states = np.random.SeedSequence(member.seed).generate_state(3)
    weights_seed, order_seed, random_seed = states.tolist()
    network = member.model.build(stocks)
    initialise(network, torch.Generator().manual_seed(weights_seed))
    shuffling = torch.Generator().manual_seed(order_seed)
    random = torch.Generator(device).manual_seed(random_seed)
    use_generator(network.to(device), random)
    stocks_of_step = min(stocks, member.training.stocks_a_step or stocks)
    return Fit(
        member=member,
        network=network,
        penalty=torch.tensor(member.training.penalty, device=device),
        optimiser=torch.optim.Adam(
            network.parameters(), lr=member.training.learning_rate, fused=True
        ),
        order=shuffling,
        random=random,
        days_at_once=days_at_once(stocks_of_step, device),
    )


@dataclass(frozen=True)
class StateFolder:
    """A folder that keeps the state of each member, so that an interrupted training resumes."""

    path: Path
    write: WriteWhole

    def file(self, member: Member, device: torch.device) -> Path:
        """Return the file that holds the state of a member on a device.

        Each type of device has its own file, because a CPU and a GPU draw different random numbers
        and cannot go on from each other's generators.
        """
        return self.path / f"{member.name}-{device.type}.safetensors"

    def save(self, fit: Fit) -> None:
        """Write everything that the next epoch needs, whole or not at all."""
        card = {
            "best_epoch": fit.best_epoch,
            "steps": fit.steps,
            "days_at_once": fit.days_at_once,
            "epochs": [asdict(epoch) for epoch in fit.epochs],
        }
        file = self.file(fit.member, fit.penalty.device)
        tensors: Weights = {}
        for name, value in fit.weights.items():
            tensors[f"weights.{name}"] = value
        for name, value in fit.best.items():
            tensors[f"best.{name}"] = value
        for parameter, moments in fit.optimiser.state_dict()["state"].items():
            for name, value in moments.items():
                tensors[f"adam.{parameter}.{name}"] = value
        tensors["order"] = fit.order.get_state()
        tensors["random"] = fit.random.get_state()
        write_tensors(file, tensors, card, self.write)

    def restore(self, fit: Fit) -> bool:
        """Restore the state that `save` wrote, and return whether there was any.

        On a CPU, a restored fit ends with exactly the weights of an uninterrupted training. Raises
        DtmlError for a damaged file.
        """
        file = self.file(fit.member, fit.penalty.device)
        if not file.exists():
            return False
        try:
            tensors, card = read_tensors(file)
            fit.network.load_state_dict(under("weights.", tensors))
            fit.best = under("best.", tensors)
            fit.best_epoch = card["best_epoch"]
            fit.steps = card["steps"]
            fit.days_at_once = card["days_at_once"]
            fit.epochs = [Epoch(**epoch) for epoch in card["epochs"]]
            fit.order.set_state(tensors["order"])
            fit.random.set_state(tensors["random"])
            # The file holds the moments alone; the groups of parameters are those of the new
            # optimiser.
            optimiser_state = fit.optimiser.state_dict()
            for name, value in under("adam.", tensors).items():
                parameter, moment = name.split(".")
                optimiser_state["state"].setdefault(int(parameter), {})[moment] = value
            fit.optimiser.load_state_dict(optimiser_state)
        except (DtmlError, KeyError, TypeError, ValueError, RuntimeError) as error:
            # The cause alone: the advice of `read_tensors` is for a file that has a backup.
            reason = " ".join(str(error.__cause__ or error).split())  # on one line
            raise DtmlError(
                f"the saved state of a training run is damaged ({reason}): delete {file} to start "
                "over"
            ) from error
        return True
