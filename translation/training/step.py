"""Make one training step: the loss of some batches, gradients summed over all
processes, and an update.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from translation.data.batches import Batch, Indices, batch_indices, batch_of
from translation.data.corpus import Examples
from translation.errors import TranslationError
from translation.out_of_memory import is_out_of_memory, out_of_memory
from translation.training.distributed import ProcessGroup
from translation.training.loss import smoothed_loss
from translation.training.muon import Muon
from translation.transformer import PADDING

SeededBatch = tuple[int, Batch]  # a batch, and the seed of its dropout


class Translator(Protocol):
    """The interface of a network that can be trained: see `translation.transformer.Transformer`."""

    output_weight: Tensor

    def __call__(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Decode to `[sentences, target positions, d_model]`, with weights or None."""


def optimisers_of(
    network: nn.Module, kind: str, muon_products: torch.dtype = torch.bfloat16
) -> list[torch.optim.Optimizer]:
    """Return Adam as in section 5.3 of Vaswani et al.; with the kind "muon", for the embeddings and
    vectors alone.

    Muon (Jordan et al., 2024) moves the matrices by their momentum with all its singular values
    brought near 1, as far as Adam would (Liu et al., 2025), so both have one learning rate.
    """
    tables = {id(module.weight) for module in network.modules() if isinstance(module, nn.Embedding)}
    every = list(network.parameters())
    matrices = [
        each for each in every if kind == "muon" and each.dim() == 2 and id(each) not in tables
    ]
    chosen = set(map(id, matrices))
    rest = [each for each in every if id(each) not in chosen]
    adam = torch.optim.Adam(rest, betas=(0.9, 0.98), eps=1e-9, fused=True)
    return [adam, Muon(matrices, products=muon_products)] if matrices else [adam]


class StepResult(NamedTuple):
    """Totals over all processes: summed loss in nats, target tokens, and
    whether any process asked for a check.
    """

    loss: float
    tokens: int
    check: bool


@dataclass(frozen=True)
class TrainingStep:
    """One update of the weights, callable with its batches; the fields are the
    same for all steps of a training.
    """

    network: nn.Module
    optimisers: Sequence[torch.optim.Optimizer]  # of different weights
    label_smoothing: float
    clip: float  # largest norm of the gradient; 0 for no limit
    device: torch.device
    process_group: ProcessGroup
    # of the output layer's matrix products on a CPU; None for the network's type
    products: torch.dtype | None = None

    def __call__(
        self, batches: Sequence[SeededBatch], rate: float, *, check: bool = False
    ) -> StepResult | None:
        """Make a step of learning rate `rate`; return None if memory runs out.

        `check` asks all for a check.

        Without a batch, as where an update has fewer pairs than there are processes, a process adds
        nothing.
        """
        try:
            return self._step(batches, rate, check)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return None  # outside of the handler, where the error no longer holds the step's tensors

    def _step(self, batches: Sequence[SeededBatch], rate: float, check: bool) -> StepResult:
        self.network.zero_grad()
        loss, count = 0.0, 0
        for seed, batch in batches:
            torch.manual_seed(seed)
            summed = self._loss(batch)
            summed.backward()
            loss, count = loss + summed.item(), count + batch.tokens
        done = StepResult(*self.process_group.reduce_gradients(self.network, (loss, count, check)))
        if not math.isfinite(done.loss):
            raise TranslationError(
                f"the loss is {done.loss}: train again with a lower peak learning rate"
            )
        for parameter in self.network.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(done.tokens)
        if self.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        for optimiser in self.optimisers:
            for settings in optimiser.param_groups:
                settings["lr"] = rate
            optimiser.step()
        return done

    def _loss(self, batch: Batch) -> Tensor:
        return batch_loss(self.network, batch, self.label_smoothing, self.device, self.products)

    def out_of_memory(self, examples: Examples, batch_tokens: int) -> TranslationError:
        """Return the error that names the `batch_tokens` that fit.

        Tries both passes over the largest and the longest batch, beside all that a later step holds
        in memory.
        """

        def attempt(tokens: int) -> None:
            self.network.zero_grad()
            parameters = [] if self.optimisers[0].state else [*self.network.parameters()] * 2
            moments = [torch.empty_like(each) for each in parameters]
            # some more than named: memory fragments
            batches = batch_indices(examples, tokens + tokens // 8, None)
            for indices in (max(batches, key=lambda each: _positions(examples, each)), batches[-1]):
                self._loss(batch_of(examples, indices)).backward()
            moments.clear()

        self.network.zero_grad()
        longest = max(int(examples.source.lengths.max()), int(examples.target.lengths.max())) + 1
        return out_of_memory(batch_tokens, longest, attempt)


def batch_loss(
    network: nn.Module,
    batch: Batch,
    smoothing: float,
    device: torch.device,
    products: torch.dtype | None = None,
) -> Tensor:
    """Return the loss of a batch in nats, summed over real target tokens;
    padding never reaches the output layer.
    """
    source, target, expected = (
        x.to(device) for x in (batch.source, batch.target_input, batch.target_output)
    )
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        translator = cast(Translator, network)
        decoded, _ = translator(source, target)
        real = expected != PADDING
        return smoothed_loss(
            decoded[real], translator.output_weight, expected[real], smoothing, products
        )


def _positions(examples: Examples, indices: Indices) -> int:
    """Count the positions of both sides of a batch, padding included."""
    widths = examples.source.lengths[indices].max() + examples.target.lengths[indices].max() + 2
    return int(len(indices) * widths)
