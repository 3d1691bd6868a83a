"""Laws of a corpus made ready: it is done once, again when a file changed, and whatever the files
look like.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.translations import made_pairs, recipe_of
from translation.data.corpus import Corpus, clean
from translation.data.corpus_cache import FILE, cache_corpus
from translation.data.tokenizer import Tokenizer
from translation.errors import UsageError


@pytest.fixture
def recipe(tmp_path):
    return recipe_of(tmp_path / "corpus")


@pytest.fixture
def learned(monkeypatch):
    """The sizes of the vocabularies that are learned."""
    real, sizes = Tokenizer.train, list[int]()

    def noted(lines, size, corpus):
        sizes.append(size)
        return real(lines, size, corpus)

    monkeypatch.setattr(Tokenizer, "train", noted)
    return sizes


def equal(one, other):
    sides = [(one.source, other.source), (one.target, other.target)]
    same = all(
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.starts, b.starts) for a, b in sides
    )
    return same and one.dropped == other.dropped


def test_a_corpus_is_encoded_once_and_anew_when_a_file_or_a_vocabulary_changes(
    recipe, tmp_path, learned
):
    first = cache_corpus(recipe, tmp_path)
    # Nothing of a training's end or of its network is a reason to do it again.
    second = cache_corpus(replace(recipe, network={}, training={}), tmp_path)
    assert len(learned) == 1
    for found in (first, second):
        wanted = clean(recipe.train.pairs(), found.source, found.target, recipe.rules)
        assert equal(found.training, wanted)
        assert found.target is found.source
    assert equal(first.validation, second.validation)
    with recipe.train.source.open("a") as file:
        file.write("la nova\tdo niew\n")
    third = cache_corpus(recipe, tmp_path)
    assert len(third.training) == len(first.training) + 1
    assert third.corpus_hash != first.corpus_hash == second.corpus_hash
    assert cache_corpus(replace(recipe, vocabulary=330), tmp_path).source.size <= 330
    assert len(learned) == 3


def test_files_that_are_swapped_are_refused_before_anything_is_encoded(recipe, tmp_path, learned):
    swapped = Corpus(tmp_path / "train.xb.txt", tmp_path / "train.xa.txt", name="train")
    with pytest.raises(UsageError, match="swap the source"):
        cache_corpus(replace(recipe, train=swapped), tmp_path)
    assert learned == []


def test_two_vocabularies_are_each_of_their_side(recipe, tmp_path):
    separate = replace(recipe, joint=False)
    for _ in range(2):  # encoded, then read
        found = cache_corpus(separate, tmp_path / "work")
        assert found.source.digest != found.target.digest
        source, target = found.training[0]
        pair = found.source.decode(source.tolist()), found.target.decode(target.tolist())
        assert pair == next(recipe.train.pairs())


def test_a_validation_is_judged_whole(recipe, tmp_path):
    source, target = made_pairs(1, 1)[0]
    odd = f"{source}\t{target}\n\tnothing\n{source}\t{' '.join([target] * 20)}\n"
    for corpus in (recipe.train, recipe.validation):
        with corpus.source.open("a") as file:
            file.write(odd + f"{source}\t{target}\n")
    found = cache_corpus(recipe, tmp_path / "work")
    assert sum(found.training.dropped.values()) == 4
    assert found.validation.dropped == {"empty": 1}
    assert len(found.validation) == 24 + 3


@pytest.mark.parametrize("data", [b"", b"{", b"\x02" + bytes(7) + b"{}"])
def test_a_damaged_file_is_written_anew(recipe, tmp_path, learned, data):
    (tmp_path / FILE).write_bytes(data)
    for _ in range(2):
        cache_corpus(recipe, tmp_path)
    assert len(learned) == 1


def test_a_size_is_chosen_once_and_only_where_the_recipe_names_none(recipe, tmp_path):
    asked = []

    def choose(recipe):
        asked.append(recipe.name)
        return "base"

    unsized = replace(recipe, size=None)
    assert [cache_corpus(unsized, tmp_path, choose).size for _ in range(2)] == ["base", "base"]
    assert cache_corpus(recipe, tmp_path / "named", choose).size == "tiny"
    assert asked == ["made"]
