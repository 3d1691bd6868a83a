"""The interface of every network: it scores stocks, and has the loss that its paper minimises."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dtml.errors import DtmlError

log = logging.getLogger(__name__)

T = TypeVar("T")

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

    `rows` are the distinct sessions that the days need, with the index as the last symbol and
    features in percent; `windows` are positions in them, oldest first. `observed` are the
    stock-days that the network may use: no other one influences their scores. `counted` are those
    of them that the loss counts, at least one; `rises` is their label, whether `movement` is above
    0. `movement` is 0 where unknown. `step` is the number of steps that the training has taken.
    """

    rows: Rows
    windows: Positions
    observed: StockDays
    rises: StockDays
    counted: StockDays
    step: Float[Tensor, ""]
    movement: Float[Tensor, "days stocks"]


class Network(nn.Module, ABC):
    """A network that `dtml.training.fit` can train.

    Random numbers come from `dtml.layers.random`, which also replaces torch's own dropout, so that
    they depend on a seed alone.
    """

    @abstractmethod
    def logits(self, rows: Rows, windows: Positions, observed: StockDays) -> Scores:
        """Return the score of each stock on each day.

        Above 0 is a rise; the sigmoid of the score is its probability.
        """

    @abstractmethod
    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the loss that training minimises.

        It is a mean over the counted stock-days, plus terms that depend on the weights alone. The
        loss of a stock-day may depend on no other day, because a step computes the loss of a few
        days at a time. `penalty` weighs the network's own regularisation.
        """

    def correct(self, logits: Float[Tensor, "*axes days stocks"], batch: Batch) -> Tensor:
        """Return the figure that validation averages over the counted stock-days.

        Here it is whether a direction is correct, so that its mean is the accuracy. The epoch with
        the highest mean is kept.
        """
        return (logits > 0) == batch.rises


@dataclass(frozen=True)
class NetworkConfig(ABC):
    """The settings that decide the shape of a network."""

    @abstractmethod
    def build(self, stocks: int) -> Network:
        """Return the network for a number of stocks, before its weights are drawn."""


def days_at_once(symbols: int, device: torch.device) -> int:
    """Return how many days of a number of stocks go through a network at once.

    It is the same on every CPU, because the last bits of the result depend on it.
    """
    if device.type == "cpu":
        return max(1, STOCK_DAYS // symbols)
    return max(1, PAIRS // symbols**2)


def _nothing() -> None:
    """Do nothing: a failed attempt without effects needs no undoing."""


def within_memory(
    work: Callable[[int], T],
    at_once: int,
    days: int,
    *,
    undo: Callable[[], object] = _nothing,
) -> tuple[T, int]:
    """Do `work` on `days`, `at_once` at a time, or fewer if an accelerator lacks the memory.

    `work` takes the number of days at a time, which is halved, with a warning in the log, until
    they fit. Returns the result of `work`, and the number that fitted. `undo` undoes the effects of
    a failed attempt before the next. Raises DtmlError where not even a single day fits.
    """
    while True:
        try:
            return work(at_once), at_once
        except torch.OutOfMemoryError as error:
            if min(at_once, days) == 1:
                raise DtmlError(
                    "a single day does not fit into the memory of the GPU: use --device cpu"
                ) from error
        # Halved and rounded up. The next attempt is outside the handler, because until the handler
        # ends, its error holds the tensors of the failed attempt in memory.
        at_once = -(-min(at_once, days) // 2)
        log.warning(
            "the device ran out of memory: from now on a network processes %d days at once; "
            "nothing needs to be done",
            at_once,
        )
        undo()


def cross_entropy(
    logits: Float[Tensor, "*axes"], rises: Bool[Tensor, "*axes"], counted: Bool[Tensor, "*axes"]
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy averaged over the counted stock-days."""
    losses = nn.functional.binary_cross_entropy_with_logits(
        logits, rises.to(logits.dtype), reduction="none"
    )
    return (losses * counted).sum() / counted.sum()
