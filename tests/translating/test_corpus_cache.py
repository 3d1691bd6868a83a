"""Laws of a corpus made ready: it is done once, again when a file changed, and
whatever the files look like.
"""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.made_language import made_pairs
from tests.support.translations import PAIRS, recipe_of
from translation.data.corpus import Corpus, Examples, clean
from translation.data.corpus_cache import FILE, CachedCorpus, cache_corpus
from translation.data.tokenizer import Tokenizer
from translation.errors import UsageError
from translation.recipes import Recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return recipe_of(tmp_path / "corpus")


def equal(one: Examples, other: Examples) -> bool:
    sides = [(one.source, other.source), (one.target, other.target)]
    same = all(
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.starts, b.starts) for a, b in sides
    )
    return same and one.dropped == other.dropped


def again(recipe: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CachedCorpus:
    """What `cache_corpus` gives without learning a vocabulary."""

    def learned(*_: object) -> None:
        pytest.fail("the corpus was encoded twice")

    with monkeypatch.context() as lazy:
        lazy.setattr(Tokenizer, "train", learned)
        return cache_corpus(recipe, folder)


def test_the_same_files_are_encoded_once(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cache_corpus(recipe, tmp_path / "work")
    second = again(recipe, tmp_path / "work", monkeypatch)
    assert equal(first.training, second.training)
    assert equal(first.validation, second.validation)
    assert (first.source.digest, first.corpus_hash) == (second.source.digest, second.corpus_hash)
    # Nothing of a training's end or of its network is a reason to do it again.
    again(replace(recipe, network={}, training={}), tmp_path / "work", monkeypatch)


def test_a_changed_file_is_encoded_anew(recipe: Recipe, tmp_path: Path) -> None:
    first = cache_corpus(recipe, tmp_path / "work")
    with recipe.train.source.open("a") as file:
        file.write("la nova\tdo niew\n")
    second = cache_corpus(recipe, tmp_path / "work")
    assert len(second.training) == len(first.training) + 1
    assert second.corpus_hash != first.corpus_hash
    third = cache_corpus(replace(recipe, vocabulary=330), tmp_path / "work")
    assert third.source.size <= 330 < second.source.size


def test_the_examples_are_those_of_a_corpus_in_memory(recipe: Recipe, tmp_path: Path) -> None:
    found = cache_corpus(recipe, tmp_path / "work")
    assert equal(
        found.training, clean(recipe.train.pairs(), found.source, found.target, recipe.rules)
    )
    assert found.target is found.source


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_two_files_and_a_table_are_the_same_corpus(
    recipe: Recipe, tmp_path: Path, ending: str
) -> None:
    pairs = made_pairs(PAIRS, 1)
    files = [tmp_path / f"train.{side}.txt{ending}" for side in ("xa", "xb")]
    for place, file in enumerate(files):
        data = "".join(f"{pair[place]}\n" for pair in pairs).encode()
        file.write_bytes(gzip.compress(data) if ending else data)
    found = cache_corpus(replace(recipe, train=Corpus(*files, name="train")), tmp_path / "work")
    assert equal(found.training, cache_corpus(recipe, tmp_path / "table").training)
    swapped = replace(recipe, train=Corpus(files[1], files[0], name="train"))
    with pytest.raises(UsageError, match="swap the source"):
        cache_corpus(swapped, tmp_path / "work")


def test_two_vocabularies_are_each_of_their_side(recipe: Recipe, tmp_path: Path) -> None:
    found = cache_corpus(replace(recipe, joint=False), tmp_path / "work")
    assert found.source.digest != found.target.digest
    source, target = zip(*recipe.train.pairs(), strict=True)
    assert [found.source.decode(found.training[i][0].tolist()) for i in range(3)] == list(
        source[:3]
    )
    assert [found.target.decode(found.training[i][1].tolist()) for i in range(3)] == list(
        target[:3]
    )


def test_what_is_dropped_is_counted_and_a_validation_is_judged_whole(
    recipe: Recipe, tmp_path: Path
) -> None:
    source, target = made_pairs(1, 1)[0]
    odd = f"{source}\t{target}\n\tnothing\n{source}\t{' '.join([target] * 20)}\n"
    for corpus in (recipe.train, recipe.validation):
        with corpus.source.open("a") as file:
            file.write(odd + f"{source}\t{target}\n")
    found = cache_corpus(recipe, tmp_path / "work")
    assert sum(found.training.dropped.values()) == 4
    assert (found.training.dropped["empty"], found.training.dropped["repeated"]) == (1, 2)
    assert found.validation.dropped == {"empty": 1}
    assert len(found.validation) == 24 + 3


@pytest.mark.parametrize("data", [b"", b"{", b"\x02" + bytes(7) + b"{}"])
def test_a_damaged_file_is_written_anew(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    first = cache_corpus(recipe, tmp_path)
    (tmp_path / FILE).write_bytes(data)
    assert equal(cache_corpus(recipe, tmp_path).training, first.training)
    again(recipe, tmp_path, monkeypatch)
