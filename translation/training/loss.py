"""Compute the smoothed cross-entropy of the output layer, in little memory.

The scores of a whole batch are never in memory at once.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

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
        product_dtype: torch.dtype,
    ) -> Tensor:
        """Return the loss summed over positions, and keep its gradients for `backward`.

        The arguments are those of `smoothed_loss`.
        """
        total = decoded.new_zeros(())
        decoded_gradient = torch.empty_like(decoded)
        weight_gradient = torch.zeros_like(weight)
        rounded_decoded = decoded.to(product_dtype)
        rounded_weight = weight.to(product_dtype)
        # All blocks use the same memory: allocating some for each would take as long as filling it.
        # Of equal types, products and scores share it, and a copy between them changes nothing.
        vocabulary = len(weight)
        block_of_products = rounded_decoded.new_empty(POSITIONS_AT_ONCE, vocabulary)
        if product_dtype == decoded.dtype:
            block_of_scores = block_of_products
        else:
            block_of_scores = decoded.new_empty(POSITIONS_AT_ONCE, vocabulary)
        blocks = zip(
            rounded_decoded.split(POSITIONS_AT_ONCE),
            expected.unsqueeze(-1).split(POSITIONS_AT_ONCE),
            decoded_gradient.split(POSITIONS_AT_ONCE),
            strict=True,
        )
        # Of one block: `part` and `gradient` (a view into `decoded_gradient`) are [positions,
        # d_model], `tokens` is [positions, 1], and scores are [positions, vocabulary].
        for part, tokens, gradient in blocks:
            part_products = block_of_products[: len(part)]
            scores = block_of_scores[: len(part)]
            scores.copy_(torch.matmul(part, rounded_weight.T, out=part_products))
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
            rounded_gradient = part_products.copy_(score_gradient)  # in the type of the products
            gradient.copy_(rounded_gradient @ rounded_weight)
            weight_gradient.add_(rounded_gradient.T @ part)
        ctx.save_for_backward(decoded_gradient, weight_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *loss_gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the gradients of `decoded` and `weight`, which `forward` has already computed."""
        (loss_gradient,) = loss_gradients  # of the one output
        decoded_gradient, weight_gradient = ctx.saved_tensors
        return decoded_gradient * loss_gradient, weight_gradient * loss_gradient, None, None, None


def smoothed_loss(
    decoded: Tensor,
    weight: Tensor,
    expected: Tensor,
    smoothing: float,
    product_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the summed cross-entropy of `expected` under the scores `decoded @ weight.T`, in nats.

    `decoded` is `[positions, d_model]`, `weight` `[vocabulary, d_model]`, `expected` `[positions]`
    without padding. A share `smoothing` of the target is distributed evenly over the vocabulary
    (section 5.4 of Vaswani et al.). With gradients on a CPU, matrices are multiplied in the type
    `product_dtype`, if given; all else has the type of `decoded`.
    """
    if torch.is_grad_enabled() and not decoded.is_cuda:
        loss: Tensor = _OutputLayerLoss.apply(  # type: ignore[no-untyped-call]
            decoded,
            weight,
            expected,
            smoothing,
            product_dtype or decoded.dtype,
        )
        return loss
    # A GPU takes all positions at once: its memory is fast, and its kernels fuse the operations.
    at_once = len(decoded) if decoded.is_cuda else POSITIONS_AT_ONCE
    losses: list[Tensor] = []
    for part, tokens in zip(decoded.split(at_once), expected.split(at_once), strict=True):
        loss_of_part = cross_entropy(
            part @ weight.T,
            tokens,
            label_smoothing=smoothing,
            reduction="sum",
        )
        losses.append(loss_of_part)
    return torch.stack(losses).sum()
