"""Encode a recipe's corpus once, into a file that is memory-mapped."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch

from translation import artifacts
from translation.artifacts import ArtifactError, Tensors, prefixed, under
from translation.data.corpus import Corpus, Examples, Rules, Sentences, check_languages, clean
from translation.data.tokenizer import Tokenizer
from translation.models import size_for, tokenizer_tensors, tokenizers_in
from translation.recipes import Recipe

FILE = "corpus.safetensors"
# No pair of the validation set is dropped but those with an empty side.
KEEP_ALL = Rules(longest=100_000, ratio=100_000.0, drop_repeated=False)
READ_AT_ONCE = 2**20  # bytes


@dataclass(frozen=True, eq=False)
class CachedCorpus:
    """A recipe's tokenizers and encoded pairs, its network's size, its files' `hash_of`."""

    size: str
    source: Tokenizer
    target: Tokenizer
    training: Examples
    validation: Examples
    corpus_hash: str


def cache_corpus(
    recipe: Recipe, folder: Path, choose: Callable[[Recipe], str] | None = None
) -> CachedCorpus:
    """Return the tokenizers and the encoded pairs of a recipe from the file in `folder`, made if
    needed.

    A size not named is `choose`'s, or that of the number of pairs. Raises UsageError for unusable
    corpora, TranslationError for damaged files.
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
    with suppress(ArtifactError, KeyError):  # the file is missing or damaged
        tensors, card = artifacts.read(folder / FILE)
        if card["key"] == key:
            source, target = tokenizers_in(tensors, card["tokenizers"])
            return CachedCorpus(
                size=card["size"],
                source=source,
                target=target,
                training=_examples(under("train.", tensors), card["train"]),
                validation=_examples(under("validation.", tensors), card["validation"]),
                corpus_hash=corpus_hash,
            )
    cached = _encoded(recipe, corpus_hash, choose)
    artifacts.write(
        folder / FILE,
        {
            **tokenizer_tensors(cached.source, cached.target),
            **prefixed("train.", _tensors(cached.training)),
            **prefixed("validation.", _tensors(cached.validation)),
        },
        {
            "key": key,
            "size": cached.size,
            "tokenizers": [cached.source.digest, cached.target.digest],
            "train": cached.training.dropped,
            "validation": cached.validation.dropped,
        },
    )
    return cached


def _encoded(
    recipe: Recipe, corpus_hash: str, choose: Callable[[Recipe], str] | None
) -> CachedCorpus:
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
    return CachedCorpus(
        size=size,
        source=source,
        target=target,
        training=clean(recipe.train.pairs(), source, target, recipe.rules, "[train]"),
        validation=clean(recipe.validation.pairs(), source, target, KEEP_ALL, "[validation]"),
        corpus_hash=corpus_hash,
    )


def _tensors(examples: Examples) -> Tensors:
    return {
        "source.tokens": torch.from_numpy(examples.source.tokens),
        "source.starts": torch.from_numpy(examples.source.starts),
        "target.tokens": torch.from_numpy(examples.target.tokens),
        "target.starts": torch.from_numpy(examples.target.starts),
    }


def _examples(tensors: Tensors, dropped: dict[str, int]) -> Examples:
    return Examples(
        source=Sentences(tensors["source.tokens"].numpy(), tensors["source.starts"].numpy()),
        target=Sentences(tensors["target.tokens"].numpy(), tensors["target.starts"].numpy()),
        dropped=dropped,
    )


def hash_of(*corpora: Corpus) -> str:
    """Return the SHA-256 of all files' bytes, with a table's columns; raises as `Corpus.pairs`."""
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
