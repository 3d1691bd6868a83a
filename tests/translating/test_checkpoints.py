"""Laws of checkpoints: they come back whole, belong to one training, and run no code."""

import pickle

import pytest
import torch

from tests.support.translations import drawn, same
from translation import artifacts
from translation.errors import TranslationError
from translation.training.checkpoints import (
    STATE,
    Progress,
    drop_older_weights,
    keep_weights,
    load_weights,
    restore_state,
    save_state,
)
from translation.training.step import optimisers_of

KEY = "key"
PROGRESS = Progress(step=5, kept=[3, 4])


def stepped(seed):
    """A network after a step of Adam and Muon, whose gradients are noise."""
    network = drawn(seed)
    optimisers = optimisers_of(network, "muon")
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    for each in optimisers:
        each.step()
    return network, optimisers


@pytest.fixture
def file(tmp_path):
    save_state(tmp_path, *stepped(0), PROGRESS, KEY)
    return tmp_path / STATE


def test_weights_moments_and_progress_come_back(file):
    (network, optimisers), (wanted, others) = stepped(1), stepped(0)
    assert restore_state(file.parent, network, optimisers, KEY) == PROGRESS
    assert same(network, wanted)
    for optimiser, other, moments in zip(
        optimisers, others, ({"step", "exp_avg"}, {"momentum_buffer"}), strict=True
    ):
        found, kept = optimiser.state_dict()["state"], other.state_dict()["state"]
        assert all(torch.equal(found[at][name], kept[at][name]) for at in kept for name in moments)
    assert restore_state(file.parent / "none", network, optimisers, KEY) == Progress()


class Code:
    def __reduce__(self):
        return exec, ("raise SystemExit('code of a file was run')",)


@pytest.mark.parametrize(
    "damage", ["another", "cut", "empty", "pickle", "no network", "no progress"]
)
def test_a_state_of_another_training_and_a_damaged_one_are_told_in_a_line(file, damage):
    tensors, card = artifacts.read(file)
    whole = file.read_bytes()
    if damage == "no network":
        artifacts.write(file, {"weight.none": torch.zeros(1)}, card)
    elif damage == "no progress":
        artifacts.write(file, tensors, {"key": KEY})
    elif damage != "another":
        cut, code = whole[: len(whole) // 2], pickle.dumps(Code())
        file.write_bytes({"cut": cut, "empty": b"", "pickle": code}[damage])
    before = file.read_bytes()
    key, words = ("another", "another corpus") if damage == "another" else (KEY, "damaged")
    with pytest.raises(TranslationError, match=rf"{STATE} .*{words}.*delete ") as told:
        restore_state(file.parent, *stepped(1), key)
    assert "\n" not in str(told.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "told", [{"d_model": 32}, {"encoder_layers": 2}, {"shared_embeddings": False}], ids=str
)
def test_weights_of_another_network_are_refused(told):
    network = drawn()
    tied = dict(network.named_parameters())
    load_weights(network, tied)
    with pytest.raises(TranslationError, match="not fit the network"):
        load_weights(drawn(**told), tied)


def test_the_last_weights_are_kept_and_older_ones_deleted(tmp_path):
    progress = Progress()
    for step in (1, 2, 3):
        progress.step = step
        keep_weights(tmp_path, drawn(), progress, 2)
    assert progress.kept == [2, 3]
    # until a state that no longer names the first is kept
    assert len([*tmp_path.glob("step-*")]) == 3
    drop_older_weights(tmp_path, progress.kept)
    assert len([*tmp_path.glob("step-*")]) == 2
