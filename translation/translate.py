"""Translate texts of any length with a trained model."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import torch

from translation.data.languages import composed, is_unspaced
from translation.data.tokenizer import BEGIN, END
from translation.decoding.beam_search import Hypothesis, Search, search
from translation.models import Model
from translation.transformer import Transformer

MAX_PIECES = 150  # of a text translated at once; longer texts are cut at the ends of sentences
SENTENCE_END = re.compile("(?<=[.!?\u2026])\\s+|(?<=[\u3002\uff01\uff1f])\\s*")


@dataclass(frozen=True)
class Attention:
    """The attention from the pieces of a translated part to those of its source, `</s>` last in
    both.

    `weights` `[target, source]` are the last layer's, mean of heads and networks; `heads` those of
    `Transformer.every_head` of the first network, empty for an RNN.
    """

    source: list[str]
    target: list[str]
    weights: torch.Tensor
    heads: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Translation:
    """The best translation of a text, and the n best pairs of text and score.

    A score is the log probability over the length penalty, summed over parts; 0 for an empty text.
    `attention` has each part's, if requested.
    """

    text: str
    score: float
    best: tuple[tuple[str, float], ...]
    attention: tuple[Attention, ...]


def translate(
    model: Model,
    texts: Sequence[str],
    how: Search,
    *,
    report: Callable[[int], object] | None = None,
) -> list[Translation]:
    """Translate texts of any length, in order, in whichever Unicode form.

    More than `MAX_PIECES` pieces are translated part by part: the best joins each part's best, and
    so on. `report` gets the number of parts done since its last call. Raises TranslationError as
    `search`.
    """
    parts_of_texts = [_parts(model, composed(text)) for text in texts]
    parts = list(chain.from_iterable(parts_of_texts))
    found = search(model.network, parts, how, report=report, device=model.device)
    hypotheses = iter(found)
    translations: list[Translation] = []
    for parts_of_text in parts_of_texts:
        hypotheses_of_text = list(islice(hypotheses, len(parts_of_text)))
        translations.append(_joined(model, parts_of_text, hypotheses_of_text))
    return translations


def _parts(model: Model, text: str) -> list[list[int]]:
    """Return a text's token numbers in parts of at most `MAX_PIECES`, cut at sentences."""
    pieces = model.source.encode(text)
    if len(pieces) <= MAX_PIECES:
        return [pieces]
    groups: list[list[int]] = [[]]  # of sentences that fit together, or of one that is too long
    for sentence in model.source.encode_all(SENTENCE_END.split(text)):
        if groups[-1] and len(groups[-1]) + len(sentence) > MAX_PIECES:
            groups.append([])
        groups[-1] += sentence
    parts: list[list[int]] = []
    for group in groups:
        starts = range(0, len(group), MAX_PIECES)
        parts.extend(group[start : start + MAX_PIECES] for start in starts)
    return parts


def _joined(
    model: Model, parts: list[list[int]], hypotheses: list[list[Hypothesis]]
) -> Translation:
    best: list[tuple[str, float]] = []
    # A part may have fewer hypotheses than the others: the text has as many as that part.
    for same_rank in zip(*hypotheses, strict=False):
        decoded = [model.target.decode(hypothesis.tokens) for hypothesis in same_rank]
        space = "" if is_unspaced("".join(decoded)) else " "
        score = sum(hypothesis.score for hypothesis in same_rank)
        best.append((space.join(decoded).strip(), score))
    attention: list[Attention] = []
    for part, (best_of_part, *_) in zip(parts, hypotheses, strict=True):
        if best_of_part.attention is not None:
            heads: dict[str, torch.Tensor] = {}
            first_network = model.networks[0]
            if isinstance(first_network, Transformer):
                source_tokens = torch.tensor([*part, END], device=model.device)
                target_tokens = torch.tensor([BEGIN, *best_of_part.tokens], device=model.device)
                for name, tensor in first_network.every_head(source_tokens, target_tokens).items():
                    heads[name] = tensor.float().cpu()
            attention.append(
                Attention(
                    source=[*model.source.pieces(part), "</s>"],
                    target=[*model.target.pieces(best_of_part.tokens), "</s>"],
                    weights=best_of_part.attention,
                    heads=heads,
                )
            )
    text, score = best[0]  # each part has a hypothesis, and so has the text
    return Translation(
        text=text,
        score=score,
        best=tuple(best),
        attention=tuple(attention),
    )
