"""Scores are sacreBLEU's to the last digit, and their intervals and comparisons
those of a bootstrap.
"""

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from tests.support.bounds import as_drawn, in_float64
from translation.scoring import compare, score, tokenizer_of

WORDS = [
    "the",
    "a",
    "man",
    "dog",
    "red",
    "house",
    "walks",
    "sees",
    ",",
    "runs",
    "fast",
    "in",
    "front",
    "and",
    "tree",
]


def references(count: int = 200, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [
        " ".join(random.choice(WORDS, size=random.integers(5, 20))).capitalize() + "."
        for _ in range(count)
    ]


def damaged(sentences: list[str], share: float, seed: int) -> list[str]:
    """Each word is another one with this chance."""
    random = np.random.default_rng(seed)
    lines = (
        [str(random.choice(WORDS)) if random.random() < share else w for w in line.split()]
        for line in sentences
    )
    return [" ".join(line) for line in lines]


CASES = {
    "good": (damaged(references(), 0.1, 1), references()),
    "poor": (damaged(references(), 0.7, 1), references()),
    "short": (damaged(references(), 0.3, 1), [line + " And more words." for line in references()]),
    "no match of four words": (
        ["a red dog runs", "in front"],
        ["red dog runs fast", "in front of"],
    ),
    "no match of two words": (["dog a runs red fast"], ["red dog fast runs house"]),
    "nothing right": (["x y z w v"], ["a b c d e"]),
    "too short for four words": (["a dog"], ["a dog"]),
    "empty output": (["", ""], ["a dog runs", "in front"]),
    "empty reference": (["a dog runs here", "a red dog runs"], ["", "a red dog runs"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_score_is_that_of_sacrebleu_and_so_is_each_resampled_one(case: str) -> None:
    ours, expected = CASES[case]
    found = score(ours, expected, language="en", resamples=50)
    assert found.bleu == BLEU().corpus_score(ours, [expected]).score
    assert found.chrf == CHRF().corpus_score(ours, [expected]).score
    nothing = ["" for _ in expected]  # its BLEU is 0, so that the difference is our own BLEU
    difference = compare(ours, nothing, expected, language="en", resamples=50).difference
    assert difference == in_float64(found.bleu)
    assert found.low <= found.high


@pytest.mark.parametrize(
    ("language", "tokenizer"), [("de", "13a"), ("ko", "char"), ("zh-CN", "char"), ("pt_BR", "13a")]
)
def test_the_signature_says_how_words_are_told_apart(language: str, tokenizer: str) -> None:
    assert tokenizer_of(language) == tokenizer
    found = score(["개가 달린다"], ["개가 빨리 달린다"], language=language, resamples=1)
    assert f"|tok:{tokenizer}|" in found.signature
    assert "case:mixed" in found.signature
    assert "version:2" in found.signature


def test_what_is_identical_scores_100_whatever_is_drawn() -> None:
    found = score(references(), references(), language="en")
    assert (found.bleu, found.low, found.high, found.chrf) == in_float64((100, 100, 100, 100))
    assert (found.sentences, found.resamples, found.seed) == (200, 1000, 0)


def test_an_interval_is_as_wide_as_that_of_sacrebleu() -> None:
    ours, expected = CASES["good"]
    found = score(ours, expected, language="en", resamples=2000)
    theirs = BLEU().corpus_score(ours, [expected], n_bootstrap=2000)
    assert found.low < found.bleu < found.high
    assert (found.high - found.low) / 2 == as_drawn(theirs._ci, share=0.1)
    assert (found.high + found.low) / 2 == as_drawn(theirs._mean, within=0.3)


@pytest.mark.slow
def test_a_seed_gives_the_same_interval_and_another_seed_another() -> None:
    ours, expected = CASES["good"]
    first, again, other = (
        score(ours, expected, language="en", resamples=100, seed=seed) for seed in (3, 3, 4)
    )
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)


def test_equal_systems_do_not_differ() -> None:
    ours, expected = CASES["good"]
    found = compare(ours, ours, expected, language="en")
    assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_a_clearly_better_system_is_told_and_the_other_way_round_as_well() -> None:
    good, poor, expected = CASES["good"][0], damaged(references(), 0.2, 2), references()
    found = compare(good, poor, expected, language="en", resamples=999)
    assert 0 < found.low < found.difference < found.high
    assert found.p == 1 / 1000
    back = compare(poor, good, expected, language="en", resamples=999)
    assert (back.difference, back.low, back.high, back.p) == in_float64(
        (-found.difference, -found.high, -found.low, found.p)
    )


@pytest.mark.slow
def test_a_small_difference_has_the_chance_that_sacrebleu_gives_it() -> None:
    expected = references()
    first, second = damaged(expected, 0.2, 1), damaged(expected, 0.22, 2)
    found = compare(first, second, expected, language="en", resamples=2000)
    metrics = {"BLEU": BLEU(references=[expected])}
    theirs = PairedTest(
        [("first", first), ("second", second)], metrics, None, test_type="bs", n_samples=2000
    )()
    assert found.p == as_drawn(theirs[1]["BLEU"][1].p_value, within=0.04)


def test_paired_systems_are_told_apart_more_finely_than_their_intervals_would() -> None:
    expected = references()
    first = damaged(expected, 0.3, 1)
    second = [*first[:150], *expected[150:]]
    paired = compare(second, first, expected, language="en")
    alone = score(first, expected, language="en")
    assert paired.high - paired.low < 2 * (alone.high - alone.low)
    assert paired.low > 0
