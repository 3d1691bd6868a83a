"""Laws of translating texts: each is translated alone, whatever its length or script."""

from dataclasses import replace

import pytest
import torch

from benchmarks.made_language import made_pairs
from tests.support.bounds import assert_close_in_float32
from tests.support.translations import NETWORK, drawn, model_of, tokenizer
from translation.decoding.beam_search import GREEDY, Search
from translation.models import Model
from translation.translate import MAX_PIECES, translate

PAIRS = made_pairs(6, 9)
TEXTS = [source for source, _ in PAIRS]


@pytest.fixture(scope="module")
def model() -> Model:
    """In double precision, that no noise of a batch decides; its words are gibberish."""
    network = drawn(5).double()
    size = tokenizer().size
    return model_of(
        network, "transformer", NETWORK | {"source_vocabulary": size, "target_vocabulary": size}
    )


@pytest.mark.soak
@pytest.mark.slow
def test_texts_keep_their_order_and_are_translated_alone(model: Model) -> None:
    texts = [*TEXTS, "", TEXTS[0], "  ", TEXTS[1]]
    for how in (GREEDY, Search(beams=3)):
        together = translate(model, texts, how)
        alone = [translate(model, [text], how)[0] for text in texts]
        backwards = translate(model, texts[::-1], how)[::-1]
        assert (
            [each.text for each in together]
            == [each.text for each in alone]
            == [each.text for each in backwards]
        )
        assert (together[6].text, together[6].score) == ("", 0.0)


@pytest.mark.slow
def test_long_texts_are_translated_in_parts(model: Model) -> None:
    sentences = ". ".join(source for source, _ in made_pairs(200, 3))
    endless = "bano" * 1000
    how = Search(beams=1, alpha=0.0, with_attention=True)
    for text in (sentences, endless):
        count = len(tokenizer().encode(text))
        assert count > 5 * MAX_PIECES
        (found,) = translate(model, [text], how)
        assert len(found.attention) > 5
        lengths = [len(each.source) - 1 for each in found.attention]
        assert max(lengths) <= MAX_PIECES
        assert abs(sum(lengths) - count) <= len(sentences.split(". "))  # of spaces at the cuts
    first = ". ".join(sentences.split(". ")[:2])
    assert len(translate(model, [first], how)[0].attention) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("language", "space"), [("ja", ""), ("zh-TW", ""), ("de", " ")])
def test_sentences_without_spaces_are_cut_at_their_ends_and_joined_as_their_language_does(
    model: Model, monkeypatch: pytest.MonkeyPatch, language: str, space: str
) -> None:
    sentence = "bano lume\u3002"
    monkeypatch.setattr("translation.translate.MAX_PIECES", len(model.source.encode(sentence)))
    other = replace(model, card=replace(model.card, target_language=language))
    (alone,), (whole,) = (translate(other, [text], GREEDY) for text in (sentence, sentence * 5))
    assert alone.text
    assert whole.text == space.join([alone.text] * 5)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["안녕하세요 세계", "🙂🙃", "é" * 50, "\ud800", "\x00\n\t", "▁"])
def test_any_text_has_a_translation(model: Model, text: str) -> None:
    (found,) = translate(model, [text], GREEDY)
    assert isinstance(found.text, str)
    assert len(found.best) == 1


def test_the_best_come_in_order_and_the_first_is_the_translation(model: Model) -> None:
    for found in translate(model, TEXTS, Search(beams=4, best=3)):
        scores = [score for _, score in found.best]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert (found.text, found.score) == found.best[0]


def test_attention_is_a_row_a_piece_and_sums_to_one(model: Model) -> None:
    for text, found in zip(
        TEXTS, translate(model, TEXTS, Search(beams=2, with_attention=True)), strict=True
    ):
        (seen,) = found.attention
        assert seen.source == [*tokenizer().pieces(tokenizer().encode(text)), "</s>"]
        assert seen.weights.shape == (len(seen.target), len(seen.source))
        assert_close_in_float32(seen.weights.sum(-1), torch.ones(len(seen.target)))
        # The pass over the finished translation finds what the search saw position by position.
        assert_close_in_float32(seen.heads["between"][-1].mean(dim=0), seen.weights)
        for kind, queries, keys in (
            ("encoder", seen.source, seen.source),
            ("between", seen.target, seen.source),
            ("decoder", seen.target, seen.target),
        ):
            layers, heads, *shape = seen.heads[kind].shape
            config = model.card.network
            assert (layers, heads) == (config["decoder_layers"], config["heads"])
            assert shape == [len(queries), len(keys)]
            assert_close_in_float32(
                seen.heads[kind].sum(-1), torch.ones(layers, heads, len(queries))
            )
        assert seen.heads["decoder"].triu(diagonal=1).abs().max() == 0  # nothing sees what follows
    assert translate(model, TEXTS, GREEDY)[0].attention == ()
