"""The tokenizer of a BLEU is said wherever the figure is."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.recipe import is_one_line

pytestmark = pytest.mark.slow


def scores(home: Path) -> list[tuple[float, str]]:
    """The stored scores and their signatures."""
    with closing(sqlite3.connect(home / "data" / "dtml.sqlite")) as store:
        return store.execute("select bleu, signature from translation_score_log").fetchall()


@pytest.mark.soak
def test_the_tokenizer_stands_beside_each_figure(home: Path, translate: Command) -> None:
    bleus = []
    for options, tokenizer in (((), "13a"), (("--tokenizer", "char"), "char")):
        code, said, complaint = translate("score", "made", *options, "--json")
        assert code == 0, complaint
        found = json.loads(said)["score"]
        assert found["tokenizer"] == tokenizer
        assert f"|tok:{tokenizer}|" in found["signature"]
        assert scores(home) == [(found["bleu"], found["signature"])]
        (listed,) = json.loads(translate("models", "--json")[1])
        assert listed["tests"] == f"made {found['bleu']:.1f} tok:{tokenizer}"
        assert listed["tokenizer"] == "13a"  # of the figure on validation
        said = translate("score", "made", *options)[1]
        assert f"[{found['low']:.1f}, {found['high']:.1f}] tok:{tokenizer}, chrF" in said
        bleus.append(found["bleu"])
    assert bleus[0] != bleus[1]


@pytest.mark.parametrize("language", ["tha", "thai"])
def test_thai_is_scored_by_characters_whatever_its_code(
    home: Path, translate: Command, language: str
) -> None:
    file = home / "data" / "translation" / "tiny" / "model.json"
    card = json.loads(file.read_text())
    file.write_text(json.dumps(card | {"target_language": language}))
    (home / "test.xa").write_text("bano lume\nsarto tiko\n")
    (home / "test.th").write_text("วันนี้เด็กเดินไปโรงเรียน\nแม่ไปตลาด\n", encoding="utf-8")
    command = ("score", "test.xa", "--references", "test.th", "--json")
    assert json.loads(translate(*command)[1])["score"]["tokenizer"] == "char"


def test_a_tokenizer_that_would_be_downloaded_is_no_choice(home: Path, translate: Command) -> None:
    code, _, complaint = translate("score", "made", "--tokenizer", "flores200")
    assert code == 2
    assert "flores200" in complaint


def test_a_tokenizer_without_its_dictionary_is_a_line_of_the_command(
    home: Path, translate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ko_mecab.MeCab", None)
    code, _, complaint = translate("score", "made", "--tokenizer", "ko-mecab")
    assert (code, is_one_line(complaint)) == (2, True), complaint
    assert "sacrebleu[ko]" in complaint
