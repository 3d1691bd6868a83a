"""Laws of attention as marginals of a chain: equal to enumeration, blind to
what is not in the chain.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from tests.support.bounds import assert_close_in_float64
from translation.seq2seq import chain_marginals, normalise

POSITIONS = 5


def drawn(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def everywhere(positions: int = POSITIONS) -> Tensor:
    return torch.ones(positions, dtype=torch.bool)


def enumerated(unary: Tensor, pairwise: Tensor) -> Tensor:
    """p(z_i = 1) of one row, by the sum over all chains."""
    total, ones = 0.0, torch.zeros_like(unary)
    for chain in itertools.product((0, 1), repeat=len(unary)):
        z = torch.tensor(chain)
        weight = ((unary * z).sum() + pairwise[z[:-1], z[1:]].sum()).exp()
        total, ones = total + weight, ones + weight * z
    return ones / total


def test_marginals_equal_enumeration() -> None:
    unary, pairwise = drawn(3, 2, POSITIONS), drawn(2, 2, seed=1)
    expected = torch.stack([enumerated(row, pairwise) for row in unary.flatten(0, 1)]).view_as(
        unary
    )
    found = chain_marginals(unary, everywhere(), pairwise)
    assert_close_in_float64(found, expected)


@pytest.mark.parametrize("positions", [1, 2])
def test_the_shortest_chains_equal_enumeration(positions: int) -> None:
    unary, pairwise = drawn(positions), drawn(2, 2, seed=1)
    found = chain_marginals(unary, everywhere(positions), pairwise)
    assert_close_in_float64(found, enumerated(unary, pairwise))


@pytest.mark.parametrize(
    "there", [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 1]], ids=["behind", "front", "within"]
)
@pytest.mark.parametrize("fill", [0.0, 7.0, -math.inf, math.nan])
def test_what_is_not_there_is_not_in_the_chain(there: list[int], fill: float) -> None:
    mask, pairwise = torch.tensor(there).bool(), drawn(2, 2, seed=1)
    unary = drawn(POSITIONS).masked_fill(~mask, fill).requires_grad_()
    found = chain_marginals(unary, mask, pairwise)
    assert_close_in_float64(found[mask], enumerated(unary[mask], pairwise))
    assert (found[~mask] == 0).all()
    found.sum().backward()
    assert unary.grad is not None
    assert unary.grad.isfinite().all()
    assert (unary.grad[~mask] == 0).all()


def test_gradients_are_those_of_differences() -> None:
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]).bool()
    inputs = drawn(2, POSITIONS).requires_grad_(), drawn(2, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda unary, pairwise: chain_marginals(unary, mask, pairwise), inputs
    )


def test_without_pairwise_potentials_positions_are_independent() -> None:
    unary = drawn(POSITIONS)
    assert_close_in_float64(
        chain_marginals(unary, everywhere(), torch.zeros(2, 2).double()), unary.sigmoid()
    )


def test_marginals_of_a_long_chain_with_large_potentials_are_finite() -> None:
    unary, pairwise = (
        drawn(2, 400, scale=200).float().requires_grad_(),
        drawn(2, 2, seed=1, scale=50).float(),
    )
    found = chain_marginals(unary, everywhere(400), pairwise)
    found.sum().backward()
    assert unary.grad is not None
    assert found.isfinite().all()
    assert unary.grad.isfinite().all()


def test_one_mask_serves_all_queries_of_a_sentence() -> None:
    scores, mask = (
        drawn(2, 3, POSITIONS),
        torch.tensor([[[1, 1, 1, 1, 1]], [[0, 1, 1, 1, 0]]]).bool(),
    )
    for pairwise in (None, drawn(2, 2, seed=1)):
        found = normalise(scores, mask, pairwise)
        expected = normalise(scores[1, 2, 1:4], everywhere(3), pairwise)
        assert_close_in_float64(found[1, 2, 1:4], expected)
        assert (found[1, :, [0, 4]] == 0).all()


def test_softmax_is_softmax_over_what_is_there() -> None:
    scores, mask = drawn(POSITIONS), torch.tensor([0, 1, 1, 1, 0]).bool()
    found = normalise(scores, mask, None)
    assert_close_in_float64(found[1:4], scores[1:4].exp() / scores[1:4].exp().sum())
