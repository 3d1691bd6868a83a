"""Laws of ensembles: their probabilities are the mean of their networks', however these were
trained.
"""

import re

import pytest
import torch

from tests.support.bounds import assert_close_in_float32
from tests.support.translations import CPU, drawn, examples, recipe_of, same
from translation.cards import recipe_of as said_of
from translation.decoding.beam_search import Search, search
from translation.decoding.ensemble import Ensemble
from translation.models import load_model
from translation.training.distributed import SINGLE_PROCESS
from translation.training.from_recipe import train_model
from translation.transformer import Transformer
from translation.translate import translate


def test_probabilities_and_attention_are_the_mean_of_the_networks():
    networks = [drawn(seed).eval() for seed in range(3)]
    source, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 9, 8]])
    means, shown = [], []
    with torch.no_grad():
        for each in networks:
            assert isinstance(each, Transformer)
            decoded, weights = each(source, target, need_weights=True)
            means.append(each.logits(decoded).softmax(dim=-1))
            shown.append(weights)
    decoder = Ensemble(networks)
    state = decoder.start(source, 1, 3)
    for place, token in enumerate(target[0]):
        scores, weights = decoder.step(state, token.view(1, 1), need_weights=True)
        wanted = torch.stack(means).mean(dim=0)[:, place]
        assert_close_in_float32(scores.exp()[:, 0], wanted)
        assert weights is not None
        assert_close_in_float32(weights[:, 0], torch.stack(shown).mean(dim=0)[:, place])


@pytest.mark.slow
def test_beams_of_an_ensemble_are_reordered_in_every_network():
    networks = [drawn(0).eval(), drawn(1, "rnn").eval()]
    sources = [examples()[place][0].tolist() for place in range(7)]
    forth, back = (
        search(Ensemble(each), sources, Search(beams=3)) for each in (networks, networks[::-1])
    )
    assert [each[0].tokens for each in forth] == [each[0].tokens for each in back]


@pytest.mark.soak
def test_seeds_are_saved_loaded_and_explained_together_and_resume(tmp_path):
    recipe = recipe_of(tmp_path, seeds=2)
    words = []
    trained, again = (
        train_model(
            recipe,
            tmp_path / "models",
            tmp_path / "work",
            CPU,
            SINGLE_PROCESS,
            on_message=words.append,
        )
        for _ in range(2)
    )
    assert trained is not None
    assert again is not None
    assert again.card == trained.card
    assert any(str(each).startswith("seed 1: step ") for each in words)
    assert re.search("ensemble of 2 .* 0", said_of(trained.card))
    assert not same(*trained.networks)
    read, how = load_model(tmp_path / "models" / "made", CPU), Search(with_attention=True)
    ours, theirs = (translate(each, ["la teska ta ludi"], how)[0] for each in (read, trained))
    assert ours.text == theirs.text
    assert set(ours.attention[0].heads) == {"encoder", "decoder", "between"}
