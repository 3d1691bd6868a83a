"""Make one training step: the loss of some batches, summed gradients, and an update.

The scores of a whole batch are never in memory at once. The update is Adam's or Muon's (Jordan et
al., 2024), which moves matrices by their orthogonalised momentum.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from translation.data.batches import Batch
from translation.errors import TranslationError
from translation.recorded import Recorded, Recorder
from translation.training.distributed import ProcessGroup
from translation.transformer import PADDING, Transformer

# The coefficients of the polynomial that brings singular values near 1, and the number of its
# iterations: Jordan et al., 2024.
LINEAR = 3.4445
CUBIC = -4.775
QUINTIC = 2.0315
ITERATIONS = 5
MOMENTUM = 0.95
# The root mean square of an update at a learning rate of 1, which makes it as large as one of Adam:
# Liu et al., 2025.
RMS = 0.2


class Muon(Optimizer):
    """The update of `torch.optim.Muon`, "match_rms_adamw", without weight decay.

    Matrices of one shape are orthogonalised together, in a little more than half of the time.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.001) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - as torch asks
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, matrices in by_shape.items():
                directions = orthogonal(torch.stack([self._momentum(each) for each in matrices]))
                # An orthogonal matrix has the root mean square 1 / sqrt(max(shape)).
                rate = group["lr"] * RMS * math.sqrt(max(shape))
                for matrix, direction in zip(matrices, directions, strict=True):
                    matrix.add_(direction.to(matrix.dtype), alpha=-rate)

    def _momentum(self, matrix: Tensor) -> Tensor:
        """Move the momentum of a matrix towards its gradient, and return Nesterov's."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        momentum: Tensor = state["momentum_buffer"]
        momentum.lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(momentum, MOMENTUM)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices, `[matrices, rows, columns]`, with the same singular vectors, values near 1.

    On CUDA in bfloat16.
    """
    rows, columns = matrices.shape[-2:]
    if rows > columns:  # the smaller of the two possible Gram matrices is cheaper
        return orthogonal(matrices.mT).mT
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    # The iteration needs singular values of at most 1, and the norm is at least the largest one.
    # The least norm keeps a matrix of zeros at zero, which would become NaN.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=CUBIC, alpha=QUINTIC)
        x = torch.baddbmm(x, polynomial, x, beta=LINEAR)
    return x


# With a vocabulary of ten thousand, the scores of so many positions fit into a CPU's cache.
POSITIONS_AT_ONCE = 512


class _OutputLayerLoss(torch.autograd.Function):
    """The loss and its gradients, computed in blocks of positions."""

    @staticmethod
    def forward(
        ctx: Any,
        decoded: Tensor,
        weight: Tensor,
        expected: Tensor,
        smoothing: float,
    ) -> Tensor:
        """Return the loss summed over positions (`smoothed_loss`), and keep its gradients."""
        total = decoded.new_zeros(())
        decoded_gradient = torch.empty_like(decoded)
        weight_gradient = torch.zeros_like(weight)
        # All blocks use the same memory: allocating some for each would take as long as filling it.
        vocabulary = len(weight)
        block_of_scores = decoded.new_empty(POSITIONS_AT_ONCE, vocabulary)
        blocks = zip(
            decoded.split(POSITIONS_AT_ONCE),
            expected.unsqueeze(-1).split(POSITIONS_AT_ONCE),
            decoded_gradient.split(POSITIONS_AT_ONCE),
            strict=True,
        )
        # Of one block: `part` and `gradient` (a view into `decoded_gradient`) are [positions,
        # d_model], `tokens` is [positions, 1], and scores are [positions, vocabulary].
        for part, tokens, gradient in blocks:
            scores = torch.matmul(part, weight.T, out=block_of_scores[: len(part)])
            score_of_expected = scores.gather(-1, tokens)
            mean = scores.mean(dim=-1, keepdim=True)
            highest = scores.amax(dim=-1, keepdim=True)
            # From here on, the memory of `scores` holds the exponentials, then `score_gradient`.
            exponentials = scores.sub_(highest).exp_()
            normaliser = exponentials.sum(dim=-1, keepdim=True)
            log_normaliser = normaliser.log() + highest
            # The share `smoothing` of a loss is the mean cross-entropy over all tokens.
            # The rest is that of the expected token.
            losses = log_normaliser - (1 - smoothing) * score_of_expected - smoothing * mean
            total += losses.sum()
            # The gradient of the scores: softmax less the smoothed target.
            score_gradient = exponentials.div_(normaliser).sub_(smoothing / vocabulary)
            minus_share_of_expected = torch.full_like(score_of_expected, smoothing - 1)
            score_gradient.scatter_add_(-1, tokens, minus_share_of_expected)
            gradient.copy_(score_gradient @ weight)
            weight_gradient.add_(score_gradient.T @ part)
        ctx.save_for_backward(decoded_gradient, weight_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *loss_gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of `decoded` and `weight`, which `forward` has already computed."""
        (loss_gradient,) = loss_gradients  # of the one output
        decoded_gradient, weight_gradient = ctx.saved_tensors
        return decoded_gradient * loss_gradient, weight_gradient * loss_gradient, None, None


def smoothed_loss(decoded: Tensor, weight: Tensor, expected: Tensor, smoothing: float) -> Tensor:
    """Return the summed cross-entropy of `expected` under the scores `decoded @ weight.T`, in nats.

    `decoded` is `[positions, d_model]`, `weight` `[vocabulary, d_model]`, `expected` `[positions]`,
    on the CPU without padding. A share `smoothing` of the target is spread evenly (section 5.4 of
    Vaswani et al.).
    """
    if not decoded.is_cpu:  # A GPU's memory is fast, and its kernels fuse the operations.
        return cross_entropy(
            decoded @ weight.T,
            expected,
            ignore_index=PADDING,
            label_smoothing=smoothing,
            reduction="sum",
        )
    if torch.is_grad_enabled():
        loss: Tensor = _OutputLayerLoss.apply(decoded, weight, expected, smoothing)  # type: ignore[no-untyped-call]
        return loss
    losses: list[Tensor] = []
    blocks = zip(decoded.split(POSITIONS_AT_ONCE), expected.split(POSITIONS_AT_ONCE), strict=True)
    for part, tokens in blocks:
        loss_of_part = cross_entropy(
            part @ weight.T,
            tokens,
            label_smoothing=smoothing,
            reduction="sum",
        )
        losses.append(loss_of_part)
    return torch.stack(losses).sum()


SeededBatch = tuple[int, Batch]  # a batch, and the seed of its dropout


class Translator(Protocol):
    """The interface of a network that can be trained: see `translation.transformer.Transformer`."""

    output_weight: Tensor

    def __call__(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Decode to `[sentences, target positions, d_model]`; the second result is not used."""


def optimisers_of(network: nn.Module, kind: str) -> list[torch.optim.Optimizer]:
    """Return the optimisers of a network, Adam alone or Adam and Muon.

    Adam is as in section 5.3 of Vaswani et al. With "muon" it updates embeddings and vectors alone,
    Muon (Jordan et al., 2024) the other matrices, as far as Adam would (Liu et al., 2025): one
    learning rate.
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
    return [adam, Muon(for_muon)]


def batch_loss(network: nn.Module, sides: Iterable[Tensor], smoothing: float) -> Tensor:
    """Return the loss of `Batch.sides` in nats, summed over real target tokens (`smoothed_loss`).

    On CUDA, autocast multiplies in bfloat16.
    """
    source, target, expected = sides
    with torch.autocast("cuda", torch.bfloat16, enabled=source.is_cuda):
        translator = cast(Translator, network)
        decoded, _ = translator(source, target)
        if decoded.is_cpu:  # A GPU would have to be asked how many tokens are real.
            is_real = expected != PADDING
            decoded = decoded[is_real]
            expected = expected[is_real]
        return smoothed_loss(
            decoded=decoded.flatten(0, -2),
            weight=translator.output_weight,
            expected=expected.flatten(),
            smoothing=smoothing,
        )


def _add_gradients(
    network: nn.Module, sides: Iterable[Tensor], smoothing: float, total: Tensor
) -> None:
    """Add the loss to `total`, and its gradients to those of the network."""
    loss = batch_loss(network, sides, smoothing)
    loss.backward()
    total += loss.detach()


class Gradients:
    """The sums of the loss and its gradients over batches.

    On a GPU, a Transformer's batches are padded to few shapes, and the work on each is `Recorded`.
    """

    def __init__(self, network: nn.Module, smoothing: float, device: torch.device) -> None:
        self.network = network
        self.smoothing = smoothing
        self.loss = torch.zeros((), device=device, dtype=torch.float64)
        self.flat: Tensor | None = None  # all gradients, where work is recorded
        # An LSTM's work depends on the lengths of the sentences.
        if device.type != "cpu" and isinstance(network, Transformer):
            self.flat = _flat_gradients(network)
        self.recorder = Recorder(device)  # its stream may read what was made before it
        self.works: dict[torch.Size, tuple[Tensor, Recorded]] = {}  # with the sides that each reads

    def clear(self) -> None:
        """Set the sums to 0."""
        self.loss.zero_()
        if self.flat is None:
            self.network.zero_grad()
        else:
            self.flat.zero_()

    def add(self, batch: Batch) -> None:
        """Add the loss of a batch and its gradients."""
        if self.flat is None:
            moved = [side.to(self.loss.device) for side in batch.sides]
            _add_gradients(self.network, moved, self.smoothing, self.loss)
            return
        padded = batch.padded()
        if padded.shape not in self.works:
            sides = torch.empty_like(padded, device=self.loss.device)
            work = partial(_add_gradients, self.network, sides, self.smoothing, self.loss)
            self.works[padded.shape] = (sides, Recorded(self.recorder, work))
        sides, recorded = self.works[padded.shape]
        sides.copy_(padded, non_blocking=True)
        recorded()

    def tensors(self) -> list[Tensor]:
        """Return the tensors of all gradients."""
        if self.flat is not None:
            return [self.flat]
        return [each.grad for each in self.network.parameters() if each.grad is not None]


def _flat_gradients(network: nn.Module) -> Tensor:
    """Return a tensor of zeros of which all gradients are parts: one kernel changes them."""
    parameters = list(network.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    flat = parameters[0].new_zeros(sum(sizes))
    for parameter, part in zip(parameters, flat.split(sizes), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


class StepResult(NamedTuple):
    """The totals of an update over all processes."""

    loss: float  # summed, in nats
    tokens: int  # of the target


@dataclass(frozen=True)
class TrainingStep:
    """The updates of a network's weights; each call makes one, with the batches that it gets."""

    network: nn.Module
    gradients: Gradients
    optimisers: Sequence[torch.optim.Optimizer]  # of different weights
    clip: float  # largest norm of the gradient; 0 for no limit
    process_group: ProcessGroup

    def __call__(self, batches: Sequence[SeededBatch], rate: float) -> StepResult:
        """Make a step of learning rate `rate`, in `with step.gradients.recorder.stream`.

        A process may have no batch in an update of few pairs, and then adds nothing. Raises
        TranslationError if the loss is not finite, and if another process has ended.
        """
        self.gradients.clear()
        tokens = 0
        for seed, batch in batches:
            torch.manual_seed(seed)  # of the dropout
            self.gradients.add(batch)
            tokens += batch.tokens
        loss = self.gradients.loss
        result = StepResult(*self.process_group.reduce_gradients(self.network, loss, tokens))
        if not math.isfinite(result.loss):
            raise TranslationError(
                f"the loss is {result.loss} at the learning rate {rate:.2g}: set training.peak, "
                "the highest rate, to a lower value and train from the start; if a state of this "
                "training is saved, the next run names the folder to delete"
            )
        for gradient in self.gradients.tensors():
            gradient.div_(result.tokens)  # of the mean loss a token, not of the sum
        if self.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        for optimiser in self.optimisers:
            for settings in optimiser.param_groups:
                settings["lr"] = rate
            optimiser.step()
        return result
