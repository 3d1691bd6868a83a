"""The Transformer of "Attention Is All You Need" (Vaswani et al., NeurIPS 2017), to be read beside
it.

Attention works on the last axis but one; every axis before it is a batch. A sentence is
`[sentences, positions, d_model]`, a market `[days, stocks, hidden]`: the same block serves both.
Masks are boolean; True means "may attend".
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

Norm = Literal["post", "pre", "none"]
PADDING = 0
Weights = Tensor | None  # of attention: None unless they are requested
# Positions for which the cache has room at first. The room is doubled when full, as allocating
# memory for all positions at once is slow. Attention also has at least so many keys, some of them
# masked: torch's softmax is five times as slow if the keys do not fill a vector of 16.
FIRST_CAPACITY = 16


def prepare_cuda() -> None:
    """Make operations on CUDA deterministic in this process, where torch can, attention among them.

    Sets CUBLAS_WORKSPACE_CONFIG unless set. Only plain matrix products add up attention's gradients
    in a fixed order, so other kernels are switched off; cuDNN's makes a plan for each new shape,
    with which a translator trained at a sixth of the speed on an H200.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # needed before cuBLAS starts
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing reads memory before it is written: filling it would only cost a kernel each time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)


def replace_dropout(network: nn.Module, kind: Callable[[float], nn.Module]) -> None:
    """Replace every `nn.Dropout` of a network by a layer of this kind, with the same rate."""
    for module in list(network.modules()):  # listed first, as the loop replaces modules
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, kind(child.p).train(child.training))


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
    broadcasts to `[..., queries, keys]`, and leaves each query a key. Returns `[..., queries, d_v]`
    and, on request, the weights `[..., queries, keys]`, whose rows sum to 1.
    """
    if not need_weights:
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask), None
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores.masked_fill_(~mask, -math.inf)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


class MultiHeadAttention(nn.Module):
    """Attention in `heads` subspaces of width d_model / heads, concatenated (section 3.2.2).

    `output_projection=False` leaves out W_O, as DTML does. W_Q, W_K, W_V are rows of one matrix.
    """

    def __init__(self, d_model: int, heads: int, *, output_projection: bool = True) -> None:
        super().__init__()
        if d_model % heads:
            raise ValueError(f"d_model {d_model} is not a multiple of heads {heads}")
        self.heads = heads
        self.in_products = False  # and sums alone, which `torch.func.vmap` can batch
        self.project_qkv = nn.Linear(d_model, 3 * d_model)
        self.project_output = nn.Linear(d_model, d_model) if output_projection else nn.Identity()

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Attend from `x` `[..., positions, d_model]` to itself; `mask` holds for every head.

        Weights on request are `[..., heads, queries, keys]`.
        """
        query, key, value = self.queries_keys_values(x)
        return self.mix(query, key, value, mask, need_weights=need_weights)

    def queries_keys_values(self, x: Tensor) -> Iterator[Tensor]:
        """Project `x` `[..., positions, d_model]` to three `[..., heads, positions, d_k]`."""
        return self._split_heads(self.project_qkv(x), count=3)

    def queries(self, x: Tensor) -> Tensor:
        """Project `x` to queries alone, `[..., heads, positions, d_k]`, to attend elsewhere."""
        width = x.shape[-1]
        weight = self.project_qkv.weight[:width]
        bias = self.project_qkv.bias[:width]
        (query,) = self._split_heads(nn.functional.linear(x, weight, bias), count=1)
        return query

    def keys_values(self, memory: Tensor) -> Iterator[Tensor]:
        """Project `memory`, the sequence that is attended to, to keys and values alone."""
        width = memory.shape[-1]
        weight = self.project_qkv.weight[width:]
        bias = self.project_qkv.bias[width:]
        return self._split_heads(nn.functional.linear(memory, weight, bias), count=2)

    def mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Attend in every head, concatenate and project.

        `query`, `key` and `value` are `[..., heads, positions, d_k]`. Returns `[..., queries,
        d_model]` and, on request, the weights.
        """
        per_head_mask = None if mask is None else mask.unsqueeze(-3)
        with_weights = need_weights or self.in_products
        mixed, weights = attend(query, key, value, per_head_mask, need_weights=with_weights)
        concatenated = mixed.transpose(-3, -2).flatten(-2)
        return self.project_output(concatenated), weights

    def _split_heads(self, packed: Tensor, count: int) -> Iterator[Tensor]:
        """Return `count` projections, `[..., heads, positions, d_k]`, side by side in `packed`.

        That is `[..., positions, count * d_model]`.
        """
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
        expanded = self.expand(x).relu()
        output: Tensor = self.contract(self.dropout(expanded))
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

    `dropout` is of each sub-layer's output, `activation_dropout` between the feed-forward's maps.
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
        """Map `x` `[..., positions, d_model]`; weights are `[..., heads, queries, keys]`."""
        entered = self.around_attention.enter(x)
        attended, weights = self.attention(entered, mask, need_weights=need_weights)
        x = self.around_attention.leave(x, attended)
        mapped = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, mapped), weights


class DecoderLayer(nn.Module):
    """The encoder's layer, with attention over the memory, the encoder's output, in between."""

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
        """Map `x` `[..., positions, d_model]` to its shape; weights are those over `memory`."""
        attended, _ = self.attention(self.around_attention.enter(x), mask)
        remembered = self.remember(memory)
        return self.attend_memory(x, attended, remembered, memory_mask, need_weights=need_weights)

    def remember(self, memory: Tensor) -> Tensor:
        """Project `memory` to keys and values, `[2, ..., heads, positions, d_k]`."""
        key, value = self.memory_attention.keys_values(memory)
        return torch.stack([key, value])

    def attend_memory(
        self,
        x: Tensor,
        attended: Tensor,
        remembered: Tensor,
        memory_mask: Tensor,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Compute the rest of the layer from its input `x` and its `attended` self-attention.

        `remembered` is what `remember` returns.
        """
        x = self.around_attention.leave(x, attended)
        query = self.memory_attention.queries(self.around_memory_attention.enter(x))
        key, value = remembered
        context, weights = self.memory_attention.mix(
            query,
            key,
            value,
            memory_mask,
            need_weights=need_weights,
        )
        x = self.around_memory_attention.leave(x, context)
        mapped = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, mapped), weights


class Embedding(nn.Module):
    """The sum of token embedding, times sqrt(d_model), and position's (sections 3.4, 3.5)."""

    def __init__(
        self, tokens: nn.Embedding, positions: nn.Embedding | None, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.learned = positions
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return embeddings `[..., d_model]` of tokens at positions, from 0, that broadcast."""
        width = self.tokens.embedding_dim
        if self.learned is None:
            of_positions = sinusoids(positions, width)
        else:
            of_positions = self.learned(positions)
        of_tokens = self.tokens(tokens) * math.sqrt(width)
        embedded: Tensor = self.dropout(of_tokens + of_positions)
        return embedded


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return `[..., width]`: alternating sin and cos of pos / 10000^(2i / width) (section 3.5)."""
    even = torch.arange(0, width, 2, device=positions.device)
    frequencies = torch.exp(even * (-math.log(10000.0) / width))
    angles = positions.unsqueeze(-1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of the network, by default the paper's; `learned_positions` 0: sinusoids."""

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


class Transformer(nn.Module):
    """The encoder-decoder (figure 1 of Vaswani et al.); token 0, padding, changes nothing."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.d_model
        source = nn.Embedding(config.source_vocabulary, width)
        if config.shared_embeddings:
            target = source
        else:
            target = nn.Embedding(config.target_vocabulary, width)
        positions = None
        if config.learned_positions:
            positions = nn.Embedding(config.learned_positions, width)
        self.embed_source = Embedding(source, positions, config.dropout)
        self.embed_target = Embedding(target, positions, config.dropout)
        self.encoder = nn.ModuleList(
            EncoderLayer(
                d_model=width,
                heads=config.heads,
                d_ff=config.d_ff,
                norm=config.norm,
                dropout=config.dropout,
            )
            for _ in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(
                d_model=width,
                heads=config.heads,
                d_ff=config.d_ff,
                norm=config.norm,
                dropout=config.dropout,
            )
            for _ in range(config.decoder_layers)
        )
        # With "post", the last sub-layer has already normalised its output; otherwise none has.
        is_post = config.norm == "post"
        self.encoder_norm = nn.Identity() if is_post else nn.LayerNorm(width)
        self.decoder_norm = nn.Identity() if is_post else nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for table in (source, target):  # `Embedding` multiplies these by sqrt(d_model)
            nn.init.normal_(table.weight, std=width**-0.5)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Encode `[sentences, source positions]` tokens; return the memory and its mask."""
        is_real = source != PADDING
        mask = is_real.unsqueeze(-2)
        x = self.embed_source(source, positions_of(is_real))
        for layer in self.encoder:
            x, _ = layer(x, mask)
        return self.encoder_norm(x), mask

    def forward(
        self, source: Tensor, target: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Decode `[sentences, target positions]` tokens, each without those after it, for `logits`.

        Returns `[sentences, target positions, d_model]`, and on request the last layer's weights
        over the source, averaged over heads, `[sentences, target positions, source positions]`.
        """
        memory, memory_mask = self.encode(source)
        is_real = target != PADDING
        length = target.shape[-1]
        itself = torch.eye(length, dtype=torch.bool, device=target.device)
        up_to_itself = torch.ones_like(itself).tril()
        # Padding too may attend to itself: a softmax over no keys would be NaN. The mask is
        # [sentences, target positions, target positions].
        mask = up_to_itself & (is_real.unsqueeze(-2) | itself)
        x = self.embed_target(target, positions_of(is_real))
        weights = None
        for layer in self.decoder:
            x, weights = layer(x, mask, memory, memory_mask, need_weights=need_weights)
        decoded = self.decoder_norm(x)
        if weights is None:
            return decoded, None
        return decoded, weights.mean(dim=-3)

    @torch.no_grad()
    def every_head(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the attention of each layer and head in decoding a target.

        Tokens are `[positions]`, the target's with BEGIN. `[layers, heads, queries, keys]`:
        "encoder" (source to itself), "decoder" (target to itself), "between" (target to source).
        """
        memory, memory_mask = self.encode(source)
        # `encode` and the decoder's layers return no weights of self-attention, so these are
        # computed again.
        in_encoder: list[Tensor] = []
        x = self.embed_source(source, positions_of(source != PADDING))
        for layer in self.encoder:
            x, weights = layer(x, memory_mask, need_weights=True)
            in_encoder.append(weights)
        in_decoder: list[Tensor] = []
        between: list[Tensor] = []
        length = len(target)
        mask = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        x = self.embed_target(target, positions_of(target != PADDING))
        for layer in self._decoder_layers:
            entered = layer.around_attention.enter(x)
            _, weights_of_target = layer.attention(entered, mask, need_weights=True)
            in_decoder.append(weights_of_target)
            x, weights_of_source = layer(x, mask, memory, memory_mask, need_weights=True)
            between.append(weights_of_source)
        return {
            "encoder": torch.stack(in_encoder),
            "between": torch.stack(between),
            "decoder": torch.stack(in_decoder),
        }

    @torch.no_grad()
    def start(self, source: Tensor, beams: int, limit: int) -> KeyValueCache:
        """Encode `source` `[sentences, positions]` for `limit` steps of `beams` beams each."""
        memory, mask = self.encode(source)
        source_positions = source.shape[-1]
        missing = max(0, FIRST_CAPACITY - source_positions)  # keys to add, which are masked
        # `pad` adds zeros behind the positions, the last axis but one of keys and values.
        remembered = [
            nn.functional.pad(layer.remember(memory), (0, 0, 0, missing))
            for layer in self._decoder_layers
        ]
        two, sentences, heads, _, width = remembered[0].shape
        own = [
            memory.new_zeros(two, sentences, heads, FIRST_CAPACITY, beams, width)
            for _ in self._decoder_layers
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
        """Append tokens `[sentences, beams]`; return scores of the next, as a full pass would.

        Attention on request is the last layer's, averaged over heads.
        """
        position = torch.full_like(tokens[:1, :1], state.length)  # [1, 1]: the same for all beams
        x = self.embed_target(tokens, position)
        weights: Weights = None
        state.next_position()
        past = state.mask_of_past()
        for layer, remembered, own in zip(
            self._decoder_layers, state.memory, state.own, strict=True
        ):
            attended = _attend_past(layer, x, own, state.length, past)
            # Always with weights: `attend` then computes with plain
            # products, for whose softmax `FIRST_CAPACITY` was chosen.
            x, weights = layer.attend_memory(
                x,
                attended,
                remembered,
                state.memory_mask,
                need_weights=True,
            )
        scores = self.logits(self.decoder_norm(x))
        if not need_weights or weights is None:
            return scores, None
        # The mean over the heads, without the keys that `start` added.
        return scores, weights.mean(dim=-3)[..., : state.source_positions]

    @property
    def _decoder_layers(self) -> Sequence[DecoderLayer]:
        return cast(Sequence[DecoderLayer], self.decoder)

    def logits(self, decoded: Tensor) -> Tensor:
        """Map `[..., d_model]` to scores `[..., target vocabulary]` by the target's embedding."""
        return decoded @ self.output_weight.T

    @property
    def output_weight(self) -> Tensor:
        """Return the output weight, the target's embedding, `[target vocabulary, d_model]`."""
        return self.embed_target.tokens.weight


def positions_of(is_real: Tensor) -> Tensor:
    """Return each token's position, from 0 at the first real one; padding repeats the last."""
    return (is_real.cumsum(dim=-1) - 1).clamp(min=0)


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
