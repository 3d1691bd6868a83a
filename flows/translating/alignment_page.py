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
LEAST = 0.01  # weight of a cell
SHADES = (0.1, 0.25, 0.5, 0.75)  # from which weights the cells of a small map are stronger
KINDS = {
    "encoder": "Encoder: from a piece of the source to the source",
    "between": "Between: from a piece of the translation to the source",
    "decoder": "Decoder: from a piece of the translation to the pieces before it, from <s> on",
}


def write_alignments(
    file: Path, card: Card, texts: Sequence[str], translations: Sequence[Translation]
) -> None:
    """Write the page of these texts and their translations; without attention, a note."""
    maps: list[dict[str, object]] = []
    for text, translation in zip(texts, translations, strict=True):
        parts = [alignment(part) for part in translation.attention]
        maps.append({"text": text, "said": translation.text, "parts": parts})
    template = environment(folder=Path(__file__).parent).get_template("alignment_page.html")
    write_page(file, template.render(card=card, maps=maps))


def alignment(part: Attention) -> dict[str, object]:
    """Return the values from which the template draws the map of a part of a translation.

    A row is a target piece, a column a source piece. `cells`, from LEAST on, have left and top in
    pixels, and their opacity; `left` and `top` are room for labels, `kinds` the small maps.
    """
    left = _label_width(part.target)
    top = _label_width(part.source)  # the labels of columns are turned upright
    weights = part.weights.clamp(max=1)
    cells = [
        (left + CELL * column, top + CELL * row, weights[row, column].item())
        for row, column in (weights >= LEAST).nonzero().tolist()
    ]
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
    """Return each kind of attention with a small map a head, by layer [layers heads q k]."""
    return [
        {"title": title, "layers": [list(map(_small_map, layer)) for layer in heads[name]]}
        for name, title in KINDS.items()
        if name in heads
    ]


def _small_map(weights: Tensor) -> dict[str, object]:
    """Return the map of a head from its weights `[query, key]`.

    `paths` has an SVG path of unit squares for each of SHADES, the largest reached. `pieces`, how
    many a query attends to, is the exponential of the mean entropy.
    """
    # How many of SHADES each weight reaches: 0 below all of them.
    shades = torch.bucketize(weights, torch.tensor(SHADES), right=True)
    paths: list[tuple[float, str]] = []
    for level in range(1, len(SHADES) + 1):
        cells = (shades == level).nonzero().tolist()
        if cells:
            path = "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)
            paths.append((level / len(SHADES), path))
    # `xlogy` is 0 for a weight of 0, whose logarithm is infinite.
    entropy = -torch.special.xlogy(weights, weights).sum(dim=-1)
    rows, columns = weights.shape
    return {
        "rows": rows,
        "columns": columns,
        "paths": paths,
        "pieces": entropy.mean().exp().item(),
    }


def _label_width(pieces: Sequence[str]) -> int:
    return 12 + LETTER * max(map(len, pieces))
