"""Write the page of some translations: which pieces of the source each piece of a translation looked at."""

from collections.abc import Sequence
from pathlib import Path

from dtml.pages.charts import environment
from flows.settings import write_page
from translation.models import Card
from translation.translate import Translation

CELL = 22  # pixels
LETTER = 8  # pixels, at most nearly


def write_alignments(file: Path, card: Card, texts: Sequence[str], found: Sequence[Translation]) -> None:
    """Write the page; each translation needs its attention."""
    maps = [
        {"text": text, "said": said.text, "parts": [alignment(*part) for part in said.attention]}
        for text, said in zip(texts, found, strict=True)
    ]
    template = environment(folder=Path(__file__).parent).get_template("alignment_page.html")
    write_page(file, template.render(card=card, maps=maps))


def alignment(source: Sequence[str], target: Sequence[str], weights: object) -> dict[str, object]:
    """Return what the template draws: a row a target piece, a column a source piece, shaded by the weight, 0 to 1."""
    rows = weights.tolist()  # type: ignore[attr-defined]
    left, top = _room(target), _room(source)
    cells = [
        (left + CELL * column, top + CELL * row, max(0.0, min(1.0, weight)))
        for row, values in enumerate(rows)
        for column, weight in enumerate(values)
        if weight >= 0.01
    ]
    sizes = {"cell": CELL, "left": left, "top": top}
    sizes |= {"width": left + CELL * len(source), "height": top + CELL * len(target)}
    return {"source": list(source), "target": list(target), "cells": cells, **sizes}


def _room(pieces: Sequence[str]) -> int:
    return 12 + LETTER * max(map(len, pieces))
