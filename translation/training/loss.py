"""Compute the smoothed cross-entropy of the output layer without the scores of a whole batch in memory."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

# With a vocabulary of ten thousand, the scores of so many positions fit into a CPU's cache.
POSITIONS_AT_ONCE = 512


class _OutputLayerLoss(torch.autograd.Function):
    """The loss and its gradients, computed in blocks: the scores of a whole batch are never in memory."""

    @staticmethod
    def forward(
        ctx: Any,
        decoded: Tensor,
        weight: Tensor,
        expected: Tensor,
        smoothing: float,
        consistency: float,
        products: torch.dtype,
    ) -> Tensor:
        """Sum the loss over positions; see `smoothed_loss`. `products` is the type of the matrix products."""
        total, count, passes = decoded.new_zeros(()), len(weight), 2 if consistency else 1
        decoded_gradient, weight_gradient = torch.empty_like(decoded), torch.zeros_like(weight)
        given, outputs = decoded.to(products), weight.to(products)
        # To allocate memory for each block's scores would cost as much as to fill it.
        memory = given.new_empty(POSITIONS_AT_ONCE, count)
        exact = memory if products == decoded.dtype else decoded.new_empty(POSITIONS_AT_ONCE, count)
        by_pass = (x.unflatten(0, (passes, -1)) for x in (given, expected.unsqueeze(-1), decoded_gradient))
        split = (x.split(POSITIONS_AT_ONCE // passes, dim=1) for x in by_pass)
        for inputs, wanted, gradient in zip(*split, strict=True):
            part, tokens = inputs.flatten(0, 1), wanted.flatten(0, 1)
            products_of, scores = memory[: len(part)], exact[: len(part)]
            scores.copy_(torch.matmul(part, outputs.T, out=products_of))
            right, mean = scores.gather(-1, tokens), scores.mean(dim=-1, keepdim=True)
            top = scores.amax(dim=-1, keepdim=True)
            half = len(part) // 2
            apart = scores[:half] - scores[half:] if consistency else None
            every = scores.sub_(top).exp_().sum(dim=-1, keepdim=True)
            log_sum = every.log() + top
            total += (log_sum - (1 - smoothing) * right - smoothing * mean).sum()
            scores.div_(every)  # softmax
            if apart is not None:
                log_ratio = apart.sub_(log_sum[:half] - log_sum[half:])
                total += _add_divergence(scores[:half], scores[half:], log_ratio, consistency)
            # The gradient of the scores: softmax less the smoothed target, and that of the divergence.
            scores.sub_(smoothing / count)
            scores.scatter_add_(-1, tokens, torch.full_like(right, smoothing - 1))
            slopes = products_of.copy_(scores)
            gradient.copy_((slopes @ outputs).view_as(gradient))
            weight_gradient.add_(slopes.T @ part)
        ctx.save_for_backward(decoded_gradient, weight_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        """Return the gradients, which `forward` has already computed."""
        decoded_gradient, weight_gradient = ctx.saved_tensors
        return decoded_gradient * outer[0], weight_gradient * outer[0], None, None, None, None


def _add_divergence(first: Tensor, second: Tensor, log_ratio: Tensor, consistency: float) -> Tensor:
    """Return `consistency` x the mean of both Kullback-Leibler divergences of two softmaxes, summed over positions.

    Its gradient for their scores is added to `first` and `second`, both `[positions, vocabulary]`; `log_ratio`, of
    first / second, is used up.
    """
    half, memory = consistency / 2, first * log_ratio
    forth = memory.sum(dim=-1, keepdim=True)
    back = torch.mul(second, log_ratio, out=memory).sum(dim=-1, keepdim=True)
    apart = torch.sub(first, second, out=memory)
    first.addcmul_(first, log_ratio.sub_(forth), value=half).add_(apart, alpha=half)
    second.addcmul_(second, log_ratio.add_(forth - back), value=-half).sub_(apart, alpha=half)
    return half * (forth - back).sum()


def smoothed_loss(
    decoded: Tensor,
    weight: Tensor,
    expected: Tensor,
    smoothing: float,
    products: torch.dtype | None = None,
    consistency: float = 0.0,
) -> Tensor:
    """Return the summed cross-entropy of `expected` under the scores `decoded @ weight.T`, in nats.

    `decoded` is `[positions, d_model]`, `weight` `[vocabulary, d_model]`, `expected` `[positions]` without padding.
    A share `smoothing` of the target is distributed evenly over the vocabulary (section 5.4 of Vaswani et al.). With
    `consistency`, the halves of `decoded` are two passes over the same positions, and so many times the mean of their
    Kullback-Leibler divergences, one from the other, is added (R-Drop: Liang et al., NeurIPS 2021). With gradients on
    a CPU, matrices are multiplied in the type `products`, if given; all else has the type of `decoded`.
    """
    if torch.is_grad_enabled() and not decoded.is_cuda:
        given = (decoded, weight, expected, smoothing, consistency, products or decoded.dtype)
        loss: Tensor = _OutputLayerLoss.apply(*given)  # type: ignore[no-untyped-call]
        return loss
    # A GPU's memory is fast, and its kernels fuse this.
    at_once = len(decoded) if decoded.is_cuda else POSITIONS_AT_ONCE
    summed = partial(cross_entropy, label_smoothing=smoothing, reduction="sum")
    parts = zip(decoded.split(at_once), expected.split(at_once), strict=True)
    entropy = torch.stack([summed(part @ weight.T, tokens) for part, tokens in parts]).sum()
    if not consistency:
        return entropy
    one, other = (decoded @ weight.T).log_softmax(dim=-1).chunk(2)
    apart = partial(kl_div, reduction="sum", log_target=True)
    return entropy + consistency * (apart(one, other) + apart(other, one)) / 2
