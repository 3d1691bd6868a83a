"""Fixtures: a home with a tiny trained model, to run `dtml translate` in."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.support.commands import Command
from tests.support.recipe import write_recipe
from tests.support.run_folder import made_once
from translation.recipes import read_recipe
from translation.training.distributed import SINGLE_PROCESS
from translation.training.from_recipe import train_model


@pytest.fixture(scope="session")
def tiny_models() -> Path:
    """A folder with the model `tiny` in it; to be copied, not changed."""
    return made_once("tiny-translator", _train_tiny) / "models"


def _train_tiny(folder: Path) -> None:
    # The model keeps where the corpora of its recipe lie, so they have a folder that stays.
    recipe = made_once("tiny-recipe", write_recipe) / "tiny.toml"
    train_model(
        read_recipe(recipe),
        models=folder / "models",
        work=folder / "work",
        device=torch.device("cpu"),
        process_group=SINGLE_PROCESS,
    )


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one, with nothing of the machine's environment."""
    home = tmp_path / "home"  # beside what `store_url` makes
    home.mkdir()
    monkeypatch.chdir(home)
    for name in ("DTML_DATABASE_URL", "DTML_DATA", "DTML_REPORTS"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def home(bare: Path, tiny_models: Path) -> Path:
    """As `bare`, with the model `tiny` in its data folder."""
    shutil.copytree(tiny_models, bare / "data" / "translation")
    return bare


@pytest.fixture
def translate(bare: Path, command: Command) -> Command:
    """`dtml translate` in that folder."""
    return partial(command, "translate")
