"""Decode with several networks at once: an ensemble, usually of the seeds of one recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from translation.decoding.incremental import IncrementalDecoder
from translation.transformer import Weights


class Ensemble(nn.Module):
    """Networks that were trained apart and translate together; see `IncrementalEnsemble`."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)


@dataclass
class EnsembleState:
    """The state of each network."""

    states: list[Any]

    def reorder(self, origin: Tensor) -> None:
        """Implement `KeyValueCache.reorder`."""
        for each in self.states:
            each.reorder(origin)

    def keep(self, sentences: Tensor) -> None:
        """Implement `KeyValueCache.keep`."""
        for each in self.states:
            each.keep(sentences)


class IncrementalEnsemble:
    """Decode by the mean of the networks' probabilities; attention is the mean of theirs."""

    def __init__(self, decoders: Sequence[IncrementalDecoder]) -> None:
        self.decoders = decoders

    def start(self, source: Tensor, beams: int, limit: int) -> EnsembleState:
        """Implement `IncrementalDecoder`."""
        return EnsembleState([each.start(source, beams, limit) for each in self.decoders])

    @torch.no_grad()
    def step(
        self, state: EnsembleState, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Implement `IncrementalDecoder`; the scores are logarithms of probabilities."""
        total: Tensor | None = None
        shown: list[Weights] = []
        for decoder, own in zip(self.decoders, state.states, strict=True):
            scores, weights = decoder.step(own, tokens, need_weights=need_weights)
            chances = scores.softmax(dim=-1)
            total = chances if total is None else total.add_(chances)
            shown.append(weights)
        assert total is not None, "an ensemble has a network"
        given = [each for each in shown if each is not None]
        return total.div_(len(self.decoders)).log_(), torch.stack(given).mean(
            dim=0
        ) if given else None
