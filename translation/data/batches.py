"""Group sentences of similar length into batches, so that little of what a
network computes is padding.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from translation.data.corpus import Examples, Sentences
from translation.data.tokenizer import BEGIN, END, PAD
from translation.errors import UsageError

Indices = Int[ndarray, " sentences"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Token numbers (int64) of some pairs; `target_output` is `target_input` moved by one position.

    `source` and `target_output` end with END, `target_input` begins with BEGIN. Rows are filled up
    with PAD.
    """

    source: Int[Tensor, "sentences source"]
    target_input: Int[Tensor, "sentences target"]
    target_output: Int[Tensor, "sentences target"]

    @property
    def tokens(self) -> int:
        """Count the tokens to predict, END among them."""
        return int((self.target_output != PAD).sum())


def batch_indices(
    examples: Examples, tokens: int, generator: torch.Generator | None
) -> list[Indices]:
    """Return the indices of the examples of each batch of an epoch.

    Sentences x longest side, BEGIN or END counted, is at most `tokens`; a longer example is a batch
    of its own. With a generator, examples of equal lengths are shuffled, and so are the batches;
    without, they come from short to long. The same generator state gives the same order, so a
    training can resume in the middle of an epoch.
    """
    if tokens < 1:
        raise UsageError(f"a batch must have 1 token or more, not {tokens}")
    count = len(examples)
    ties = (
        np.arange(count)
        if generator is None
        else torch.randperm(count, generator=generator).numpy()
    )
    by_length = np.lexsort((ties, examples.source.lengths, examples.target.lengths))
    longest = np.maximum(examples.source.lengths, examples.target.lengths)[by_length] + 1
    cut = [by_length[start:stop] for start, stop in pairwise(_bounds(longest.tolist(), tokens))]
    if generator is None:
        return cut
    return [cut[place] for place in torch.randperm(len(cut), generator=generator).tolist()]


def _bounds(longest: list[int], tokens: int) -> list[int]:
    """Return where each batch starts, and the end, from the longer side of each row."""
    bounds = [0]
    while (start := bounds[-1]) < len(longest):
        stop, width = start + 1, longest[start]
        while stop < len(longest) and (stop + 1 - start) * max(width, longest[stop]) <= tokens:
            width = max(width, longest[stop])
            stop += 1
        bounds.append(stop)
    return bounds


def batch_of(examples: Examples, indices: Indices) -> Batch:
    """Return the batch of these examples."""
    given, expected = (
        _padded(examples.target, indices, begin=True),
        _padded(examples.target, indices, end=True),
    )
    return Batch(_padded(examples.source, indices, end=True), given, expected)


def _padded(
    sentences: Sentences, indices: Indices, *, begin: bool = False, end: bool = False
) -> Int[Tensor, "sentences positions"]:
    """Return rows of tokens with BEGIN before or END behind them, filled up with PAD."""
    starts = sentences.starts[indices]
    lengths = sentences.starts[indices + 1] - starts
    width = int(lengths.max()) + begin + end
    # The index of each position among its row's own tokens.
    places = np.broadcast_to(np.arange(width) - begin, (len(indices), width))
    is_token: Bool[ndarray, "sentences positions"] = (places >= 0) & (places < lengths[:, None])
    rows = np.full((len(indices), width), PAD, dtype=np.int64)
    rows[is_token] = sentences.tokens[(starts[:, None] + places)[is_token]]
    if begin:
        rows[places == -1] = BEGIN
    if end:
        rows[places == lengths[:, None]] = END
    return torch.from_numpy(rows)
