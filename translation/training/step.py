"""Make one training step: the loss of some batches, gradients summed over all processes, and an update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from translation.data.batches import Batch, Indices, batch_indices, batch_of
from translation.data.corpus import Examples
from translation.errors import TranslationError
from translation.out_of_memory import is_out_of_memory, out_of_memory
from translation.training.distributed import ProcessGroup
from translation.transformer import PADDING

SeededBatch = tuple[int, Batch]  # a batch, and the seed of its dropout
# With a vocabulary of ten thousand, the scores of so many positions fit into a CPU's cache.
POSITIONS_AT_ONCE = 512


class Translator(Protocol):
    """The interface of a network that can be trained: see `translation.transformer.Transformer`."""

    output_weight: Tensor

    def __call__(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Decode to `[sentences, target positions, d_model]`, with weights or None."""


def optimisers_of(network: nn.Module, kind: str) -> list[torch.optim.Optimizer]:
    """Return Adam as in section 5.3 of Vaswani et al.; with the kind "muon", for the embeddings and vectors alone.

    Muon (Jordan et al., 2024) moves the matrices by their momentum with all its singular values brought near 1, as far
    as Adam would (Liu et al., 2025), so both have one learning rate.
    """
    tables = {id(module.weight) for module in network.modules() if isinstance(module, nn.Embedding)}
    every = list(network.parameters())
    matrices = [each for each in every if kind == "muon" and each.dim() == 2 and id(each) not in tables]
    chosen = set(map(id, matrices))
    rest = [each for each in every if id(each) not in chosen]
    adam = torch.optim.Adam(rest, betas=(0.9, 0.98), eps=1e-9, fused=True)
    return [adam, torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")] if matrices else [adam]


class StepResult(NamedTuple):
    """Totals over all processes: summed loss in nats, target tokens, and whether any process asked for a check."""

    loss: float
    tokens: int
    check: bool


@dataclass(frozen=True)
class TrainingStep:
    """One update of the weights, callable with its batches; the fields are the same for all steps of a training."""

    network: nn.Module
    optimisers: Sequence[torch.optim.Optimizer]  # of different weights
    label_smoothing: float
    clip: float  # largest norm of the gradient; 0 for no limit
    device: torch.device
    process_group: ProcessGroup
    products: torch.dtype | None = None  # of the output layer's matrix products on a CPU; None for the network's type

    def __call__(self, batches: Sequence[SeededBatch], rate: float, *, check: bool = False) -> StepResult | None:
        """Make a step of learning rate `rate`; return None if memory runs out. `check` asks all for a check.

        Without a batch, as where an update has fewer pairs than there are processes, a process adds nothing.
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
            raise TranslationError(f"the loss is {done.loss}: train again with a lower peak of the learning rate")
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

        Tries both passes over the largest and the longest batch, beside all that a later step holds in memory.
        """

        def attempt(tokens: int) -> None:
            self.network.zero_grad()
            parameters = [] if self.optimisers[0].state else [*self.network.parameters()] * 2
            moments = [torch.empty_like(each) for each in parameters]
            batches = batch_indices(examples, tokens + tokens // 8, None)  # some more than named: memory fragments
            for indices in (max(batches, key=lambda each: _positions(examples, each)), batches[-1]):
                self._loss(batch_of(examples, indices)).backward()
            moments.clear()

        self.network.zero_grad()
        longest = max(int(examples.source.lengths.max()), int(examples.target.lengths.max())) + 1
        return out_of_memory(batch_tokens, longest, attempt)


def batch_loss(
    network: nn.Module, batch: Batch, smoothing: float, device: torch.device, products: torch.dtype | None = None
) -> Tensor:
    """Return the loss of a batch in nats, summed over real target tokens; padding never reaches the output layer."""
    source, target, expected = (x.to(device) for x in (batch.source, batch.target_input, batch.target_output))
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        translator = cast(Translator, network)
        decoded, _ = translator(source, target)
        real = expected != PADDING
        return smoothed_loss(decoded[real], translator.output_weight, expected[real], smoothing, products)


class _OutputLayerLoss(torch.autograd.Function):
    """The loss and its gradients, computed in blocks: the scores of a whole batch are never in memory."""

    @staticmethod
    def forward(
        ctx: Any, decoded: Tensor, weight: Tensor, expected: Tensor, smoothing: float, products: torch.dtype
    ) -> Tensor:
        """Sum the loss over positions; see `smoothed_loss`. `products` is the type of the matrix products."""
        total, count = decoded.new_zeros(()), len(weight)
        decoded_gradient, weight_gradient = torch.empty_like(decoded), torch.zeros_like(weight)
        given, outputs = decoded.to(products), weight.to(products)
        split = (x.split(POSITIONS_AT_ONCE) for x in (given, expected.unsqueeze(-1), decoded_gradient))
        for part, tokens, gradient in zip(*split, strict=True):
            scores = (part @ outputs.T).to(decoded.dtype)
            right, mean = scores.gather(-1, tokens), scores.mean(dim=-1, keepdim=True)
            top = scores.amax(dim=-1, keepdim=True)
            every = scores.sub_(top).exp_().sum(dim=-1, keepdim=True)
            total += (every.log() + top - (1 - smoothing) * right - smoothing * mean).sum()
            # The gradient of the scores: softmax less the smoothed target.
            scores.div_(every).sub_(smoothing / count)
            scores.scatter_add_(-1, tokens, scores.new_full((len(tokens), 1), smoothing - 1))
            slopes = scores.to(products)
            gradient.copy_(slopes @ outputs)
            weight_gradient.add_(slopes.T @ part)
        ctx.save_for_backward(decoded_gradient, weight_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the gradients, which `forward` has already computed."""
        decoded_gradient, weight_gradient = ctx.saved_tensors
        return decoded_gradient * outer[0], weight_gradient * outer[0], None, None, None


def smoothed_loss(
    decoded: Tensor, weight: Tensor, expected: Tensor, smoothing: float, products: torch.dtype | None = None
) -> Tensor:
    """Return the summed cross-entropy of `expected` under the scores `decoded @ weight.T`, in nats.

    `decoded` is `[positions, d_model]`, `weight` `[vocabulary, d_model]`, `expected` `[positions]` without padding.
    A share `smoothing` of the target is distributed evenly over the vocabulary (section 5.4 of Vaswani et al.). With
    gradients on a CPU, matrices are multiplied in the type `products`, if given; all else has the type of `decoded`.
    """
    if torch.is_grad_enabled() and not decoded.is_cuda:
        given = (decoded, weight, expected, smoothing, products or decoded.dtype)
        loss: Tensor = _OutputLayerLoss.apply(*given)  # type: ignore[no-untyped-call]
        return loss
    # A GPU's memory is fast, and its kernels fuse this.
    at_once = len(decoded) if decoded.is_cuda else POSITIONS_AT_ONCE
    summed = partial(cross_entropy, label_smoothing=smoothing, reduction="sum")
    parts = zip(decoded.split(at_once), expected.split(at_once), strict=True)
    return torch.stack([summed(part @ weight.T, tokens) for part, tokens in parts]).sum()


def _positions(examples: Examples, indices: Indices) -> int:
    """Count the positions of both sides of a batch, padding included."""
    widths = examples.source.lengths[indices].max() + examples.target.lengths[indices].max() + 2
    return int(len(indices) * widths)


class FastDropout(nn.Dropout):
    """`nn.Dropout` from uniform numbers: on a CPU torch draws these in blocks, but others one by one."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch names it
        """Set a share `p` of the elements to 0 and multiply the others by 1 / (1 - p)."""
        if not self.training or self.p == 0 or input.is_cuda:
            return super().forward(input)
        kept = torch.rand(input.shape, device=input.device) >= self.p
        return input * kept.to(input.dtype).mul_(1 / (1 - self.p) if self.p < 1 else 0.0)


def use_fast_dropout(network: nn.Module) -> None:
    """Replace every `nn.Dropout` of a network by a `FastDropout`."""
    for module in list(network.modules()):
        for name, inner in module.named_children():
            if type(inner) is nn.Dropout:
                setattr(module, name, FastDropout(inner.p))
