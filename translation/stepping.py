"""Translations under way: what a search asks of a network, and the Transformer's answer, with its keys and values kept.

A step costs one position of each beam, however many came before: keys and values are written once into memory that
was taken at the start. What is known of the source is kept once a sentence, for all its beams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from translation.transformer import DecoderLayer, Transformer, Weights


class State(Protocol):
    """What a network keeps of `[sentences, beams]` translations under way."""

    def reorder(self, origin: Tensor) -> None:
        """Let each beam go on from the beam `origin` `[sentences, beams]` of its sentence."""

    def keep(self, sentences: Tensor) -> None:
        """Go on with these sentences `[kept]` alone."""


class Stepper(Protocol):
    """A network that translates position by position."""

    def start(self, source: Tensor, beams: int, limit: int) -> Any:
        """Read `[sentences, source positions]` tokens, padded with 0 on either side; a `State` of up to `limit` steps.

        In it each sentence has so many beams, none of which has a token yet.
        """

    def step(self, state: Any, tokens: Tensor, *, need_weights: bool = False) -> tuple[Tensor, Weights]:
        """Append `[sentences, beams]` tokens; return scores of the next, and attention to the source on request.

        The scores are `[sentences, beams, target vocabulary]`, the weights `[sentences, beams, source positions]`.
        """


@dataclass
class KeysValues:
    """The Transformer's state; `length` positions of `limit` are written.

    Keys and values stay where they were written: each beam attends to all that its sentence's beams have written, under
    a mask that shows it its own past. To go on from another beam is then to copy a row of the mask.
    """

    memory: Tensor  # [layers, 2, sentences, heads, source positions, d_k]
    memory_mask: Tensor  # [sentences, 1, source positions]
    own: Tensor  # [layers, 2, sentences, heads, limit, beams, d_k]
    past: Tensor  # [sentences, beams, limit, beams]: whether a beam goes on from what another wrote
    length: int = 0

    def reorder(self, origin: Tensor) -> None:
        """See `State`."""
        rows = torch.arange(len(origin), device=origin.device).unsqueeze(-1)
        self.past[:, :, : self.length] = self.past[rows, origin, : self.length]

    def keep(self, sentences: Tensor) -> None:
        """See `State`."""
        self.memory, self.memory_mask = self.memory[:, :, sentences], self.memory_mask[sentences]
        self.past = self.past[sentences]
        layers, two, _, *rest = self.own.shape
        kept = self.own.new_empty(layers, two, len(sentences), *rest)
        kept[..., : self.length, :, :] = self.own[..., : self.length, :, :][:, :, sentences]
        self.own = kept


class TransformerStepper:
    """The Transformer, position by position: each step gives the row that a whole pass would."""

    def __init__(self, network: Transformer) -> None:
        self.network = network
        self.layers = cast(Sequence[DecoderLayer], network.decoder)

    @torch.no_grad()
    def start(self, source: Tensor, beams: int, limit: int) -> KeysValues:
        """See `Stepper`."""
        memory, mask = self.network.encode(source)
        remembered = torch.stack([layer.remember(memory) for layer in self.layers])
        layers, two, sentences, heads, _, width = remembered.shape
        own = memory.new_empty(layers, two, sentences, heads, limit, beams, width)
        itself = torch.eye(beams, dtype=torch.bool, device=source.device).unsqueeze(1)
        return KeysValues(remembered, mask, own, itself.repeat(sentences, 1, limit, 1))

    @torch.no_grad()
    def step(self, state: KeysValues, tokens: Tensor, *, need_weights: bool = False) -> tuple[Tensor, Weights]:
        """See `Stepper`."""
        x, weights = self.network.embed_target(tokens, torch.full_like(tokens, state.length)), None
        state.length += 1
        past = None if tokens.shape[-1] == 1 else state.past[:, :, : state.length].flatten(-2)
        for layer, remembered, own in zip(self.layers, state.memory, state.own, strict=True):
            attended = _attend_past(layer, x, own[..., : state.length, :, :], past)
            x, weights = layer.attend_memory(x, attended, remembered, state.memory_mask, need_weights=need_weights)
        scores = self.network.logits(self.network.decoder_norm(x))
        return scores, None if weights is None else weights.mean(dim=-3)


def _attend_past(layer: DecoderLayer, x: Tensor, own: Tensor, past: Tensor | None) -> Tensor:
    """Self-attention of the last position of each beam, `x` `[sentences, beams, d_model]`; writes it to `own`."""
    query, *written = layer.attention.queries_keys_values(layer.around_attention.enter(x))
    for every, new in zip(own, written, strict=True):
        every[..., -1, :, :] = new
    key, value = own.flatten(-3, -2)
    attended, _ = layer.attention.mix(query, key, value, past)
    return attended
