"""Measure the cost of a layer against the length of its sentence: table 1 of Vaswani et al.

`python -m benchmarks.layer_cost [--longest 2048] [--widths 128 512]`: one
sentence, one thread. Self-attention should grow by n^2 in the end, the others by n; which of them
is quicker depends on d.
"""

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from translation.transformer import MultiHeadAttention, attend

# Positions of a sentence.
SHORTEST = 8
LONGEST = 2048
WIDTHS = (128, 512)  # d_model
HEADS = 8
# r: the positions that a position of restricted self-attention looks at, on both sides together.
WINDOW = 32
KERNEL = 3
MEASURED_S = 0.3  # seconds of runs of a layer, within these bounds of their number
FEWEST_RUNS = 5
MOST_RUNS = 101
FORWARD = "forward"
PASSES = (FORWARD, "forward and backward")

# Seconds at each length, by width, pass and layer.
Measured = dict[tuple[int, str, str], list[float]]


class Recurrent(nn.LSTM):
    """An LSTM of d_model in and out."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `[1, positions, d_model]` to its shape."""
        return super().forward(x)[0]


class SelfAttention(MultiHeadAttention):
    """Every position looks at every one."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `[1, positions, d_model]` to its shape."""
        return super().forward(x)[0]


class RestrictedSelfAttention(MultiHeadAttention):
    """Every position looks at those up to r / 2 away (section 4 of Vaswani et al.).

    The sentence is cut into blocks of r / 2. A block looks at itself and its two neighbours, so
    the cost grows by n.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map `[1, positions, d_model]` to its shape."""
        length = x.shape[-2]
        reach = WINDOW // 2
        blocks = math.ceil(length / reach)
        padding = (0, 0, 0, blocks * reach - length)
        query, key, value = (
            nn.functional.pad(projection, padding) for projection in self.queries_keys_values(x)
        )
        query_blocks = query.unflatten(-2, (blocks, reach))
        mixed, _ = attend(
            query_blocks,
            _with_neighbours(key, reach),
            _with_neighbours(value, reach),
            _mask_of_blocks(length, blocks, reach),
        )
        mixed = mixed.flatten(-3, -2)[..., :length, :]
        return self.project_output(mixed.transpose(-3, -2).flatten(-2))


def _with_neighbours(x: Tensor, reach: int) -> Tensor:
    """Map `[..., blocks * reach, d]` to `[..., blocks, 3 * reach, d]`.

    Each block of `reach` positions is joined with the block before and the block after it.
    """
    padded = nn.functional.pad(x, (0, 0, reach, reach))
    return padded.unfold(-2, 3 * reach, reach).transpose(-2, -1)


def _mask_of_blocks(length: int, blocks: int, reach: int) -> Tensor:
    """Return which positions may look at which, `[blocks, reach, 3 * reach]`.

    Positions of the padding behind the end look at all real ones of their blocks.
    """
    block = torch.arange(blocks).view(blocks, 1, 1)
    looking = torch.arange(blocks * reach).view(blocks, reach, 1)
    seen = torch.arange(-reach, 2 * reach) + block * reach
    is_real = (seen >= 0) & (seen < length)
    is_near = (looking - seen).abs() <= reach
    is_padding = looking >= length
    return is_real & (is_near | is_padding)


class Convolution(nn.Conv1d):
    """A convolution with kernel 3, from d_model to d_model."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `[1, positions, d_model]` to its shape."""
        return super().forward(x.transpose(-2, -1)).transpose(-2, -1)


LAYERS: Mapping[str, Callable[[int], nn.Module]] = {
    "self-attention": lambda width: SelfAttention(width, HEADS),
    "recurrent (LSTM)": lambda width: Recurrent(width, width, batch_first=True),
    f"self-attention, r = {WINDOW}": lambda width: RestrictedSelfAttention(width, HEADS),
    f"convolution, k = {KERNEL}": lambda width: Convolution(
        width, width, KERNEL, padding=KERNEL // 2
    ),
}


def seconds(layer: nn.Module, width: int, length: int, *, backward: bool) -> float:
    """Return the median seconds of several runs on one sentence, after one that is not counted."""
    x = torch.randn(1, length, width, requires_grad=backward)
    times: list[float] = []
    with torch.set_grad_enabled(backward):
        while len(times) <= FEWEST_RUNS or (sum(times) < MEASURED_S and len(times) <= MOST_RUNS):
            start = time.perf_counter()
            y = layer(x)
            if backward:
                y.sum().backward()
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def growth(lengths: list[int], times: list[float]) -> float:
    """Return the exponent of n over the upper half of the lengths.

    It is the slope of the line through the logarithms.
    """
    half = len(lengths) // 2
    slope, _ = np.polyfit(np.log(lengths[half:]), np.log(times[half:]), 1)
    return float(slope)


def measure(widths: list[int], lengths: list[int]) -> Measured:
    """Time every layer at every width and length, all layers of a length one after the other."""
    measured: Measured = {key: [] for key in itertools.product(widths, PASSES, LAYERS)}
    for width in widths:
        layers = {name: build(width).eval() for name, build in LAYERS.items()}
        for length, one_pass, name in itertools.product(lengths, PASSES, layers):
            median = seconds(layers[name], width, length, backward=one_pass != FORWARD)
            measured[width, one_pass, name].append(median)
    return measured


def check() -> None:
    """Check that restricted self-attention is self-attention under a mask."""
    layer = RestrictedSelfAttention(64, HEADS)
    for length in (1, 15, 16, 17, 100):
        x = torch.randn(1, length, 64)
        places = torch.arange(length)
        mask = (places - places.unsqueeze(-1)).abs() <= WINDOW // 2
        masked, _ = MultiHeadAttention.forward(layer, x, mask)
        torch.testing.assert_close(layer(x), masked, rtol=1e-4, atol=1e-5)


def show(measured: Measured, lengths: list[int]) -> None:
    """Print milliseconds by length, and the exponents."""
    columns = " | ".join(f"n = {length}" for length in lengths)
    print(f"d | pass | layer | {columns} | exponent of n")
    for (width, one_pass, name), times in measured.items():
        cells = " | ".join(f"{1000 * time:.3g}" for time in times)
        print(f"{width} | {one_pass} | {name} | {cells} | {growth(lengths, times):.2f}")


def main() -> None:
    """Print milliseconds and exponents."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--longest", type=int, default=LONGEST)
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    check()
    lengths = [SHORTEST * 2**i for i in range((options.longest // SHORTEST).bit_length())]
    measured = measure(options.widths, lengths)
    show(measured, lengths)


if __name__ == "__main__":
    main()
