"""Choose the number format in which this machine's processor multiplies matrices faster.

Processors with instructions for bfloat16 multiply it about twice as fast as float32. Others convert
each number first, and take ten times as long. Here too are the layers that train faster on a CPU:
dropout from fewer random bits, and products of matrices in bfloat16.
"""

import math
from functools import lru_cache
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from translation.transformer import MultiHeadAttention

Precision = Literal["auto", "float32", "bfloat16"]
Format = Literal["float32", "bfloat16"]

# Sizes of the product that is timed: a layer of a small network.
ROWS = 1024
INNER = 128
OUTER = 512
ROUNDS = 5
WORTH_ROUNDING = 1.2  # bfloat16 is used if it is at least so many times as fast as float32


@lru_cache(maxsize=1)
def bfloat16_gain() -> float:
    """Return how many times as fast as in float32 the processor multiplies in bfloat16.

    It is the ratio of the seconds of the fastest of `ROUNDS` products in each format, measured once
    in a process. That takes some ten milliseconds, or a hundred where bfloat16 is slow.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, INNER, generator=generator)
    weight = torch.randn(OUTER, INNER, generator=generator)
    rounded_rows = rows.bfloat16()
    rounded_weight = weight.bfloat16()
    return _fastest(rows, weight) / _fastest(rounded_rows, rounded_weight)


def _fastest(rows: Tensor, weight: Tensor) -> float:
    nn.functional.linear(rows, weight)  # not timed: it loads libraries
    seconds: list[float] = []
    for _ in range(ROUNDS):
        start = perf_counter()
        nn.functional.linear(rows, weight)
        seconds.append(perf_counter() - start)
    return min(seconds)


def faster_format(gain: float) -> Format:
    """Return the format to multiply in, where bfloat16 is `gain` times as fast as float32."""
    return "bfloat16" if gain >= WORTH_ROUNDING else "float32"


def format_of(precision: Precision, dtype: torch.dtype) -> Format:
    """Return the format in which a network of a type multiplies on a CPU.

    A named precision is used as it is. With "auto", numbers of float32 are rounded to bfloat16 if
    that is faster on this machine; numbers of other types never are.
    """
    if precision != "auto":
        return precision
    if dtype != torch.float32:
        return "float32"
    return faster_format(bfloat16_gain())


def slower_format_warning(setting: str, precision: Precision, gain: float) -> str:
    """Return a warning if a named precision is slower here than that of "auto", else "".

    `setting` is the key of the recipe that names it.
    """
    faster = faster_format(gain)
    if precision in ("auto", faster):
        return ""
    times = gain if faster == "bfloat16" else 1 / gain
    if times <= 1:  # bfloat16 is faster, but not by WORTH_ROUNDING
        return ""
    return (
        f'{setting} = "{precision}" multiplies matrices {times:.1f} times as slowly here as '
        f'"{faster}": in a new training, leave out {setting}, or write "auto"'
    )


class _Product(torch.autograd.Function):
    """A linear map whose matrices are multiplied in bfloat16; its input and output are float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Map `x` `[..., in]` by `weight` `[out, in]`."""
        rounded_x = x.bfloat16()
        rounded_weight = weight.bfloat16()
        ctx.save_for_backward(rounded_x, rounded_weight)
        product = nn.functional.linear(rounded_x, rounded_weight, bias.bfloat16())
        return product.float()

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of `x`, `weight` and `bias`, in float32."""
        x, weight = ctx.saved_tensors  # in bfloat16
        gradient = output_gradients[0].flatten(0, -2)  # [rows, out]
        rounded_gradient = gradient.bfloat16()
        x_gradient = (rounded_gradient @ weight).float().view_as(x)
        weight_gradient = (rounded_gradient.T @ x.flatten(0, -2)).float()
        bias_gradient = gradient.sum(dim=0)
        return x_gradient, weight_gradient, bias_gradient


def _rounded_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Compute `torch.nn.functional.linear`, in bfloat16 where gradients are computed on a CPU.

    `_Product` needs a bias. On CUDA, autocast chooses the format.
    """
    if bias is None or not torch.is_grad_enabled() or input.is_cuda:
        return nn.functional.linear(input, weight, bias)
    product: Tensor = _Product.apply(input, weight, bias)  # type: ignore[no-untyped-call]
    return product


class _RoundedLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch names it
        return _rounded_linear(input, self.weight, self.bias)


def use_rounded_products(network: nn.Module) -> None:
    """Let every linear map of a network multiply in bfloat16 where gradients are computed.

    The parameters, in float32, and their names stay the same.
    """
    for module in network.modules():
        if type(module) is nn.Linear and module.bias is not None:
            module.__class__ = _RoundedLinear  # another `forward`, and the same parameters
        # Attention multiplies by some rows of its matrix too, which no module of nn.Linear does.
        if isinstance(module, MultiHeadAttention):
            module.linear = _rounded_linear


class FastDropout(nn.Dropout):
    """`nn.Dropout` with 16 random bits for each element, to which `p` is rounded.

    On a CPU, torch draws 64 bits for each element.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch names it
        """Set a share `p` of the elements to 0 and multiply the others by 1 / (1 - p)."""
        if not self.training or self.p == 0 or input.is_cuda:
            return super().forward(input)
        elements = input.numel()
        word_count = math.ceil(elements / 4)  # of 64 bits, each enough for four elements
        words = torch.empty(word_count, dtype=torch.int64, device=input.device)
        words.random_(-(2**63), None)  # any 64 bits
        bits = words.view(torch.int16)[:elements].view_as(input)  # from -2^15 to 2^15 - 1
        threshold = round(self.p * 2**16) - 2**15  # a share `p` of the numbers lies below it
        survives = bits >= threshold
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return input * survives.to(input.dtype).mul_(scale)


def use_fast_dropout(network: nn.Module) -> None:
    """Replace every `nn.Dropout` of a network by a `FastDropout`."""
    for module in list(network.modules()):  # listed first, as the loop replaces modules
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, FastDropout(child.p))
