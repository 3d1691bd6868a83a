"""Write text in one form of Unicode; decide how BLEU divides the texts of a language.

All text is composed (NFC): é is one character, not an e and an accent (NFD), as some programs
write.

BLEU divides texts by language and script. Where a script has no spaces, the tokenizer 13a takes a
sentence for a word, so texts are divided into characters; so is Korean, whose endings are part of
the word. Scripts are codes of ISO 15924 in lower case.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import islice
from typing import Final, Literal

UNICODE_FORM: Final = "NFC"


def composed(text: str) -> str:
    """Return a text in form NFC, with "?" for each lone surrogate, which is no text."""
    in_form = unicodedata.normalize(UNICODE_FORM, text)
    try:
        in_form.encode()
    except UnicodeEncodeError:  # a lone surrogate, which a text read from JSON may have
        return in_form.encode(errors="replace").decode()
    return in_form


# Tokenizers of sacreBLEU. Those that split text with a SentencePiece model (flores200, spm) are
# left out, because they download the model when they are used.
BleuTokenizer = Literal["13a", "char", "intl", "zh", "ja-mecab", "ko-mecab"]

HAN = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
MORE_HAN = "\U00020000-\U0003ffff"
KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"
HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7fb\uffa0-\uffdc"
BOPOMOFO = "\u3100-\u312f\u31a0-\u31bf"
# The ranges of the characters of each script that is divided into characters.
SCRIPTS = {
    "hani": f"{HAN}{MORE_HAN}",
    "hans": f"{HAN}{MORE_HAN}",
    "hant": f"{HAN}{MORE_HAN}",
    "bopo": BOPOMOFO,
    "jpan": KANA,
    "hrkt": KANA,
    "hira": KANA,
    "kana": KANA,
    "kore": HANGUL,
    "hang": HANGUL,
    "thai": "\u0e00-\u0e7f",
    "laoo": "\u0e80-\u0eff",
    "tibt": "\u0f00-\u0fff",
    "mymr": "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f",
    "khmr": "\u1780-\u17ff\u19e0-\u19ff",
    "tale": "\u1950-\u197f",
    "talu": "\u1980-\u19df",
    "lana": "\u1a20-\u1aaf",
    "tavt": "\uaa80-\uaadf",
    "bali": "\u1b00-\u1b7f",
    "java": "\ua980-\ua9df",
}
UNSPACED_SCRIPTS = ("hani", "hans", "hant", "bopo", "jpan", "hrkt", "hira", "kana")
# The script of each language that is usually written in one of them. Codes are those of ISO 639, of
# two or three letters. Languages that have another usual script too (Min Nan) are left out.
SCRIPT_OF_LANGUAGE = {
    "zh": "hani",
    "zho": "hani",
    "chi": "hani",
    "cmn": "hani",
    "yue": "hani",
    "wuu": "hani",
    "gan": "hani",
    "hsn": "hani",
    "lzh": "hani",
    "ja": "jpan",
    "jpn": "jpan",
    "ko": "kore",
    "kor": "kore",
    "th": "thai",
    "tha": "thai",
    "tts": "thai",
    "lo": "laoo",
    "lao": "laoo",
    "my": "mymr",
    "mya": "mymr",
    "bur": "mymr",
    "shn": "mymr",
    "mnw": "mymr",
    "km": "khmr",
    "khm": "khmr",
    "bo": "tibt",
    "bod": "tibt",
    "tib": "tibt",
    "dz": "tibt",
    "dzo": "tibt",
}
CHARACTER = re.compile(f"[{''.join(SCRIPTS.values())}]")
SAMPLE = 1000  # texts of which the script is looked at


def tokenizer_of(language: str, texts: Sequence[str] = ()) -> BleuTokenizer:
    """Return the name of sacreBLEU's tokenizer for a target language.

    `language` (en, pt-BR, zh-Hans, khm_Khmr) decides if it names a script, has two letters, or is
    in `SCRIPT_OF_LANGUAGE`; else the first `SAMPLE` letters of `texts`, by default "13a".
    """
    script = _script_of(language)
    if script is None and len(_subtags(language)[0]) != 2:
        letters: list[str] = []
        for text in islice(texts, SAMPLE):
            letters.extend(character for character in text if character.isalpha())
        divided = CHARACTER.findall("".join(letters))
        return "char" if 2 * len(divided) > len(letters) else "13a"
    return "char" if script in SCRIPTS else "13a"


def is_unspaced(language: str) -> bool:
    """Return whether sentences of the language follow each other without a space."""
    return _script_of(language) in UNSPACED_SCRIPTS


def _script_of(language: str) -> str | None:
    """Return the script that a code names, or else that of its language; None if not known."""
    code, *others = _subtags(language)
    for subtag in others:
        if len(subtag) == 4 and subtag.isalpha():
            return subtag
    return SCRIPT_OF_LANGUAGE.get(code)


def _subtags(language: str) -> list[str]:
    return language.lower().replace("_", "-").split("-")
