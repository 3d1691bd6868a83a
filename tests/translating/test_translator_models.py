"""Laws of a model's folder: it translates as the model did, and whatever is wrong with it is one
line.
"""

import pytest
import torch

from tests.support.translations import (
    CPU,
    drawn,
    edit_card,
    made_pairs,
    model_of,
    same,
    tokenizer,
    values_of,
)
from translation import artifacts
from translation.cards import FILE
from translation.decoding.beam_search import GREEDY
from translation.errors import TranslationError, UsageError
from translation.models import load_model, save_model
from translation.training.checkpoints import read_weights
from translation.translate import translate

OTHER = tokenizer(330)
TWO = {"target_vocabulary": OTHER.size, "shared_embeddings": False}
TEXTS = [source for source, _ in made_pairs(4, 9)]


def made(kind="transformer", **told):
    target = OTHER if "target_vocabulary" in told else None
    return model_of(drawn(3, kind, **told), kind, target, **told)


@pytest.fixture
def folder(tmp_path):
    save_model(tmp_path / "made", made(**TWO))
    return tmp_path / "made"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("transformer", {}),
        ("transformer", TWO),
        ("transformer", {"learned_positions": 250}),
        ("rnn", {}),
    ],
    ids=str,
)
def test_a_model_read_again_translates_the_same(folder, kind, told):
    model = made(kind, **told)
    card = save_model(folder, model)  # in place of another
    again = load_model(folder, CPU)
    assert again.card == card
    assert same(again.network, model.network)
    assert translate(again, TEXTS, GREEDY) == translate(model, TEXTS, GREEDY)
    written = read_weights(folder / FILE)  # tied ones once, and both tokenizers
    assert len(written) - 2 == len(
        {each.data_ptr() for each in model.network.state_dict().values()}
    )
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]


def test_weights_that_are_no_numbers_are_named_before_saving(folder):
    before, model = load_model(folder, CPU), made()
    name, parameter = list(model.network.named_parameters())[-1]
    with torch.no_grad():
        parameter.view(-1)[0] = float("nan")
    with pytest.raises(TranslationError, match=rf"1 of {parameter.numel()} weights .*{name} "):
        save_model(folder, model)
    assert same(load_model(folder, CPU).network, before.network)


def written(data):
    return lambda folder: (folder / FILE).write_bytes(data)


def edited(**keys):
    return lambda folder: edit_card(folder, **keys)


def other_weights(folder):
    tensors, card = artifacts.read(folder / FILE)
    name = next(name for name in tensors if not name.endswith(".model"))
    artifacts.write(folder / FILE, tensors | {name: tensors[name] + 1}, card)


def with_source(tokenizer):
    def spoil(folder):
        tensors, card = artifacts.read(folder / FILE)
        del tensors["source.model"]
        if tokenizer is not None:
            tensors["source.model"] = torch.tensor(list(tokenizer), dtype=torch.uint8)
        artifacts.write(folder / FILE, tensors, card)

    return spoil


# What is done to the folder, the kind of error, and words of its line.
DAMAGES = {
    "no file": (lambda folder: (folder / FILE).unlink(), UsageError, "no model in"),
    "a file cut short": (written(b"x"), TranslationError, FILE),
    "other weights": (other_weights, TranslationError, "damaged since"),
    "no tokenizer": (with_source(None), TranslationError, "damaged since"),
    "a damaged tokenizer": (with_source(b"x"), TranslationError, "damaged since"),
    "another source": (with_source(OTHER.model), TranslationError, "damaged since"),
    "a card of another version": (edited(shape=1), TranslationError, "of another version"),
    "unknown kind": (edited(kind="oracle"), UsageError, "of network 'oracle'"),
    "unknown key": (edited(network=values_of(depth=3)), UsageError, "depth"),
    "no whole heads": (edited(network=values_of(heads=3)), UsageError, "multiple of heads"),
    "no table": (edited(network=5), UsageError, "mapping"),
    "another width": (
        edited(network=values_of(d_model=32, **TWO)),
        TranslationError,
        "not fit the network",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_wrong_with_a_folder_is_told_in_a_line(folder, damage):
    spoil, kind, words = DAMAGES[damage]
    spoil(folder)
    with pytest.raises(kind, match=words) as told:
        load_model(folder, CPU)
    assert type(told.value) is kind
    assert "\n" not in str(told.value)
