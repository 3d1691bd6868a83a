"""The interface of every network: it scores stocks, and has the loss that its paper minimises.

A new network is a file with its config and its class, and a line in `dtml.networks`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dtml.errors import DtmlError
from translation.transformer import replace_dropout

# Stock-days that go through a network at once on CPU: their data fit into a core's cache.
STOCK_DAYS = 960
# Pairs of stocks that attend to each other at once on an accelerator: 1 GB for four heads.
PAIRS = 2**26

Rows = Float[Tensor, "sessions symbols features"]
Positions = Int[Tensor, "days window"]  # in the rows, oldest first
StockDays = Bool[Tensor, "days stocks"]
Scores = Float[Tensor, "days stocks"]


class Batch(NamedTuple):
    """The days of one step.

    `rows` are the sessions needed, features in percent, the index last; `windows` positions in
    them, oldest first. `observed` are the stock-days that the network may use, `counted` those of
    the loss, at least one. `rises`: whether `movement`, 0 where unknown, is above 0. `step`: steps
    taken so far.
    """

    rows: Rows
    windows: Positions
    observed: StockDays
    rises: StockDays
    counted: StockDays
    step: Float[Tensor, ""]
    movement: Float[Tensor, "days stocks"]


class Network(nn.Module, ABC):
    """A network that `dtml.training` can train.

    Its random numbers come from a `RandomLayer`, in place of torch's dropout, by seed alone.
    """

    @abstractmethod
    def logits(self, rows: Rows, windows: Positions, observed: StockDays) -> Scores:
        """Return the score of each stock on each day; its sigmoid is the probability of a rise."""

    @abstractmethod
    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the loss that training minimises: a mean over counted stock-days, plus terms of
        the weights.

        The loss of a day depends on no other. `penalty` weighs the network's own regularisation.
        """

    def correct(self, logits: Float[Tensor, "*axes days stocks"], batch: Batch) -> Tensor:
        """Return what validation averages, the highest best: whether a direction is right."""
        return (logits > 0) == batch.rises

    def initialise(self, generator: torch.Generator) -> None:
        """Draw every linear map uniform in +-1/sqrt(inputs), torch's default.

        A network that has other weights draws these too, or they differ at each training.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                bound = module.in_features**-0.5
                for parameter in module.parameters():
                    nn.init.uniform_(parameter, -bound, bound, generator=generator)


@dataclass(frozen=True)
class NetworkConfig(ABC):
    """The settings that decide the shape of a network."""

    @abstractmethod
    def build(self, stocks: int) -> Network:
        """Return the network for a number of stocks, before its weights are drawn."""

    @property
    def name(self) -> str:
        """Return the name of the network, in tables and bars of progress."""
        return type(self).__name__

    @property
    def is_tied(self) -> bool:
        """Return whether the network has weights for each stock, and so serves no others."""
        return False


class RandomLayer(nn.Module):
    """A module that draws from its training's `generator`; without one, from torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator: torch.Generator | None = None


class Dropout(RandomLayer):
    """Inverted dropout (Srivastava et al., JMLR 2014)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability `rate` while training, and scale the others."""
        if not self.training or self.rate == 0:
            return x
        # Contiguous, so that the same elements get the same numbers whatever the layout of `x`.
        drawn = torch.empty_like(x, memory_format=torch.contiguous_format)
        drawn.uniform_(generator=self.generator)
        return x * (drawn >= self.rate) / (1 - self.rate)


class Gaussian(RandomLayer):
    """Standard normal random numbers for latent variables; zeros outside of training."""

    def forward(self, like: Tensor) -> Tensor:
        """Return standard normal numbers in the shape of `like` while training, else zeros."""
        drawn = torch.zeros_like(like, memory_format=torch.contiguous_format)
        return drawn.normal_(generator=self.generator) if self.training else drawn


def use_generator(model: nn.Module, generator: torch.Generator) -> None:
    """Make all random parts of `model`, torch's own dropout included, draw from this generator."""
    replace_dropout(model, Dropout)  # torch's own cannot be given a generator
    for module in model.modules():
        if isinstance(module, RandomLayer):
            module.generator = generator


def days_at_once(symbols: int, device: torch.device) -> int:
    """Return how many days of a number of stocks go through a network at once, the same on every
    CPU.

    The last bits of the result depend on it.
    """
    if device.type == "cpu":
        return max(1, STOCK_DAYS // symbols)
    return max(1, PAIRS // symbols**2)


@contextmanager
def memory_of_the_gpu() -> Iterator[None]:
    """Raise DtmlError, which says what to set, where the work inside needs more memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DtmlError(
            "the GPU has too little memory: use --device cpu or, in [model] of the market's file, "
            "set a smaller hidden or stocks_a_step"
        ) from error


def cross_entropy(
    logits: Float[Tensor, "*axes"], rises: Bool[Tensor, "*axes"], counted: Bool[Tensor, "*axes"]
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy averaged over the counted stock-days."""
    losses = nn.functional.binary_cross_entropy_with_logits(
        logits, rises.to(logits.dtype), reduction="none"
    )
    return (losses * counted).sum() / counted.sum()
