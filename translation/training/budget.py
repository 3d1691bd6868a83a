"""Choose the size of a network by the corpus and, with a budget of minutes, by the speed of the machine."""

import time

import torch

from translation.data.batches import Batch
from translation.data.tokenizer import SMALLEST, SPECIAL
from translation.models import SIZES, build_network, size_for
from translation.recipes import Recipe
from translation.training.distributed import SINGLE_PROCESS
from translation.training.step import TrainingStep, optimisers_of, use_fast_dropout

# Target tokens below which a smaller network is taken: ten million bring tiny near its best, and each next size has
# about ten times the weights. A rule of thumb: see `network.size` in a recipe to decide otherwise.
TOKENS_FOR = {"small": 30_000_000, "base": 300_000_000, "big": 1_000_000_000}
SENTENCES, LENGTH, STEPS = 64, 16, 3  # of the steps that are timed, after a first one


def affordable_size(recipe: Recipe, pairs: int, device: torch.device, processes: int) -> str:
    """Return the largest size that suits so many pairs and whose training sees enough target tokens in its minutes."""
    names = [*SIZES][: [*SIZES].index(size_for(pairs)) + 1]
    minutes = recipe.training.get("minutes")
    for name in reversed(names[1:]):
        if minutes is None or 60 * minutes * processes * tokens_per_second(recipe, name, device) >= TOKENS_FOR[name]:
            return name
    return names[0]


def tokens_per_second(recipe: Recipe, size: str, device: torch.device) -> float:
    """Time training steps of made sentences, of the recipe's network in a size; return target tokens a second."""
    config, count = recipe.training_for(size), max(SMALLEST, recipe.vocabulary_for(size))
    vocabularies = dict.fromkeys(("source_vocabulary", "target_vocabulary"), count)
    network = build_network(recipe.kind, recipe.network_for(size) | vocabularies).to(device).train()
    use_fast_dropout(network)
    how = (config.label_smoothing, config.clip, device, SINGLE_PROCESS, getattr(torch, config.precision))
    step = TrainingStep(network, optimisers_of(network, config.optimiser), *how)
    tokens = torch.randint(SPECIAL, SMALLEST, (SENTENCES, LENGTH))
    batch = Batch(tokens, tokens, tokens)
    step([(0, batch)], rate=0.0)
    begun = time.monotonic()
    for _ in range(STEPS):
        step([(0, batch)], rate=0.0)
    return STEPS * batch.tokens / (time.monotonic() - begun)
