"""Measure the cost of a layer against the length of its sentence: table 1 of Vaswani et al.

`python -m benchmarks.layer_cost [--plot FILE.svg] [--longest 2048] [--widths 128 512]`: one
sentence, one thread. Self-attention should grow by n^2 in the end, the others by n; which of them
is quicker depends on d.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import seconds_of
from translation.transformer import MultiHeadAttention, attend

SHORTEST, LONGEST = 8, 2048  # positions of a sentence
WIDTHS = (128, 512)  # d_model
HEADS = 8
# r: positions that one of restricted self-attention looks at on either side together, and itself
WINDOW = 32
KERNEL = 3
ENOUGH, MOST, FEWEST = 0.3, 101, 5  # seconds of measuring a layer, and runs in them
PASSES = ("forward", "forward and backward")

WIDE, HIGH, LEGEND = 400, 300, 50  # of a panel and of what stands above them, in pixels
STYLE = """
:root { --ink: #1c2126; --paper: #fff; --faint: #5b6570; --line: #d5dae0;
  --l0: #0060a8; --l1: #c24d00; --l2: #007a5a; --l3: #9a3f86; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e6e9ec; --paper: #15191d; --faint: #9aa5b1; --line: #333b43;
  --l0: #6cb8ff; --l1: #ff9d5c; --l2: #45cfa4; --l3: #e29ad0; } }
.paper { fill: var(--paper); } text { font: 12px system-ui, sans-serif; fill: var(--faint); }
.title { font-weight: 600; fill: var(--ink); }
.middle { text-anchor: middle; } .right { text-anchor: end; }
.grid { stroke: var(--line); } .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.l0 { stroke: var(--l0); } .l1 { stroke: var(--l1); stroke-dasharray: 8 3; }
.l2 { stroke: var(--l2); stroke-dasharray: 2 3; }
.l3 { stroke: var(--l3); stroke-dasharray: 9 3 2 3; }
"""

# by width, pass and layer: seconds at each length
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
        length, reach = x.shape[-2], WINDOW // 2
        blocks = -(-length // reach)
        behind = (0, 0, 0, blocks * reach - length)
        query, key, value = (
            nn.functional.pad(each, behind) for each in self.queries_keys_values(x)
        )
        query = query.unflatten(-2, (blocks, reach))
        near = [
            nn.functional.pad(each, (0, 0, reach, reach))
            .unfold(-2, 3 * reach, reach)
            .transpose(-2, -1)
            for each in (key, value)
        ]
        mixed, _ = attend(query, *near, _near(length, blocks, reach))
        mixed = mixed.flatten(-3, -2)[..., :length, :]
        return self.project_output(mixed.transpose(-3, -2).flatten(-2))


def _near(length: int, blocks: int, reach: int) -> Tensor:
    """`[blocks, reach, 3 * reach]`: who may look at whom; those behind the end
    look at what is there.
    """
    own = torch.arange(blocks * reach).view(blocks, reach, 1)
    other = torch.arange(-reach, 2 * reach) + torch.arange(blocks).view(blocks, 1, 1) * reach
    there = (other >= 0) & (other < length)
    return there & (((own - other).abs() <= reach) | (own >= length))


class Convolution(nn.Conv1d):
    """Of kernel 3, from d_model to d_model."""

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
    """Return the median of several runs on one sentence, after one that is not counted."""
    x = torch.randn(1, length, width, requires_grad=backward)
    took: list[float] = []

    def one_pass() -> None:
        y = layer(x)
        if backward:
            y.sum().backward()

    with torch.set_grad_enabled(backward):
        while len(took) <= FEWEST or (sum(took) < ENOUGH and len(took) <= MOST):
            took.append(seconds_of(one_pass))
    return statistics.median(took[1:])


def growth(lengths: list[int], took: list[float]) -> float:
    """Return the exponent of n over the upper half of the lengths: the slope of
    the line through the logarithms.
    """
    half = len(lengths) // 2
    return float(np.polyfit(np.log(lengths[half:]), np.log(took[half:]), 1)[0])


def measure(widths: list[int], lengths: list[int]) -> Measured:
    """Time every layer at every width and length; those of a length are timed
    one after the other.
    """
    measured: Measured = {key: [] for key in itertools.product(widths, PASSES, LAYERS)}
    for width in widths:
        layers = {name: build(width).eval() for name, build in LAYERS.items()}
        for length, one_pass, name in itertools.product(lengths, PASSES, layers):
            took = seconds(layers[name], width, length, backward=one_pass != PASSES[0])
            measured[width, one_pass, name].append(took)
    return measured


def check() -> None:
    """Check that restricted self-attention is self-attention under a mask."""
    layer = RestrictedSelfAttention(64, HEADS)
    for length in (1, 15, 16, 17, 100):
        x, places = torch.randn(1, length, 64), torch.arange(length)
        mask = (places - places.unsqueeze(-1)).abs() <= WINDOW // 2
        torch.testing.assert_close(
            layer(x), MultiHeadAttention.forward(layer, x, mask)[0], rtol=1e-4, atol=1e-5
        )


def show(measured: Measured, lengths: list[int]) -> None:
    """Print milliseconds by length, and the exponents."""
    print(
        "d | pass | layer | "
        + " | ".join(f"n = {length}" for length in lengths)
        + " | exponent of n"
    )
    for (width, one_pass, name), took in measured.items():
        cells = " | ".join(f"{1000 * each:.3g}" for each in took)
        print(f"{width} | {one_pass} | {name} | {cells} | {growth(lengths, took):.2f}")


def drawn(measured: Measured, lengths: list[int]) -> str:
    """Return an SVG of one panel for each width and pass, on logarithmic axes;
    light or dark as its reader's screen.
    """
    titles = list(dict.fromkeys((width, one_pass) for width, one_pass, _ in measured))
    everything = [1000 * each for took in measured.values() for each in took]
    across = LogAxis(lengths[0], max(lengths[-1], 2 * lengths[0]), 60, WIDE - 25)
    upwards = LogAxis(
        10.0 ** _decade(min(everything)), 10.0 ** (_decade(max(everything)) + 1), HIGH - 50, 40
    )
    height = LEGEND + HIGH * -(-len(titles) // 2)
    parts = [_legend()]
    for number, (width, one_pass) in enumerate(titles):
        curves = {name: measured[width, one_pass, name] for name in LAYERS}
        inside = _panel(f"d = {width}, {one_pass}", curves, lengths, across, upwards)
        place = f"translate({WIDE * (number % 2)} {LEGEND + HIGH * (number // 2)})"
        parts.append(f'<g transform="{place}">{inside}</g>')
    words = "Milliseconds of one layer by the length of its sentence, one thread, logarithmic axes."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDE} {height}" role="img" '
        f'aria-label="{words}">\n'
        f'<style>{STYLE}</style>\n<rect class="paper" width="100%" height="100%"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic scale from `low` and `high` to the places `start` and `end`, in pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return where a value lies."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + (self.end - self.start) * share, 1)


def _decade(value: float) -> int:
    return math.floor(math.log10(value))


def _legend() -> str:
    keys = (
        f'<g transform="translate({60 + WIDE * (number % 2)} {20 + 20 * (number // 2)})">'
        f'<path class="line l{number}" d="M0 0H34"/><text x="42" y="4">{name}</text></g>'
        for number, name in enumerate(LAYERS)
    )
    return "".join(keys)


def _panel(
    title: str,
    curves: Mapping[str, list[float]],
    lengths: list[int],
    across: LogAxis,
    upwards: LogAxis,
) -> str:
    """Gridlines with their numbers, the names of the axes, and the curves with
    their exponents as words to hover.
    """
    parts = [f'<text class="title" x="{across.start}" y="26">{title}</text>']
    for decade in range(_decade(upwards.low), _decade(upwards.high) + 1):
        y = upwards.at(10.0**decade)
        parts.append(f'<path class="grid" d="M{across.start} {y}H{across.end}"/>')
        parts.append(
            f'<text class="right" x="{across.start - 6}" y="{y + 4}">{10.0**decade:g}</text>'
        )
    for length in lengths[::2]:
        x = across.at(length)
        parts.append(f'<path class="grid" d="M{x} {upwards.start}V{upwards.end}"/>')
        parts.append(f'<text class="middle" x="{x}" y="{upwards.start + 17}">{length}</text>')
    middle = (upwards.start + upwards.end) / 2
    parts.append(
        f'<text class="middle" x="{(across.start + across.end) / 2}" y="{HIGH - 14}">positions '
        "n</text>"
    )
    parts.append(
        f'<text class="middle" transform="translate(16 {middle}) rotate(-90)">milliseconds</text>'
    )
    for number, (name, took) in enumerate(curves.items()):
        points = " ".join(
            f"{across.at(n)},{upwards.at(1000 * each)}"
            for n, each in zip(lengths, took, strict=True)
        )
        said = f"{name}: n to the power {growth(lengths, took):.2f}"
        parts.append(
            f'<polyline class="line l{number}" points="{points}"><title>{said}</title></polyline>'
        )
    return "".join(parts)


def main() -> None:
    """Print milliseconds and exponents; draw them where `--plot` says."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--plot", type=Path)
    asked.add_argument("--longest", type=int, default=LONGEST)
    asked.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    options = asked.parse_args()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        check()
        lengths = [SHORTEST * 2**i for i in range((options.longest // SHORTEST).bit_length())]
        measured = measure(options.widths, lengths)
    finally:
        torch.set_num_threads(threads)
    show(measured, lengths)
    if options.plot is not None:
        options.plot.write_text(drawn(measured, lengths), encoding="utf-8")


if __name__ == "__main__":
    main()
