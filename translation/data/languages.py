"""Write text in one form of Unicode; decide by its letters how BLEU divides it.

All text is composed (NFC): é is one character, not an e and an accent (NFD), as some programs
write.

Where a script has no spaces, the tokenizer 13a takes a sentence for a word, so texts are divided
into characters; so is Korean, whose endings are part of the word.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
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

# Chinese and Japanese, whose sentences follow each other without a space too.
UNSPACED = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"  # more Han
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"  # kana
    "\u3100-\u312f\u31a0-\u31bf"  # bopomofo
)
DIVIDED = (
    UNSPACED
    + "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7fb\uffa0-\uffdc"  # Korean
    + "\u0e00-\u0eff\u0f00-\u0fff"  # Thai, Lao, Tibetan
    + "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff"  # Burmese, Khmer
    + "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf"  # Tai
    + "\u1b00-\u1b7f\ua980-\ua9df"  # Balinese, Javanese
)
SAMPLE = 1000  # texts whose letters are looked at


def tokenizer_of(texts: Sequence[str]) -> BleuTokenizer:
    """Return sacreBLEU's tokenizer for texts, by most letters of the first `SAMPLE`."""
    return "char" if _is_mostly(DIVIDED, islice(texts, SAMPLE)) else "13a"


def is_unspaced(text: str) -> bool:
    """Return whether sentences of the text's script follow each other without a space."""
    return _is_mostly(UNSPACED, [text])


def _is_mostly(characters: str, texts: Iterable[str]) -> bool:
    letters = "".join(letter for text in texts for letter in text if letter.isalpha())
    return 2 * len(re.findall(f"[{characters}]", letters)) > len(letters)
