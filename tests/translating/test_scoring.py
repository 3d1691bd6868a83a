"""Scores are sacreBLEU's to the last digit, their intervals and comparisons those of a bootstrap,
and a text is divided by words or by characters after its letters.
"""

from typing import get_args

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest
from sacrebleu.tokenizers import tokenizer_ja_mecab
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS

from tests.support.bounds import as_drawn, in_float64
from translation.data.languages import BleuTokenizer, is_unspaced, tokenizer_of
from translation.errors import UsageError
from translation.scoring import compare, score

WORDS = list("abcdefgh,ijklmno")


def drawn_references():
    random = np.random.default_rng(0)
    return [
        " ".join(random.choice(WORDS, size=random.integers(5, 20))).capitalize() + "."
        for _ in range(200)
    ]


def damaged(share, seed):
    """Each word of the references is another one with this chance."""
    random = np.random.default_rng(seed)
    lines = (
        [str(random.choice(WORDS)) if random.random() < share else w for w in line.split()]
        for line in REFERENCES
    )
    return [" ".join(line) for line in lines]


REFERENCES = drawn_references()
GOOD = damaged(0.1, 1)
CASES = {
    "good": (GOOD, REFERENCES),
    "poor": (damaged(0.7, 1), REFERENCES),
    "short": (GOOD, [f"{line} And more words." for line in REFERENCES]),
    "no match of four words": (["a red dog runs"], ["red dog runs fast"]),
    "nothing right": (["x y z w v"], ["a b c d e"]),
    "too short for four words": (["a dog"], ["a dog"]),
    "empty output": (["", ""], ["a dog runs", "in front"]),
    "empty reference": (["a dog runs here", "a red dog runs"], ["", "a red dog runs"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_score_is_that_of_sacrebleu(case):
    ours, expected = CASES[case]
    found = score(ours, expected, resamples=50)
    assert found.bleu == BLEU().corpus_score(ours, [expected]).score
    assert found.chrf == CHRF().corpus_score(ours, [expected]).score
    assert found.low <= found.high
    nothing = [""] * len(expected)  # its BLEU is 0, so that the difference is our own BLEU
    difference = compare(ours, nothing, expected, resamples=50).difference
    assert difference == in_float64(found.bleu)


def test_an_interval_is_as_wide_as_that_of_sacrebleu_and_the_same_for_a_seed():
    found = score(GOOD, REFERENCES, resamples=1000, seed=3)
    theirs = BLEU().corpus_score(GOOD, [REFERENCES], n_bootstrap=1000)
    assert found.low < found.bleu < found.high
    assert (found.high - found.low) / 2 == as_drawn(theirs._ci, share=0.1)
    assert (found.high + found.low) / 2 == as_drawn(theirs._mean, within=0.3)
    assert (found.sentences, found.resamples, found.seed) == (200, 1000, 3)
    first, again, other = (score(GOOD, REFERENCES, resamples=100, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)


def test_systems_are_told_apart_as_sacrebleu_does_and_the_other_way_round_as_well():
    first, second = damaged(0.2, 1), damaged(0.22, 2)
    near = compare(first, second, REFERENCES, resamples=1000)
    metrics = {"BLEU": BLEU(references=[REFERENCES])}
    theirs = PairedTest(
        [("first", first), ("second", second)], metrics, None, test_type="bs", n_samples=1000
    )()
    assert near.p == as_drawn(theirs[1]["BLEU"][1].p_value, within=0.04)
    far = compare(GOOD, second, REFERENCES, resamples=999)
    assert 0 < far.low < far.difference < far.high
    assert far.p == 1 / 1000
    back = compare(second, GOOD, REFERENCES, resamples=999)
    assert (back.difference, back.low, back.high, back.p) == in_float64(
        (-far.difference, -far.high, -far.low, far.p)
    )
    equal = compare(GOOD, GOOD, REFERENCES)
    assert (equal.difference, equal.low, equal.high, equal.p) == (0, 0, 0, 1)


def test_paired_systems_are_told_apart_more_finely_than_their_intervals_would():
    first = damaged(0.3, 1)
    paired = compare([*first[:150], *REFERENCES[150:]], first, REFERENCES)
    alone = score(first, REFERENCES)
    assert paired.high - paired.low < 2 * (alone.high - alone.low)
    assert paired.low > 0


# Each a text of its script, and the same text with an error in the middle.
TEXTS = {
    "Thai": ("วันนี้เด็กผู้หญิงเดินไปโรงเรียนกับแม่", "วันนี้เด็กผู้ชายเดินไปโรงเรียนกับแม่"),
    "Lao": ("ມື້ນີ້ເດັກນ້ອຍຍ່າງໄປໂຮງຮຽນກັບແມ່", "ມື້ນີ້ເດັກນ້ອຍຂີ່ໄປໂຮງຮຽນກັບແມ່"),
    "Burmese": ("ကလေးသည်အမေနှင့်ကျောင်းသို့သွားသည်", "ကလေးသည်အဖေနှင့်ကျောင်းသို့သွားသည်"),
    "Khmer": ("ថ្ងៃនេះកុមារីដើរទៅសាលារៀនជាមួយម្តាយ", "ថ្ងៃនេះកុមារីដើរទៅសាលារៀនជាមួយឪពុក"),
    "Tibetan": ("དེ་རིང་བུ་མོ་སློབ་གྲྭར་འགྲོ་གི་ཡོད།", "དེ་རིང་བུ་ཚ་སློབ་གྲྭར་འགྲོ་གི་ཡོད།"),
    "Chinese": ("今天小女孩和妈妈一起走路去学校", "今天小男孩和妈妈一起走路去学校"),
    "Japanese": (
        "今日、女の子は母と学校へ歩いて行きました",
        "今日、男の子は母と学校へ歩いて行きました",
    ),
    "Korean": ("오늘 소녀는 어머니와 학교에 걸어갔다", "오늘 소년은 어머니와 학교에 걸어갔다"),
}


@pytest.mark.parametrize(
    ("texts", "tokenizer"),
    [
        ([text for pair in TEXTS.values() for text in pair], "char"),
        (["Latin letters", "", "1, 2, 3."], "13a"),
        ([], "13a"),
        (["A town that is called 학교에 in its language"], "13a"),
        (["今天小女孩和 iPhone 走路去学校", "2024"], "char"),
    ],
)
def test_most_letters_decide_how_a_text_is_divided(texts, tokenizer):
    assert tokenizer_of(texts) == tokenizer


@pytest.mark.parametrize("script", TEXTS)
def test_a_text_that_is_nearly_right_scores_nearly_100_and_says_by_what(script):
    expected, ours = TEXTS[script]
    found = score([ours] * 5, [expected] * 5, resamples=5)
    assert 60 < found.bleu < 100
    assert found.tokenizer == "char"
    for said in ("tok:char", "case:mixed", "version:2"):
        assert f"|{said}" in found.signature


def test_sentences_of_chinese_and_japanese_alone_follow_without_a_space():
    unspaced = {script for script, (text, _) in TEXTS.items() if is_unspaced(text)}
    assert unspaced == {"Chinese", "Japanese"}
    assert not is_unspaced("A dog runs.")


def test_a_tokenizer_may_be_chosen_and_none_is_downloaded():
    expected, ours = (f"{text}2024" for text in TEXTS["Chinese"])
    found = score([ours], [expected], tokenizer="zh", resamples=5)
    assert "|tok:zh|" in found.signature
    assert found.bleu == BLEU(tokenize="zh").corpus_score([ours], [[expected]]).score
    names = set(get_args(BleuTokenizer))
    assert names <= set(BLEU.TOKENIZERS)
    assert not names & (set(SPM_MODELS) | {"spm"})


def test_a_tokenizer_without_its_dictionary_is_one_line(monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UsageError, match=r"^the tokenizer ja-mecab .*'sacrebleu\[ja\]'") as told:
        score(GOOD, REFERENCES, tokenizer="ja-mecab")
    assert "\n" not in str(told.value)
