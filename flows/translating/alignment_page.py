"""Write the page of some translations: what each piece looked at, in the mean
of the heads and in every one.
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
LETTER = 8  # pixels, at most nearly
SHADES = (0.1, 0.25, 0.5, 0.75)  # the weights from which the cells of a small map are darker
KINDS = {
    "encoder": "Encoder: from a piece of the source to the source",
    "between": "Between: from a piece of the translation to the source",
    "decoder": "Decoder: from a piece of the translation to the pieces before it, from <s> on",
}


def write_alignments(
    file: Path, card: Card, texts: Sequence[str], found: Sequence[Translation]
) -> None:
    """Write the page; each translation needs its attention."""
    maps = [
        {"text": text, "said": said.text, "parts": [alignment(part) for part in said.attention]}
        for text, said in zip(texts, found, strict=True)
    ]
    template = environment(folder=Path(__file__).parent).get_template("alignment_page.html")
    write_page(file, template.render(card=card, maps=maps))


def alignment(part: Attention) -> dict[str, object]:
    """Return what the template draws: a row a target piece, a column a source
    piece, shaded by the weight, 0 to 1.
    """
    left, top = _room(part.target), _room(part.source)
    cells = [
        (left + CELL * column, top + CELL * row, max(0.0, min(1.0, weight)))
        for row, values in enumerate(part.weights.tolist())
        for column, weight in enumerate(values)
        if weight >= 0.01
    ]
    sizes = {"cell": CELL, "left": left, "top": top}
    sizes |= {"width": left + CELL * len(part.source), "height": top + CELL * len(part.target)}
    return {
        "source": part.source,
        "target": part.target,
        "cells": cells,
        "kinds": small_maps(part.heads),
        **sizes,
    }


def small_maps(heads: Mapping[str, Tensor]) -> list[dict[str, object]]:
    """Return for each kind of attention its title and layers of heads, each a map with a path for
    each of `SHADES`.

    Its `pieces` are the exponential of the mean entropy of its rows, the queries: 1 where each
    looks at one piece.
    """
    return [
        {"title": title, "layers": [[_small(head) for head in layer] for layer in heads[name]]}
        for name, title in KINDS.items()
        if name in heads
    ]


def _small(weights: Tensor) -> dict[str, object]:
    rows, columns = weights.shape
    shade = torch.bucketize(weights, torch.tensor(SHADES), right=True)
    paths = [
        (
            level / len(SHADES),
            "".join(
                f"M{column} {row}h1v1h-1z" for row, column in (shade == level).nonzero().tolist()
            ),
        )
        for level in range(1, len(SHADES) + 1)
    ]
    pieces = (-torch.special.xlogy(weights, weights).sum(dim=-1)).mean().exp().item()
    return {
        "rows": rows,
        "columns": columns,
        "paths": [each for each in paths if each[1]],
        "pieces": pieces,
    }


def _room(pieces: Sequence[str]) -> int:
    return 12 + LETTER * max(map(len, pieces))
