"""Choose the number format in which this machine's processor multiplies matrices faster.

Processors with instructions for bfloat16 multiply it about twice as fast as float32. Others convert
each number first, and take ten times as long.
"""

from functools import lru_cache
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor, nn

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
    """Return the seconds of the fastest product."""
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
