"""Laws of Unicode forms: a text in another form is learned from, translated and scored as the same
text.
"""

import unicodedata
from itertools import product

import numpy as np
import pytest

from tests.support.translations import drawn, model_of, recipe_of, tokenizer
from translation.data.corpus import Corpus, Rules, clean
from translation.data.corpus_cache import cache_corpus
from translation.decoding.beam_search import Search
from translation.scoring import compare, score
from translation.translate import translate

FORMS = ("NFC", "NFD")
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


def in_form(form, *texts):
    return [unicodedata.normalize(form, text) for text in texts]


@pytest.mark.parametrize("language", TEXTS)
def test_every_figure_is_the_same_in_every_form(language):
    expected, ours = TEXTS[language]
    written = [[ours, expected]]  # some letters of these are in no form
    forms = [*written, *(in_form(form, ours, expected) for form in FORMS)]
    found = [
        score(texts, [right, right], resamples=20) for texts, (_, right) in product(forms, repeat=2)
    ]
    assert 20 < found[0].bleu < 100
    assert found == [found[0]] * 9
    compared = compare(forms[1], forms[2], forms[0], resamples=5)
    assert (compared.difference, compared.p) == (0, 1)


def test_pairs_are_read_alike_in_every_form(tmp_path):
    table = tmp_path / "table.tsv"
    composed = [("été", "summér"), ("clé", "kéy"), ("été", "summér"), ("clé", "clé")]
    forms = zip(FORMS * 2, (FORMS[::-1]) * 2, strict=True)
    lines = [
        "\t".join([*in_form(first, one), *in_form(second, other)])
        for (one, other), (first, second) in zip(composed, forms, strict=True)
    ]
    table.write_text("\n".join(lines), encoding="utf-8")
    pairs = list(Corpus(table, name="table").pairs())
    assert pairs == composed
    kept = clean(pairs, tokenizer(), tokenizer(), Rules(drop_same=True))
    assert kept.dropped == {"repeated": 1, "same on both sides": 1}


def test_a_vocabulary_and_an_encoded_corpus_do_not_depend_on_the_form(tmp_path):
    found = []
    for form in FORMS:
        recipe = recipe_of(tmp_path / form)
        accented = recipe.train.source.read_text().translate(str.maketrans("aoe", "áöệ"))
        recipe.train.source.write_text(*in_form(form, accented), encoding="utf-8")
        found.append(cache_corpus(recipe, tmp_path / f"{form}-work"))
    first, second = found
    assert first.corpus_hash != second.corpus_hash  # of the bytes of the files
    assert first.source.digest == second.source.digest
    assert np.array_equal(first.training.source.tokens, second.training.source.tokens)


@pytest.mark.slow
@pytest.mark.one_case
@pytest.mark.parametrize("language", TEXTS)
def test_a_text_has_the_same_translation_in_every_form(monkeypatch, language):
    monkeypatch.setattr("translation.translate.MAX_PIECES", 40)
    model, text = model_of(drawn(5).double()), f"{'! '.join(TEXTS[language])} " * 3
    how = Search(beams=2, best=2)
    composed, decomposed = (translate(model, in_form(form, text), how) for form in FORMS)
    assert composed == decomposed


def test_what_a_network_spells_in_parts_is_composed():
    letter = tokenizer().encode("e")
    *_, first_byte, second_byte = tokenizer().encode("\u0301")
    assert tokenizer().decode([*letter, first_byte, second_byte]) == "\u00e9"
