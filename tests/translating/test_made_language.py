"""The made languages: the same for a seed, and without repetition."""

from pathlib import Path

import pytest

from flows.translating.models import DEMO
from tests.support.made_language import LANGUAGES, demo_corpus, made_pairs, write_corpus
from translation.errors import UsageError


def words(sentences: list[str]) -> set[str]:
    return {word for sentence in sentences for word in sentence.split()}


def test_the_demonstration_has_the_corpus_of_seed_0(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (DEMO.parent / file.name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_sentence_comes_twice_and_every_word_is_there_to_be_learned(seed: int) -> None:
    train, *others = demo_corpus(seed)
    sources = [source for part in (train, *others) for source, _ in part]
    assert len(sources) == len(set(sources)) == 4400
    for side in range(len(LANGUAGES)):
        known = words([pair[side] for pair in train])
        assert words([pair[side] for part in others for pair in part]) <= known
    assert sources[:50] == [source for source, _ in demo_corpus(seed)[0][:50]]


def test_fewer_than_no_sentences_are_refused() -> None:
    assert made_pairs(0, seed=0) == []
    with pytest.raises(UsageError, match="-1 sentences"):
        made_pairs(-1, seed=0)
