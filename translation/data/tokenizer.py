"""Encode text as token numbers with a SentencePiece vocabulary that is learned from a corpus.

Pieces are learned by byte-pair encoding (Sennrich et al., ACL 2016); other characters are spelled
in bytes. Text is composed before and after, without SentencePiece's normalisation.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from translation.data.languages import composed
from translation.errors import UsageError

PAD = 0
UNKNOWN = 1
BEGIN = 2
END = 3
SPECIAL = 4  # tokens below it are not text
BYTES = 256
SMALLEST = 300  # vocabulary: the special pieces, the bytes and a few more
MAX_LINES = 1_000_000  # from which pieces are learned: more lines give no better pieces
LONGEST_PART = 1000  # characters: SentencePiece skips lines of more than 4192 bytes
# SentencePiece reads these characters as spaces or as no text.
UNREADABLE = dict.fromkeys(map(ord, "\n\x00\u2581\u2585"), " ")


class Tokenizer:
    """A vocabulary, as SentencePiece writes it, which maps text to token numbers and back.

    Exactly, for composed text (NFC) with single spaces between words and no U+2581; a lone
    surrogate becomes "?".
    """

    def __init__(self, model: bytes) -> None:
        self.model = model  # as SentencePiece writes it
        self._processor = SentencePieceProcessor(model_proto=model)
        self.size: int = self._processor.get_piece_size()
        self.digest: str = hashlib.sha256(model).hexdigest()

    @classmethod
    def train(cls, lines: Iterable[str], size: int, corpus: str = "the corpus") -> "Tokenizer":
        """Learn at most `size` pieces from lines of text; the same lines give the same vocabulary.

        From a sample of `MAX_LINES`. If characters would fill more than half of it, the rarest are
        spelled in bytes. Raises UsageError, naming `corpus`, for a `size` below `SMALLEST` and for
        blank lines.
        """
        if size < SMALLEST:
            raise UsageError(
                f"a vocabulary needs at least {SMALLEST} pieces, not {size}: raise its size"
            )
        sample = [composed(line).translate(UNREADABLE) for line in _sampled(lines, MAX_LINES)]
        counts: Counter[str] = Counter()
        for line in sample:
            counts.update(line)
        del counts[" "]  # separates words, and so needs no piece; a Counter may lack it
        if not counts:
            raise UsageError(
                f"no text to learn a vocabulary from: every line of {corpus} is blank; name files "
                "that have sentences"
            )
        characters = [character for character, _ in counts.most_common()]
        most_characters = (size - SPECIAL - BYTES) // 2
        rare_characters = characters[most_characters:]
        left_to_bytes = dict.fromkeys(map(ord, rare_characters), " ")
        model = BytesIO()
        SentencePieceTrainer.train(
            sentence_iterator=_short_parts(sample, left_to_bytes),
            model_writer=model,
            pad_id=PAD,
            unk_id=UNKNOWN,
            bos_id=BEGIN,
            eos_id=END,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,  # a small corpus may give fewer pieces
            byte_fallback=True,
            character_coverage=1.0,  # the rare characters are already left out
            normalization_rule_name="identity",  # `composed` has normalised the lines
            num_threads=1,  # the vocabulary must depend on the lines alone, not on the cores
            minloglevel=2,  # log errors only
        )
        return cls(model.getvalue())

    def encode(self, text: str) -> list[int]:
        """Return the token numbers of a text, without BEGIN and END."""
        return list(self._processor.encode(composed(text)))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts at once, on all cores."""
        return list(self._processor.encode([composed(text) for text in texts]))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the composed text, without PAD, BEGIN, END; IndexError out of range."""
        of_text = [int(token) for token in tokens if token not in {PAD, BEGIN, END}]
        # Two pieces, or the bytes of a network's own spelling, may join to a letter in two parts.
        return composed(self._processor.decode(of_text))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the piece of each token as SentencePiece writes it.

        In a piece `▁` is the space before a word, `<0xE2>` a byte, and `</s>` END.
        """
        return list(self._processor.id_to_piece([int(token) for token in tokens]))


def _sampled(lines: Iterable[str], most: int) -> list[str]:
    """Return all lines, or a uniform sample of `most` (algorithm R of Vitter, 1985)."""
    sample: list[str] = []
    random_source = random.Random(0)  # noqa: S311 - the same lines give the same vocabulary
    for number, line in enumerate(lines):
        if number < most:
            sample.append(line)
            continue
        place = random_source.randrange(number + 1)
        if place < most:
            sample[place] = line
    return sample


def _short_parts(lines: Sequence[str], left_to_bytes: dict[int, str]) -> Iterator[str]:
    """Yield the lines in parts short enough for SentencePiece, spaces for `left_to_bytes`."""
    for line in lines:
        text = line.translate(left_to_bytes) if left_to_bytes else line
        for start in range(0, len(text), LONGEST_PART):
            yield text[start : start + LONGEST_PART]
