"""Identify the language of a text, to warn of one that is already in the target language.

This is a naive Bayes classifier over pieces of the source vocabulary. With two vocabularies, target
sentences are encoded with the source's, as a text that a user enters would be. They then fall into
short pieces and bytes, by which they are recognised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from translation.data.corpus import Examples
from translation.data.tokenizer import SPECIAL, Tokenizer
from translation.errors import TranslationError

Counts = Int[ndarray, " vocabulary"]

MIN_PIECES = 8  # in a text: a name or two are not enough evidence
SMOOTHING = 0.5  # added to each count
MIN_EVIDENCE = 1.5  # mean log-likelihood ratio of a piece, in nats
# Of pieces that are as clearly of the source language. A few names in another script may have most
# pieces of a source sentence, as they are spelled in bytes.
MAX_SHARE_AGAINST = 1 / 8
BLOCK = 1 << 22  # tokens counted at once
SAMPLE = 20_000  # pairs encoded again with the source's vocabulary, evenly over the corpus


@dataclass(frozen=True, eq=False)
class LanguageIdentifier:
    """A classifier of texts, made of counts of each source piece in the two languages.

    Raises ValueError if the counts do not fit each other.
    """

    source: Counts
    target: Counts

    def __post_init__(self) -> None:
        shape = self.source.shape
        target_shape = self.target.shape
        if shape != target_shape or len(shape) != 1 or shape == (0,):
            raise ValueError(
                f"both counts must belong to one vocabulary, not to {shape} and "
                f"{target_shape} pieces"
            )
        least = min(self.source.min(), self.target.min())
        if least < 0:
            raise ValueError(f"a count must be 0 or more, not {least}")

    @cached_property
    def evidence(self) -> Float[ndarray, " vocabulary"]:
        """Return log(p(piece | target) / p(piece | source)) of each piece, smoothed."""
        source = self.source.astype(float) + SMOOTHING
        target = self.target.astype(float) + SMOOTHING
        log_source = np.log(source / source.sum())
        log_target = np.log(target / target.sum())
        return np.asarray(log_target - log_source)

    def reads_like_target(self, tokens: Sequence[int]) -> bool:
        """Return whether a text is almost certainly in the target language.

        `tokens` are those of the source's tokenizer. Three conditions must hold. The text has
        `MIN_PIECES` pieces or more, special tokens not counted. Their mean evidence is above
        `MIN_EVIDENCE`: a text of 8 pieces is then at least e^12 times as likely in the target
        language. At most `MAX_SHARE_AGAINST` of the pieces have evidence below -`MIN_EVIDENCE`: a
        source sentence with names in the script of the target language has more. Raises IndexError
        for a number outside of the vocabulary.
        """
        pieces = np.asarray(tokens, dtype=np.int64)
        evidence = self.evidence[pieces[pieces >= SPECIAL]]
        if len(evidence) < MIN_PIECES:
            return False
        share_against = (evidence < -MIN_EVIDENCE).mean()
        return bool(evidence.mean() > MIN_EVIDENCE and share_against <= MAX_SHARE_AGAINST)

    def to_json(self) -> dict[str, list[int]]:
        """Return the counts in a form that JSON can hold."""
        return {"source": self.source.tolist(), "target": self.target.tolist()}

    @classmethod
    def from_json(cls, counts: Mapping[str, Any]) -> "LanguageIdentifier":
        """Return the classifier from what `to_json` has returned.

        Raises TranslationError for anything else.
        """
        try:
            return cls(
                source=np.array(counts["source"], dtype=np.int64),
                target=np.array(counts["target"], dtype=np.int64),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TranslationError(
                f"the model's counts of pieces are damaged (language_id.json: {error}): restore "
                "the model, or train it again"
            ) from error


def piece_counts(examples: Examples, source: Tokenizer, target: Tokenizer) -> tuple[Counts, Counts]:
    """Count each piece of the source vocabulary in the source texts and in the target texts.

    With two vocabularies, a sample of the target texts is encoded with that of the source.
    """
    if source.digest == target.digest:
        target_tokens = examples.target.tokens
    else:
        count = min(len(examples), SAMPLE)
        places = np.linspace(0, len(examples) - 1, count).astype(int)
        texts = [target.decode(examples.target[place].tolist()) for place in places.tolist()]
        encoded = source.encode_all(texts)
        target_tokens = np.array(list(chain.from_iterable(encoded)), dtype=np.int64)
    return _counts(examples.source.tokens, source.size), _counts(target_tokens, source.size)


def _counts(tokens: Int[ndarray, " tokens"], size: int) -> Counts:
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(tokens), BLOCK):  # in blocks: numpy copies the tokens that it counts
        counts += np.bincount(tokens[start : start + BLOCK], minlength=size)
    return counts
