"""Laws of batches: every example once, little padding, and padding that a network does not see."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests.support.places import SHARED
from translation.data.batches import batch_indices, batch_of
from translation.data.corpus import Corpus, Examples, Rules, Sentences, clean
from translation.data.tokenizer import BEGIN, END, PAD, Tokenizer

TRAIN = SHARED / "translation" / "multi30k"
VOCABULARY, COUNT, TOKENS = 40, 203, 120


def sentences(seed: int) -> Sentences:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 30, COUNT)
    tokens = draw.integers(4, VOCABULARY, lengths.sum(), dtype=np.int32)
    return Sentences(tokens, np.concatenate([[0], np.cumsum(lengths)]))


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_an_epoch_has_every_example_once_with_begin_end_and_padding_behind(
    seed: int | None,
) -> None:
    examples = Examples(sentences(1), sentences(2))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    expected, found = Counter[tuple[tuple[int, ...], ...]](), Counter[tuple[tuple[int, ...], ...]]()
    for index in range(COUNT):
        source, target = (tuple(side.tolist()) for side in examples[index])
        expected[(*source, END), (BEGIN, *target), (*target, END)] += 1
    for indices in batch_indices(examples, TOKENS, generator):
        batch = batch_of(examples, indices)
        parts = batch.source, batch.target_input, batch.target_output
        assert batch.tokens == (batch.target_output != PAD).sum()
        assert max(part.numel() for part in parts) <= TOKENS
        for part in parts:  # padding is behind alone, and no column is without a token
            real = (part != PAD).int()
            assert (real.diff(dim=1) <= 0).all()
            assert real.any(dim=0).all()
        for rows in zip(*(part.tolist() for part in parts), strict=True):
            found[tuple(tuple(token for token in row if token != PAD) for row in rows)] += 1
    assert found == expected


@pytest.mark.soak
@pytest.mark.skipif(not TRAIN.is_dir(), reason="shared data is not beside this clone")
def test_nearly_all_target_positions_of_real_captions_are_real() -> None:
    corpus = Corpus(TRAIN / "train.en.txt.gz", TRAIN / "train.de.txt.gz", name="multi30k")
    pairs = list(corpus.pairs())
    tokenizer = Tokenizer.train((text for pair in pairs for text in pair), 10_000)
    examples = clean(pairs, tokenizer, tokenizer, Rules())
    shuffled = batch_indices(examples, 4096, torch.Generator().manual_seed(0))
    epoch = [batch_of(examples, indices) for indices in shuffled]
    tokens = sum(batch.tokens for batch in epoch)
    assert tokens == examples.target.lengths.sum() + len(examples)
    assert tokens / sum(batch.target_output.numel() for batch in epoch) > 0.97
