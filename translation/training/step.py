"""Make one training step: the loss of some batches, summed gradients, and an update."""

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
        """Decode to `[sentences, target positions, d_model]`; the second result is not used."""


def optimisers_of(
    network: nn.Module, kind: str, muon_dtype: torch.dtype = torch.bfloat16
) -> list[torch.optim.Optimizer]:
    """Return the optimisers of a network, Adam alone or Adam and Muon.

    Adam has the settings of section 5.3 of Vaswani et al. With the kind "adam" it updates all
    weights, with "muon" the embeddings and vectors alone. The other matrices are then updated by
    Muon (Jordan et al., 2024), which multiplies in the type `muon_dtype`. It moves a matrix by its
    momentum, whose singular values are all brought near 1, and as far as Adam would (Liu et al.,
    2025), so both optimisers have the same learning rate.
    """
    embeddings = {
        id(module.weight) for module in network.modules() if isinstance(module, nn.Embedding)
    }
    for_adam: list[nn.Parameter] = []
    for_muon: list[nn.Parameter] = []
    for parameter in network.parameters():
        is_matrix = parameter.dim() == 2 and id(parameter) not in embeddings
        if kind == "muon" and is_matrix:
            for_muon.append(parameter)
        else:
            for_adam.append(parameter)
    adam = torch.optim.Adam(for_adam, betas=(0.9, 0.98), eps=1e-9, fused=True)
    if not for_muon:
        return [adam]
    return [adam, Muon(for_muon, product_dtype=muon_dtype)]


class StepResult(NamedTuple):
    """The totals of an update over all processes."""

    loss: float  # summed, in nats
    tokens: int  # of the target
    is_check_requested: bool  # by any process


@dataclass(frozen=True)
class TrainingStep:
    """The updates of a network's weights; each call makes one, with the batches that it gets."""

    network: nn.Module
    optimisers: Sequence[torch.optim.Optimizer]  # of different weights
    label_smoothing: float
    clip: float  # largest norm of the gradient; 0 for no limit
    device: torch.device
    process_group: ProcessGroup
    # Of the output layer's matrix products on a CPU; None for the type of the network.
    product_dtype: torch.dtype | None = None

    def __call__(
        self, batches: Sequence[SeededBatch], rate: float, *, request_check: bool = False
    ) -> StepResult | None:
        """Make a step of learning rate `rate`; return None if memory runs out.

        `request_check` asks all processes for a check after the step. A process may have no batch
        in an update of few pairs, and then adds nothing. Raises TranslationError if the loss is not
        finite, and if another process has ended.
        """
        try:
            return self._step(batches, rate, request_check)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return None  # outside of the handler, where the error no longer holds the step's tensors

    def _step(self, batches: Sequence[SeededBatch], rate: float, request_check: bool) -> StepResult:
        """Make a step as `__call__` does, but raise what torch raises if memory runs out."""
        self.network.zero_grad()
        loss = 0.0
        tokens = 0
        for seed, batch in batches:
            torch.manual_seed(seed)  # of the dropout
            loss_of_batch = self._loss(batch)
            loss_of_batch.backward()
            loss += loss_of_batch.item()
            tokens += batch.tokens
        own_figures = (loss, tokens, request_check)
        figures = self.process_group.reduce_gradients(self.network, own_figures)
        result = StepResult(*figures)
        if not math.isfinite(result.loss):
            raise TranslationError(
                f"the loss is {result.loss} at the learning rate {rate:.2g}: set training.peak, "
                "the highest rate, to a lower value and train from the start; if a state of this "
                "training is saved, the next run names the folder to delete"
            )
        for parameter in self.network.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(result.tokens)  # of the mean loss a token, not of the sum
        if self.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        for optimiser in self.optimisers:
            for settings in optimiser.param_groups:
                settings["lr"] = rate
            optimiser.step()
        return result

    def _loss(self, batch: Batch) -> Tensor:
        return batch_loss(
            network=self.network,
            batch=batch,
            smoothing=self.label_smoothing,
            device=self.device,
            product_dtype=self.product_dtype,
        )

    def out_of_memory(self, examples: Examples, batch_tokens: int) -> TranslationError:
        """Return the error for a step that ran out of memory.

        It names a `batch_tokens` that fits, or says that even one sentence alone does not fit.
        Smaller numbers are tried, each with forward and backward passes over the largest batch and
        that of the longest targets, while as much memory is in use as in a later step.
        """

        def attempt(tokens: int) -> None:
            self.network.zero_grad()
            # Adam allocates its moments at the first step. Before that, tensors of the same size,
            # whose values nobody reads, take up that memory.
            moments = [] if self.optimisers[0].state else self._two_moments()
            # With some more tokens than the error names, as memory becomes fragmented.
            batches = batch_indices(examples, tokens + tokens // 8, None)
            largest = max(batches, key=lambda indices: _positions(examples, indices))
            longest_targets = batches[-1]  # without a generator, these come last
            self._loss(batch_of(examples, largest)).backward()
            self._loss(batch_of(examples, longest_targets)).backward()
            moments.clear()  # only now: their memory had to stay in use until here

        self.network.zero_grad()
        longest = max(examples.source.lengths.max(), examples.target.lengths.max())
        longest_with_end = int(longest) + 1
        return out_of_memory(batch_tokens, longest_with_end, attempt)

    def _two_moments(self) -> list[Tensor]:
        """Allocate as much memory as Adam's state does at the first step."""
        parameters = list(self.network.parameters())
        return [torch.empty_like(parameter) for parameter in parameters * 2]


def batch_loss(
    network: nn.Module,
    batch: Batch,
    smoothing: float,
    device: torch.device,
    product_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the loss of a batch in nats, summed over real target tokens.

    Padding never reaches the output layer. `smoothing` and `product_dtype`, the type of the output
    layer's matrix products, are those of `smoothed_loss`. On CUDA, autocast chooses the types.
    """
    source = batch.source.to(device)
    target = batch.target_input.to(device)
    expected = batch.target_output.to(device)
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        translator = cast(Translator, network)
        decoded, _ = translator(source, target)
        is_real = expected != PADDING
        return smoothed_loss(
            decoded=decoded[is_real],
            weight=translator.output_weight,
            expected=expected[is_real],
            smoothing=smoothing,
            product_dtype=product_dtype,
        )


def _positions(examples: Examples, indices: Indices) -> int:
    """Count the positions of both sides of a batch, padding included."""
    source_width = examples.source.lengths[indices].max() + 1
    target_width = examples.target.lengths[indices].max() + 1
    return int(len(indices) * (source_width + target_width))
