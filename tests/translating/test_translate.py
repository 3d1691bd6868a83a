"""Laws of translating texts: each is translated alone, whatever its length or script."""

from dataclasses import replace

import pytest
import torch

from tests.support.bounds import assert_close_in_float32, in_float32
from tests.support.translations import NETWORK, drawn, made_pairs, model_of, tokenizer
from translation.decoding.beam_search import GREEDY, Search
from translation.translate import translate

TEXTS = [source for source, _ in made_pairs(3, 9)]
ODD = ["", "  ", "안녕하세요 세계", "🙂🙃", "é" * 50, "\ud800", "\x00\n\t", "▁"]


@pytest.fixture(scope="module")
def model():
    """In double precision, that no noise of a batch decides; its words are gibberish."""
    return model_of(drawn(5).double())


@pytest.mark.slow
def test_any_texts_keep_their_order_and_are_translated_alone(model):
    texts = [*TEXTS, *ODD, TEXTS[0]]
    together = translate(model, texts, GREEDY)
    alone = [translate(model, [text], GREEDY)[0] for text in texts]
    assert [each.text for each in together] == [each.text for each in alone]
    assert (together[3].text, together[3].score, together[0].attention) == ("", 0.0, ())


@pytest.mark.slow
def test_long_texts_are_translated_in_parts(model, monkeypatch):
    monkeypatch.setattr("translation.translate.MAX_PIECES", 40)
    sentences = [source for source, _ in made_pairs(30, 3)]
    how = replace(GREEDY, with_attention=True)
    for text in (". ".join(sentences), "bano" * 100):
        count = len(tokenizer().encode(text))
        (found,) = translate(model, [text], how)
        lengths = [len(each.source) - 1 for each in found.attention]
        assert max(lengths) <= 40 < count
        assert abs(sum(lengths) - count) <= len(sentences)  # of spaces at the cuts
    assert len(translate(model, [". ".join(sentences[:2])], how)[0].attention) == 1


@pytest.mark.slow
@pytest.mark.parametrize("space", ["", " "])
def test_sentences_without_spaces_are_cut_at_their_ends_and_joined_as_their_script_does(
    model, monkeypatch, space
):
    sentence = "bano lume\u3002"
    monkeypatch.setattr("translation.translate.MAX_PIECES", len(model.source.encode(sentence)))
    monkeypatch.setattr("translation.translate.is_unspaced", lambda _: not space)
    (alone,), (whole,) = (translate(model, [text], GREEDY) for text in (sentence, sentence * 5))
    assert alone.text
    assert whole.text == space.join([alone.text] * 5)
    assert whole.score == in_float32(5 * alone.score)


def test_the_best_come_in_order_with_the_attention_of_the_first(model):
    how = Search(beams=4, best=3, with_attention=True)
    for text, found in zip(TEXTS, translate(model, TEXTS, how), strict=True):
        scores = [score for _, score in found.best]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert (found.text, found.score) == found.best[0]
        (seen,) = found.attention
        assert seen.source == [*tokenizer().pieces(tokenizer().encode(text)), "</s>"]
        # The pass over the finished translation finds what the search saw position by position.
        assert_close_in_float32(seen.heads["between"][-1].mean(dim=0), seen.weights)
        for kind, queries, keys in (
            ("encoder", seen.source, seen.source),
            ("between", seen.target, seen.source),
            ("decoder", seen.target, seen.target),
        ):
            heads = seen.heads[kind]
            assert heads.shape == (1, NETWORK["heads"], len(queries), len(keys))
            assert_close_in_float32(heads.sum(-1), torch.ones(heads.shape[:-1]))
        assert seen.heads["decoder"].triu(diagonal=1).abs().max() == 0  # nothing sees what follows
