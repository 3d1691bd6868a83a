"""Layers that train faster on a CPU: dropout from fewer random bits, products
of matrices in bfloat16.
"""

from typing import Any

import torch
from torch import Tensor, nn

from translation.transformer import MultiHeadAttention


class _Product(torch.autograd.Function):
    """A linear map whose matrices are multiplied in bfloat16; what comes in and out is float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Map `x` `[..., in]` by `weight` `[out, in]`."""
        inputs, factors = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(inputs, factors)
        return nn.functional.linear(inputs, factors, bias.bfloat16()).float()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of `x`, `weight` and `bias`."""
        inputs, factors = ctx.saved_tensors
        rows = outer[0].flatten(0, -2)
        slopes = rows.bfloat16()
        moved = (slopes @ factors).float().view_as(inputs)
        return moved, (slopes.T @ inputs.flatten(0, -2)).float(), rows.sum(dim=0)


def _rounded_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Compute `torch.nn.functional.linear`, in bfloat16 where gradients are wanted."""
    if bias is None or not torch.is_grad_enabled() or input.is_cuda:
        return nn.functional.linear(input, weight, bias)
    product: Tensor = _Product.apply(input, weight, bias)  # type: ignore[no-untyped-call]
    return product


class _RoundedLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch names it
        return _rounded_linear(input, self.weight, self.bias)


def use_rounded_products(network: nn.Module) -> None:
    """Have every linear map of a network multiply in bfloat16 where gradients
    are wanted, with the same parameters.
    """
    for module in network.modules():
        if type(module) is nn.Linear and module.bias is not None:
            module.__class__ = _RoundedLinear
        if isinstance(module, MultiHeadAttention):
            module.product = _rounded_linear


class FastDropout(nn.Dropout):
    """`nn.Dropout` with 16 random bits an element, to which `p` is rounded: on
    a CPU torch draws 64 for each.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch names it
        """Set a share `p` of the elements to 0 and multiply the others by 1 / (1 - p)."""
        if not self.training or self.p == 0 or input.is_cuda:
            return super().forward(input)
        drawn = torch.empty(-(-input.numel() // 4), dtype=torch.int64, device=input.device).random_(
            -(2**63), None
        )
        bits = drawn.view(torch.int16)[: input.numel()].view_as(input)  # from -2^15 to 2^15 - 1
        kept = bits >= round(self.p * 2**16) - 2**15
        return input * kept.to(input.dtype).mul_(1 / (1 - self.p) if self.p < 1 else 0.0)


def use_fast_dropout(network: nn.Module) -> None:
    """Replace every `nn.Dropout` of a network by a `FastDropout`."""
    for module in list(network.modules()):
        for name, inner in module.named_children():
            if type(inner) is nn.Dropout:
                setattr(module, name, FastDropout(inner.p))
