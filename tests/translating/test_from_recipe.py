"""Laws of training a recipe's model: it leaves one model however often it is called."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.made_language import made_pairs
from tests.support.translations import CPU, NETWORK, recipe_of
from translation.decoding.beam_search import GREEDY
from translation.errors import TranslationError, UsageError
from translation.models import Model, load_model
from translation.recipes import Recipe
from translation.training.distributed import SINGLE_PROCESS, ProcessGroup
from translation.training.from_recipe import train_model
from translation.training.loop import Check
from translation.translate import translate

PAIRS = made_pairs(6, 9)
TEXTS = [source for source, _ in PAIRS]


def fit(recipe: Recipe, folder: Path, *told: Callable[[Any], object]) -> Model:
    return train_model(recipe, folder / "models", folder / "work", CPU, SINGLE_PROCESS, *told)


@pytest.mark.soak
@pytest.mark.slow
def test_a_training_leaves_a_model_and_called_again_the_same(tmp_path: Path) -> None:
    checks: list[Check] = []
    words: list[str] = []
    recipe = recipe_of(tmp_path)
    first = fit(recipe, tmp_path, checks.append, words.append)
    assert [each.step for each in checks] == [3, 6]
    assert "96 of 96 pairs" in words[0]
    again = fit(recipe, tmp_path, checks.append)
    assert len(checks) == 2
    assert again.card == first.card
    read = load_model(tmp_path / "models" / "made", CPU)
    assert read.card == first.card
    assert translate(read, TEXTS, GREEDY) == translate(first, TEXTS, GREEDY)


@pytest.mark.soak
@pytest.mark.slow
def test_another_training_of_the_name_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    first = fit(recipe, tmp_path)
    for other in (
        replace(recipe, training={**recipe.training, "peak": 0.02}),
        replace(recipe, train=recipe.validation),
    ):
        with pytest.raises(TranslationError, match=r"delete .*from the start"):
            fit(other, tmp_path)
    assert fit(recipe, tmp_path).card == first.card


def test_positions_that_cannot_be_learned_are_refused_before_the_training(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, network=NETWORK | {"learned_positions": 100})
    with pytest.raises(UsageError, match="learned_positions is 100"):
        fit(recipe, tmp_path)


def test_machines_that_do_not_share_the_folder_are_refused(tmp_path: Path) -> None:
    class Elsewhere(ProcessGroup):
        def broadcast(self, figure: float) -> float:
            return figure  # the first has prepared its corpus, on its own disk

    with pytest.raises(UsageError, match=r"not share .*DTML_DATA"):
        train_model(
            recipe_of(tmp_path),
            tmp_path,
            work=tmp_path / "work",
            device=CPU,
            process_group=Elsewhere(1, 2),
        )
