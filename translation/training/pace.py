"""Choose the size of a network by what it can read in the minutes there are, measured on this machine."""

import time

import torch

from translation.data.batches import Batch
from translation.data.tokenizer import BEGIN, END, SMALLEST
from translation.models import build_network, size_for
from translation.recipes import Recipe
from translation.training.distributed import SINGLE_PROCESS
from translation.training.loop import training_step_of

LENGTH = 20  # pieces of a made-up sentence
CHARACTERS = 4  # of a piece, about; the corpus is not yet cut into pieces
CPU_POSITIONS = 2048  # of a batch on a CPU, where a larger one is no faster
MEASURED_S, WARM_UP = 5.0, 2  # at least, and the updates before: the first ones allocate memory


def choose_size(recipe: Recipe, device: torch.device, processes: int) -> str:
    """Return the largest size that suits the number of pairs and, where the recipe gives minutes, this machine."""
    lengths = [len(target) for _, target in recipe.train.pairs()]
    if "minutes" not in recipe.training:
        return size_for(len(lengths))
    seconds = 60 * recipe.training["minutes"] * processes / recipe.seeds
    pieces = sum(lengths) / CHARACTERS + len(lengths)  # with the ends
    return size_for(len(lengths), lambda size: tokens_a_second(recipe, size, device) * seconds / pieces)


def tokens_a_second(recipe: Recipe, size: str, device: torch.device) -> float:
    """Return the target tokens a second that a process trains on, 0 without memory for it; takes some seconds."""
    config, count = recipe.training_for(size), recipe.vocabulary_for(size)
    vocabularies = {"source_vocabulary": count, "target_vocabulary": count}
    network = build_network(recipe.kind, recipe.network_for(size) | vocabularies)
    step = training_step_of(network, config, device, SINGLE_PROCESS)
    positions = config.batch_tokens if device.type == "cuda" else min(CPU_POSITIONS, config.batch_tokens)
    batch = _made_up(max(1, positions // LENGTH), count)
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
    drawn = torch.randint(SMALLEST - 1, vocabulary, (2, sentences, LENGTH), generator=torch.Generator().manual_seed(0))
    source, target = drawn
    source[:, -1], shifted = END, target.roll(1, dims=1)
    shifted[:, 0] = BEGIN
    return Batch(source, shifted, target)
