"""Decode with several networks at once: an ensemble, usually of the seeds of one recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from translation.decoding.incremental import IncrementalDecoder
from translation.transformer import Weights


class Ensemble(nn.Module):
    """Networks that were trained separately and translate together, by `IncrementalEnsemble`."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)


@dataclass
class EnsembleState:
    """The state of each network."""

    states: list[Any]

    def reorder(self, origin: Tensor) -> None:
        """Implement `KeyValueCache.reorder`."""
        for state in self.states:
            state.reorder(origin)

    def keep(self, sentences: Tensor) -> None:
        """Implement `KeyValueCache.keep`."""
        for state in self.states:
            state.keep(sentences)


class IncrementalEnsemble:
    """Decode by the mean of the networks' probabilities; the attention is their mean too."""

    def __init__(self, decoders: Sequence[IncrementalDecoder]) -> None:
        self.decoders = decoders

    def start(self, source: Tensor, beams: int, limit: int) -> EnsembleState:
        """Implement `IncrementalDecoder`."""
        states = [decoder.start(source, beams, limit) for decoder in self.decoders]
        return EnsembleState(states)

    @torch.no_grad()
    def step(
        self, state: EnsembleState, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Implement `IncrementalDecoder`; the scores are logarithms of probabilities."""
        total: Tensor | None = None
        attentions: list[Tensor] = []  # of the networks that have attention, on request
        for decoder, decoder_state in zip(self.decoders, state.states, strict=True):
            scores, weights = decoder.step(decoder_state, tokens, need_weights=need_weights)
            probabilities = scores.softmax(dim=-1)
            total = probabilities if total is None else total.add_(probabilities)
            if weights is not None:
                attentions.append(weights)
        assert total is not None, "an ensemble has a network"
        log_probabilities = total.div_(len(self.decoders)).log_()
        if not attentions:
            return log_probabilities, None
        return log_probabilities, torch.stack(attentions).mean(dim=0)
