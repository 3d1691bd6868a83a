"""Translate texts of any length with a trained model."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from translation.data.tokenizer import BEGIN, END
from translation.decoding.beam_search import Hypothesis, Search, search
from translation.models import Model
from translation.scoring import is_unspaced
from translation.transformer import Transformer

MAX_PIECES = 150  # of a text translated at once: longer ones are cut at the ends of sentences
SENTENCE_END = re.compile("(?<=[.!?\u2026])\\s+|(?<=[\u3002\uff01\uff1f])\\s*")


@dataclass(frozen=True)
class Attention:
    """What the pieces of a translated part looked at, `</s>` the last on both sides.

    `weights` `[target, source]` are the last layer's, in the mean of its heads and of the networks;
    `heads`, of a Transformer alone, those of every layer and head (`Transformer.every_head`), of an
    ensemble its first network's.
    """

    source: list[str]
    target: list[str]
    weights: torch.Tensor
    heads: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Translation:
    """The best translation of a text, the n best, and a warning if the text seems to be in the
    target language.

    `score` is the log probability of the pieces divided by the length penalty, 0 for an empty text.
    `attention` on request is that of each part of the text.
    """

    text: str
    score: float
    best: tuple[tuple[str, float], ...]
    attention: tuple[Attention, ...]
    warning: str | None = None


def translate(
    model: Model,
    texts: Sequence[str],
    how: Search,
    *,
    report: Callable[[int], object] | None = None,
) -> list[Translation]:
    """Translate texts of any length, in order; one of more than `MAX_PIECES` pieces is translated
    part by part.

    The translation of an empty text is empty. The n best of a text of several parts join the parts'
    n best by rank. `report` is called with the number of parts that were done since its last call.
    """
    parts = [_parts(model, text) for text in texts]
    rows = [row for each in parts for row in each]
    found = iter(search(model.decoder, rows, how, report=report, device=model.device))
    return [_joined(model, each, [next(found) for _ in each]) for each in parts]


def _parts(model: Model, text: str) -> list[list[int]]:
    """Return the pieces of a text; too many are cut at the ends of sentences,
    or anywhere in too long a sentence.
    """
    whole = model.source.encode(text)
    if len(whole) <= MAX_PIECES:
        return [whole]
    rows: list[list[int]] = [[]]
    for row in model.source.encode_all(SENTENCE_END.split(text)):
        if rows[-1] and len(rows[-1]) + len(row) > MAX_PIECES:
            rows.append([])
        rows[-1] += row
    return [
        row[start : start + MAX_PIECES] for row in rows for start in range(0, len(row), MAX_PIECES)
    ]


def _joined(model: Model, rows: list[list[int]], found: list[list[Hypothesis]]) -> Translation:
    space = "" if is_unspaced(model.card.target_language) else " "
    best = [
        (
            space.join(model.target.decode(each.tokens) for each in parts).strip(),
            sum(each.score for each in parts),
        )
        for parts in zip(*found, strict=False)  # as many as the part with the fewest has
    ]
    attention = tuple(
        _attention(model, row, part[0].tokens, part[0].attention)
        for row, part in zip(rows, found, strict=True)
        if part[0].attention is not None
    )
    wrong = any(model.language_id.reads_like_target(row) for row in rows)
    card = model.card
    warning = (
        f"it reads like {card.target_language}, but the model translates {card.languages}"
        if wrong
        else None
    )
    return Translation(best[0][0], best[0][1], tuple(best), attention, warning)


def _attention(
    model: Model, source: Sequence[int], target: Sequence[int], weights: torch.Tensor
) -> Attention:
    heads, first = {}, model.networks[0]
    if isinstance(first, Transformer):
        read, written = (
            torch.tensor(row, device=model.device) for row in ([*source, END], [BEGIN, *target])
        )
        heads = {name: each.float().cpu() for name, each in first.every_head(read, written).items()}
    return Attention(
        [*model.source.pieces(source), "</s>"],
        [*model.target.pieces(target), "</s>"],
        weights,
        heads,
    )
