"""A training that is killed at any write goes on to the weights, to the last
bit, of one that nothing disturbed.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dtml.checkpoints import Ensemble, save_ensemble
from dtml.errors import DtmlError
from dtml.training import Member, fit_members, stack_members
from dtml.windows import WindowConfig
from tests.support.windows import MODEL, RECIPE, TRAIN, VALIDATION, WINDOW
from translation import artifacts

pytestmark = pytest.mark.soak

SEEDS = (0, 1, 2, 3)
LAST = replace(RECIPE, epochs=3)  # all members end together
STALE = replace(RECIPE, epochs=4, patience=1)  # each ends on its own
CPU = torch.device("cpu")


class KilledError(BaseException):
    """The process is gone."""


def train(recipe, folder, seeds=SEEDS):
    """Train the members, keep their state in `folder`, and return the SHA-256
    of their checkpoint beside it.
    """
    members = [Member(seed, MODEL, recipe) for seed in seeds]
    fits = fit_members(TRAIN, VALIDATION, members, device=CPU, state_folder=folder)
    ensemble = Ensemble(
        "made", TRAIN.symbols, tuple(seeds), MODEL, WindowConfig(window=WINDOW), stack_members(fits)
    )
    return save_ensemble(ensemble, folder.with_suffix(".checkpoint"))


def was_killed_at(number, monkeypatch, run):
    """Run until so many files were replaced, after which nothing is written any
    more; whether it came to that.
    """
    done, honest = 0, Path.replace

    def counted(file, target):
        nonlocal done
        if done == number:
            raise KilledError
        done += 1
        return honest(file, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", counted)
        try:
            run()
        except KilledError:
            return True
    return False


@pytest.mark.by_quarters
@pytest.mark.slow
@pytest.mark.parametrize("recipe", [pytest.param(LAST, marks=pytest.mark.soak), STALE])
def test_a_kill_at_any_write_of_a_training_changes_no_bit_of_its_weights(
    recipe, tmp_path, monkeypatch
):
    undisturbed = train(recipe, tmp_path / "undisturbed")
    number, other, folder = 0, [], tmp_path / "killed-0"
    while was_killed_at(number, monkeypatch, lambda: train(recipe, folder)):  # noqa: B023 - called at once
        if train(recipe, folder) != undisturbed:
            other.append(number)
        number, folder = number + 1, tmp_path / f"killed-{number + 1}"
    assert number > 5
    assert not other, f"of {number} kills these gave other weights: {other}"


def test_what_a_smaller_training_left_changes_no_bit_of_a_larger_one(tmp_path):
    train(LAST, tmp_path / "shared", seeds=(0, 1))
    assert train(LAST, tmp_path / "shared", seeds=(0, 1, 2)) == train(
        LAST, tmp_path / "own", seeds=(0, 1, 2)
    )


def test_a_damaged_state_is_named_with_what_to_do(tmp_path):
    train(LAST, tmp_path, seeds=(0,))
    (file,) = tmp_path.glob("*.safetensors")
    tensors, card = artifacts.read(file)
    for damage in (
        lambda: artifacts.write(file, tensors, {}),
        lambda: artifacts.write(file, tensors | {"order": torch.ones(3)}, card),
        lambda: artifacts.write(file, {"order": tensors["order"]}, card),
        lambda: file.write_bytes(file.read_bytes()[:100]),
    ):
        damage()
        with pytest.raises(DtmlError, match=r"damaged .*: delete .*-cpu\.safetensors"):
            train(LAST, tmp_path, seeds=(0,))
