"""The Transformer of "Attention Is All You Need" (Vaswani et al., NeurIPS 2017), to be read beside
the paper.

This file imports torch alone. Attention works on the last axis but one; every axis before it is a
batch. A sentence is `[sentences, positions, d_model]`, a market is `[days, stocks, hidden]`: the
same block serves both. Masks are boolean and True means "may attend".
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

Norm = Literal["post", "pre", "none"]
PADDING = 0
Weights = Tensor | None  # of attention: None unless asked for


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    need_weights: bool = False,
) -> tuple[Tensor, Weights]:
    """Compute scaled dot-product attention, softmax(QK^T / sqrt(d_k)) V (eq. 1 of Vaswani et al.).

    `query` is `[..., queries, d_k]`, `key` `[..., keys, d_k]`, `value` `[..., keys, d_v]`; `mask`
    broadcasts to `[..., queries, keys]`. Returns the values `[..., queries, d_v]` and, on request,
    the weights `[..., queries, keys]`, whose rows sum to 1. Every query needs at least one key that
    it may attend to.
    """
    if not need_weights:
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask), None
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores.masked_fill_(~mask, -math.inf)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


class MultiHeadAttention(nn.Module):
    """Attention in `heads` subspaces of width d_model / heads, concatenated (section 3.2.2 of
    Vaswani et al.).

    `output_projection=False` leaves out W_O, as DTML does. Queries, keys and values share one
    packed weight.
    """

    product = staticmethod(nn.functional.linear)  # incremental decoding sets a faster one

    def __init__(self, d_model: int, heads: int, *, output_projection: bool = True) -> None:
        super().__init__()
        if d_model % heads:
            raise ValueError(f"d_model {d_model} is not a multiple of heads {heads}")
        self.heads = heads
        self.project_qkv = nn.Linear(d_model, 3 * d_model)
        self.project_output = nn.Linear(d_model, d_model) if output_projection else nn.Identity()

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Attend from `x` `[..., positions, d_model]` to itself; weights on request are `[...,
        heads, queries, keys]`.

        `mask` broadcasts to `[..., queries, keys]` and holds for every head.
        """
        query, key, value = self.queries_keys_values(x)
        return self.mix(query, key, value, mask, need_weights=need_weights)

    def queries_keys_values(self, x: Tensor) -> Iterator[Tensor]:
        """Project `x` `[..., positions, d_model]` to queries, keys and values,
        each `[..., heads, positions, d_k]`.
        """
        return self._heads(self.project_qkv(x), 3)

    def queries(self, x: Tensor) -> Tensor:
        """Project `x` to queries alone, to attend over another sequence."""
        weight, bias, width = self.project_qkv.weight, self.project_qkv.bias, x.shape[-1]
        return next(self._heads(self.product(x, weight[:width], bias[:width]), 1))

    def keys_values(self, memory: Tensor) -> Iterator[Tensor]:
        """Project `memory`, the sequence that is attended to, to keys and values alone."""
        weight, bias, width = self.project_qkv.weight, self.project_qkv.bias, memory.shape[-1]
        return self._heads(self.product(memory, weight[width:], bias[width:]), 2)

    def mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Attend in every head, concatenate, project: `[..., queries,
        d_model]`, and the weights on request.
        """
        per_head_mask = None if mask is None else mask.unsqueeze(-3)
        mixed, weights = attend(query, key, value, per_head_mask, need_weights=need_weights)
        return self.project_output(mixed.transpose(-3, -2).flatten(-2)), weights

    def _heads(self, packed: Tensor, count: int) -> Iterator[Tensor]:
        parts = packed.unflatten(-1, (count, self.heads, -1))  # [..., positions, count, heads, d_k]
        return (part.transpose(-3, -2) for part in parts.unbind(-3))


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, position by position (eq. 2 of Vaswani et al.)."""

    def __init__(self, d_model: int, d_ff: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)
        self.contract = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., d_model]` to `[..., d_model]`."""
        output: Tensor = self.contract(self.dropout(self.expand(x).relu()))
        return output


class Residual(nn.Module):
    """The residual connection around every sub-layer (sections 3.1 and 5.4 of Vaswani et al.).

    "post", as published, is LayerNorm(x + Dropout(Sublayer(x))); "pre" is x +
    Dropout(Sublayer(LayerNorm(x))); with "none" there is no LayerNorm.
    """

    def __init__(self, d_model: int, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.layer_norm = nn.Identity() if norm == "none" else nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """Return the sub-layer's input: `x`, normalised first in "pre"."""
        entered: Tensor = self.layer_norm(x) if self.norm == "pre" else x
        return entered

    def leave(self, x: Tensor, output: Tensor) -> Tensor:
        """Return `x` plus the sub-layer's output, normalised after in "post"."""
        added: Tensor = x + self.dropout(output)
        return self.layer_norm(added) if self.norm == "post" else added


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each with a residual (section 3.1 of Vaswani et al.).

    `dropout` applies to the output of each sub-layer, `activation_dropout` between the two maps of
    the feed-forward.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_ff: int,
        *,
        norm: Norm = "post",
        dropout: float = 0.0,
        activation_dropout: float = 0.0,
        output_projection: bool = True,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, heads, output_projection=output_projection)
        self.feed_forward = FeedForward(d_model, d_ff, dropout=activation_dropout)
        self.around_attention = Residual(d_model, norm, dropout)
        self.around_feed_forward = Residual(d_model, norm, dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Map `x` `[..., positions, d_model]` to its shape; weights on request
        are `[..., heads, queries, keys]`.
        """
        attended, weights = self.attention(
            self.around_attention.enter(x), mask, need_weights=need_weights
        )
        x = self.around_attention.leave(x, attended)
        return self.around_feed_forward.leave(
            x, self.feed_forward(self.around_feed_forward.enter(x))
        ), weights


class DecoderLayer(nn.Module):
    """The encoder's layer with, between its sub-layers, attention over the
    encoder's output, the memory.
    """

    def __init__(
        self, d_model: int, heads: int, d_ff: int, *, norm: Norm = "post", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, heads)
        self.memory_attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.around_attention = Residual(d_model, norm, dropout)
        self.around_memory_attention = Residual(d_model, norm, dropout)
        self.around_feed_forward = Residual(d_model, norm, dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Map `x` `[..., positions, d_model]` to its shape; the weights on
        request are those over `memory`.
        """
        attended, _ = self.attention(self.around_attention.enter(x), mask)
        return self.attend_memory(
            x, attended, self.remember(memory), memory_mask, need_weights=need_weights
        )

    def remember(self, memory: Tensor) -> Tensor:
        """Project `memory` `[..., positions, d_model]` to keys and values `[2,
        ..., heads, positions, d_k]`.
        """
        return torch.stack(list(self.memory_attention.keys_values(memory)))

    def attend_memory(
        self,
        x: Tensor,
        attended: Tensor,
        remembered: Tensor,
        memory_mask: Tensor,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Compute the rest of the layer from the output of its self-attention, `attended`."""
        x = self.around_attention.leave(x, attended)
        query = self.memory_attention.queries(self.around_memory_attention.enter(x))
        key, value = remembered
        found, weights = self.memory_attention.mix(
            query, key, value, memory_mask, need_weights=need_weights
        )
        x = self.around_memory_attention.leave(x, found)
        return self.around_feed_forward.leave(
            x, self.feed_forward(self.around_feed_forward.enter(x))
        ), weights


class Embedding(nn.Module):
    """The sum of token embedding, times sqrt(d_model), and position embedding
    (sections 3.4, 3.5 of Vaswani et al.).
    """

    def __init__(
        self, tokens: nn.Embedding, positions: nn.Embedding | None, dropout: float
    ) -> None:
        super().__init__()
        self.tokens, self.learned = tokens, positions
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Embed token numbers `[...]` at positions `[...]`, from 0 on, as `[..., d_model]`."""
        width = self.tokens.embedding_dim
        placed = sinusoids(positions, width) if self.learned is None else self.learned(positions)
        embedded: Tensor = self.dropout(self.tokens(tokens) * math.sqrt(width) + placed)
        return embedded


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return `[..., width]`: alternating sin and cos of pos / 10000^(2i /
    width) (section 3.5 of Vaswani et al.).
    """
    even = torch.arange(0, width, 2, device=positions.device)
    angles = positions.unsqueeze(-1) * torch.exp(even * (-math.log(10000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


@dataclass(frozen=True)
class TransformerConfig:
    """The base model of the paper; `learned_positions` is how many there are, 0 for sinusoids."""

    source_vocabulary: int
    target_vocabulary: int
    d_model: int = 512
    heads: int = 8
    d_ff: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    dropout: float = 0.1
    norm: Norm = "post"
    learned_positions: int = 0
    shared_embeddings: bool = True  # of source and target, which then have one vocabulary

    def build(self) -> "Transformer":
        """Build the network with new weights."""
        return Transformer(self)


class Transformer(nn.Module):
    """The encoder-decoder (figure 1 of Vaswani et al.); token 0 is padding, on
    either side, and changes no output.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, count = config.d_model, config.learned_positions
        source = nn.Embedding(config.source_vocabulary, width)
        target = (
            source if config.shared_embeddings else nn.Embedding(config.target_vocabulary, width)
        )
        positions = nn.Embedding(count, width) if count else None
        self.embed_source = Embedding(source, positions, config.dropout)
        self.embed_target = Embedding(target, positions, config.dropout)
        sizes, norm, dropout = (width, config.heads, config.d_ff), config.norm, config.dropout
        encoder = [
            EncoderLayer(*sizes, norm=norm, dropout=dropout) for _ in range(config.encoder_layers)
        ]
        decoder = [
            DecoderLayer(*sizes, norm=norm, dropout=dropout) for _ in range(config.decoder_layers)
        ]
        self.encoder, self.decoder = nn.ModuleList(encoder), nn.ModuleList(decoder)
        self.encoder_norm = nn.Identity() if norm == "post" else nn.LayerNorm(width)
        self.decoder_norm = nn.Identity() if norm == "post" else nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for table in (source, target):
            nn.init.normal_(table.weight, std=width**-0.5)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Encode `[sentences, source positions]` tokens; return the memory and
        the mask for attention over it.
        """
        real = source != PADDING
        mask = real.unsqueeze(-2)
        x = self.embed_source(source, positions_of(real))
        for layer in self.encoder:
            x, _ = layer(x, mask)
        return self.encoder_norm(x), mask

    def forward(
        self, source: Tensor, target: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Decode `[sentences, target positions]` tokens, each seeing none after it, to `[...,
        d_model]`; see `logits`.

        Weights on request are the last layer's over the source, averaged over heads: `[sentences,
        target positions, source positions]`.
        """
        memory, memory_mask = self.encode(source)
        real = target != PADDING
        before = torch.ones(2 * target.shape[-1:], dtype=torch.bool, device=target.device).tril()
        itself = torch.eye(target.shape[-1], dtype=torch.bool, device=target.device)
        mask = before & (real.unsqueeze(-2) | itself)
        x, weights = self.embed_target(target, positions_of(real)), None
        for layer in self.decoder:
            x, weights = layer(x, mask, memory, memory_mask, need_weights=need_weights)
        return self.decoder_norm(x), None if weights is None else weights.mean(dim=-3)

    @torch.no_grad()
    def every_head(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the attention of each layer and head in decoding tokens `[positions]` of a target,
        BEGIN first.

        Tensors are `[layers, heads, queries, keys]`, of the source ("encoder"), the target
        ("decoder") and "between".
        """
        memory, memory_mask = self.encode(source)
        seen = torch.ones(2 * target.shape, dtype=torch.bool, device=target.device).tril()
        found: dict[str, list[Any]] = {"encoder": [], "between": [], "decoder": []}
        x = self.embed_source(source, positions_of(source != PADDING))
        for layer in self.encoder:
            x, weights = layer(x, memory_mask, need_weights=True)
            found["encoder"].append(weights)
        x = self.embed_target(target, positions_of(target != PADDING))
        for layer in cast(Sequence[DecoderLayer], self.decoder):
            found["decoder"].append(
                layer.attention(layer.around_attention.enter(x), seen, need_weights=True)[1]
            )
            x, weights = layer(x, seen, memory, memory_mask, need_weights=True)
            found["between"].append(weights)
        return {name: torch.stack(each) for name, each in found.items()}

    def logits(self, decoded: Tensor) -> Tensor:
        """Map `[..., d_model]` to scores of the next token, `[..., target
        vocabulary]`, by the embedding itself.
        """
        return decoded @ self.output_weight.T

    @property
    def output_weight(self) -> Tensor:
        """Return the output layer's weight `[target vocabulary, d_model]`: the
        embedding of target tokens.
        """
        return self.embed_target.tokens.weight


def positions_of(real: Tensor) -> Tensor:
    """Return positions from 0 on, counted from the first real token: padding in
    front changes none.
    """
    return (real.cumsum(dim=-1) - 1).clamp(min=0)
