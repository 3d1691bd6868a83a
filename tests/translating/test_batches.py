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


def sentences(lengths: list[int], seed: int) -> Sentences:
    tokens = np.random.default_rng(seed).integers(4, VOCABULARY, sum(lengths), dtype=np.int32)
    return Sentences(tokens, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def examples_of(sources: list[int], targets: list[int]) -> Examples:
    return Examples(sentences(sources, 1), sentences(targets, 2))


@pytest.fixture
def examples() -> Examples:
    draw = np.random.default_rng(0)
    return examples_of(draw.integers(1, 30, COUNT).tolist(), draw.integers(1, 30, COUNT).tolist())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_every_example_comes_once_an_epoch(examples: Examples, seed: int | None) -> None:
    cut = batch_indices(examples, TOKENS, None if seed is None else seeded(seed))
    assert sorted(np.concatenate(cut)) == list(range(COUNT))
    widths = [
        1 + max(examples.source.lengths[each].max(), examples.target.lengths[each].max())
        for each in cut
    ]
    assert all(len(each) * width <= TOKENS for each, width in zip(cut, widths, strict=True))


def test_rows_hold_the_sentences_with_begin_and_end(examples: Examples) -> None:
    expected: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for index in range(COUNT):
        source, target = (tuple(side.tolist()) for side in examples[index])
        expected[(*source, END), (BEGIN, *target), (*target, END)] += 1
    found: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for indices in batch_indices(examples, TOKENS, seeded()):
        batch = batch_of(examples, indices)
        parts = batch.source, batch.target_input, batch.target_output
        assert {part.dtype for part in parts} == {torch.int64}
        assert batch.target_input.shape == batch.target_output.shape
        assert batch.tokens == sum((row != PAD).sum() for row in batch.target_output)
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
    epoch = [batch_of(examples, indices) for indices in batch_indices(examples, 4096, seeded())]
    assert sum(batch.tokens for batch in epoch) == examples.target.lengths.sum() + len(examples)
    assert (
        sum(batch.tokens for batch in epoch) / sum(batch.target_output.numel() for batch in epoch)
        > 0.97
    )
