"""Write a page that shows the attention in some translations: the mean of all heads, and each."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dtml.pages.rendering import environment
from flows.settings import write_page
from translation.cards import Card
from translation.translate import Attention, Translation

CELL = 22  # width and height of a cell in pixels
LETTER = 8  # width of a letter in pixels; few are wider
SHADES = (
    0.1,
    0.25,
    0.5,
    0.75,
)  # weights from which the cells of a small map have a stronger colour
KINDS = {
    "encoder": "Encoder: from a piece of the source to the source",
    "between": "Between: from a piece of the translation to the source",
    "decoder": "Decoder: from a piece of the translation to the pieces before it, from <s> on",
}


def write_alignments(
    file: Path, card: Card, texts: Sequence[str], translations: Sequence[Translation]
) -> None:
    """Write the page of these texts and their translations.

    A translation without attention, as of some networks, gets a note in place of the maps.
    """
    maps: list[dict[str, object]] = []
    for text, translation in zip(texts, translations, strict=True):
        parts = [alignment(part) for part in translation.attention]
        maps.append({"text": text, "said": translation.text, "parts": parts})
    template = environment(folder=Path(__file__).parent).get_template("alignment_page.html")
    write_page(file, template.render(card=card, maps=maps))


def alignment(part: Attention) -> dict[str, object]:
    """Return the values from which the template draws the map of a part of a translation.

    A row of the map is a target piece, a column a source piece. Each of `cells` has its left and
    upper edge in pixels, and its opacity, which is the weight. Weights below .01 have no cell.
    `left` and `top` are the room for the labels, `kinds` the small maps of the heads.
    """
    left = _label_width(part.target)
    top = _label_width(part.source)  # the labels of columns are turned upright
    cells: list[tuple[int, int, float]] = []
    for row, weights in enumerate(part.weights.tolist()):
        for column, weight in enumerate(weights):
            if weight >= 0.01:
                x = left + CELL * column
                y = top + CELL * row
                opacity = max(0.0, min(1.0, weight))
                cells.append((x, y, opacity))
    return {
        "source": part.source,
        "target": part.target,
        "cells": cells,
        "kinds": small_maps(part.heads),
        "cell": CELL,
        "left": left,
        "top": top,
        "width": left + CELL * len(part.source),
        "height": top + CELL * len(part.target),
    }


def small_maps(heads: Mapping[str, Tensor]) -> list[dict[str, object]]:
    """Return the title of each kind of attention, and a small map of each head, by layer.

    `heads` has the weights of each kind, [layers heads queries keys].
    """
    kinds: list[dict[str, object]] = []
    for name, title in KINDS.items():
        if name not in heads:
            continue
        layers = [[_small_map(head) for head in heads_of_layer] for heads_of_layer in heads[name]]
        kinds.append({"title": title, "layers": layers})
    return kinds


def _small_map(weights: Tensor) -> dict[str, object]:
    """Return the map of a head from its weights `[query, key]`.

    `paths` has an opacity and an SVG path of unit squares for each of SHADES that occurs; the
    square of a weight is in the path of the largest of SHADES that it reaches, and smaller weights
    have no square. `pieces` is the exponential of the mean entropy of the queries' weights:
    how many pieces a query attends to, 1 if each attends to one only.
    """
    rows, columns = weights.shape
    # How many of SHADES each weight reaches: 0 below all of them.
    shades = torch.bucketize(weights, torch.tensor(SHADES), right=True)
    paths: list[tuple[float, str]] = []
    for level in range(1, len(SHADES) + 1):
        cells = (shades == level).nonzero().tolist()
        path = "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)
        if path:
            opacity = level / len(SHADES)
            paths.append((opacity, path))
    # `xlogy` is 0 for a weight of 0, whose logarithm is infinite.
    entropy = -torch.special.xlogy(weights, weights).sum(dim=-1)
    pieces = entropy.mean().exp()
    return {
        "rows": rows,
        "columns": columns,
        "paths": paths,
        "pieces": pieces.item(),
    }


def _label_width(pieces: Sequence[str]) -> int:
    """Return the width in pixels of the longest of these pieces as a label of a map."""
    longest = max(len(piece) for piece in pieces)
    return 12 + LETTER * longest
