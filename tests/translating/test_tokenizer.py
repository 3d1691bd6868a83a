"""Laws of the vocabulary: what goes in comes out, in any script; the same
corpus gives the same numbers.
"""

import subprocess
import sys
import unicodedata
from functools import cache
from pathlib import Path

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


@cache
def learned() -> Tokenizer:
    return Tokenizer.train(LINES, 500)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return learned()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert UNKNOWN not in tokens


@pytest.mark.slow
@given(
    st.lists(
        st.text(st.characters(exclude_characters=" \u2581", exclude_categories=["Cs"]), min_size=1)
    )
)
def test_any_text_with_single_spaces_comes_back_composed(words: list[str]) -> None:
    tokenizer, text = learned(), " ".join(words)
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_letters_typed_in_parts_are_the_same_letters(tokenizer: Tokenizer) -> None:
    for text in (TEXTS["German"], TEXTS["Korean"]):
        assert tokenizer.encode(unicodedata.normalize("NFD", text)) == tokenizer.encode(text)


def test_half_a_character_is_a_question_mark(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a \ud83d b")) == "a ? b"


def test_special_numbers_are_ours_and_are_passed_over(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces([PAD, UNKNOWN, BEGIN, END]) == ["<pad>", "<unk>", "<s>", "</s>"]
    tokens = tokenizer.encode("A man sleeps")
    assert min(tokens) >= SPECIAL
    assert (
        tokenizer.decode([PAD, BEGIN, *tokens[:2], PAD, END, *tokens[2:], END, PAD])
        == "A man sleeps"
    )
    assert tokenizer.decode([PAD, BEGIN, END]) == ""


def test_pieces_show_the_space_before_a_word(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("A man")
    assert "".join(tokenizer.pieces(tokens)) == "▁A▁man"


def test_many_texts_are_encoded_as_each_is(tokenizer: Tokenizer) -> None:
    texts = [*TEXTS.values(), *LINES]
    assert tokenizer.encode_all(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_all([]) == []


def test_a_saved_vocabulary_gives_the_same_numbers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "new" / "tokenizer.model"
    tokenizer.save(file)
    again = Tokenizer(file.read_bytes())
    assert (again.size, again.digest) == (tokenizer.size, tokenizer.digest)
    assert again.encode_all(LINES) == tokenizer.encode_all(LINES)
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.slow
def test_another_process_learns_the_same_vocabulary_and_says_nothing(tokenizer: Tokenizer) -> None:
    program = (
        "from translation.data.tokenizer import "
        f"Tokenizer\nprint(Tokenizer.train({LINES!r}, "
        "500).digest)"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == tokenizer.digest
    assert run.stderr == ""


def test_lines_may_come_as_a_stream(tokenizer: Tokenizer) -> None:
    assert Tokenizer.train((line for line in LINES), 500).digest == tokenizer.digest


def test_a_small_corpus_gets_what_it_carries() -> None:
    tokenizer = Tokenizer.train(["a b", "ab"], 8000)
    assert SPECIAL + BYTES < tokenizer.size < 280
    assert tokenizer.decode(tokenizer.encode("ab c")) == "ab c"


def test_rare_characters_leave_room_for_words() -> None:
    syllables = [chr(code) for code in range(ord("가"), ord("가") + 500)]
    tokenizer = Tokenizer.train(["나무 나무 나무", *syllables], 400)
    assert tokenizer.size == 400
    assert len(tokenizer.encode("나무")) == 1
    assert all(tokenizer.decode(tokenizer.encode(each)) == each for each in syllables)


def test_long_lines_line_ends_and_reserved_characters_teach_too() -> None:
    text = "kangaroo " * LONGEST_PART
    for line in (text, f"kangaroo\n{text}", f"\x00 {text}", f"\u2585 {text}"):
        assert len(Tokenizer.train([line], 300).encode("kangaroo")) == 1


def test_of_many_lines_some_are_drawn_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_LINES", 50)
    lines = [f"word{number} and more" for number in range(1000)]
    first = Tokenizer.train(iter(lines), 500)
    assert first.digest == Tokenizer.train(iter(lines), 500).digest
    assert first.digest != Tokenizer.train(lines[:50], 500).digest


@pytest.mark.parametrize("lines", [[], [""], [" ", "\n", "\x00", "\u2581 \u2585"]])
def test_a_corpus_without_text_is_refused(lines: list[str]) -> None:
    with pytest.raises(UsageError, match=r"no text .*vocabulary"):
        Tokenizer.train(lines, 500)


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="300 pieces, not 100"):
        Tokenizer.train(LINES, 100)
