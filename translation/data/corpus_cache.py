"""Encode a recipe's corpus once, into files that are memory-mapped.

The corpus may be larger than memory.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from translation.atomic_files import sync, write_whole
from translation.data.corpus import Corpus, Examples, Rules, Sentences, check_languages, shards
from translation.data.tokenizer import Tokenizer
from translation.models import SOURCE, TARGET, size_for
from translation.recipes import Recipe

NOTES = "corpus.json"
SHARD = 500_000  # pairs in memory at once
# No pair of the validation set is dropped but those with an empty side.
KEEP_ALL = Rules(longest=100_000, ratio=100_000.0, drop_repeated=False)
READ_AT_ONCE = 2**20  # bytes


@dataclass(frozen=True, eq=False)
class CachedCorpus:
    """The tokenizers and encoded pairs of a recipe, and the name of its network's size.

    `corpus_hash` is the hash of the training and validation files (`hash_of`).
    """

    size: str
    source: Tokenizer
    target: Tokenizer
    training: Examples
    validation: Examples
    corpus_hash: str


def cache_corpus(
    recipe: Recipe, folder: Path, choose: Callable[[Recipe], str] | None = None
) -> CachedCorpus:
    """Return the tokenizers and the encoded pairs of a recipe from the files in `folder`.

    Unless the folder has those of this recipe, they are first made and written there. If the recipe
    names no size of network, `choose` returns one. Without `choose`, the size depends on the number
    of pairs. Raises UsageError for corpora that cannot be used, and TranslationError for damaged
    files; see `translation.data.corpus`.
    """
    scored = [recipe.validation, *recipe.tests.values()]
    for corpus in (recipe.train, *scored):
        check_languages(corpus, recipe.source_language, recipe.target_language)
    for corpus in scored:
        for _ in corpus.pairs():  # only to raise now, not after the training, for a mistake in it
            pass
    corpus_hash = hash_of(recipe.train, recipe.validation)
    # The minutes choose a size that is not given. What else decides it, such as the number of seeds
    # and the speed of the machine, is left out, so that a size stays.
    size_or_minutes = recipe.size or recipe.training.get("minutes")
    settings = [size_or_minutes, recipe.vocabulary, recipe.joint, asdict(recipe.rules)]
    key = json.dumps([corpus_hash, *settings])
    # The notes have the `key`, and what `_write_cache` returned. Without them, none of the other
    # files is reliable.
    notes: dict[str, Any] = {}
    with suppress(ValueError):  # damaged
        if (folder / NOTES).exists():
            notes = dict(json.loads((folder / NOTES).read_text()))
    if notes.get("key") != key:
        notes = {**_write_cache(recipe, folder, choose), "key": key}
        text = json.dumps(notes)
        sync(folder)  # the notes say that the other files are complete, so these come first
        write_whole(folder / NOTES, lambda partial: partial.write_text(text))
    source = Tokenizer.load(folder / SOURCE)
    target = source if recipe.joint else Tokenizer.load(folder / TARGET)
    return CachedCorpus(
        size=notes["size"],
        source=source,
        target=target,
        training=_examples(folder, "train", notes["train"]),
        validation=_examples(folder, "validation", notes["validation"]),
        corpus_hash=corpus_hash,
    )


def _write_cache(
    recipe: Recipe, folder: Path, choose: Callable[[Recipe], str] | None
) -> dict[str, Any]:
    """Write the tokenizers and the encoded pairs.

    Returns the notes without their key: `size`, the name of the network's size, and with the keys
    `train` and `validation` the number of pairs dropped from that corpus, by reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The notes of an earlier recipe would be wrong once the first file is overwritten.
    (folder / NOTES).unlink(missing_ok=True)
    size = recipe.size
    if not size:
        size = choose(recipe) if choose else size_for(sum(1 for _ in recipe.train.pairs()))
    vocabulary = recipe.vocabulary_for(size)
    if recipe.joint:
        texts = chain.from_iterable(recipe.train.pairs())
        source = Tokenizer.train(texts, vocabulary, "[train]")
        target = source
    else:
        source_texts = (text for text, _ in recipe.train.pairs())
        target_texts = (text for _, text in recipe.train.pairs())
        source = Tokenizer.train(source_texts, vocabulary, "the source side of [train]")
        target = Tokenizer.train(target_texts, vocabulary, "the target side of [train]")
        target.save(folder / TARGET)
    source.save(folder / SOURCE)
    training = shards(recipe.train.pairs(), source, target, recipe.rules, SHARD, "[train]")
    validation = shards(recipe.validation.pairs(), source, target, KEEP_ALL, SHARD, "[validation]")
    return {
        "size": size,
        "train": _write_pairs(folder, "train", training),
        "validation": _write_pairs(folder, "validation", validation),
    }


class _Files(NamedTuple):
    tokens: Path
    starts: Path


def _files(folder: Path, name: str, side: str) -> _Files:
    return _Files(
        tokens=folder / f"{name}.{side}.tokens",
        starts=folder / f"{name}.{side}.starts",
    )


def _write_pairs(folder: Path, name: str, parts: Iterator[Examples]) -> dict[str, int]:
    source = _SideWriter(_files(folder, name, "source"))
    target = _SideWriter(_files(folder, name, "target"))
    dropped: Counter[str] = Counter()
    for part in parts:
        dropped.update(part.dropped)
        source.append(part.source)
        target.append(part.target)
    return dict(dropped)


class _SideWriter:
    def __init__(self, files: _Files) -> None:
        self.files = files
        self.end = 0  # tokens written
        files.tokens.write_bytes(b"")
        files.starts.write_bytes(np.zeros(1, dtype=np.int64).tobytes())

    def append(self, sentences: Sentences) -> None:
        """Add the sentences of a shard."""
        starts = sentences.starts[1:] + self.end
        with self.files.tokens.open("ab") as stream:
            stream.write(sentences.tokens.tobytes())
        with self.files.starts.open("ab") as stream:
            stream.write(starts.tobytes())
        self.end += len(sentences.tokens)


def _examples(folder: Path, name: str, dropped: dict[str, int]) -> Examples:
    return Examples(
        source=_mapped(_files(folder, name, "source")),
        target=_mapped(_files(folder, name, "target")),
        dropped=dropped,
    )


def _mapped(files: _Files) -> Sentences:
    return Sentences(
        tokens=np.memmap(files.tokens, np.int32, "r"),
        starts=np.memmap(files.starts, np.int64, "r"),
    )


def hash_of(*corpora: Corpus) -> str:
    """Return the SHA-256 of the bytes of all files, as they are on the disk.

    For a table, the numbers of its two columns are part of the hash too. Raises the errors that
    reading the first pair of each corpus raises; see `Corpus.pairs`.
    """
    digest = hashlib.sha256()
    for corpus in corpora:
        for file in (corpus.source, corpus.target):
            if file is None:  # a table, from which the columns choose the pairs
                digest.update(repr(corpus.columns).encode())
                continue
            next(corpus.pairs(), None)  # only for the errors that it raises, as for a missing file
            with file.open("rb") as stream:
                while block := stream.read(READ_AT_ONCE):
                    digest.update(block)
    return digest.hexdigest()
