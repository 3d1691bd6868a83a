"""Write a page that shows the attention in some translations.

It shows the mean of the heads, and every head alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dtml.pages.charts import environment
from flows.settings import write_page
from translation.cards import Card
from translation.translate import Attention, Translation

CELL = 22  # pixels
LETTER = 8  # pixels; few letters are wider
SHADES = (0.1, 0.25, 0.5, 0.75)  # weights at which the cells of a small map become darker
KINDS = {
    "encoder": "Encoder: from a piece of the source to the source",
    "between": "Between: from a piece of the translation to the source",
    "decoder": "Decoder: from a piece of the translation to the pieces before it, from <s> on",
}


def write_alignments(
    file: Path, card: Card, texts: Sequence[str], translations: Sequence[Translation]
) -> None:
    """Write the page; each translation needs its attention."""
    maps: list[dict[str, object]] = []
    for text, translation in zip(texts, translations, strict=True):
        parts = [alignment(part) for part in translation.attention]
        maps.append({"text": text, "said": translation.text, "parts": parts})
    template = environment(folder=Path(__file__).parent).get_template("alignment_page.html")
    write_page(file, template.render(card=card, maps=maps))


def alignment(part: Attention) -> dict[str, object]:
    """Return the values from which the template draws a part of a translation.

    A row is a target piece, a column a source piece, shaded by the weight, 0 to 1.
    """
    left = _label_width(part.target)
    top = _label_width(part.source)
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
    """Return for each kind of attention its title and its layers of heads.

    Each head is a map with a path for each of `SHADES`. Its `pieces` are the exponential of the
    mean entropy of its rows, the queries: 1 if each query attends to one piece.
    """
    kinds: list[dict[str, object]] = []
    for name, title in KINDS.items():
        if name not in heads:
            continue
        layers = [_small_maps_of_layer(heads_of_layer) for heads_of_layer in heads[name]]
        kinds.append({"title": title, "layers": layers})
    return kinds


def _small_maps_of_layer(heads: Tensor) -> list[dict[str, object]]:
    return [_small_map(head) for head in heads]


def _small_map(weights: Tensor) -> dict[str, object]:
    """Return the map of a head from its weights `[query, key]`."""
    rows, columns = weights.shape
    shades = torch.bucketize(weights, torch.tensor(SHADES), right=True)
    paths: list[tuple[float, str]] = []
    for level in range(1, len(SHADES) + 1):
        cells = (shades == level).nonzero().tolist()
        path = "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)
        if path:
            opacity = level / len(SHADES)
            paths.append((opacity, path))
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
