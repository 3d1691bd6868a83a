"""Laws of Unicode forms: a text in another form is learned from, translated and
scored as the same text.
"""

import unicodedata
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from sqlalchemy import Engine

from db.engine import open_store, reading, transaction
from db.rows import translations
from db.views import view
from flows.translating.worker import work_off
from tests.support.translations import CPU, NETWORK, drawn, model_of, recipe_of, tokenizer
from translation.cards import recipe_of as recipe_line
from translation.data.corpus import Corpus, Rules, clean
from translation.data.corpus_cache import cache_corpus
from translation.decoding.beam_search import GREEDY, Search
from translation.models import Model
from translation.recipes import Recipe
from translation.scoring import compare, score
from translation.training.distributed import SINGLE_PROCESS
from translation.training.from_recipe import train_model
from translation.translate import translate

Form = Literal["NFC", "NFD"]
# Each a reference and a translation that is nearly right.
TEXTS = {
    "French": ("Où l'été gêne, un hôtel naît à côté.", "Où l'été gêne, un hôtel brûle à côté."),
    "Vietnamese": ("Cô bé đi học với mẹ vào buổi sáng.", "Cậu bé đi học với mẹ vào buổi sáng."),
    "Greek": (
        "Ένας άνθρωπος πηγαίνει στο σχολείο νωρίς.",
        "Ένας άνθρωπος πηγαίνει στο χωριό νωρίς.",
    ),
    "Hindi": ("वह लड़का बड़े शहर में \u0958लम ख़रीदता है।", "वह लड़का बड़े गाँव में \u0958लम ख़रीदता है।"),
    "Korean": ("그는 다른 학생들보다 키가 크다.", "그는 다른 학생들보다 눈이 크다."),
    "Japanese": ("彼はガラスの家でゴボウを食べた。", "彼はガラスの家でダイズを食べた。"),
    "Tibetan": ("དེ་རིང་བུ་མོ་\u0f43་སློབ་གྲྭར་འགྲོ།", "དེ་རིང་བུ་ཚ་\u0f43་སློབ་གྲྭར་འགྲོ།"),
}
FORMS: tuple[Form, Form] = ("NFC", "NFD")
ACCENTS = str.maketrans({"a": "á", "o": "ö", "e": "ệ"})


def in_form(form: Form, *texts: str) -> list[str]:
    return [unicodedata.normalize(form, text) for text in texts]


def accented(folder: Path, form: Form) -> Recipe:
    """A recipe of a second whose files have accents, in a form."""
    recipe = recipe_of(folder, target_language="tha")
    for corpus in (recipe.train, recipe.validation):
        (text,) = in_form(form, corpus.source.read_text().translate(ACCENTS))
        corpus.source.write_text(text, encoding="utf-8")
    return recipe


@pytest.fixture(scope="module")
def model() -> Model:
    """In double precision; its words are gibberish."""
    size = tokenizer().size
    values = NETWORK | {"source_vocabulary": size, "target_vocabulary": size}
    return model_of(drawn(5).double(), "transformer", values)


@pytest.mark.parametrize("language", TEXTS)
def test_the_same_text_in_another_form_has_a_bleu_of_100(language: str) -> None:
    expected, _ = TEXTS[language]
    composed, decomposed = (in_form(form, expected) * 5 for form in FORMS)
    others = [[expected] * 5, decomposed]  # as it is written here, some letters are in no form
    assert any(other != composed for other in others)
    for ours, references in product([composed, *others], repeat=2):
        found = score(ours, references, language="und", resamples=5)
        assert (found.bleu, found.low, found.high, found.chrf) == pytest.approx((100,) * 4)
        compared = compare(ours, references, references, language="und", resamples=5)
        assert (compared.difference, compared.p) == (0, 1)


@pytest.mark.parametrize("language", TEXTS)
def test_every_figure_is_the_same_in_every_form(language: str) -> None:
    expected, ours = TEXTS[language]
    texts = {form: in_form(form, ours, expected) for form in FORMS}
    references = {form: in_form(form, expected, expected) for form in FORMS}
    usual = score(texts["NFC"], references["NFC"], language="und", resamples=20)
    assert 20 < usual.bleu < 100
    for first in FORMS:
        for second in FORMS:
            found = score(texts[first], references[second], language="und", resamples=20)
            assert found == usual


def test_a_corpus_is_read_alike_in_every_form(tmp_path: Path) -> None:
    lines = {form: in_form(form, *(text for text, _ in TEXTS.values())) for form in FORMS}
    read: list[list[tuple[str, str]]] = []
    for first, second in (FORMS, FORMS[::-1]):
        source, target, table = (tmp_path / name for name in ("source", "target", "table"))
        source.write_text("\n".join(lines[first]), encoding="utf-8")
        target.write_text("\n".join(lines[second]), encoding="utf-8")
        rows = (f"{one}\t{other}\n" for one, other in zip(lines[first], lines[second], strict=True))
        table.write_text("".join(rows), encoding="utf-8")
        read.append(list(Corpus(source, target, name="two").pairs()))
        read.append(list(Corpus(table, name="table").pairs()))
    same = [(line, line) for line in lines["NFC"]]
    assert read == [same] * 4


def test_a_pair_in_another_form_is_repeated_and_a_copy_is_the_same(tmp_path: Path) -> None:
    table = tmp_path / "table.tsv"
    pairs = [
        *zip(in_form("NFC", "été", "clé"), in_form("NFD", "summér", "kéy"), strict=True),
        *zip(in_form("NFD", "été", "clé"), in_form("NFC", "summér", "clé"), strict=True),
    ]
    table.write_text("".join(f"{one}\t{other}\n" for one, other in pairs), encoding="utf-8")
    kept = clean(
        Corpus(table, name="table").pairs(), tokenizer(), tokenizer(), Rules(drop_same=True)
    )
    assert len(kept) == 2
    assert kept.dropped == {"repeated": 1, "same on both sides": 1}


def test_a_vocabulary_and_an_encoded_corpus_do_not_depend_on_the_form(tmp_path: Path) -> None:
    first, second = (
        cache_corpus(accented(tmp_path / form, form), tmp_path / f"{form}-work") for form in FORMS
    )
    assert first.corpus_hash != second.corpus_hash  # of the bytes of the files
    assert first.source.digest == second.source.digest
    for one, other in ((first.training, second.training), (first.validation, second.validation)):
        assert np.array_equal(one.source.tokens, other.source.tokens)
        assert np.array_equal(one.target.tokens, other.target.tokens)


@pytest.mark.soak
@pytest.mark.slow
def test_a_training_learns_the_same_from_every_form_and_its_card_says_so(tmp_path: Path) -> None:
    cards = []
    for form in FORMS:
        words: list[str] = []
        trained = train_model(
            accented(tmp_path / form, form),
            models=tmp_path / form / "models",
            work=tmp_path / form / "work",
            device=CPU,
            process_group=SINGLE_PROCESS,
            on_message=words.append,
        )
        assert trained is not None
        cards.append(trained.card)
        assert "subwords of NFC text" in words[0]
        assert words[0].endswith("BLEU with tok:char")
    first, second = cards
    assert first.weights_hash == second.weights_hash
    assert first.made["validation_bleu"] == second.made["validation_bleu"]
    assert (first.made["unicode_form"], first.made["bleu_tokenizer"]) == ("NFC", "char")
    assert "subwords of NFC text" in recipe_line(first)


@pytest.mark.slow
@pytest.mark.one_case
@pytest.mark.parametrize("language", TEXTS)
def test_a_text_has_the_same_translation_in_every_form(
    model: Model, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setattr("translation.translate.MAX_PIECES", 40)
    text = f"{'! '.join(TEXTS[language])} " * 3
    composed, decomposed = (in_form(form, text, text[:9]) for form in FORMS)
    how = Search(beams=2, best=2)
    assert translate(model, composed, how) == translate(model, decomposed, how)


def test_what_a_network_spells_in_parts_is_composed() -> None:
    letter = tokenizer().encode("e")
    *_, first_byte, second_byte = tokenizer().encode("\u0301")
    assert tokenizer().decode([*letter, first_byte, second_byte]) == "\u00e9"


@pytest.fixture
def store(home: Path) -> Iterator[Engine]:
    engine = open_store()
    yield engine
    engine.dispose()


@pytest.mark.slow
def test_a_queued_text_is_translated_alike_in_every_form_and_kept_as_it_was_written(
    store: Engine,
) -> None:
    texts = [*in_form("NFC", "bánö lume"), *in_form("NFD", "bánö lume")]
    with transaction(store) as conn:
        translations.queue_texts(conn, "tiny", texts)
    assert work_off(store, None, GREEDY, CPU)["done"] == 2
    with reading(store) as conn:
        jobs = [dict(job) for job in conn.execute(view("translation_job").select()).mappings()]
    assert sorted(job["text"] for job in jobs) == sorted(texts)
    assert len({(job["translation"], job["score"]) for job in jobs}) == 1
