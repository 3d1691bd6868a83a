"""The blocks of "Attention Is All You Need" (Vaswani et al., NeurIPS 2017): attention, feed-forward, encoder layer.

This file imports torch alone. Attention works on the last axis but one; every axis before it is a batch. A sentence
is `[sentences, positions, d_model]`, a market is `[days, stocks, hidden]`: the same block serves both.
Masks are boolean and True means "may attend".
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

Norm = Literal["post", "pre", "none"]


class Dropout(nn.Module):
    """Inverted dropout whose masks come from a generator that the caller owns.

    `nn.Dropout` draws from torch's one global generator, on which concurrent trainings race: with one generator a
    training, equal seeds give equal weights on any number of workers.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout rate must lie in [0, 1), got {rate}")
        self.rate = rate
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability `rate` while training, and scale the rest to keep the mean."""
        if not self.training or self.rate == 0:
            return x
        keep = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self.generator)
        return x * keep.div_(1 - self.rate)


def use_generator(model: nn.Module, generator: torch.Generator) -> None:
    """Make every dropout of `model` draw its masks from `generator`."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.generator = generator


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention, softmax(QK^T / sqrt(d_k)) V (eq. 1 of Vaswani et al.).

    `query` is `[..., queries, d_k]`, `key` `[..., keys, d_k]`, `value` `[..., keys, d_v]`; `mask` broadcasts to
    `[..., queries, keys]`. Returns the values `[..., queries, d_v]` and, on request, the weights
    `[..., queries, keys]`, whose rows sum to 1. Every query needs at least one key that it may attend to.
    """
    if not need_weights:
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask), None
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


class MultiHeadAttention(nn.Module):
    """Attention in `heads` subspaces of width d_model / heads, concatenated (section 3.2.2 of Vaswani et al.).

    `output_projection=False` leaves out W_O, as DTML does. Queries, keys and values share one packed weight.
    """

    def __init__(self, d_model: int, heads: int, *, output_projection: bool = True) -> None:
        super().__init__()
        if d_model % heads:
            raise ValueError(f"d_model {d_model} is not a multiple of heads {heads}")
        self.heads = heads
        self.project_qkv = nn.Linear(d_model, 3 * d_model)
        self.project_output = nn.Linear(d_model, d_model) if output_projection else nn.Identity()

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention over `x` `[..., positions, d_model]`; weights on request are `[..., heads, queries, keys]`.

        `mask` broadcasts to `[..., queries, keys]` and holds for every head.
        """
        query, key, value = self._split_heads(self.project_qkv(x))
        per_head_mask = None if mask is None else mask.unsqueeze(-3)
        mixed, weights = attend(query, key, value, per_head_mask, need_weights=need_weights)
        return self.project_output(mixed.transpose(-3, -2).flatten(-2)), weights

    def _split_heads(self, packed: Tensor) -> Iterator[Tensor]:
        parts = packed.unflatten(-1, (3, self.heads, -1))  # [..., positions, 3, heads, d_k]
        return (part.transpose(-3, -2) for part in parts.unbind(-3))


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, position by position (eq. 2 of Vaswani et al.)."""

    def __init__(self, d_model: int, d_ff: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(d_model, d_ff)
        self.dropout = Dropout(dropout)
        self.contract = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., d_model]` to `[..., d_model]`."""
        output: Tensor = self.contract(self.dropout(self.expand(x).relu()))
        return output


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each with a residual (section 3.1 of Vaswani et al.).

    `norm` is "post" as published, LayerNorm(x + Sublayer(x)); "pre", x + Sublayer(LayerNorm(x)); or "none".
    `dropout` falls on the output of each sub-layer, `activation_dropout` between the two maps of the feed-forward.
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
        self.norm = norm
        self.attention = MultiHeadAttention(d_model, heads, output_projection=output_projection)
        self.feed_forward = FeedForward(d_model, d_ff, dropout=activation_dropout)
        self.attention_norm = nn.Identity() if norm == "none" else nn.LayerNorm(d_model)
        self.feed_forward_norm = nn.Identity() if norm == "none" else nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Map `x` `[..., positions, d_model]` to its shape; weights on request are `[..., heads, queries, keys]`."""
        entered = self.attention_norm(x) if self.norm == "pre" else x
        attended, weights = self.attention(entered, mask, need_weights=need_weights)
        x = x + self.dropout(attended)
        x = self.attention_norm(x) if self.norm == "post" else x
        entered = self.feed_forward_norm(x) if self.norm == "pre" else x
        x = x + self.dropout(self.feed_forward(entered))
        return (self.feed_forward_norm(x) if self.norm == "post" else x), weights
