"""Choose the size of a network by what it can read in the minutes there are,
measured on this machine.
"""

import time
from math import ceil

import torch

from translation.data.batches import Batch
from translation.data.tokenizer import BEGIN, END, SMALLEST
from translation.errors import UsageError
from translation.models import build_network, size_for
from translation.recipes import Recipe
from translation.training.distributed import SINGLE_PROCESS
from translation.training.loop import training_step_of
from translation.training.step import TrainingStep

LENGTH = 20  # pieces of each made-up sentence
CHARACTERS = 4  # of a piece in an alphabet, about: the corpus is not cut into pieces yet
CPU_POSITIONS = 2048  # of a batch on a CPU, where a larger one is no faster
WARM_UP = 2  # updates that are not timed: they allocate memory
MEASURED_S = 5.0  # at least


def choose_size(recipe: Recipe, device: torch.device, processes: int) -> str:
    """Return the largest size that suits the number of pairs and, where the
    recipe gives minutes, this machine.
    """
    lengths = [len(target) for _, target in recipe.train.pairs()]
    if "minutes" not in recipe.training:
        return size_for(len(lengths))
    # The seeds of a process share its minutes; fewer seeds than processes are trained by all, one
    # after the other.
    share = (
        processes / recipe.seeds if recipe.seeds < processes else 1 / ceil(recipe.seeds / processes)
    )
    seconds = 60 * recipe.training["minutes"] * share
    pieces = sum(lengths) / CHARACTERS + len(lengths)  # with the end of each sentence
    return size_for(
        len(lengths), lambda size: tokens_a_second(recipe, size, device) * seconds / pieces
    )


def tokens_a_second(recipe: Recipe, size: str, device: torch.device) -> float:
    """Return the target tokens a second that a process trains on; takes some seconds.

    It is 0 if there is no memory for the size, and if the recipe's [network] does not fit it.
    """
    config, count = recipe.training_for(size), recipe.vocabulary_for(size)
    values = recipe.network_for(size) | {"source_vocabulary": count, "target_vocabulary": count}
    if "learned_positions" in values:
        values["learned_positions"] = 0  # there may be too few for these sentences
    try:
        step = training_step_of(build_network(recipe.kind, values), config, device, SINGLE_PROCESS)
    except (UsageError, MemoryError, torch.OutOfMemoryError):
        return 0.0
    positions = (
        config.batch_tokens if device.type == "cuda" else min(CPU_POSITIONS, config.batch_tokens)
    )
    return _pace_of(step, _made_up(max(1, positions // LENGTH), count))


def _pace_of(step: TrainingStep, batch: Batch) -> float:
    for _ in range(WARM_UP):
        step([(0, batch)], 0.0)
    begun, tokens = time.monotonic(), 0
    while tokens == 0 or time.monotonic() - begun < MEASURED_S:
        done = step([(0, batch)], 0.0)
        if done is None:
            return 0.0
        tokens += done.tokens
    return tokens / (time.monotonic() - begun)


def _made_up(sentences: int, vocabulary: int) -> Batch:
    """Return sentences of random pieces."""
    drawn = torch.randint(
        SMALLEST - 1, vocabulary, (2, sentences, LENGTH), generator=torch.Generator().manual_seed(0)
    )
    source, target = drawn
    source[:, -1], shifted = END, target.roll(1, dims=1)
    shifted[:, 0] = BEGIN
    return Batch(source, shifted, target)
