"""Compute the smoothed cross-entropy of the output layer, in little memory.

The scores of a whole batch are never in memory at once.
"""

from functools import partial
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
        products: torch.dtype,
    ) -> Tensor:
        """Sum the loss over positions; see `smoothed_loss`.

        `products` is the type of the matrix products.
        """
        total, count = decoded.new_zeros(()), len(weight)
        decoded_gradient, weight_gradient = torch.empty_like(decoded), torch.zeros_like(weight)
        given, outputs = decoded.to(products), weight.to(products)
        # To allocate memory for each block's scores would cost as much as to fill it.
        memory = given.new_empty(POSITIONS_AT_ONCE, count)
        exact = memory if products == decoded.dtype else decoded.new_empty(POSITIONS_AT_ONCE, count)
        split = (
            x.split(POSITIONS_AT_ONCE) for x in (given, expected.unsqueeze(-1), decoded_gradient)
        )
        for part, tokens, gradient in zip(*split, strict=True):
            products_of, scores = memory[: len(part)], exact[: len(part)]
            scores.copy_(torch.matmul(part, outputs.T, out=products_of))
            right, mean = scores.gather(-1, tokens), scores.mean(dim=-1, keepdim=True)
            top = scores.amax(dim=-1, keepdim=True)
            every = scores.sub_(top).exp_().sum(dim=-1, keepdim=True)
            total += (every.log() + top - (1 - smoothing) * right - smoothing * mean).sum()
            # The gradient of the scores: softmax less the smoothed target.
            scores.div_(every).sub_(smoothing / count)
            scores.scatter_add_(-1, tokens, torch.full_like(right, smoothing - 1))
            slopes = products_of.copy_(scores)
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
    decoded: Tensor,
    weight: Tensor,
    expected: Tensor,
    smoothing: float,
    products: torch.dtype | None = None,
) -> Tensor:
    """Return the summed cross-entropy of `expected` under the scores `decoded @ weight.T`, in nats.

    `decoded` is `[positions, d_model]`, `weight` `[vocabulary, d_model]`, `expected` `[positions]`
    without padding. A share `smoothing` of the target is distributed evenly over the vocabulary
    (section 5.4 of Vaswani et al.). With gradients on a CPU, matrices are multiplied in the type
    `products`, if given; all else has the type of `decoded`.
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
