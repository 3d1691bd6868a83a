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

# Stock-days that go through a network at once on CPU: what they need stays in a core's cache.
STOCK_DAYS = 960
# Pairs of stocks that attend to each other at once on an accelerator: 1 GB for four heads.
PAIRS = 2**26

Rows = Float[Tensor, "sessions symbols features"]
Positions = Int[Tensor, "days window"]  # in the rows, oldest first
StockDays = Bool[Tensor, "days stocks"]
Scores = Float[Tensor, "days stocks"]


class Batch(NamedTuple):
    """The days of one step.

    `rows` are the distinct sessions that the days need, the index the last of the symbols, features
    in percent; `windows` are positions in them, oldest first. `counted` are the stock-days that the
    loss counts, at least one; `rises` is their label, `movement` what it is the sign of, 0 where
    unknown. `step` is the number of steps taken.
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

    Random numbers come from `dtml.layers.random`, also in place of torch's own dropout, so that a
    seed alone decides them.
    """

    @abstractmethod
    def logits(self, rows: Rows, windows: Positions, observed: StockDays) -> Scores:
        """Return the score of each stock on each day: above 0 is a rise, its
        sigmoid the probability of one.
        """

    @abstractmethod
    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the loss that training minimises; `penalty` weighs the network's own
        regularisation.

        It is a mean over the counted stock-days, each judged by its own day, plus what depends on
        the weights alone: a step sees a few days at a time.
        """

    def correct(self, logits: Float[Tensor, "*axes days stocks"], batch: Batch) -> Tensor:
        """Return what validation averages over the counted stock-days, to keep
        the epoch with most: its accuracy.
        """
        return (logits > 0) == batch.rises


@dataclass(frozen=True)
class NetworkConfig(ABC):
    """The settings that decide the shape of a network."""

    @abstractmethod
    def build(self, stocks: int) -> Network:
        """Return the network for so many stocks, its weights not yet drawn."""


def days_at_once(symbols: int, device: torch.device) -> int:
    """Return how many days of so many stocks go through a network at once.

    It is the same on every CPU, as it decides the last bits.
    """
    if device.type == "cpu":
        return max(1, STOCK_DAYS // symbols)
    return max(1, PAIRS // symbols**2)


def within_memory(
    work: Callable[[int], T], at_once: int, days: int, *, again: Callable[[], object] = int
) -> tuple[T, int]:
    """Do `work` on `days`, so many at once, or half as many while an accelerator has no memory for
    them.

    Returns what came of it, and how many at once it was. `again` undoes what a try left half done.
    Raises DtmlError where not even a single day fits.
    """
    while True:
        try:
            return work(at_once), at_once
        except torch.OutOfMemoryError as error:
            if min(at_once, days) == 1:
                raise DtmlError(
                    "a single day does not fit into the memory of the device: use --device cpu"
                ) from error
        # Halved, rounded up; out of the handler, whose error holds the tensors of the try.
        at_once = -(-min(at_once, days) // 2)
        log.warning(
            "the device ran out of memory: from now on a network processes %d days at once", at_once
        )
        again()


def cross_entropy(
    logits: Float[Tensor, "*axes"], rises: Bool[Tensor, "*axes"], counted: Bool[Tensor, "*axes"]
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy averaged over the counted stock-days."""
    each = nn.functional.binary_cross_entropy_with_logits(
        logits, rises.to(logits.dtype), reduction="none"
    )
    return (each * counted).sum() / counted.sum()
