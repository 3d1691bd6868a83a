"""Attention weights from scores: softmax, or the marginals of a linear chain ("Structured Attention Networks").

Scores are `[..., positions]` and every axis before the last is a batch. Masks are boolean and True means "is there".
"""

import math

import torch
from torch import Tensor


def normalise(scores: Tensor, mask: Tensor, pairwise: Tensor | None) -> Tensor:
    """Weights of the positions, 0 where `mask` is False: softmax, or with `pairwise` `[2, 2]` `chain_marginals`.

    `scores` are `[..., positions]` and `mask` broadcasts to them; what a masked score is does not matter. Rows of
    softmax sum to 1 and need a position that is there; marginals are each between 0 and 1.
    """
    if pairwise is not None:
        return chain_marginals(scores, mask, pairwise)
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def chain_marginals(unary: Tensor, mask: Tensor, pairwise: Tensor) -> Tensor:
    """Of each position, p(z = 1) in a chain of z in {0, 1}: `[..., positions]` (section 3.1 of Kim et al., ICLR 2017).

    p(z) is proportional to exp(sum_i unary_i z_i + sum_i pairwise[z_i, z_(i+1)]): log-potentials, of which `unary` is
    `[..., positions]` and `pairwise` `[2, 2]`. A row may sum to anything from 0 to the number of positions: as in the
    paper it is not brought to 1. `mask` broadcasts to `unary`; a masked position is not in the chain, whose
    neighbours then meet, and its marginal is 0. Time is linear in positions.
    """
    mask = mask.expand(unary.shape)
    unary = unary.masked_fill(~mask, 0.0)
    before, after = _messages(
        torch.stack([unary, unary.flip(-1)]), torch.stack([mask, mask.flip(-1)]), torch.stack([pairwise, pairwise.T])
    )
    marginals: Tensor = (before + unary + after.flip(-1)).sigmoid()
    return marginals.masked_fill(~mask, 0.0)


def _messages(unary: Tensor, mask: Tensor, pairwise: Tensor) -> Tensor:
    """What the positions before each say of it, as log-odds of 1: `[directions, ..., positions]`.

    As z is binary, the log-odds are all that a forward-backward pass in log space has to carry. `pairwise` is
    `[directions, 2, 2]`. Before the first position that is there nothing is said: log-odds 0.
    """
    stay_0, to_1, to_0, stay_1 = pairwise.view(-1, 4, *[1] * (unary.dim() - 2)).unbind(1)
    message, messages = torch.zeros_like(unary[..., 0]), []
    for score, there in zip(unary.unbind(-1), mask.unbind(-1), strict=True):
        messages.append(message)
        odds = score + message
        said = torch.logaddexp(to_1, odds + stay_1) - torch.logaddexp(stay_0, odds + to_0)
        message = torch.where(there, said, message)
    return torch.stack(messages, dim=-1)
