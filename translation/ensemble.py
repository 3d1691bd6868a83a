"""Several networks that translate as one: the mean of what they expect next."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from translation.stepping import Stepper
from translation.transformer import Weights


@dataclass
class States:
    """The states of the members, in their order."""

    members: list[Any]

    def reorder(self, origin: Tensor) -> None:
        """See `State`."""
        for member in self.members:
            member.reorder(origin)

    def keep(self, sentences: Tensor) -> None:
        """See `State`."""
        for member in self.members:
            member.keep(sentences)


class Ensemble:
    """A `Stepper` whose probabilities, and whose attention, are the mean of its members'.

    The members read and write the same vocabularies. Raises `ValueError` without any member.
    """

    def __init__(self, steppers: Sequence[Stepper]) -> None:
        if not steppers:
            raise ValueError("an ensemble needs at least one member")
        self.steppers = tuple(steppers)

    def start(self, source: Tensor, beams: int, limit: int) -> States:
        """See `Stepper`."""
        return States([stepper.start(source, beams, limit) for stepper in self.steppers])

    @torch.no_grad()
    def step(self, state: States, tokens: Tensor, *, need_weights: bool = False) -> tuple[Tensor, Weights]:
        """See `Stepper`; the scores are logarithms of the mean probabilities."""
        pairs = zip(self.steppers, state.members, strict=True)
        steps = [stepper.step(member, tokens, need_weights=need_weights) for stepper, member in pairs]
        scores = torch.stack([each.log_softmax(dim=-1) for each, _ in steps]).logsumexp(dim=0)
        shown = [weights for _, weights in steps if weights is not None]
        return scores - math.log(len(steps)), torch.stack(shown).mean(dim=0) if shown else None
