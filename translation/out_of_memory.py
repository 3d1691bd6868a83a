"""Recognise an out-of-memory error."""

import torch

# On a CPU torch raises a plain RuntimeError with one of these texts: Linux, Windows, and C++ on any
# system.
NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the GPU or the machine has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in NO_MEMORY)
