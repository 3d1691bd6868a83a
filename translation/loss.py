"""Label-smoothed cross-entropy, with the output layer inside: of all a training does, the most."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

# The scores of so many positions fit a processor's cache with a vocabulary of ten thousand.
POSITIONS_AT_ONCE = 512


class _OutputLayerLoss(torch.autograd.Function):
    """The loss and its gradients, some positions at a time: the scores of a whole batch are never in memory."""

    @staticmethod
    def forward(ctx: Any, decoded: Tensor, weight: Tensor, expected: Tensor, smoothing: float) -> Tensor:
        """The sum over positions; see `smoothed_loss`."""
        total = decoded.new_zeros(())
        decoded_gradient, weight_gradient = torch.empty_like(decoded), torch.zeros_like(weight)
        parts = zip(*(x.split(POSITIONS_AT_ONCE) for x in (decoded, expected, decoded_gradient)), strict=True)
        for part, tokens, gradient in parts:
            scores = part @ weight.T
            normaliser = scores.logsumexp(dim=-1, keepdim=True)
            right = scores.gather(-1, tokens.unsqueeze(-1))
            total += (normaliser - (1 - smoothing) * right - smoothing * scores.mean(dim=-1, keepdim=True)).sum()
            # What the scores get: softmax less the smoothed target.
            scores.sub_(normaliser).exp_().sub_(smoothing / scores.shape[-1])
            scores.scatter_add_(-1, tokens.unsqueeze(-1), scores.new_full((len(tokens), 1), smoothing - 1))
            torch.mm(scores, weight, out=gradient)
            weight_gradient.addmm_(scores.T, part)
        ctx.save_for_backward(decoded_gradient, weight_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """The gradients that `forward` has found already."""
        decoded_gradient, weight_gradient = ctx.saved_tensors
        return decoded_gradient * outer[0], weight_gradient * outer[0], None, None


def smoothed_loss(decoded: Tensor, weight: Tensor, expected: Tensor, smoothing: float) -> Tensor:
    """Summed cross-entropy of `expected` under the scores `decoded @ weight.T`, in nats.

    `decoded` is `[positions, d_model]`, `weight` `[vocabulary, d_model]`, `expected` `[positions]`, real tokens all.
    The target's share `smoothing` is spread evenly over the vocabulary (section 5.4 of Vaswani et al.).
    """
    if torch.is_grad_enabled() and not decoded.is_cuda:
        loss: Tensor = _OutputLayerLoss.apply(decoded, weight, expected, smoothing)  # type: ignore[no-untyped-call]
        return loss
    # A GPU's memory is quick, and its kernels fuse this.
    at_once = len(decoded) if decoded.is_cuda else POSITIONS_AT_ONCE
    summed = partial(cross_entropy, label_smoothing=smoothing, reduction="sum")
    parts = zip(decoded.split(at_once), expected.split(at_once), strict=True)
    return torch.stack([summed(part @ weight.T, tokens) for part, tokens in parts]).sum()
