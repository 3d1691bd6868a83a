"""Laws of the vocabulary: what goes in comes out, in any script; the same
corpus gives the same numbers.
"""

import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.places import ROOT
from translation.data import tokenizer as tokenizer_module
from translation.data.tokenizer import (
    BEGIN,
    BYTES,
    END,
    LONGEST_PART,
    PAD,
    SPECIAL,
    UNKNOWN,
    Tokenizer,
)
from translation.errors import UsageError

LINES = [
    "A man in an orange hat is starring at something.",
    "Two young, white males are outside near many bushes.",
    "Ein Boston Terrier läuft über saftig-grünes Gras.",
    "Ein Mann mit Hut schläft auf einem Sofa.",
    "Où est\u00a0l\u2019homme\u202f? Ça va\u00a0!",
    "때때로 달걀은 나무에 걸기도 한다.",
] * 5
TEXTS = {
    "English": "Two dogs run; one doesn't.",
    "German": "Drei Männer läuten über grünem Gras.",
    "French": "Où est l\u2019autre homme\u202f? Ça «\u00a0marche\u00a0»\u00a0!",
    "Korean": "그는 다른 학생들보다 키가 크다.",
    "emoji": "dog 🐕 family 👩‍👩‍👧 flag 🇰🇷",
    "characters never seen": "漢字 ß Ж ᚠ \u2028 \x0b \t tab",
    "what looks special": "<s> </s> <pad> <unk> <0x41> \u2047",
    "nothing": "",
}


TOKENIZER = Tokenizer.train(LINES, 500)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_comes_back_as_it_was(text):
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode(tokens) == text
    assert UNKNOWN not in tokens
    assert TOKENIZER.encode(unicodedata.normalize("NFD", text)) == tokens
    assert TOKENIZER.encode_all([text, text]) == [tokens, tokens]


@pytest.mark.slow
@given(
    st.lists(
        st.text(st.characters(exclude_characters=" \u2581", exclude_categories=["Cs"]), min_size=1)
    )
)
def test_any_text_with_single_spaces_comes_back_composed(words):
    text = " ".join(words)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == unicodedata.normalize("NFC", text)


def test_half_a_character_is_a_question_mark():
    assert TOKENIZER.decode(TOKENIZER.encode("a \ud83d b")) == "a ? b"


def test_special_numbers_are_ours_and_are_passed_over():
    assert TOKENIZER.pieces([PAD, UNKNOWN, BEGIN, END]) == ["<pad>", "<unk>", "<s>", "</s>"]
    tokens = TOKENIZER.encode("A man")
    assert min(tokens) >= SPECIAL
    assert "".join(TOKENIZER.pieces(tokens)) == "▁A▁man"
    with_special = [PAD, BEGIN, *tokens[:1], PAD, END, *tokens[1:], END, PAD]
    assert TOKENIZER.decode(with_special) == "A man"


def test_a_saved_vocabulary_gives_the_same_numbers(tmp_path):
    file = tmp_path / "tokenizer.model"
    file.write_bytes(TOKENIZER.model)
    again = Tokenizer(file.read_bytes())
    assert (again.size, again.digest) == (TOKENIZER.size, TOKENIZER.digest)
    assert again.encode_all(LINES) == TOKENIZER.encode_all(LINES)


@pytest.mark.slow
def test_another_process_learns_the_same_vocabulary_and_says_nothing():
    program = (
        "from translation.data.tokenizer import Tokenizer\n"
        f"print(Tokenizer.train(iter({LINES!r}), 500).digest)"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == TOKENIZER.digest
    assert run.stderr == ""


def test_a_small_corpus_gets_what_it_carries_and_rare_characters_leave_room_for_words():
    assert SPECIAL + BYTES < Tokenizer.train(["a b", "ab"], 8000).size < 280
    syllables = [chr(code) for code in range(ord("가"), ord("가") + 500)]
    tokenizer = Tokenizer.train(["나무 나무 나무", *syllables], 400)
    assert tokenizer.size == 400
    assert len(tokenizer.encode("나무")) == 1
    assert all(tokenizer.decode(tokenizer.encode(each)) == each for each in syllables)


def test_long_lines_line_ends_and_reserved_characters_teach_too():
    text = "kangaroo " * LONGEST_PART
    for line in (text, f"kangaroo\n{text}", f"\x00 {text}", f"\u2585 {text}"):
        assert len(Tokenizer.train([line], 300).encode("kangaroo")) == 1


def test_of_many_lines_some_are_drawn_the_same_each_time(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "MAX_LINES", 50)
    lines = [f"word{number} and more" for number in range(1000)]
    first, again, beginning = (
        Tokenizer.train(iter(each), 500).digest for each in (lines, lines, lines[:50])
    )
    assert first == again != beginning


@pytest.mark.parametrize(
    ("lines", "size", "words"),
    [
        ([], 500, "no text .*vocabulary"),
        ([" ", "\n", "\x00", "\u2581 \u2585"], 500, "no text .*vocabulary"),
        (LINES, 100, "300 pieces, not 100"),
    ],
)
def test_a_corpus_without_text_and_a_vocabulary_without_room_are_refused(lines, size, words):
    with pytest.raises(UsageError, match=words):
        Tokenizer.train(lines, size)
