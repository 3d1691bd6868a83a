"""The size of a network follows from the pairs, the minutes and the pace that
this machine was measured to have.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.translations import CPU, NETWORK, recipe_of
from translation.data.corpus import Corpus
from translation.data.corpus_cache import cache_corpus
from translation.recipes import Recipe
from translation.training import pace, step
from translation.training.pace import choose_size, tokens_a_second

PAIRS = 100_000  # enough for small
MINUTES = 10.0
A_PAIR = 11 / pace.CHARACTERS + 1  # pieces, as the lines below have eleven characters
NEEDED = 5 * PAIRS * A_PAIR / (60 * MINUTES)  # tokens a second for five epochs in the time


def large(folder: Path, **training: float) -> Recipe:
    (folder / "large.tsv").write_text("source line\ttarget line\n" * PAIRS)
    training = {"minutes": MINUTES} | training
    recipe = recipe_of(folder, size=None, training=training)
    return replace(recipe, train=Corpus(folder / "large.tsv", None, (0, 1), name="train"))


@pytest.mark.slow
def test_a_size_is_chosen_that_reads_the_pairs_often_enough_in_the_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = large(tmp_path)

    def chosen(measured: float, recipe: Recipe = recipe, processes: int = 1) -> str:
        monkeypatch.setattr(pace, "tokens_a_second", lambda *_: measured)
        return choose_size(recipe, CPU, processes)

    assert (chosen(NEEDED * 1.001), chosen(NEEDED * 0.999)) == ("small", "tiny")
    assert (chosen(NEEDED * 0.501, processes=2), chosen(NEEDED * 0.499, processes=2)) == (
        "small",
        "tiny",
    )
    seeds = replace(recipe, seeds=2)
    assert (chosen(NEEDED * 2.001, seeds), chosen(NEEDED * 1.999, seeds)) == ("small", "tiny")
    three = replace(recipe, seeds=3)
    assert (chosen(NEEDED * 1.501, three, 2), chosen(NEEDED * 1.499, three, 2)) == ("small", "tiny")
    without = replace(recipe, training={"updates": 5})
    assert chosen(0.0, without) == "small"  # updates take the time that they take


def test_the_pace_is_that_of_the_updates_of_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "MEASURED_S", 0.1)
    steps: list[int] = []
    real = step.TrainingStep.__call__

    def counted(
        self: step.TrainingStep, batches: list[step.SeededBatch], rate: float
    ) -> step.StepResult:
        steps.append(sum(batch.tokens for _, batch in batches))
        return real(self, batches, rate)

    monkeypatch.setattr(step.TrainingStep, "__call__", counted)
    clock = iter(float(each) for each in range(1000))  # each look at the clock a second later
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(clock))
    recipe = recipe_of(tmp_path, training={"batch_tokens": 400})
    # one measured update; the clock is looked at three times
    assert tokens_a_second(recipe, "tiny", CPU) == 400 / 2
    assert steps == [400] * (pace.WARM_UP + 1)


def test_a_size_without_memory_for_it_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    recipe = replace(large(tmp_path), network=NETWORK)
    for place, name in ((step.TrainingStep, "__call__"), (torch.nn.Module, "to")):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, refuse)
            assert tokens_a_second(recipe, "tiny", CPU) == 0.0
            assert choose_size(recipe, CPU, 1) == "tiny"


def test_a_size_that_the_network_of_the_recipe_does_not_fit_is_not_chosen(tmp_path: Path) -> None:
    recipe = replace(large(tmp_path), network={"d_model": 36})
    assert tokens_a_second(recipe, "base", CPU) == 0.0  # of 8 heads, which 36 is no multiple of


def test_positions_that_are_too_few_are_left_to_be_refused_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "MEASURED_S", 0.0)
    recipe = recipe_of(tmp_path, network=NETWORK | {"learned_positions": 16})
    assert tokens_a_second(recipe, "tiny", CPU) > 0.0


def test_a_size_once_chosen_stays_and_one_that_is_named_is_never_measured(tmp_path: Path) -> None:
    recipe, asked = recipe_of(tmp_path, size=None), []

    def choose(recipe: Recipe) -> str:
        asked.append(recipe.name)
        return "base"

    assert [cache_corpus(recipe, tmp_path / "work", choose).size for _ in range(2)] == [
        "base",
        "base",
    ]
    assert asked == ["made"]
    assert cache_corpus(replace(recipe, size="tiny"), tmp_path / "named", choose).size == "tiny"
    assert asked == ["made"]


def test_a_batch_is_that_of_the_size_but_smaller_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measured_sentences(tmp_path, "cpu", monkeypatch) == {pace.CPU_POSITIONS // pace.LENGTH}


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none"
)
def test_on_a_gpu_a_batch_is_that_of_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measured_sentences(tmp_path, "cuda", monkeypatch) == {12_500 // pace.LENGTH}


def measured_sentences(folder: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the numbers of sentences in the batches of a measurement, which computes nothing."""
    seen: set[int] = set()

    def look(_: object, batches: list[step.SeededBatch], *_rest: object) -> step.StepResult:
        seen.update(len(batch.source) for _, batch in batches)
        return step.StepResult(1.0, 1, is_check_requested=False)

    monkeypatch.setattr(step.TrainingStep, "__call__", look)
    monkeypatch.setattr(pace, "MEASURED_S", 0.0)
    tokens_a_second(
        recipe_of(folder, training={"batch_tokens": 12_500}), "tiny", torch.device(device)
    )
    return seen
