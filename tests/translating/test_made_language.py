"""The made languages: the same for a seed, without repetition, and beyond a dictionary's reach."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.made_language import LANGUAGES, Pair, demo_corpus, made_pairs, write_corpus
from flows.translating.models import DEMO
from translation.errors import UsageError
from translation.scoring import score


def words(sentences: list[str]) -> set[str]:
    return {word for sentence in sentences for word in sentence.split()}


def dictionary(pairs: list[Pair]) -> dict[str, str]:
    """For each source word the target word that goes with it best: Dice's
    coefficient over sentences.
    """
    together, sources, targets = Counter[Pair](), Counter[str](), Counter[str]()
    for source, target in pairs:
        here, there = set(source.split()), set(target.split())
        sources.update(here)
        targets.update(there)
        together.update((word, other) for word in here for other in there)
    best: dict[str, tuple[float, str]] = {}
    for (word, other), count in together.items():
        best[word] = max(
            best.get(word, (0.0, "")), (2 * count / (sources[word] + targets[other]), other)
        )
    return {word: other for word, (_, other) in best.items()}


@pytest.mark.slow
def test_a_seed_gives_the_same_pairs_and_another_seed_others() -> None:
    assert made_pairs(50, seed=3) == made_pairs(50, seed=3)
    assert made_pairs(50, seed=3) == made_pairs(80, seed=3)[:50]
    assert made_pairs(50, seed=3) != made_pairs(50, seed=4)
    assert demo_corpus(1) == demo_corpus(1)


def test_the_demonstration_has_the_corpus_of_seed_0(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (DEMO.parent / file.name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_no_sentence_comes_twice_and_the_parts_share_none(seed: int) -> None:
    sources = [source for part in demo_corpus(seed) for source, _ in part]
    assert len(sources) == len(set(sources)) == 4400


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_every_word_of_either_language_is_there_to_be_learned(seed: int) -> None:
    train, *others = demo_corpus(seed)
    for side in range(len(LANGUAGES)):
        known = words([pair[side] for pair in train])
        assert words([pair[side] for part in others for pair in part]) <= known
    assert (
        60 <= len({word.removesuffix("ri") for word in words([pair[0] for pair in train])}) <= 120
    )


def test_words_can_be_read_aloud_and_a_sentence_has_a_few_to_a_line() -> None:
    for pair in made_pairs(2000, seed=0):
        for sentence in pair:
            assert 3 <= len(sentence.split()) <= 30
            assert sentence == " ".join(sentence.split())
            assert sentence.replace(" ", "").isalpha()
            assert sentence.isascii()


@pytest.mark.slow
def test_a_dictionary_word_by_word_translates_badly() -> None:
    train, _, test = demo_corpus(0)
    known = dictionary(train)
    guesses = [" ".join(known[word] for word in source.split()) for source, _ in test]
    assert score(guesses, [target for _, target in test], language=LANGUAGES[1]).bleu < 40


@pytest.mark.slow
def test_the_dictionary_of_that_test_is_a_good_one() -> None:
    known = dictionary(demo_corpus(0)[0])
    pairs = {
        "mi": "jok",
        "oggi": "dagens",
        "kare": "omdat",
        "due": "twen",
        "bano": "dorsk",
        "ne": "pas",
    }
    assert {word: known[word] for word in pairs} == pairs


def test_a_verb_with_a_prefix_splits_in_a_main_clause_and_joins_in_a_subordinate_one() -> None:
    pairs = made_pairs(3000, seed=0)
    simple = [
        target.split()
        for source, target in pairs
        if "nodi" in source.split() and len(source.split()) < 8
    ]
    split = [target for target in simple if "ab" in target]
    assert split
    assert all(
        any(word.startswith("gang") for word in target[target.index("ab") :]) for target in split
    )
    assert any(word.startswith("abgang") for _, target in pairs for word in target.split())


def test_fewer_than_no_sentences_are_refused() -> None:
    assert made_pairs(0, seed=0) == []
    with pytest.raises(UsageError, match="-1 sentences"):
        made_pairs(-1, seed=0)
