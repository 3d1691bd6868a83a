"""Turn attention scores into weights: by softmax, or as marginals of a linear chain ("Structured Attention Networks").

Scores are `[..., positions]` and every axis before the last is a batch. Masks are boolean; True marks a real position.
"""

import math

import torch
from torch import Tensor


def normalise(scores: Tensor, mask: Tensor, pairwise: Tensor | None) -> Tensor:
    """Return the weight of each position, 0 where `mask` is False: softmax, or `chain_marginals` given `pairwise`.

    `scores` are `[..., positions]`, `mask` broadcasts to them, and `pairwise` is `[2, 2]`. The value of a masked score
    is ignored. Softmax rows sum to 1 and need one unmasked position; marginals are each between 0 and 1.
    """
    if pairwise is not None:
        return chain_marginals(scores, mask, pairwise)
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def chain_marginals(unary: Tensor, mask: Tensor, pairwise: Tensor) -> Tensor:
    """Return p(z = 1) of each position in a chain of z in {0, 1} (section 3.1 of Kim et al., ICLR 2017).

    p(z) is proportional to exp(sum_i unary_i z_i + sum_i pairwise[z_i, z_(i+1)]), with log-potentials `unary`
    `[..., positions]` and `pairwise` `[2, 2]`. The marginals are `[..., positions]`; as in the paper, a row is not
    normalised and may sum to anything from 0 to the number of positions. `mask` broadcasts to `unary`; a masked
    position has marginal 0 and is left out of the chain, so that its neighbours become adjacent. Time is linear.
    """
    mask = mask.expand(unary.shape)
    unary = unary.masked_fill(~mask, 0.0)
    directions = ((unary, unary.flip(-1)), (mask, mask.flip(-1)), (pairwise, pairwise.T))
    before, after = _messages(*(torch.stack(each) for each in directions))
    marginals: Tensor = (before + unary + after.flip(-1)).sigmoid()
    return marginals.masked_fill(~mask, 0.0)


def _messages(unary: Tensor, mask: Tensor, pairwise: Tensor) -> Tensor:
    """Return the message that reaches each position from those before it, as log-odds of z = 1."""
    # As z is binary, log-odds are all that a forward-backward pass in log space has to carry. Messages are
    # `[directions, ..., positions]`, `pairwise` is `[directions, 2, 2]`; before the first unmasked position they are 0.
    stay_0, to_1, to_0, stay_1 = pairwise.view(-1, 4, *[1] * (unary.dim() - 2)).unbind(1)
    message, messages = torch.zeros_like(unary[..., 0]), []
    for score, there in zip(unary.unbind(-1), mask.unbind(-1), strict=True):
        messages.append(message)
        odds = score + message
        sent = torch.logaddexp(to_1, odds + stay_1) - torch.logaddexp(stay_0, odds + to_0)
        message = torch.where(there, sent, message)
    return torch.stack(messages, dim=-1)
