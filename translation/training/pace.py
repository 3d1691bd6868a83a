"""Choose the size of a network by how much text this machine can train on in its minutes."""

import time

import torch

from translation import recorded
from translation.data.batches import Batch
from translation.data.tokenizer import END, SMALLEST
from translation.errors import UsageError
from translation.models import build_network, size_for
from translation.out_of_memory import is_out_of_memory
from translation.recipes import Recipe
from translation.training.distributed import SINGLE_PROCESS
from translation.training.loop import training_step_of

LENGTH = 20  # pieces of each made-up sentence
# Characters of a piece in an alphabetic text, about. The corpus has no pieces yet.
CHARACTERS = 4
CPU_POSITIONS = 2048  # of the measured batch on a CPU, where a larger one is no faster
UNTIMED = recorded.WARM_UP + 1  # updates that allocate memory and record
MEASURED_S = 5.0  # the least time of a measurement


def choose_size(recipe: Recipe, device: torch.device, processes: int) -> str:
    """Return the largest size that suits the number of pairs, and of minutes, if limited.

    This machine's speed, with so many `processes`, is measured for that.
    """
    # The characters of each target sentence.
    lengths = [len(target) for _, target in recipe.train.pairs()]
    if "minutes" not in recipe.training:
        return size_for(len(lengths))
    # The process time of each seed: all processes train the seeds one after the other.
    seconds: float = 60 * recipe.training["minutes"] * processes / recipe.seeds
    pieces = sum(lengths) / CHARACTERS + len(lengths)  # with the end of each sentence

    def epochs(size: str) -> float:
        return tokens_a_second(recipe, size, device) * seconds / pieces

    return size_for(len(lengths), epochs)


def tokens_a_second(recipe: Recipe, size: str, device: torch.device) -> float:
    """Measure for some seconds how many target tokens a second a process trains on.

    0 if memory does not suffice, or [network] does not fit the size.
    """
    config = recipe.training_for(size)
    vocabulary = recipe.vocabulary_for(size)
    values = {
        **recipe.network_for(size),
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary,
    }
    if "learned_positions" in values:
        values["learned_positions"] = 0  # there may be too few for these sentences
    positions = config.batch_tokens
    if device.type != "cuda":
        positions = min(CPU_POSITIONS, positions)
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(
        low=SMALLEST - 1,  # above the special tokens, and below any vocabulary's end
        high=vocabulary,
        size=(2, max(1, positions // LENGTH), LENGTH),
        generator=generator,
    )
    source[:, -1] = END
    batch = Batch(source=source, target_output=target)
    tokens = 0
    try:
        network = build_network(recipe.kind, values)
        step = training_step_of(network, config, device, SINGLE_PROCESS)
        with step.gradients.recorder.stream:
            for _ in range(UNTIMED):
                step([(0, batch)], 0.0)
            start = time.monotonic()
            while tokens == 0 or time.monotonic() - start < MEASURED_S:
                tokens += step([(0, batch)], 0.0).tokens
    except UsageError:
        return 0.0
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return 0.0
    return tokens / (time.monotonic() - start)
