"""When the memory does not suffice: how many tokens a batch may have, found by trying."""

from collections.abc import Callable

import torch

from translation.errors import TranslationError

# What torch says on a processor, where it has no error of its own for it: Linux, Windows, and C++ anywhere.
NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that a GPU or the machine had no memory left."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in NO_MEMORY)


def out_of_memory(tokens: int, longest: int, attempt: Callable[[int], object]) -> TranslationError:
    """The error for batches of so many `tokens`, which names a number that fits; see `fitting_tokens`."""
    fits = fitting_tokens(tokens, longest, attempt)
    if fits is None:
        return TranslationError(
            f"out of memory with batch_tokens = {tokens}, and with one sentence alone: take a smaller size under "
            "[network], or lower longest under [rules]"
        )
    return TranslationError(f"out of memory with batch_tokens = {tokens}: {fits} fits; set it under [training]")


def fitting_tokens(tokens: int, longest: int, attempt: Callable[[int], object]) -> int | None:
    """The first of a half, a quarter and so on of `tokens` that `attempt` has the memory for.

    Fewer than `longest`, the positions of the longest sentence, are no smaller batch: None where these do not fit.
    """
    while tokens > longest:
        tokens = max(tokens // 2, longest)
        if _fits(tokens, attempt):
            return tokens
    return None


def _fits(tokens: int, attempt: Callable[[int], object]) -> bool:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        attempt(tokens)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
