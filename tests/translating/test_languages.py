"""Laws of how BLEU divides the text of a language: by words or by characters,
after its code or its script.
"""

from typing import get_args

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers import tokenizer_ja_mecab
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS

from tests.support.bounds import in_float64
from translation.data.languages import BleuTokenizer, is_unspaced, tokenizer_of
from translation.errors import UsageError
from translation.scoring import compare, score

CODES_BY_CHARACTER = {
    "Chinese": "zh zho chi cmn zh-Hans zh-Hant-TW zh_CN ZHO zho_Hans lzh yue yue_Hant wuu",
    "Japanese": "ja jpn ja_JP.UTF-8 jpn_Jpan",
    "Korean": "ko kor kor_Hang",
    "Thai": "th tha th-TH tha_Thai",
    "Lao": "lo lao lao_Laoo",
    "Burmese": "my mya bur mya_Mymr",
    "Khmer": "km khm khm_Khmr",
    "Tibetan": "bo bod tib bod_Tibt dz dzo",
    "any language in such a script": "pi-Thai sa-Tibt vi-Hani",
}
CODES_BY_WORD = {
    "of two letters": "en de fr fr-CA pt_BR ru vi hi ar he am ka xa",
    "of three letters": "eng deu fra rus nan",
    "of another script": "zh-Latn ja-Latn sr-Cyrl",
}
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
# What each language was scored with before codes of three letters and scripts were known.
BEFORE = {
    "en": ("13a", "Today the girl walks to school, with her mother.", "girl", "boy"),
    "pt_BR": ("13a", "Hoje a menina vai à escola com a mãe dela.", "menina", "moça"),
    "ru": ("13a", "Сегодня девочка медленно идёт в школу одна.", "девочка", "мальчик"),
    "ar": ("13a", "تمشي البنت اليوم إلى المدرسة مع أمها.", "البنت", "الولد"),
    "hi": ("13a", "आज लड़की अपनी माँ के साथ स्कूल जाती है।", "लड़की", "बहन"),
    "ko": ("char", "오늘 소녀는 어머니와 학교에 걸어갔다.", "소녀는", "소년은"),
    "ja": ("char", "今日、女の子は母と学校へ歩いて行きました。", "女", "男"),
    "zh-TW": ("char", "今天小女孩和媽媽一起走路去學校。", "女", "男"),
}


def listed(codes: dict[str, str]) -> list[str]:
    return [code for line in codes.values() for code in line.split()]


@pytest.mark.parametrize("language", listed(CODES_BY_CHARACTER))
def test_a_language_without_spaces_is_divided_into_characters_whatever_its_code(
    language: str,
) -> None:
    assert tokenizer_of(language) == "char"
    assert tokenizer_of(language, ["Latin letters alone"]) == "char"


@pytest.mark.parametrize("language", listed(CODES_BY_WORD))
def test_any_other_language_is_divided_into_words(language: str) -> None:
    assert tokenizer_of(language) == "13a"
    assert tokenizer_of(language, ["Latin letters", "", "1, 2, 3."]) == "13a"


@pytest.mark.parametrize("language", ["de", "pt_BR", "zh-Latn", "tha_Latn"])
def test_a_code_that_says_how_it_is_written_is_believed(language: str) -> None:
    assert tokenizer_of(language, [text for pair in TEXTS.values() for text in pair]) == "13a"


@pytest.mark.parametrize("script", TEXTS)
def test_the_references_decide_for_a_code_that_says_nothing(script: str) -> None:
    text, _ = TEXTS[script]
    for language in ("thai", "x-private", "und", "nan"):
        assert tokenizer_of(language, [text]) == "char"
        assert (
            tokenizer_of(language, [f"A town that is called {text[:8]} in its language"]) == "13a"
        )


@pytest.mark.parametrize("script", TEXTS)
def test_a_text_that_is_nearly_right_scores_nearly_100_and_says_by_what(script: str) -> None:
    expected, ours = TEXTS[script]
    found = score([ours] * 5, [expected] * 5, language="und", resamples=5)
    assert 60 < found.bleu < 100
    assert found.tokenizer == "char"
    assert "|tok:char|" in found.signature
    difference = compare([expected] * 5, [ours] * 5, [expected] * 5, language="und", resamples=5)
    assert difference.difference == in_float64(100 - found.bleu)


@pytest.mark.parametrize("language", BEFORE)
def test_a_language_that_was_scored_rightly_before_has_the_same_figures(language: str) -> None:
    tokenizer, expected, right, wrong = BEFORE[language]
    ours = expected.replace(right, wrong)
    assert ours != expected
    found = score([ours, expected], [expected, expected], language=language, resamples=5)
    before = BLEU(tokenize=tokenizer)
    assert found.bleu == before.corpus_score([ours, expected], [[expected, expected]]).score
    assert found.signature == before.get_signature().format()


@pytest.mark.parametrize(
    ("language", "unspaced"),
    [
        ("ja", True),
        ("jpn", True),
        ("zho_Hant", True),
        ("zh-Hans", True),
        ("yue", True),
        ("zh-Latn", False),
        ("tha", False),
        ("kor", False),
        ("khm", False),
        ("en", False),
    ],
)
def test_sentences_of_chinese_and_japanese_alone_follow_without_a_space(
    language: str, unspaced: bool
) -> None:
    assert is_unspaced(language) == unspaced


def test_a_tokenizer_may_be_chosen_and_none_is_downloaded() -> None:
    expected, ours = TEXTS["Chinese"]
    found = score([f"{ours}2024"], [f"{expected}2024"], language="zh", tokenizer="zh", resamples=5)
    assert "|tok:zh|" in found.signature
    metric = BLEU(tokenize="zh")
    assert found.bleu == metric.corpus_score([f"{ours}2024"], [[f"{expected}2024"]]).score
    names = set(get_args(BleuTokenizer))
    assert names <= set(BLEU.TOKENIZERS)
    assert not names & (set(SPM_MODELS) | {"spm"})


def test_a_tokenizer_without_its_dictionary_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    expected, ours = TEXTS["Japanese"]
    with pytest.raises(UsageError, match=r"^the tokenizer ja-mecab .*'sacrebleu\[ja\]'") as raised:
        score([ours], [expected], language="ja", tokenizer="ja-mecab")
    assert "\n" not in str(raised.value)
    assert score([ours], [expected], language="ja", resamples=5).tokenizer == "char"
