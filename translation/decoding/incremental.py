"""Decode position by position: the interface for a search, a Transformer with a cache, an ensemble.

Keys and values are computed once and kept, the source's once for all beams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from translation.transformer import DecoderLayer, Transformer, Weights

# Positions for which the cache has room at first. The room is doubled when full, as allocating
# memory for all positions at once is slow. Attention also has at least so many keys, some of them
# masked: torch's softmax is five times as slow if the keys do not fill a vector of 16.
FIRST_CAPACITY = 16


class IncrementalDecoder(Protocol):
    """The interface of a network that decodes position by position."""

    def start(self, source: Tensor, beams: int, limit: int) -> Any:
        """Encode `source`, and return the state from which decoding starts.

        `source` is `[sentences, source positions]` tokens, padded with 0. The state has room for
        `limit` steps of `beams` beams, and the methods `reorder` and `keep` of `KeyValueCache`.
        """

    def step(
        self, state: Any, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Append tokens `[sentences, beams]`; return scores of the next ones, and attention.

        The scores are `[sentences, beams, target vocabulary]`; the attention is `[sentences, beams,
        source positions]`, None unless requested or if the network has none.
        """


@dataclass
class KeyValueCache:
    """The Transformer's state: keys and values of the first `length` positions of every beam.

    They are never moved: each beam attends to the keys of all beams of its sentence, under a mask
    of its own past. To continue from another beam, only that mask is copied.
    """

    memory: list[Tensor]  # of each layer, [2, sentences, heads, source positions, d_k]
    memory_mask: Tensor  # [sentences, 1, source positions]
    own: list[Tensor]  # of each layer, [2, sentences, heads, capacity, beams, d_k]
    # [sentences, beams, limit, beams]: whether the past of a beam (second axis) has the position of
    # the third axis of the beam of the last axis.
    past: Tensor
    source_positions: int  # `memory` may have more keys, which are masked
    length: int = 0

    def reorder(self, origin: Tensor) -> None:
        """Continue each beam from the beam `origin` `[sentences, beams]` of its sentence."""
        # [sentences, 1]: each sentence takes the beams of its own row.
        rows = torch.arange(len(origin), device=origin.device).unsqueeze(-1)
        self.past[:, :, : self.length] = self.past[rows, origin, : self.length]

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but these, `[remaining sentences]`."""
        # index_select is faster than [:, sentences].
        self.memory = [layer.index_select(1, sentences) for layer in self.memory]
        self.own = [layer.index_select(1, sentences) for layer in self.own]
        self.memory_mask = self.memory_mask[sentences]
        self.past = self.past[sentences]

    def next_position(self) -> None:
        """Add a position, whose keys and values are still to be stored; double the room if full."""
        if self.length == self.own[0].shape[3]:
            self.own = [torch.cat([layer, torch.empty_like(layer)], dim=3) for layer in self.own]
        self.length += 1

    def mask_of_past(self) -> Tensor | None:
        """Return the mask of the keys of each beam; None if it may attend to all of them.

        The mask is `[sentences, beams, length * beams]`. A single beam has at least
        `FIRST_CAPACITY` keys: its mask is `[1, 1, FIRST_CAPACITY]` while it has stored fewer, then
        None.
        """
        beams = self.past.shape[1]
        if beams > 1:
            return self.past[:, :, : self.length].flatten(-2)
        if self.length >= FIRST_CAPACITY:
            return None
        keys = torch.arange(FIRST_CAPACITY, device=self.past.device)
        return (keys < self.length).view(1, 1, -1)


class IncrementalTransformer:
    """Decode with the Transformer position by position, with the scores of a full pass."""

    def __init__(self, network: Transformer) -> None:
        self.network = network
        self.layers = cast(Sequence[DecoderLayer], network.decoder)

    @torch.no_grad()
    def start(self, source: Tensor, beams: int, limit: int) -> KeyValueCache:
        """Implement `IncrementalDecoder`."""
        memory, mask = self.network.encode(source)
        source_positions = source.shape[-1]
        missing = max(0, FIRST_CAPACITY - source_positions)  # keys to add, which are masked
        # `pad` adds zeros behind the positions, the last axis but one of keys and values.
        remembered = [
            nn.functional.pad(layer.remember(memory), (0, 0, 0, missing)) for layer in self.layers
        ]
        two, sentences, heads, _, width = remembered[0].shape
        own = [
            memory.new_zeros(two, sentences, heads, FIRST_CAPACITY, beams, width)
            for _ in self.layers
        ]
        # At first, the past of each beam has its own positions alone: [beams, 1, beams].
        itself = torch.eye(beams, dtype=torch.bool, device=source.device).unsqueeze(1)
        return KeyValueCache(
            memory=remembered,
            memory_mask=nn.functional.pad(mask, (0, missing)),
            own=own,
            past=itself.repeat(sentences, 1, limit, 1),
            source_positions=source_positions,
        )

    @torch.no_grad()
    def step(
        self, state: KeyValueCache, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Implement `IncrementalDecoder`; attention is the last layer's, averaged over heads."""
        position = torch.full_like(tokens[:1, :1], state.length)  # [1, 1]: the same for all beams
        x = self.network.embed_target(tokens, position)
        weights: Weights = None
        state.next_position()
        past = state.mask_of_past()
        for layer, remembered, own in zip(self.layers, state.memory, state.own, strict=True):
            attended = _attend_past(layer, x, own, state.length, past)
            # Always with weights: `translation.transformer.attend` then computes with plain
            # products, for whose softmax `FIRST_CAPACITY` was chosen.
            x, weights = layer.attend_memory(
                x,
                attended,
                remembered,
                state.memory_mask,
                need_weights=True,
            )
        scores = self.network.logits(self.network.decoder_norm(x))
        if not need_weights or weights is None:
            return scores, None
        # The mean over the heads, without the keys that `start` added.
        return scores, weights.mean(dim=-3)[..., : state.source_positions]


def _attend_past(
    layer: DecoderLayer, x: Tensor, own: Tensor, length: int, past: Tensor | None
) -> Tensor:
    """Self-attend from each beam's newest position, and store its keys and values in `own`.

    `x` and the result are `[sentences, beams, d_model]`; `length` counts the newest position;
    `past` is the mask of `KeyValueCache.mask_of_past`.
    """
    entered = layer.around_attention.enter(x)
    query, new_key, new_value = layer.attention.queries_keys_values(entered)
    keys, values = own
    keys[..., length - 1, :, :] = new_key
    values[..., length - 1, :, :] = new_value
    beams = own.shape[-2]
    # With a single beam, the mask may cover more positions than `length`.
    attended_positions = length if past is None else past.shape[-1] // beams
    # The keys and values of all beams in one axis: [sentences, heads, positions * beams, d_k].
    key, value = own[..., :attended_positions, :, :].flatten(-3, -2)
    # With weights only for the plain products, as in `step`.
    attended, _ = layer.attention.mix(query, key, value, past, need_weights=True)
    return attended


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
