"""Encode a recipe's corpus once, into files that are memory-mapped: the corpus
may be larger than memory.
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from translation.atomic_files import sync, write_whole
from translation.data.corpus import Corpus, Examples, Rules, Sentences, check_languages, shards
from translation.data.tokenizer import Tokenizer
from translation.models import SOURCE, TARGET, size_for
from translation.recipes import Recipe

NOTES, SIDES = "corpus.json", ("source", "target")
SHARD = 500_000  # pairs in memory at once
# the validation set is scored whole
EVERYTHING = Rules(longest=100_000, ratio=100_000.0, drop_repeated=False)
READ_AT_ONCE = 2**20


@dataclass(frozen=True, eq=False)
class CachedCorpus:
    """The tokenizers and encoded pairs of a recipe, and the size of network that suits them."""

    size: str
    source: Tokenizer
    target: Tokenizer
    training: Examples
    validation: Examples
    corpus_hash: str


def cache_corpus(
    recipe: Recipe, folder: Path, choose: Callable[[Recipe], str] | None = None
) -> CachedCorpus:
    """Train the tokenizers and encode the corpora into `folder`, unless it already holds those of
    the same recipe.

    `choose` returns the size of network where the recipe names none; without it, the number of
    pairs decides. Raises UsageError for corpora that cannot be used; see `translation.data.corpus`.
    """
    for corpus in (recipe.train, recipe.validation, *recipe.tests.values()):
        check_languages(corpus, recipe.source_language, recipe.target_language)
    for corpus in (
        recipe.validation,
        *recipe.tests.values(),
    ):  # their mistakes must show before the training
        deque(corpus.pairs(), maxlen=0)
    corpus_hash = hash_of(recipe.train, recipe.validation)
    asked = recipe.size or recipe.training.get("minutes")
    key = json.dumps([corpus_hash, asked, recipe.vocabulary, recipe.joint, asdict(recipe.rules)])
    notes = _notes(folder)
    if notes.get("key") != key:
        notes = _write_cache(recipe, folder, choose) | {"key": key}
        written = json.dumps(notes)
        sync(folder)  # before the notes that describe it
        write_whole(folder / NOTES, lambda partial: partial.write_text(written))
    source = Tokenizer.load(folder / SOURCE)
    target = source if recipe.joint else Tokenizer.load(folder / TARGET)
    training, validation = (
        _examples(folder, name, notes[name]) for name in ("train", "validation")
    )
    return CachedCorpus(notes["size"], source, target, training, validation, corpus_hash)


def _notes(folder: Path) -> dict[str, Any]:
    """Read the notes of a folder; empty if they are missing or cut short, as
    then none of its files is reliable.
    """
    file = folder / NOTES
    try:
        return dict(json.loads(file.read_text())) if file.exists() else {}
    except ValueError:
        return {}


def _write_cache(
    recipe: Recipe, folder: Path, choose: Callable[[Recipe], str] | None
) -> dict[str, Any]:
    """Write tokenizers and pairs; return the size, and how many pairs of each
    corpus were dropped for which reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NOTES).unlink(missing_ok=True)
    size = recipe.size or (
        choose(recipe) if choose else size_for(sum(1 for _ in recipe.train.pairs()))
    )
    count = recipe.vocabulary_for(size)
    if recipe.joint:
        source = target = Tokenizer.train(chain.from_iterable(recipe.train.pairs()), count)
    else:
        source = Tokenizer.train((first for first, _ in recipe.train.pairs()), count)
        target = Tokenizer.train((second for _, second in recipe.train.pairs()), count)
        target.save(folder / TARGET)
    source.save(folder / SOURCE)
    corpora = {"train": (recipe.train, recipe.rules), "validation": (recipe.validation, EVERYTHING)}
    parts = {
        name: shards(each.pairs(), source, target, rules, SHARD)
        for name, (each, rules) in corpora.items()
    }
    return {"size": size} | {
        name: _write(folder, name, shards_of) for name, shards_of in parts.items()
    }


def _write(folder: Path, name: str, parts: Iterator[Examples]) -> dict[str, int]:
    """Write the pairs of all shards into two files a side; return how many were
    dropped for which reason.
    """
    dropped: Counter[str] = Counter()
    files = [_files(folder, name, side) for side in SIDES]
    ends = [0, 0]
    for tokens, starts in files:
        tokens.write_bytes(b"")
        starts.write_bytes(np.zeros(1, dtype=np.int64).tobytes())
    for part in parts:
        dropped.update(part.dropped)
        for place, side in enumerate((part.source, part.target)):
            for file, numbers in zip(
                files[place], (side.tokens, side.starts[1:] + ends[place]), strict=True
            ):
                with file.open("ab") as stream:
                    stream.write(numbers.tobytes())
            ends[place] += len(side.tokens)
    return dict(dropped)


def _examples(folder: Path, name: str, dropped: dict[str, int]) -> Examples:
    files = (_files(folder, name, side) for side in SIDES)
    mapped = (
        (np.memmap(tokens, np.int32, "r"), np.memmap(starts, np.int64, "r"))
        for tokens, starts in files
    )
    source, target = (Sentences(*each) for each in mapped)
    return Examples(source, target, dropped)


def _files(folder: Path, name: str, side: str) -> tuple[Path, Path]:
    return folder / f"{name}.{side}.tokens", folder / f"{name}.{side}.starts"


def hash_of(*corpora: Corpus) -> str:
    """Return the SHA-256 of the files' bytes; raises what reading the first line of each does."""
    digest = hashlib.sha256()
    for corpus in corpora:
        for file in (corpus.source, corpus.target):
            if file is None:
                digest.update(repr(corpus.columns).encode())
                continue
            next(corpus.pairs(), None)
            with file.open("rb") as stream:
                while block := stream.read(READ_AT_ONCE):
                    digest.update(block)
    return digest.hexdigest()
