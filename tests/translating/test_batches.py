"""Laws of batches: every example once, little padding, and padding that a network does not see."""

from collections import Counter

import numpy as np
import pytest
import torch

from translation.data.batches import batch_indices, batch_of, rounded_up
from translation.data.corpus import Examples, Sentences
from translation.data.tokenizer import BEGIN, END, PAD

VOCABULARY, COUNT, TOKENS = 40, 203, 120


def sentences(seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 30, COUNT)
    tokens = draw.integers(4, VOCABULARY, lengths.sum(), dtype=np.int32)
    return Sentences(tokens, np.concatenate([[0], np.cumsum(lengths)]))


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_an_epoch_has_every_example_once_with_begin_end_and_padding_behind(seed):
    examples = Examples(sentences(1), sentences(2))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    expected, found = Counter[tuple[tuple[int, ...], ...]](), Counter[tuple[tuple[int, ...], ...]]()
    for index in range(COUNT):
        source, target = (tuple(side.tolist()) for side in examples[index])
        expected[(*source, END), (BEGIN, *target), (*target, END)] += 1
    positions = 0
    for indices in batch_indices(examples, TOKENS, generator):
        batch = batch_of(examples, indices)
        parts = batch.source, batch.target_input, batch.target_output
        assert batch.tokens == (batch.target_output != PAD).sum()
        assert max(part.numel() for part in parts) <= TOKENS
        positions += batch.target_output.numel()
        for part in parts:  # padding is behind alone, and no column is without a token
            real = (part != PAD).int()
            assert (real.diff(dim=1) <= 0).all()
            assert real.any(dim=0).all()
        for rows in zip(*(part.tolist() for part in parts), strict=True):
            found[tuple(tuple(token for token in row if token != PAD) for row in rows)] += 1
    assert found == expected
    assert examples.target.lengths.sum() + COUNT > 0.85 * positions  # the rest is padding


def test_padded_batches_have_few_shapes_and_an_eighth_more_rows_and_positions_at_most():
    sizes = range(1, 2000)
    assert all(size <= rounded_up(size) <= size * 9 / 8 for size in sizes)
    assert len({rounded_up(size) for size in sizes}) == 72
    examples = Examples(sentences(1), sentences(2))
    shapes, padded_shapes = set(), set()
    for epoch in range(20):
        generator = torch.Generator().manual_seed(epoch)
        for indices in batch_indices(examples, TOKENS, generator):
            batch = batch_of(examples, indices)
            padded = batch.padded()
            rows = len(indices)
            for side, wider in zip(batch.sides, padded, strict=True):
                kept = wider[:rows, : side.shape[1]]
                assert torch.equal(kept, side)
                assert (wider != PAD).sum() - (kept != PAD).sum() in (0, len(wider) - rows)
            assert (padded[0] != PAD).any(dim=1).all()  # a source without a token has no attention
            shapes.add(tuple(side.shape for side in batch.sides))
            padded_shapes.add(padded.shape)
    assert len(padded_shapes) < 25 < len(shapes)
