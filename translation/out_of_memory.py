"""Recognise an out-of-memory error, and find by trial the batch size that fits."""

from collections.abc import Callable

import torch

from translation.errors import TranslationError

# On a CPU torch raises a plain RuntimeError with one of these texts: Linux, Windows, and C++ on any
# system.
NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the GPU or the machine has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in NO_MEMORY)


def out_of_memory(tokens: int, longest: int, attempt: Callable[[int], object]) -> TranslationError:
    """Return the error to raise when memory ran out with batches of `tokens` positions.

    Its message names a `batch_tokens` that fits, or says that none does. For `longest`, in which
    END counts, and `attempt` see `fitting_tokens`.
    """
    fits = fitting_tokens(tokens, longest, attempt)
    # An earlier state was saved with the settings of before, so it is refused.
    then = "delete the folder of the saved training state if the next run names it"
    if fits is None:
        return TranslationError(
            f"out of memory with batch_tokens = {tokens}, and with one sentence of {longest} "
            "positions: choose a smaller size under [network], or set longest under [rules] to "
            f"less than {longest - 1}, so that the sentence is left out; {then}"
        )
    return TranslationError(
        f"out of memory with batch_tokens = {tokens}: set batch_tokens = {fits}, which fits, under "
        f"[training], and {then}"
    )


def fitting_tokens(tokens: int, longest: int, attempt: Callable[[int], object]) -> int | None:
    """Return the first of a half, a quarter and so on of `tokens` that fits into memory.

    `tokens` and the result are positions of a batch. `attempt` is called with each number of
    positions and must use as much memory as the work with such batches does; a number fits if the
    call does not run out of memory. The smallest one tried is `longest`, the positions of the
    longest sentence. Returns None if that does not fit either, or if `tokens` is not more than
    `longest`, so that there is nothing smaller to try.
    """
    while tokens > longest:
        tokens = max(tokens // 2, longest)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the blocks that torch keeps from the attempt that failed
        try:
            attempt(tokens)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return tokens
    return None
