"""Laws of batches: every example once, little padding, and padding that a network does not see."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from translation.batches import batch_of, order
from translation.corpus import Corpus, Examples, Rules, Sentences, clean
from translation.errors import UsageError
from translation.tokenizer import BEGIN, END, PAD, Tokenizer
from translation.transformer import TransformerConfig

TRAIN = Path(__file__).parents[1].parent / "shared" / "data" / "translation" / "multi30k"
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
@pytest.mark.parametrize("multiple", [1, 4])
def test_every_example_comes_once_an_epoch(examples: Examples, seed: int | None, multiple: int) -> None:
    cut = order(examples, TOKENS, None if seed is None else seeded(seed), multiple=multiple)
    assert sorted(np.concatenate(cut)) == list(range(COUNT))
    widths = [1 + max(examples.source_lengths[each].max(), examples.target_lengths[each].max()) for each in cut]
    assert all(len(each) * width <= TOKENS for each, width in zip(cut, widths, strict=True))
    sizes = [len(each) for each in cut if len(each) > multiple]
    assert sum(size % multiple != 0 for size in sizes) <= 1


def test_rows_hold_the_sentences_with_begin_and_end(examples: Examples) -> None:
    expected: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for index in range(COUNT):
        source, target = (tuple(side.tolist()) for side in examples[index])
        expected[(*source, END), (BEGIN, *target), (*target, END)] += 1
    for front in (False, True):
        found: Counter[tuple[tuple[int, ...], ...]] = Counter()
        for indices in order(examples, TOKENS, seeded()):
            batch = batch_of(examples, indices, front=front)
            parts = batch.source, batch.target_input, batch.target_output
            assert {part.dtype for part in parts} == {torch.int64}
            assert batch.target_input.shape == batch.target_output.shape
            assert batch.tokens == sum((row != PAD).sum() for row in batch.target_output)
            for part in parts:  # padding is on one side alone, and no column is without a token
                real = (part != PAD).int()
                assert (real.diff(dim=1) * (1 if front else -1) >= 0).all()
                assert real.any(dim=0).all()
            for rows in zip(*(part.tolist() for part in parts), strict=True):
                found[tuple(tuple(token for token in row if token != PAD) for row in rows)] += 1
        assert found == expected


def test_a_long_example_is_a_batch_of_its_own() -> None:
    examples = examples_of([3, 500, 4, 2], [3, 4, 900, 2])
    cut = order(examples, 20, seeded())
    assert {1, 2} <= {int(each[0]) for each in cut if len(each) == 1}
    assert sorted(np.concatenate(cut)) == [0, 1, 2, 3]


def test_without_a_generator_they_come_from_short_to_long(examples: Examples) -> None:
    lengths = [int(examples.target_lengths[index]) for each in order(examples, TOKENS, None) for index in each]
    assert lengths == sorted(lengths)


def test_the_generator_alone_decides_the_order(examples: Examples) -> None:
    generator = seeded(3)
    first, second = (order(examples, TOKENS, generator) for _ in range(2))
    again = order(examples, TOKENS, seeded(3))
    assert [each.tolist() for each in first] == [each.tolist() for each in again]
    assert [each.tolist() for each in first] != [each.tolist() for each in second]


def test_no_examples_make_no_batch() -> None:
    assert order(examples_of([], []), TOKENS, seeded()) == []


@pytest.mark.parametrize(("tokens", "multiple"), [(0, 1), (10, 0)])
def test_a_batch_of_nothing_is_refused(examples: Examples, tokens: int, multiple: int) -> None:
    with pytest.raises(UsageError, match="a batch has 1 token or more"):
        order(examples, tokens, None, multiple=multiple)


def test_padding_on_either_side_gives_the_same_output(examples: Examples) -> None:
    torch.manual_seed(0)
    config = TransformerConfig(
        VOCABULARY, VOCABULARY, d_model=16, heads=2, d_ff=20, encoder_layers=2, decoder_layers=2, dropout=0.0
    )
    network = config.build().double().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    indices = np.arange(12)
    behind, front = batch_of(examples, indices), batch_of(examples, indices, front=True)
    assert not torch.equal(behind.source, front.source)
    expected = network(behind.source, behind.target_input)[0][behind.target_input != PAD]
    found = network(front.source, front.target_input)[0][front.target_input != PAD]
    torch.testing.assert_close(found, expected)
    assert torch.equal(behind.target_output[behind.target_input != PAD], front.target_output[front.target_input != PAD])


@pytest.mark.skipif(not TRAIN.is_dir(), reason="shared data is not beside this clone")
def test_nearly_all_target_positions_of_real_captions_are_real() -> None:
    corpus = Corpus(TRAIN / "train.en.txt.gz", TRAIN / "train.de.txt.gz", name="multi30k")
    pairs = list(corpus.pairs())
    tokenizer = Tokenizer.train((text for pair in pairs for text in pair), 10_000)
    examples = clean(pairs, tokenizer, tokenizer, Rules())
    epoch = [batch_of(examples, indices) for indices in order(examples, 4096, seeded())]
    assert sum(batch.tokens for batch in epoch) == examples.target_lengths.sum() + len(examples)
    assert sum(batch.tokens for batch in epoch) / sum(batch.target_output.numel() for batch in epoch) > 0.97
