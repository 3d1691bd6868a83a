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

# The size of a panel, and the height of the legend above the panels, in pixels.
PANEL_WIDTH = 400
PANEL_HEIGHT = 300
LEGEND_HEIGHT = 50
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

    def one_pass() -> None:
        y = layer(x)
        if backward:
            y.sum().backward()

    with torch.set_grad_enabled(backward):
        while len(times) <= FEWEST_RUNS or (sum(times) < MEASURED_S and len(times) <= MOST_RUNS):
            times.append(seconds_of(one_pass))
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


def drawn(measured: Measured, lengths: list[int]) -> str:
    """Return an SVG of one panel for each width and pass, on logarithmic axes.

    It is light or dark, as its reader's screen is.
    """
    panels = list(dict.fromkeys((width, one_pass) for width, one_pass, _ in measured))
    fastest = 1000 * min(min(times) for times in measured.values())
    slowest = 1000 * max(max(times) for times in measured.values())
    across = LogAxis(
        low=lengths[0],
        high=max(lengths[-1], 2 * lengths[0]),
        start=60,
        end=PANEL_WIDTH - 25,
    )
    upwards = LogAxis(
        low=10.0 ** _decade(fastest),
        high=10.0 ** (_decade(slowest) + 1),
        start=PANEL_HEIGHT - 50,
        end=40,
    )
    parts = [_legend()]
    for number, (width, one_pass) in enumerate(panels):
        row, column = divmod(number, 2)
        curves = {name: measured[width, one_pass, name] for name in LAYERS}
        panel = _panel(f"d = {width}, {one_pass}", curves, lengths, across, upwards)
        place = f"translate({PANEL_WIDTH * column} {LEGEND_HEIGHT + PANEL_HEIGHT * row})"
        parts.append(f'<g transform="{place}">{panel}</g>')
    height = LEGEND_HEIGHT + PANEL_HEIGHT * math.ceil(len(panels) / 2)
    words = "Milliseconds of one layer by the length of its sentence, one thread, logarithmic axes."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * PANEL_WIDTH} {height}" '
        'role="img" '
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
        """Return the place of a value, in pixels."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + (self.end - self.start) * share, 1)


def _decade(value: float) -> int:
    return math.floor(math.log10(value))


def _legend() -> str:
    keys = []
    for number, name in enumerate(LAYERS):
        row, column = divmod(number, 2)
        keys.append(
            f'<g transform="translate({60 + PANEL_WIDTH * column} {20 + 20 * row})">'
            f'<path class="line l{number}" d="M0 0H34"/><text x="42" y="4">{name}</text></g>'
        )
    return "".join(keys)


def _panel(
    title: str,
    curves: Mapping[str, list[float]],
    lengths: list[int],
    across: LogAxis,
    upwards: LogAxis,
) -> str:
    """Return a panel: gridlines with their numbers, the names of the axes, and the curves.

    The exponent of a curve is its tooltip.
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
        f'<text class="middle" x="{(across.start + across.end) / 2}" y="{PANEL_HEIGHT - 14}">'
        "positions n</text>"
    )
    parts.append(
        f'<text class="middle" transform="translate(16 {middle}) rotate(-90)">milliseconds</text>'
    )
    for number, (name, times) in enumerate(curves.items()):
        points = " ".join(
            f"{across.at(length)},{upwards.at(1000 * time)}"
            for length, time in zip(lengths, times, strict=True)
        )
        tooltip = f"{name}: n to the power {growth(lengths, times):.2f}"
        parts.append(
            f'<polyline class="line l{number}" points="{points}">'
            f"<title>{tooltip}</title></polyline>"
        )
    return "".join(parts)


def main() -> None:
    """Print milliseconds and exponents; draw them where `--plot` says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--longest", type=int, default=LONGEST)
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    options = parser.parse_args()
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
