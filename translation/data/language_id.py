"""Which way a text goes: a text that is already in the target language is noticed before it is translated.

Each language is a bag of pieces of the source vocabulary (a naive Bayes classifier). With two vocabularies the
target's sentences are read with the source's, as a user's text would be: they fall into short pieces and bytes, and
that tells them apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from translation.data.corpus import Examples
from translation.data.tokenizer import SPECIAL, Tokenizer
from translation.errors import TranslationError

MIN_PIECES = 8  # pieces: a name or two are no evidence
SMOOTHING = 0.5  # added to each count
BOUND = 1.5  # of the mean log-likelihood ratio of a piece, in nats
MOST_AGAINST = 1 / 8  # of the pieces may speak as clearly for the source: foreign names are long when spelled
BLOCK = 1 << 22  # tokens that are counted at once
READ = 20_000  # pairs that are read again with the source's vocabulary, evenly over the corpus


@dataclass(frozen=True, eq=False)
class LanguageIdentifier:
    """How often each piece of the source vocabulary occurs in the two languages."""

    source: Int[ndarray, " vocabulary"]
    target: Int[ndarray, " vocabulary"]

    @classmethod
    def fit(cls, source: Int[ndarray, " vocabulary"], target: Int[ndarray, " vocabulary"]) -> "LanguageIdentifier":
        """From counts of each piece of the source vocabulary in both languages; see `piece_counts`."""
        if source.shape != target.shape or source.ndim != 1 or not source.size:
            raise ValueError(f"both counts are of one vocabulary, not of {source.shape} and {target.shape} pieces")
        if min(source.min(), target.min()) < 0:
            raise ValueError("a count is 0 or more")
        return cls(source, target)

    @cached_property
    def evidence(self) -> Float[ndarray, " vocabulary"]:
        """What each piece says for the target language: log(p(piece | target) / p(piece | source)), smoothed."""
        source, target = (counts.astype(float) + SMOOTHING for counts in (self.source, self.target))
        ratio: Float[ndarray, " vocabulary"] = np.log(target / target.sum()) - np.log(source / source.sum())
        return ratio

    def reads_like_target(self, tokens: Sequence[int]) -> bool:
        """Whether a text, encoded by the source's tokenizer, is surely in the target language.

        Surely: it has `MIN_PIECES` pieces or more; their mean evidence is over `BOUND`, so that a text of 8 pieces is
        at least e^12 times as likely in the target language; and no more than `MOST_AGAINST` of them are below
        -`BOUND`, so that a source sentence with names of the other script is not accused. Special tokens count for
        nothing. Raises IndexError for a number that is not of the vocabulary.
        """
        pieces = np.asarray(tokens, dtype=np.int64)
        evidence = self.evidence[pieces[pieces >= SPECIAL]]
        if len(evidence) < MIN_PIECES:
            return False
        return bool(evidence.mean() > BOUND and (evidence < -BOUND).mean() <= MOST_AGAINST)

    def to_json(self) -> dict[str, list[int]]:
        """The counts, as JSON can hold them."""
        return {"source": self.source.tolist(), "target": self.target.tolist()}

    @classmethod
    def from_json(cls, card: Mapping[str, Any]) -> "LanguageIdentifier":
        """What `to_json` gave; raises TranslationError for anything else."""
        try:
            return cls.fit(*(np.array(card[side], dtype=np.int64) for side in ("source", "target")))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TranslationError(
                f"counts of pieces are damaged ({error}): restore the model, or train anew"
            ) from error


def piece_counts(
    examples: Examples, source: Tokenizer, target: Tokenizer
) -> tuple[Int[ndarray, " vocabulary"], Int[ndarray, " vocabulary"]]:
    """How often each piece of the source vocabulary occurs in the source texts and in the target texts."""
    if source.digest == target.digest:
        tokens = examples.target.tokens
    else:
        places = np.linspace(0, len(examples) - 1, min(len(examples), READ)).astype(int)
        texts = [target.decode(examples.target[int(place)].tolist()) for place in places]
        tokens = np.array([token for row in source.encode_all(texts) for token in row], dtype=np.int64)
    return _counts(examples.source.tokens, source.size), _counts(tokens, source.size)


def _counts(tokens: Int[ndarray, " tokens"], size: int) -> Int[ndarray, " vocabulary"]:
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(tokens), BLOCK):  # in blocks: numpy copies what it counts
        counts += np.bincount(tokens[start : start + BLOCK], minlength=size)
    return counts
