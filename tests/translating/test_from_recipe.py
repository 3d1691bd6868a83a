"""Laws of training a recipe's model: it leaves one model however often it is called."""

from dataclasses import replace

import pytest

from tests.support.translations import CPU, NETWORK, recipe_of
from translation.errors import TranslationError, UsageError
from translation.training.distributed import SINGLE_PROCESS, ProcessGroup
from translation.training.from_recipe import train_model


@pytest.mark.soak
@pytest.mark.slow
def test_another_training_of_the_name_is_refused_and_loses_nothing(tmp_path):
    recipe = recipe_of(tmp_path)
    changed = [
        replace(recipe, training={**recipe.training, "peak": 0.02}),
        replace(recipe, train=recipe.validation),
    ]
    models, work = tmp_path / "models", tmp_path / "work"
    first = train_model(recipe, models, work, CPU, SINGLE_PROCESS)
    for other in changed:
        with pytest.raises(TranslationError, match=r"delete .*from the start"):
            train_model(other, models, work, CPU, SINGLE_PROCESS)
    again = train_model(recipe, models, work, CPU, SINGLE_PROCESS)
    assert first is not None
    assert again is not None
    assert again.card == first.card


def test_positions_that_cannot_be_learned_are_refused_before_the_training(tmp_path):
    recipe = recipe_of(tmp_path, network=NETWORK | {"learned_positions": 100})
    with pytest.raises(UsageError, match="learned_positions is 100"):
        train_model(recipe, tmp_path / "models", tmp_path, CPU, SINGLE_PROCESS)


def test_machines_that_do_not_share_the_folder_are_refused(tmp_path):
    class Elsewhere(ProcessGroup):
        def broadcast(self, figure):
            return figure  # the first has prepared its corpus, on its own disk

    with pytest.raises(UsageError, match=r"not share .*DTML_DATA"):
        train_model(recipe_of(tmp_path), tmp_path, tmp_path / "work", CPU, Elsewhere(1, 2))
