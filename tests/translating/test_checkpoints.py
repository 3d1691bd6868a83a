"""Laws of checkpoints: they come back whole, belong to one training, and run no code."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from tests.support.translations import drawn, same, trained
from translation import artifacts
from translation.errors import TranslationError
from translation.training.checkpoints import (
    STATE,
    Progress,
    drop_older_weights,
    keep_weights,
    load_weights,
    read_weights,
    restore_state,
    save_state,
    save_weights,
)
from translation.training.step import optimisers_of

KEY = "key"


def stepped(seed: int) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """A network after a step of Adam and Muon, whose gradients are noise."""
    network = drawn(seed)
    optimisers = optimisers_of(network, "muon")
    assert len(optimisers) == 2
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    for each in optimisers:
        each.step()
    return network, optimisers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_state(tmp_path, *stepped(0), Progress(step=5, kept=[3, 4]), KEY)
    return tmp_path


def test_weights_moments_and_progress_come_back(folder: Path) -> None:
    (network, optimisers), (wanted, others) = stepped(1), stepped(0)
    assert restore_state(folder, network, optimisers, KEY) == Progress(step=5, kept=[3, 4])
    assert same(network, wanted)
    for optimiser, other, moments in zip(
        optimisers, others, ({"step", "exp_avg"}, {"momentum_buffer"}), strict=True
    ):
        found, kept = optimiser.state_dict()["state"], other.state_dict()["state"]
        assert all(torch.equal(found[at][name], kept[at][name]) for at in kept for name in moments)
    assert restore_state(folder / "none", network, optimisers, KEY) == Progress()


def test_another_training_is_refused_and_loses_nothing(folder: Path) -> None:
    before = (folder / STATE).read_bytes()
    with pytest.raises(
        TranslationError,
        match=r"settings or another corpus:.*delete .*from the start$",
    ):
        restore_state(folder, *stepped(1), "another")
    assert (folder / STATE).read_bytes() == before


class Code:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code of a file was run')",)


DAMAGED = {
    "cut": lambda whole: whole[: len(whole) // 2],
    "empty": lambda _: b"",
    "pickle": lambda _: pickle.dumps(Code()),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_file_is_told_in_a_line_and_never_run(folder: Path, how: str) -> None:
    file = folder / STATE
    file.write_bytes(DAMAGED[how](file.read_bytes()))
    with pytest.raises(TranslationError, match=STATE) as told:
        restore_state(folder, *stepped(1), KEY)
    assert "\n" not in str(told.value)


def test_a_file_without_a_network_or_progress_is_damaged(folder: Path) -> None:
    tensors, _ = artifacts.read(folder / STATE)
    artifacts.write(folder / STATE, {"weight.none": torch.zeros(1)}, {"key": KEY, "progress": {}})
    with pytest.raises(TranslationError, match="damaged"):
        restore_state(folder, *stepped(1), KEY)
    artifacts.write(folder / STATE, tensors, {"key": KEY})
    with pytest.raises(TranslationError, match="damaged"):
        restore_state(folder, *stepped(1), KEY)


def test_a_failure_while_writing_leaves_what_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / STATE).read_bytes()

    def failed(file: Path, data: bytes) -> None:
        with file.open("wb") as stream:
            stream.write(data[: len(data) // 2])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", failed)
    with pytest.raises(OSError, match="no space"):
        save_state(folder, *stepped(1), Progress(), KEY)
    assert (folder / STATE).read_bytes() == before


def test_tied_weights_are_written_once_and_come_back_tied(tmp_path: Path) -> None:
    network, other = drawn(0), drawn(1)
    save_weights(tmp_path / "w.safetensors", network)
    with safe_open(tmp_path / "w.safetensors", "pt") as opened:
        names = list(opened.keys())
    assert len(names) == len({each.data_ptr() for each in network.state_dict().values()})
    assert len(names) < len(network.state_dict())
    load_weights(other, read_weights(tmp_path / "w.safetensors"))
    assert same(network, other)


@pytest.mark.parametrize(
    "told", [{"d_model": 32}, {"encoder_layers": 2}, {"shared_embeddings": False}], ids=str
)
def test_weights_of_another_network_are_refused(told: dict[str, object]) -> None:
    ours, theirs = drawn(), drawn(**told)
    once = {
        name: value
        for name, value in ours.state_dict().items()
        if name != "embed_target.tokens.weight"
    }
    with pytest.raises(TranslationError, match="not fit the network"):
        load_weights(theirs, once)
    if "shared_embeddings" not in told:
        with pytest.raises(TranslationError, match="not fit the network"):
            load_weights(ours, theirs.state_dict())


def test_the_last_weights_are_kept_and_older_ones_deleted(tmp_path: Path) -> None:
    progress = Progress()
    for step in (1, 2, 3):
        progress.step = step
        keep_weights(tmp_path, drawn(), progress, 2)
    assert progress.kept == [2, 3]
    # until a state that no longer names the first is kept
    assert len([*tmp_path.glob("step-*")]) == 3
    drop_older_weights(tmp_path, progress.kept)
    assert len([*tmp_path.glob("step-*")]) == 2


def test_a_state_of_a_network_of_another_width_is_damaged(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(TranslationError, match="damaged"):
        trained(tmp_path, d_model=32)
