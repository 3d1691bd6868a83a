"""Laws of the recurrent networks alone: the formulas of their attention, marginals of a chain, what
they learn.
"""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.support.bounds import assert_close_in_float64
from translation.seq2seq import (
    Attention,
    EncodedSource,
    RecurrentClassifier,
    RecurrentConfig,
    chain_marginals,
)

POSITIONS, VOCABULARY = 5, 23
SMALL = RecurrentConfig(VOCABULARY, VOCABULARY, d_model=32, dropout=0.0)
KINDS = {
    "none": replace(SMALL, attention="none"),
    "additive": SMALL,
    "additive, structured": replace(SMALL, structured=True),
    "dot": replace(SMALL, attention="dot"),
    "dot, structured": replace(SMALL, attention="dot", structured=True),
    "additive, two layers": replace(SMALL, layers=2, shared_embeddings=False),
}


def tokens(length, seed, sentences=8):
    return torch.randint(
        4, VOCABULARY, (sentences, length), generator=torch.Generator().manual_seed(seed)
    )


def drawn(*shape, seed=0, scale=2.0):
    return scale * torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize("score", ["additive", "dot"])
@pytest.mark.parametrize("structured", [False, True])
def test_scores_and_contexts_are_those_of_the_papers(score, structured):
    attention = Attention(score, 6, structured=structured).double()
    parts = {name.removesuffix(".weight"): part for name, part in attention.named_parameters()}
    for part in parts.values():
        nn.init.normal_(part)
    memory, query, there = drawn(2, 4, 6), drawn(2, 3, 6, seed=1), torch.ones(4).bool()
    source = EncodedSource(memory, attention.keys(memory), there.expand(2, 1, 4))
    contexts, _ = attention(query, source)
    for sentence in range(2):
        for s, context in zip(query[sentence], contexts[sentence], strict=True):
            scores = [s @ h for h in memory[sentence]]
            if score == "additive":
                w_a, w_b, w_c = (
                    parts[name] for name in ("weigh", "project_query", "project_memory")
                )
                scores = [w_a[0] @ torch.tanh(w_b @ s + w_c @ h) for h in memory[sentence]]
            row = torch.stack(scores)
            weights = row.softmax(dim=0)
            if structured:
                weights = chain_marginals(row, there, parts["pairwise"])
            assert_close_in_float64(context, weights @ memory[sentence])


@pytest.mark.parametrize(("kind", "reads_it"), [("additive", False), ("dot", True)])
def test_bahdanau_attends_before_the_token_is_read_and_luong_after(kind, reads_it):
    torch.manual_seed(0)
    network = KINDS[kind].build().double().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    first, other = (network(tokens(7, 1), tokens(1, seed), need_weights=True)[1] for seed in (2, 3))
    assert ((first - other).abs().max() > 1e-3) == reads_it


@pytest.mark.one_case
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_to_reverse_eight_sentences_with_every_parameter(kind):
    torch.manual_seed(0)
    network, source = KINDS[kind].build(), tokens(5, 1)
    source[:3, 4] = 0
    target = torch.cat(
        [source.new_full((8, 1), 2), source.flip(-1), source.new_full((8, 1), 3)], dim=-1
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    counted = target[:, 1:] != 0
    for _ in range(150):
        scores = network.logits(network(source, target[:, :-1])[0])
        loss = nn.functional.cross_entropy(scores[counted], target[:, 1:][counted])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name
    assert loss < 0.1  # at most .04, deviation .008, of six seeds of every kind of one layer


@pytest.mark.parametrize("masked", [True, False])
def test_a_classifier_that_is_masked_reads_no_padding_on_either_side(masked):
    torch.manual_seed(0)
    config = RecurrentConfig(20, 20, 8, layers=2, dropout=0.0)
    classify = RecurrentClassifier(config, 3, masked=masked).double().eval()
    bare = classify(torch.tensor([[5, 9, 7]]))
    for padded in ([[0, 0, 5, 9, 7]], [[5, 9, 7, 0, 0, 0]]):
        found = classify(torch.tensor(padded))
        assert torch.allclose(found, bare, rtol=0, atol=1e-9) == masked


def enumerated(unary, pairwise):
    """p(z_i = 1) of one row, by the sum over all chains."""
    total, ones = 0.0, torch.zeros_like(unary)
    for chain in itertools.product((0, 1), repeat=len(unary)):
        z = torch.tensor(chain)
        weight = ((unary * z).sum() + pairwise[z[:-1], z[1:]].sum()).exp()
        total, ones = total + weight, ones + weight * z
    return ones / total


@pytest.mark.parametrize("there", ["1", "11", "11111", "11100", "00111", "01011"])
@pytest.mark.parametrize("fill", [7.0, -math.inf, math.nan])
def test_marginals_of_what_is_in_the_chain_equal_enumeration(there, fill):
    mask, pairwise = torch.tensor([each == "1" for each in there]), drawn(2, 2, seed=1)
    unary = drawn(3, len(there)).masked_fill(~mask, fill).requires_grad_()
    found = chain_marginals(unary, mask, pairwise)
    for row, marginals in zip(unary, found, strict=True):
        assert_close_in_float64(marginals[mask], enumerated(row[mask], pairwise))
    assert (found[:, ~mask] == 0).all()
    found.sum().backward()
    assert unary.grad is not None
    assert unary.grad.isfinite().all()
    assert (unary.grad[:, ~mask] == 0).all()


def test_gradients_of_marginals_are_those_of_differences():
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]).bool()
    inputs = drawn(2, POSITIONS).requires_grad_(), drawn(2, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda unary, pairwise: chain_marginals(unary, mask, pairwise), inputs
    )


def test_marginals_of_a_long_chain_with_large_potentials_are_finite():
    unary = drawn(2, 400, scale=200).float().requires_grad_()
    found = chain_marginals(unary, torch.ones(400).bool(), drawn(2, 2, scale=50).float())
    found.sum().backward()
    assert unary.grad is not None
    assert found.isfinite().all()
    assert unary.grad.isfinite().all()
