"""Read parallel text from files, drop unfit pairs, and encode the others as token numbers."""

import gzip
import hashlib
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated

import numpy as np
from jaxtyping import Int, Int32, Int64
from numpy import ndarray
from pydantic import Field
from pydantic.dataclasses import dataclass as definition

from translation.data.languages import composed
from translation.data.tokenizer import Tokenizer
from translation.definitions import STRICT, Count, Definition, Flag, Number
from translation.errors import TranslationError, UsageError

GZIP = b"\x1f\x8b"
BYTE_ORDER_MARK = "\ufeff"
CHUNK = 4096  # pairs encoded at once
# What keeps pairs that were dropped, by the reason. Pairs are also dropped for an empty side, which
# no rule changes, and as repeated, which leaves the first one.
TO_KEEP = {
    "too long": "raise longest (now {rules.longest})",
    "lengths too different": "raise ratio (now {rules.ratio:g})",
    "same on both sides": "set drop_same = false",
}
Pair = tuple[str, str]


@dataclass(frozen=True)
class Corpus:
    """Parallel text: two files whose lines translate each other, or one table.

    UTF-8, plain or gzip by their first bytes. Without `target`, `source` has a tab between columns,
    of which `columns` are the two texts, from 0 on.
    """

    source: Path
    target: Path | None = None
    columns: tuple[int, int] = (0, 1)
    name: str = field(kw_only=True)

    def __post_init__(self) -> None:
        first, second = self.columns
        has_bad_columns = min(first, second) < 0 or first == second
        if self.target is None and has_bad_columns:
            raise UsageError(
                f"columns must be two different numbers of 0 or more, not {self.columns}"
            )

    def pairs(self) -> Iterator[Pair]:
        """Yield each sentence with its translation, composed, in the files' order.

        Raises UsageError for files missing, empty, not UTF-8 or of unequal length, and rows without
        the columns; TranslationError for a damaged one.
        """
        if self.target is None:
            written = self._rows(self.source)
        else:
            written = _matched(self.source, self.target)
        return ((composed(first), composed(second)) for first, second in written)

    def _rows(self, file: Path) -> Iterator[Pair]:
        first, second = self.columns
        number = 0
        for number, line in enumerate(lines_of(file), start=1):
            row = line.split("\t")
            if len(row) <= max(self.columns):
                raise UsageError(
                    f"{file}, line {number}, lacks columns {first} and {second}, counted from 0 "
                    f"and separated by tabs (it has {len(row)} in all): correct the line, choose "
                    "other columns (columns in a recipe, --columns for `dtml translate score`), or "
                    "name a second file with the translations (target in a recipe, --references)"
                )
            yield row[first], row[second]
        if not number:
            raise UsageError(f"{file} is empty: name a file that has sentences")


def _matched(source: Path, target: Path) -> Iterator[Pair]:
    sources = 0
    targets = 0
    for first, second in zip_longest(lines_of(source), lines_of(target)):
        if first is not None:
            sources += 1
        if second is not None:
            targets += 1
        if first is not None and second is not None:
            yield first, second
    if sources != targets:
        raise UsageError(
            f"{source} has {sources:,} lines, but {target} has {targets:,}: line n of one must be "
            "the translation of line n of the other"
        )
    if not sources:
        raise UsageError(f"{source} and {target} are empty: name files that have sentences")


def lines_of(file: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text, plain or gzip, as `lines_in`.

    Raises UsageError for a file missing or not UTF-8, TranslationError for a damaged one.
    """
    try:
        with file.open("rb") as beginning:
            is_gzip = beginning.read(2) == GZIP
        with gzip.open(file) if is_gzip else file.open("rb") as stream:
            yield from lines_in(stream, str(file))
    except FileNotFoundError as error:
        raise UsageError(f"{file} does not exist: correct its path, or restore it") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TranslationError(f"{file} is damaged or cut short ({error}): restore it") from error
    except OSError as error:
        raise TranslationError(
            f"{file} cannot be read: {error.strerror}; name a file that you may read"
        ) from error


def lines_in(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text without ends ("\n", "\r\n") or byte order mark.

    Raises UsageError, with its `name`, for a line that is not UTF-8.
    """
    for number, line in enumerate(stream, start=1):
        try:
            text = line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            byte = line[error.start]
            raise UsageError(
                f"{name} is not UTF-8 at line {number}, byte {error.start + 1} (0x{byte:02x}): "
                "convert it to UTF-8"
            ) from error
        yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text


def check_languages(corpus: Corpus, source_language: str, target_language: str) -> None:
    """Raise UsageError if a file's name has the code of the other side's language between its dots.

    Not if it has its own side's too, nor for tables, nor for equal languages.
    """
    if corpus.target is None or source_language.lower() == target_language.lower():
        return
    sides = (
        (corpus.source, "source", source_language, target_language),
        (corpus.target, "target", target_language, source_language),
    )
    for file, side, language, opposite_language in sides:
        parts = file.name.lower().split(".")
        if opposite_language.lower() in parts and language.lower() not in parts:
            raise UsageError(
                f"the name of {file} says {opposite_language}, but the {side} language is "
                f"{language}: swap the source and the target, or rename the file"
            )


@definition(frozen=True, config=STRICT)
class Rules(Definition):
    """The rules by which pairs are dropped from a corpus.

    A pair is dropped if a side is empty or has more than `longest` pieces, or if (longer + 1) /
    (shorter + 1) of its sides' pieces is above `ratio`. `drop_repeated` drops pairs that occurred
    before, `drop_same` those with equal sides, which names and numbers may have.
    """

    longest: Count = 200
    ratio: Annotated[Number, Field(ge=1)] = 9.0
    drop_repeated: Flag = True
    drop_same: Flag = False


@dataclass(frozen=True, eq=False)
class Sentences:
    """Token numbers of many sentences in one array: i is `tokens[starts[i] : starts[i + 1]]`."""

    tokens: Int32[ndarray, " tokens"]
    starts: Int64[ndarray, " sentences+1"]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Int32[ndarray, " tokens"]:
        place = range(len(self))[index]
        start = self.starts[place]
        stop = self.starts[place + 1]
        return self.tokens[start:stop]

    @property
    def lengths(self) -> Int[ndarray, " sentences"]:
        """Return the number of pieces of each sentence."""
        return np.diff(self.starts)


@dataclass(frozen=True, eq=False)
class Examples:
    """Pairs as token numbers without BEGIN and END, and how many were `dropped`, by reason."""

    source: Sentences
    target: Sentences
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(
        self, index: int
    ) -> tuple[Int32[ndarray, " source"], Int32[ndarray, " target"]]:
        return self.source[index], self.target[index]

    def summary(self) -> str:
        """Return a line that says how many pairs were kept and dropped."""
        total = len(self) + sum(self.dropped.values())
        line = f"{len(self):,} of {total:,} pairs kept"
        if not self.dropped:
            return line
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{line}; dropped: {reasons}"


def clean(
    pairs: Iterable[Pair],
    source: Tokenizer,
    target: Tokenizer,
    rules: Rules,
    corpus: str = "the corpus",
) -> Examples:
    """Encode the pairs that the rules keep, with 4 bytes for each piece.

    Repeated pairs are found by 64-bit hashes, about 80 bytes a pair. Raises UsageError, which names
    `corpus`, if none is kept.
    """
    stream = iter(pairs)
    hashes: set[bytes] = set()  # of the pairs kept so far
    dropped: Counter[str] = Counter()
    sources = _Encoded()
    targets = _Encoded()
    while chunk := list(islice(stream, CHUNK)):
        source_tokens = source.encode_all([first for first, _ in chunk])
        target_tokens = target.encode_all([second for _, second in chunk])
        for pair, first, second in zip(chunk, source_tokens, target_tokens, strict=True):
            reason = _reason_to_drop(pair, len(first), len(second), rules, hashes)
            if reason is None:
                sources.append(first)
                targets.append(second)
            else:
                dropped[reason] += 1
    examples = Examples(sources.sentences(), targets.sentences(), dict(dropped))
    if not len(examples):
        ways = [way.format(rules=rules) for reason, way in TO_KEEP.items() if reason in dropped]
        way_out = "name files that have text on both sides"
        if ways:
            way_out = f"{' or '.join(ways)} under [rules], or correct the files"
        raise UsageError(f"no pair of {corpus} is left ({examples.summary()}): {way_out}")
    return examples


class _Encoded:
    def __init__(self) -> None:
        self.tokens = array("i")
        self.starts = array("q", [0])

    def append(self, tokens: list[int]) -> None:
        self.tokens.extend(tokens)
        self.starts.append(len(self.tokens))

    def sentences(self) -> Sentences:
        return Sentences(
            tokens=np.frombuffer(self.tokens, dtype=np.int32),
            starts=np.frombuffer(self.starts, dtype=np.int64),
        )


def _reason_to_drop(
    pair: Pair, source: int, target: int, rules: Rules, hashes: set[bytes]
) -> str | None:
    """Return why a pair of so many pieces is dropped, or None; `hashes` are of those kept."""
    shorter, longer = sorted((source, target))
    if not shorter:
        return "empty"
    if longer > rules.longest:
        return "too long"
    if longer + 1 > rules.ratio * (shorter + 1):
        return "lengths too different"
    if rules.drop_same and pair[0].strip() == pair[1].strip():
        return "same on both sides"
    if rules.drop_repeated:
        # "replace", because UTF-8 cannot encode a lone surrogate.
        text = "\n".join(pair).encode(errors="replace")
        key = hashlib.blake2b(text, digest_size=8).digest()
        if key in hashes:
            return "repeated"
        hashes.add(key)
    return None
