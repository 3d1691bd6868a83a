"""Laws of ensembles: their probabilities are the mean of their networks',
however these were trained.
"""

import re
from pathlib import Path

import pytest
import torch

from tests.support.bounds import assert_close_in_float32, in_float32
from tests.support.recipe import write_recipe
from tests.support.translations import (
    CPU,
    NETWORK,
    drawn,
    examples,
    model_of,
    recipe_of,
    same,
    tokenizer,
)
from translation.cards import recipe_of as said_of
from translation.decoding.beam_search import GREEDY, Search, search
from translation.decoding.incremental import Ensemble, IncrementalEnsemble
from translation.errors import UsageError
from translation.models import incremental_decoder, load_model
from translation.recipes import read_recipe
from translation.training.distributed import SINGLE_PROCESS
from translation.training.from_recipe import train_model
from translation.transformer import Transformer
from translation.translate import translate

SOURCES = [examples()[place][0].tolist() for place in range(7)]
FIVE = Search(beams=3)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transformer", "rnn"])
def test_an_ensemble_of_equal_networks_says_what_one_says(kind: str) -> None:
    network = drawn(kind=kind).eval()
    alone, together = (incremental_decoder(each) for each in (network, Ensemble([network] * 3)))
    for how in (GREEDY, FIVE):
        for one, other in zip(
            search(alone, SOURCES, how), search(together, SOURCES, how), strict=True
        ):
            assert [each.tokens for each in one] == [each.tokens for each in other]
            assert other[0].log_probability == in_float32(one[0].log_probability)


def test_probabilities_and_attention_are_the_mean_of_the_networks() -> None:
    networks = [drawn(seed).eval() for seed in range(3)]
    source, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 9, 8]])
    means, shown = [], []
    with torch.no_grad():
        for each in networks:
            assert isinstance(each, Transformer)
            decoded, weights = each(source, target, need_weights=True)
            means.append(each.logits(decoded).softmax(dim=-1))
            shown.append(weights)
    decoder = IncrementalEnsemble([incremental_decoder(each) for each in networks])
    state = decoder.start(source, 1, 3)
    for place, token in enumerate(target[0]):
        scores, weights = decoder.step(state, token.view(1, 1), need_weights=True)
        wanted = torch.stack(means).mean(dim=0)[:, place]
        assert_close_in_float32(scores.exp()[:, 0], wanted)
        assert weights is not None
        assert_close_in_float32(weights[:, 0], torch.stack(shown).mean(dim=0)[:, place])


@pytest.mark.slow
def test_beams_of_an_ensemble_are_reordered_in_every_network() -> None:
    networks = [drawn(seed).eval() for seed in (0, 1)]
    forth, back = (incremental_decoder(Ensemble(each)) for each in (networks, networks[::-1]))
    assert [each[0].tokens for each in search(forth, SOURCES, FIVE)] == [
        each[0].tokens for each in search(back, SOURCES, FIVE)
    ]


@pytest.mark.soak
def test_seeds_are_saved_loaded_and_explained_together_and_resume(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, seeds=2)
    words: list[object] = []
    trained = train_model(
        recipe, tmp_path / "models", tmp_path / "work", CPU, SINGLE_PROCESS, on_message=words.append
    )
    assert trained is not None
    assert any(str(each).startswith("seed 1: step ") for each in words)
    assert re.search("ensemble of 2 .* 0", said_of(trained.card))
    assert not same(*trained.networks)
    read = load_model(tmp_path / "models" / "made", CPU)
    text = ["la teska ta ludi"]
    how = Search(with_attention=True)
    assert [each.text for each in translate(read, text, how)] == [
        each.text for each in translate(trained, text, how)
    ]
    (attention,) = translate(read, text, how)[0].attention
    assert set(attention.heads) == {"encoder", "decoder", "between"}
    again = train_model(recipe, tmp_path / "models", tmp_path / "work", CPU, SINGLE_PROCESS)
    assert again is not None
    assert again.card == trained.card


def test_no_seed_is_refused(tmp_path: Path) -> None:
    file = write_recipe(tmp_path)
    file.write_text(file.read_text().replace("accumulate = 1", "seeds = 0"))
    with pytest.raises(UsageError, match=r"training\.seeds: .* 1 .*0$"):
        read_recipe(file)


def test_ctranslate2_is_not_given_an_ensemble(tmp_path: Path) -> None:
    from benchmarks.ctranslate2_export import export_model

    size = tokenizer().size
    values = NETWORK | {"source_vocabulary": size, "target_vocabulary": size}
    model = model_of(Ensemble([drawn(0), drawn(1)]), "transformer", values)
    with pytest.raises(UsageError, match=r"made .*ensemble of 2"):
        export_model(model, tmp_path / "exported", int8=False)
