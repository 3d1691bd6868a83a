"""Translations under way: what a search asks of a network, and the Transformer's answer, with its keys and values kept.

A step costs one position of each beam, however many came before: keys and values are written once. What is known of the
source is kept once a sentence, for all its beams.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from translation.transformer import DecoderLayer, FeedForward, MultiHeadAttention, Transformer, Weights

ONEDNN = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight")
)
FIRST_ROOM = 16  # positions; it doubles when it is full: to take memory for all at once is slow


class DecoderState(Protocol):
    """What a network keeps of `[sentences, beams]` translations under way."""

    def reorder(self, origin: Tensor) -> None:
        """Let each beam go on from the beam `origin` `[sentences, beams]` of its sentence."""

    def keep(self, sentences: Tensor) -> None:
        """Go on with these sentences `[kept]` alone."""


class IncrementalDecoder(Protocol):
    """A network that translates position by position."""

    def start(self, source: Tensor, beams: int, limit: int) -> Any:
        """Encode `[sentences, source positions]` tokens, padded with 0 on either side, and return a `DecoderState`.

        It has room for `limit` steps of `beams` beams a sentence, none of which has a token yet.
        """

    def step(self, state: Any, tokens: Tensor, *, need_weights: bool = False) -> tuple[Tensor, Weights]:
        """Append `[sentences, beams]` tokens; return scores of the next, and attention to the source on request.

        The scores are `[sentences, beams, target vocabulary]`, the weights `[sentences, beams, source positions]`.
        """


@dataclass
class KeyValueCache:
    """The Transformer's state; `length` positions are written.

    Keys and values stay where they were written: each beam attends to all that its sentence's beams have written, under
    a mask that shows it its own past. To go on from another beam is then to copy a row of the mask.
    """

    memory: list[Tensor]  # of each layer, [2, sentences, heads, source positions, d_k]
    memory_mask: Tensor  # [sentences, 1, source positions]
    own: list[Tensor]  # of each layer, [2, sentences, heads, room, beams, d_k]
    past: Tensor  # [sentences, beams, limit, beams]: whether a beam goes on from what another wrote
    length: int = 0

    def reorder(self, origin: Tensor) -> None:
        """See `DecoderState`."""
        rows = torch.arange(len(origin), device=origin.device).unsqueeze(-1)
        self.past[:, :, : self.length] = self.past[rows, origin, : self.length]

    def keep(self, sentences: Tensor) -> None:
        """See `DecoderState`."""
        # Quicker than [:, sentences].
        self.memory = [layer.index_select(1, sentences) for layer in self.memory]
        self.own = [layer.index_select(1, sentences) for layer in self.own]
        self.memory_mask, self.past = self.memory_mask[sentences], self.past[sentences]

    def next_position(self) -> None:
        """Make room for one more."""
        if self.length == self.own[0].shape[3]:
            self.own = [torch.cat([layer, torch.empty_like(layer)], dim=3) for layer in self.own]
        self.length += 1


class IncrementalTransformer:
    """The Transformer, position by position: each step gives the row that a whole pass would.

    The output layer is a copy: after an update of the weights, make a new one.
    """

    def __init__(self, network: Transformer) -> None:
        self.network = _quick(network)
        self.layers = cast(Sequence[DecoderLayer], self.network.decoder)
        self.output_weight = _packed(self.network.output_weight.detach())

    @torch.no_grad()
    def start(self, source: Tensor, beams: int, limit: int) -> KeyValueCache:
        """See `IncrementalDecoder`."""
        memory, mask = self.network.encode(source)
        remembered = [layer.remember(memory) for layer in self.layers]
        two, sentences, heads, _, width = remembered[0].shape
        own = [memory.new_empty(two, sentences, heads, FIRST_ROOM, beams, width) for _ in self.layers]
        itself = torch.eye(beams, dtype=torch.bool, device=source.device).unsqueeze(1)
        return KeyValueCache(remembered, mask, own, itself.repeat(sentences, 1, limit, 1))

    @torch.no_grad()
    def step(self, state: KeyValueCache, tokens: Tensor, *, need_weights: bool = False) -> tuple[Tensor, Weights]:
        """See `IncrementalDecoder`."""
        x, weights = self.network.embed_target(tokens, torch.full_like(tokens, state.length)), None
        state.next_position()
        past = None if tokens.shape[-1] == 1 else state.past[:, :, : state.length].flatten(-2)
        for layer, remembered, own in zip(self.layers, state.memory, state.own, strict=True):
            attended = _attend_past(layer, x, own[..., : state.length, :, :], past)
            x, weights = layer.attend_memory(x, attended, remembered, state.memory_mask, need_weights=True)
        scores = product(self.network.decoder_norm(x), self.output_weight)
        return scores, weights.mean(dim=-3) if need_weights and weights is not None else None


def _attend_past(layer: DecoderLayer, x: Tensor, own: Tensor, past: Tensor | None) -> Tensor:
    """Self-attention of the last position of each beam, `x` `[sentences, beams, d_model]`; writes it to `own`."""
    query, *written = layer.attention.queries_keys_values(layer.around_attention.enter(x))
    for every, new in zip(own, written, strict=True):
        every[..., -1, :, :] = new
    key, value = own.flatten(-3, -2)
    attended, _ = layer.attention.mix(query, key, value, past, need_weights=True)
    return attended


def product(
    input: Tensor,  # noqa: A002 - as torch calls it
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    then: Literal["none", "relu"] = "none",
) -> Tensor:
    """As `torch.nn.functional.linear`, by oneDNN where it can be: twice as fast on an AMD EPYC as what torch takes.

    Its operators are those that torch's own compiler puts in the place of linear maps where the size of batches varies;
    they know no gradients.
    """
    if not _is_for_onednn(input):
        mapped = nn.functional.linear(input, weight, bias)
        return mapped.relu() if then == "relu" else mapped
    quickly: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, then, [], "")
    return quickly


def _packed(weight: Tensor) -> Tensor:
    """A weight as oneDNN lays it out, which few rows gain by."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight) if _is_for_onednn(weight) else weight
    return packed


def _is_for_onednn(x: Tensor) -> bool:
    return ONEDNN and x.device.type == "cpu" and x.dtype == torch.float32


class _QuickFeedForward(FeedForward):
    def forward(self, x: Tensor) -> Tensor:  # without dropout, which a search has not
        return product(
            product(x, self.expand.weight, self.expand.bias, then="relu"), self.contract.weight, self.contract.bias
        )


class _QuickLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def _quick(network: Transformer) -> Transformer:
    """A network that has the parameters of this one, those themselves, and multiplies quicker."""
    twin = copy.deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})
    for module in twin.modules():
        if isinstance(module, MultiHeadAttention):
            module.product = product
        if isinstance(module, FeedForward):
            module.__class__ = _QuickFeedForward
        if isinstance(module, nn.Linear):
            module.__class__ = _QuickLinear
    return twin
