"""The size of a network follows from the pairs, the minutes and the pace that this machine was
measured to have.
"""

from dataclasses import replace

import pytest
import torch

from tests.support.translations import CPU, NETWORK, recipe_of
from translation.data.corpus import Corpus
from translation.training import pace, step
from translation.training.pace import choose_size, tokens_a_second

PAIRS = 100_000  # enough for small
MINUTES = 10.0
A_PAIR = 11 / pace.CHARACTERS + 1  # pieces, as the lines below have eleven characters
NEEDED = 5 * PAIRS * A_PAIR / (60 * MINUTES)  # tokens a second for five epochs in the time


@pytest.mark.soak
def test_a_size_is_chosen_that_reads_the_pairs_often_enough_in_the_minutes(tmp_path, monkeypatch):
    (tmp_path / "large.tsv").write_text("source line\ttarget line\n" * PAIRS)
    recipe = replace(
        recipe_of(tmp_path, size=None, training={"minutes": MINUTES}),
        train=Corpus(tmp_path / "large.tsv", name="train"),
    )
    for seeds, processes in ((1, 1), (1, 2), (2, 1), (3, 2)):
        for share, size in ((1.001, "small"), (0.999, "tiny")):
            measured = NEEDED * share * seeds / processes
            monkeypatch.setattr(pace, "tokens_a_second", lambda *_, measured=measured: measured)
            assert choose_size(replace(recipe, seeds=seeds), CPU, processes) == size
    monkeypatch.setattr(pace, "tokens_a_second", lambda *_: 0.0)
    assert choose_size(recipe, CPU, 1) == "tiny"
    # updates take the time that they take
    assert choose_size(replace(recipe, training={"updates": 5}), CPU, 1) == "small"


@pytest.fixture
def steps(monkeypatch):
    """The sentences of each update, which computes nothing; each look at the clock is a second
    later.
    """
    sentences = []

    def noted(_, batches, *_rest):
        sentences.append(sum(len(batch.source) for _, batch in batches))
        tokens = sum(batch.tokens for _, batch in batches)
        return step.StepResult(1.0, tokens)

    monkeypatch.setattr(step.TrainingStep, "__call__", noted)
    clock = iter(map(float, range(1000)))
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(clock))
    return sentences


@pytest.mark.parametrize(
    ("positions", "sentences"),
    [(400, 400 // pace.LENGTH), (12_500, pace.CPU_POSITIONS // pace.LENGTH)],
)
def test_the_pace_is_that_of_updates_of_the_size_with_smaller_batches_on_a_cpu(
    tmp_path,
    monkeypatch,
    steps,
    positions,
    sentences,
):
    monkeypatch.setattr(pace, "MEASURED_S", 0.1)
    # There may be too few positions for the measured sentences: this is refused later.
    recipe = recipe_of(
        tmp_path,
        training={"batch_tokens": positions},
        network=NETWORK | {"learned_positions": 16},
    )
    # one measured update; the clock is looked at three times
    found = tokens_a_second(recipe, "tiny", CPU)
    assert found == sentences * pace.LENGTH / 2
    assert steps == [sentences] * (pace.UNTIMED + 1)


@pytest.mark.parametrize("place", [(step.TrainingStep, "__call__"), (torch.nn.Module, "to")])
def test_a_size_without_memory_for_it_has_no_pace(tmp_path, monkeypatch, place):
    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr(*place, refuse)
    assert tokens_a_second(recipe_of(tmp_path), "tiny", CPU) == 0.0
