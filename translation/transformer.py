"""The blocks of "Attention Is All You Need" (Vaswani et al., NeurIPS 2017): attention, feed-forward, encoder layer.

This file imports torch alone. Attention works on the last axis but one; every axis before it is a batch. A sentence
is `[sentences, positions, d_model]`, a market is `[days, stocks, hidden]`: the same block serves both.
Masks are boolean and True means "may attend".
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

Norm = Literal["post", "pre", "none"]


class _Draw(torch.autograd.Function):
    """Random numbers in the shape of a tensor: uniform in [0, 1), or normal.

    Under `torch.vmap` each member draws from its own generator, as it would alone.
    """

    @staticmethod
    def forward(like: Tensor, generators: Sequence[torch.Generator | None], normal: bool) -> Tensor:
        """Draw with the first generator."""
        drawn = torch.empty_like(like, memory_format=torch.contiguous_format)
        return drawn.normal_(generator=generators[0]) if normal else drawn.uniform_(generator=generators[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Nothing flows back through a draw."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None, None]:  # noqa: ARG004
        """Nothing flows back."""
        return None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        like: Tensor,
        generators: Sequence[torch.Generator | None],
        normal: bool,
    ) -> tuple[Tensor, int]:
        """One draw a member, each with its own generator."""
        assert len(generators) == info.batch_size, "a generator for each member"
        assert in_dims[0] is not None
        members = like.movedim(in_dims[0], 0)
        pairs = zip(members, generators, strict=True)
        return torch.stack([_Draw.forward(member, (generator,), normal) for member, generator in pairs]), 0


class Noise(nn.Module):
    """Random numbers from generators that the caller owns, one a member of a stacked training.

    torch's one global generator is raced for by concurrent trainings: with its own, a training draws the same
    numbers on any number of workers, alone or in a stack.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generators: Sequence[torch.Generator | None] = (None,)

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform in [0, 1), in the shape of `like`."""
        drawn: Tensor = _Draw.apply(like.detach(), self.generators, False)  # type: ignore[no-untyped-call]
        return drawn

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal, in the shape of `like`."""
        drawn: Tensor = _Draw.apply(like.detach(), self.generators, True)  # type: ignore[no-untyped-call]
        return drawn


class Dropout(Noise):
    """Inverted dropout (Srivastava et al., JMLR 2014)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout rate must lie in [0, 1), got {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability `rate` while training, and scale the rest to keep the mean."""
        if not self.training or self.rate == 0:
            return x
        return x * (self.uniform(x) >= self.rate) / (1 - self.rate)


class Gaussian(Noise):
    """Standard normal noise, for latent variables; none outside of training."""

    def forward(self, like: Tensor) -> Tensor:
        """Noise in the shape of `like` while training, else zeros."""
        return self.normal(like) if self.training else torch.zeros_like(like)


def use_generators(model: nn.Module, *generators: torch.Generator) -> None:
    """Make everything random in `model` draw from these generators, one a member."""
    for module in model.modules():
        if isinstance(module, Noise):
            module.generators = generators


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
