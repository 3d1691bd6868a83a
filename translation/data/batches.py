"""Group sentences of similar length into batches, so that these have little padding."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from translation.data.corpus import Examples, Sentences
from translation.data.tokenizer import BEGIN, END, PAD

Indices = Int[ndarray, " sentences"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Token numbers (int64) of some pairs; rows end with END and are filled up with PAD."""

    source: Int[Tensor, "sentences source"]
    target_output: Int[Tensor, "sentences target"]

    @property
    def target_input(self) -> Int[Tensor, "sentences target"]:
        """Return `target_output` moved by one position: it begins with BEGIN and has no END."""
        moved = self.target_output.roll(1, dims=1)
        moved[moved == END] = PAD
        moved[:, 0] = BEGIN
        return moved

    @property
    def tokens(self) -> int:
        """Count the tokens to predict, END among them."""
        return int((self.target_output != PAD).sum())

    @property
    def sides(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return source, `target_input` and `target_output`."""
        return self.source, self.target_input, self.target_output

    def padded(self) -> Int[Tensor, "3 sentences positions"]:
        """Return the `sides` with padding, which brings them to one of few shapes."""
        rows = len(self.source)
        longest = max(self.source.shape[1], self.target_output.shape[1])
        tokens = torch.full((3, rounded_up(rows), rounded_up(longest)), PAD)
        tokens[0, rows:, 0] = END  # an empty sentence: attention needs a key
        for padded, side in zip(tokens, self.sides, strict=True):
            padded[:rows, : side.shape[1]] = side
        return tokens


def rounded_up(size: int) -> int:
    """Return `size` rounded up to four binary digits: by an eighth at most.

    The batches of 1,024 positions of Multi30k then have 34 shapes, not 243, and 11% more positions.
    """
    unit = 1 << max(0, (size - 1).bit_length() - 4)
    return math.ceil(size / unit) * unit


def batch_indices(
    examples: Examples, tokens: int, generator: torch.Generator | None
) -> list[Indices]:
    """Return the indices of the examples of each batch of an epoch.

    A batch has at most `tokens` positions: pairs times the longest side, BEGIN or END included; a
    longer example is alone. Sorted by target, then source length. With a generator, equal lengths
    and batches are shuffled, the same for the same state; without, short comes first.
    """
    count = len(examples)
    if generator is None:
        order_of_ties = np.arange(count)
    else:
        order_of_ties = torch.randperm(count, generator=generator).numpy()
    source_lengths = examples.source.lengths
    target_lengths = examples.target.lengths
    # By the length of the target, then of the source: the last key counts first.
    by_length = np.lexsort((order_of_ties, source_lengths, target_lengths))
    longest = np.maximum(source_lengths, target_lengths)[by_length] + 1
    widths = longest.tolist()
    bounds = [0]
    rows = 0  # of the batch that is being filled
    width = 0  # the positions of its longest row
    for place, length in enumerate(widths):
        new_width = max(width, length)  # rows are sorted by the target's length, not by this one
        if rows and (rows + 1) * new_width > tokens:
            bounds.append(place)
            rows = 0
            new_width = length
        rows += 1
        width = new_width
    if rows:
        bounds.append(len(widths))
    batches = [by_length[start:stop] for start, stop in pairwise(bounds)]
    if generator is None:
        return batches
    order = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[place] for place in order]


def batch_of(examples: Examples, indices: Indices) -> Batch:
    """Return the batch of these examples."""
    return Batch(
        source=_padded(examples.source, indices),
        target_output=_padded(examples.target, indices),
    )


def _padded(sentences: Sentences, indices: Indices) -> Int[Tensor, "sentences positions"]:
    """Return rows of tokens with END behind them, filled up with PAD."""
    starts = sentences.starts[indices, None]  # [sentences, 1], as `lengths`
    lengths = sentences.starts[indices + 1, None] - starts
    places = np.arange(lengths.max() + 1)
    is_token: Bool[ndarray, "sentences positions"] = places < lengths
    rows = np.full(is_token.shape, PAD, dtype=np.int64)
    rows[is_token] = sentences.tokens[(starts + places)[is_token]]
    rows[places == lengths] = END
    return torch.from_numpy(rows)
