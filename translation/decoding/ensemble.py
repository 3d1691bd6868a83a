"""Translate by several networks at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from translation.transformer import Weights


@dataclass
class EnsembleState:
    """The state of each network."""

    states: list[Any]

    def reorder(self, origin: Tensor) -> None:
        """Implement `translation.transformer.KeyValueCache.reorder`."""
        for state in self.states:
            state.reorder(origin)

    def keep(self, sentences: Tensor) -> None:
        """Implement `translation.transformer.KeyValueCache.keep`."""
        for state in self.states:
            state.keep(sentences)


class Ensemble(nn.Module):
    """Networks that were trained separately: the mean of their probabilities and attentions."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def start(self, source: Tensor, beams: int, limit: int) -> EnsembleState:
        """Implement `translation.decoding.beam_search.IncrementalDecoder`."""
        networks: Any = self.networks
        return EnsembleState([network.start(source, beams, limit) for network in networks])

    @torch.no_grad()
    def step(
        self, state: EnsembleState, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Implement `translation.decoding.beam_search.IncrementalDecoder`.

        The scores are logarithms of probabilities.
        """
        total: Tensor | None = None
        attentions: list[Tensor] = []  # of the networks that have attention, on request
        networks: Any = self.networks
        for network, state_of_network in zip(networks, state.states, strict=True):
            scores, weights = network.step(state_of_network, tokens, need_weights=need_weights)
            probabilities = scores.softmax(dim=-1)
            total = probabilities if total is None else total.add_(probabilities)
            if weights is not None:
                attentions.append(weights)
        assert total is not None, "an ensemble has a network"
        log_probabilities = total.div_(len(networks)).log_()
        if not attentions:
            return log_probabilities, None
        return log_probabilities, torch.stack(attentions).mean(dim=0)
