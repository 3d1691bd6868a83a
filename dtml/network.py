"""The interface of every network: it scores stocks, and has the loss that its paper minimises.

A new network is a file with its config and its class, and a line in `dtml.networks`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dtml.errors import DtmlError
from translation.recorded import RecordingError
from translation.transformer import replace_dropout

# Stock-days that go through a network at once on CPU: their data fit into a core's cache.
STOCK_DAYS = 960
# Pairs of stocks that attend to each other at once on an accelerator: 1 GB for four heads.
PAIRS = 2**26

CONTIGUOUS = torch.contiguous_format
Distribution = Literal["uniform", "normal"]  # of random numbers, in [0, 1) and of variance 1

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

    @property
    @abstractmethod
    def hidden(self) -> int:
        """Return the number of hidden units of a stock in a session."""

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
    """A module that draws from its training's `generator`; without one, from torch's own.

    Members that train as one network have one of the `generators` each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator: torch.Generator | None = None
        self.generators: Sequence[torch.Generator] | None = None

    def draw(self, like: Tensor, distribution: Distribution) -> Tensor:
        """Return random numbers in the shape of `like`, the same whatever its layout."""
        if self.generators is not None:
            drawn: Tensor = _DrawnByMembers.apply(like, self, distribution)  # type: ignore[no-untyped-call]
            return drawn
        return _fill(torch.empty_like(like, memory_format=CONTIGUOUS), self.generator, distribution)


def _fill(drawn: Tensor, generator: torch.Generator | None, distribution: Distribution) -> Tensor:
    if distribution == "uniform":
        return drawn.uniform_(generator=generator)
    return drawn.normal_(generator=generator)


class _DrawnByMembers(torch.autograd.Function):
    """Random numbers inside `vmap` over members, whose own rule cannot be given generators."""

    @staticmethod
    def forward(like: Tensor, layer: RandomLayer, distribution: Distribution) -> Tensor:
        raise NotImplementedError("only inside vmap")

    @staticmethod
    def setup_context(ctx: Any, _inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        _info: Any,
        in_dims: tuple[int, None, None],
        like: Tensor,
        layer: RandomLayer,
        distribution: Distribution,
    ) -> tuple[Tensor, int]:
        """Draw for each member, on axis 0, from its own generator."""
        drawn = torch.empty_like(like.movedim(in_dims[0], 0), memory_format=CONTIGUOUS)
        assert layer.generators is not None
        for of_member, generator in zip(drawn, layer.generators, strict=True):
            _fill(of_member, generator, distribution)
        return drawn, 0


class Dropout(RandomLayer):
    """Inverted dropout (Srivastava et al., JMLR 2014)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability `rate` while training, and scale the others."""
        if not self.training or self.rate == 0:
            return x
        return x * (self.draw(x, "uniform") >= self.rate) / (1 - self.rate)


class Gaussian(RandomLayer):
    """Standard normal random numbers for latent variables; zeros outside of training."""

    def forward(self, like: Tensor) -> Tensor:
        """Return standard normal numbers in the shape of `like` while training, else zeros."""
        if not self.training:
            return torch.zeros_like(like, memory_format=CONTIGUOUS)
        return self.draw(like, "normal")


def use_generator(model: nn.Module, generator: torch.Generator) -> None:
    """Make all random parts of `model`, torch's own dropout included, draw from this generator."""
    for layer in _random_layers(model):
        layer.generator = generator


def use_generators(model: nn.Module, generators: Sequence[torch.Generator]) -> None:
    """Make all random parts of `model`, inside `vmap` over members, draw from each one's own."""
    for layer in _random_layers(model):
        layer.generators = generators


def _random_layers(model: nn.Module) -> list[RandomLayer]:
    replace_dropout(model, Dropout)  # torch's own cannot be given a generator
    return [module for module in model.modules() if isinstance(module, RandomLayer)]


def days_at_once(symbols: int, device: torch.device) -> int:
    """Return how many days of a number of stocks go through a network at once, the same on every
    CPU.

    The last bits of the result depend on it.
    """
    if device.type == "cpu":
        return max(1, STOCK_DAYS // symbols)
    return max(1, PAIRS // symbols**2)


@contextmanager
def gpu_errors_reported() -> Iterator[None]:
    """Raise DtmlError, which says what to set, where the work inside is too much for the GPU."""
    try:
        yield
    except RecordingError as error:
        raise DtmlError(str(error)) from error
    except torch.OutOfMemoryError as error:
        raise DtmlError(
            "the GPU has too little memory: use --device cpu or fewer --workers or, in [model] of "
            "the market's file, set a smaller hidden or stocks_a_step"
        ) from error


def cross_entropy(
    logits: Float[Tensor, "*axes"], rises: Bool[Tensor, "*axes"], counted: Bool[Tensor, "*axes"]
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy averaged over the counted stock-days."""
    losses = nn.functional.binary_cross_entropy_with_logits(
        logits, rises.to(logits.dtype), reduction="none"
    )
    return (losses * counted).sum() / counted.sum()
