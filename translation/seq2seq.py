"""RNN encoder-decoders, the networks before the Transformer, with attention and without.

"none": Sutskever et al. (NeurIPS 2014), "additive": Bahdanau et al. (ICLR 2015), "dot": Luong et
al. (EMNLP 2015); each attention may be structured (Kim et al., ICLR 2017). They have the interface
of `translation.transformer.Transformer`. Every RNN is an LSTM.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from translation.errors import UsageError
from translation.transformer import PADDING, Weights

AttentionKind = Literal["none", "additive", "dot"]
LstmState = tuple[Tensor, Tensor]  # hidden and cell, each [layers, rows, d_model]
EMBEDDING_RANGE = 0.1  # initial embeddings are uniform in +- this


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes of the network, by default for small corpora; `d_model` of all its states."""

    source_vocabulary: int
    target_vocabulary: int
    d_model: int = 256
    layers: int = 1
    dropout: float = 0.3  # on embeddings, between layers, and on the outputs of encoder and decoder
    attention: AttentionKind = "additive"
    structured: bool = False  # marginals of a linear chain in place of softmax
    shared_embeddings: bool = True  # of source and target, which then have one vocabulary

    def __post_init__(self) -> None:
        if self.structured and self.attention == "none":
            raise UsageError('structured = true needs attention = "additive" or "dot", not "none"')

    def build(self) -> "RecurrentTranslator":
        """Build the network with new weights."""
        return RecurrentTranslator(self)


@dataclass
class EncodedSource:
    """The encoder's output as the decoder attends to it; `mask` is True where there is a token."""

    memory: Tensor  # [sentences, source positions, d_model]
    keys: Tensor  # of the same shape; scores are computed from them
    mask: Tensor  # [sentences, 1, source positions]


class Attention(nn.Module):
    """Context = sum_i a_i h_i over the encoder's states h.

    The weights a are softmax(score) or the marginals of a chain. "dot": score(s, h) = s . h, not
    scaled. "additive": W_a^T tanh(W_b s + W_c h), whose tanh takes `[sentences, queries, source
    positions, d_model]` of memory.
    """

    def __init__(
        self, score: Literal["additive", "dot"], d_model: int, *, structured: bool
    ) -> None:
        super().__init__()
        self.additive = score == "additive"
        if self.additive:
            self.weigh = nn.Linear(d_model, 1, bias=False)  # W_a
            self.project_query = nn.Linear(d_model, d_model, bias=False)  # W_b
            self.project_memory = nn.Linear(d_model, d_model, bias=False)  # W_c
        self.pairwise = nn.Parameter(torch.zeros(2, 2)) if structured else None

    def keys(self, memory: Tensor) -> Tensor:
        """Compute the part of the scores that is the same for every query, shaped as `memory`."""
        keys: Tensor = self.project_memory(memory) if self.additive else memory
        return keys

    def forward(self, query: Tensor, source: EncodedSource) -> tuple[Tensor, Tensor]:
        """Return the context of each query, and the weights over the source.

        Queries and contexts are `[rows, positions, d_model]`, weights `[rows, positions, source
        positions]`. Rows are sentences, or the beams of each sentence one after the other.
        """
        rows, positions, width = query.shape
        # [sentences, beams * positions, d_model]: all queries of a sentence share its memory.
        query = query.reshape(len(source.memory), -1, width)
        if self.additive:
            projected = self.project_query(query)
            # [sentences, queries, source positions, d_model]
            combined = torch.tanh(projected.unsqueeze(-2) + source.keys.unsqueeze(-3))
            scores = self.weigh(combined).squeeze(-1)
        else:
            scores = query @ source.keys.mT
        weights = normalise(scores, source.mask, self.pairwise)
        contexts = weights @ source.memory
        return contexts.view(rows, positions, -1), weights.view(rows, positions, -1)


class Decoder(nn.Module):
    """An LSTM over the target, with no attention or that of Luong et al.

    Its first state is the encoder's last one. It runs over all positions, and then attends from all
    at once: out = tanh(W [context; s]). Luong et al. also feed that output into the next step; here
    the recurrence need not wait for it.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        width = config.d_model
        self.attention: Attention | None = None
        self.recurrence = _lstm(config, width, config.layers)
        if config.attention != "none":
            self.attention = Attention(config.attention, width, structured=config.structured)
            self.combine = nn.Linear(2 * width, width, bias=False)

    def forward(
        self, x: Tensor, state: LstmState, source: EncodedSource
    ) -> tuple[Tensor, Weights, LstmState]:
        """Map embedded tokens `[rows, positions, d_model]` to outputs, weights, last state."""
        hidden, state = self.recurrence(x, state)
        if self.attention is None:
            return hidden, None, state
        context, weights = self.attention(hidden, source)
        output = self.combine(torch.cat([context, hidden], dim=-1)).tanh()
        return output, weights, state


class BahdanauDecoder(nn.Module):
    """An LSTM that attends from its last state before it reads each token.

    It reads the context together with the token; its first layer attends. The output is tanh(W
    [context; s]), as in `Decoder`, in place of Bahdanau's maxout: the two differ only in how and
    when they attend.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        width = config.d_model
        self.attention = Attention("additive", width, structured=config.structured)
        self.first = nn.LSTMCell(2 * width, width)
        self.above = _lstm(config, width, config.layers - 1) if config.layers > 1 else None
        self.dropout = nn.Dropout(config.dropout)
        self.combine = nn.Linear(2 * width, width, bias=False)

    def forward(
        self, x: Tensor, state: LstmState, source: EncodedSource
    ) -> tuple[Tensor, Weights, LstmState]:
        """Map embedded tokens to outputs, weights and state, as `Decoder.forward` does."""
        all_hidden, all_cells = state
        hidden = all_hidden[0]
        cell = all_cells[0]
        contexts: list[Tensor] = []
        all_weights: list[Tensor] = []
        first_layer: list[Tensor] = []
        for token in x.unbind(dim=1):  # [rows, d_model], as are `hidden` and `cell`
            context, weights = self.attention(hidden.unsqueeze(1), source)
            context = context.squeeze(1)
            hidden, cell = self.first(torch.cat([token, context], dim=-1), (hidden, cell))
            contexts.append(context)
            all_weights.append(weights.squeeze(1))
            first_layer.append(hidden)
        top = torch.stack(first_layer, dim=1)  # the states of the highest layer so far
        last_hidden = hidden.unsqueeze(0)
        last_cell = cell.unsqueeze(0)
        if self.above is not None:
            state_above = (all_hidden[1:], all_cells[1:])
            top, (hidden_above, cell_above) = self.above(self.dropout(top), state_above)
            last_hidden = torch.cat([last_hidden, hidden_above])
            last_cell = torch.cat([last_cell, cell_above])
        context_and_state = torch.cat([torch.stack(contexts, dim=1), top], dim=-1)
        output = self.combine(context_and_state).tanh()
        return output, torch.stack(all_weights, dim=1), (last_hidden, last_cell)


@dataclass
class RecurrentState:
    """The decoder's state of each beam."""

    source: EncodedSource
    hidden: Tensor  # [layers, sentences, beams, d_model]
    cell: Tensor  # of the same shape

    def reorder(self, origin: Tensor) -> None:
        """Implement `translation.transformer.KeyValueCache.reorder`."""
        # [sentences, 1]: each sentence takes the beams of its own row.
        rows = torch.arange(len(origin), device=origin.device).unsqueeze(-1)
        self.hidden = self.hidden[:, rows, origin]
        self.cell = self.cell[:, rows, origin]

    def keep(self, sentences: Tensor) -> None:
        """Implement `translation.transformer.KeyValueCache.keep`."""
        source = self.source
        self.source = EncodedSource(
            memory=source.memory[sentences],
            keys=source.keys[sentences],
            mask=source.mask[sentences],
        )
        self.hidden = self.hidden[:, sentences]
        self.cell = self.cell[:, sentences]


class RecurrentTranslator(nn.Module):
    """An encoder-decoder of LSTMs; token 0 is padding, on either side, and changes no output.

    The encoder runs in both directions, each half of d_model wide; their last states, layer by
    layer, are the decoder's first.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        width = config.d_model
        self.embed_target = nn.Embedding(config.target_vocabulary, width)
        if config.shared_embeddings:
            self.embed_source = self.embed_target
        else:
            self.embed_source = nn.Embedding(config.source_vocabulary, width)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = _lstm(config, width // 2, config.layers, bidirectional=True)
        self.decoder = (
            BahdanauDecoder(config) if config.attention == "additive" else Decoder(config)
        )
        _initialise(self)

    def encode(self, source: Tensor) -> tuple[EncodedSource, LstmState]:
        """Encode `[sentences, source positions]` tokens; return them, and the first state."""
        real = source != PADDING
        # Packing needs the padding at the end, and a source may have it in front too.
        order = in_front(real)
        original_order = order.argsort(dim=-1)
        x = _reordered(self.dropout(self.embed_source(source)), order)
        packed, (hidden, cell) = self.encoder(_packed(x, real))
        memory, _ = pad_packed_sequence(packed, batch_first=True, total_length=source.shape[-1])
        memory = self.dropout(_reordered(memory, original_order))
        attention = self.decoder.attention
        keys = memory if attention is None else attention.keys(memory)
        encoded = EncodedSource(memory=memory, keys=keys, mask=real.unsqueeze(1))
        return encoded, (_directions_joined(hidden), _directions_joined(cell))

    def decode(
        self, target: Tensor, state: LstmState, source: EncodedSource
    ) -> tuple[Tensor, Weights, LstmState]:
        """Decode `[rows, positions]` tokens, padded behind, from `state` on.

        Rows are those of `Attention.forward`. Returns `[rows, positions, d_model]`, the weights,
        and the state after the last position, even if that is padding.
        """
        embedded = self.dropout(self.embed_target(target))
        decoded, weights, state = self.decoder(embedded, state, source)
        return self.dropout(decoded), weights, state

    def forward(
        self, source: Tensor, target: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Decode `[sentences, target positions]` tokens, each without those after it; see `logits`.

        Weights on request are `[sentences, target positions, source positions]`, None without
        attention.
        """
        encoded, state = self.encode(source)
        # The LSTM would read padding in front as tokens, so it is moved to the end.
        order = in_front(target != PADDING)
        original_order = order.argsort(dim=-1)
        decoded, weights, _ = self.decode(target.gather(-1, order), state, encoded)
        decoded = _reordered(decoded, original_order)
        if not need_weights or weights is None:
            return decoded, None
        return decoded, _reordered(weights, original_order)

    @torch.no_grad()
    def start(self, source: Tensor, beams: int, limit: int) -> RecurrentState:  # noqa: ARG002 - its memory does not grow
        """Implement `translation.decoding.beam_search.IncrementalDecoder`."""
        encoded, (hidden, cell) = self.encode(source)
        return RecurrentState(
            source=encoded,
            hidden=hidden.unsqueeze(2).repeat(1, 1, beams, 1),
            cell=cell.unsqueeze(2).repeat(1, 1, beams, 1),
        )

    @torch.no_grad()
    def step(
        self, state: RecurrentState, tokens: Tensor, *, need_weights: bool = False
    ) -> tuple[Tensor, Weights]:
        """Implement `translation.decoding.beam_search.IncrementalDecoder`."""
        # Each beam of each sentence is a row of one position; the state is [layers, rows, d_model].
        state_of_rows = (state.hidden.flatten(1, 2), state.cell.flatten(1, 2))
        tokens_of_rows = tokens.reshape(-1, 1)
        decoded, weights, (hidden, cell) = self.decode(tokens_of_rows, state_of_rows, state.source)
        state.hidden = hidden.view_as(state.hidden)
        state.cell = cell.view_as(state.cell)
        scores = self.logits(decoded).view(*tokens.shape, -1)
        if not need_weights or weights is None:
            return scores, None
        return scores, weights.view(*tokens.shape, -1)

    def logits(self, decoded: Tensor) -> Tensor:
        """Map `[..., d_model]` to scores `[..., target vocabulary]` by the embedding itself."""
        return decoded @ self.embed_target.weight.T

    @property
    def output_weight(self) -> Tensor:
        """Return the output weight, the target's embedding, `[target vocabulary, d_model]`."""
        return self.embed_target.weight


class RecurrentClassifier(nn.Module):
    """The class of a text from the last state of LSTMs, as the encoder's.

    `masked` stops at the last token; otherwise padding is read like text, as token 0.
    """

    def __init__(self, config: RecurrentConfig, classes: int, *, masked: bool) -> None:
        super().__init__()
        self.masked = masked
        self.embed_source = nn.Embedding(config.source_vocabulary, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = _lstm(config, config.d_model, config.layers)
        self.classify = nn.Linear(config.d_model, classes)
        _initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `[texts, positions]` tokens, padded on either side, to scores `[texts, classes]`."""
        x = self.dropout(self.embed_source(tokens))
        if self.masked:
            real = tokens != PADDING
            x = _packed(_reordered(x, in_front(real)), real)
        _, (hidden, _) = self.encoder(x)
        scores: Tensor = self.classify(self.dropout(hidden[-1]))
        return scores


def in_front(real: Tensor) -> Tensor:
    """Return an order of the positions of each row, `[rows, positions]`, the real ones first."""
    return (~real).byte().argsort(dim=-1, stable=True)


def _reordered(x: Tensor, order: Tensor) -> Tensor:
    return x.take_along_dim(order.unsqueeze(-1), dim=1)


def _packed(x: Tensor, real: Tensor) -> PackedSequence:
    """Pack `x` `[rows, positions, width]`, `real` positions in front, for an LSTM."""
    lengths = real.sum(dim=-1).clamp(min=1).cpu()  # torch refuses rows without a position
    return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)


def _directions_joined(state: Tensor) -> Tensor:
    """Map `[layers * 2, rows, d_model / 2]`, of both directions, to `[layers, rows, d_model]`."""
    by_direction = state.unflatten(0, (-1, 2))  # [layers, 2, rows, d_model / 2]
    joined: Tensor = by_direction.transpose(1, 2).flatten(-2)
    return joined


def _lstm(
    config: RecurrentConfig, hidden: int, layers: int, *, bidirectional: bool = False
) -> nn.LSTM:
    # torch applies dropout only between layers, and warns if there is one layer alone.
    dropout = config.dropout if layers > 1 else 0.0
    return nn.LSTM(
        input_size=config.d_model,
        hidden_size=hidden,
        num_layers=layers,
        batch_first=True,
        dropout=dropout,
        bidirectional=bidirectional,
    )


def _initialise(network: nn.Module) -> None:
    """Initialise matrices as Glorot and Bengio, and biases as Jozefowicz et al. (ICML 2015).

    The bias of the forget gate is 1, others are 0. Embeddings are uniform in +-EMBEDDING_RANGE.
    """
    for name, parameter in network.named_parameters():
        if name.endswith("pairwise"):
            continue  # zeros: at first, positions are independent
        if "embed" in name:
            nn.init.uniform_(parameter, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        elif parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)
            if ".bias_ih" in name:
                # The gates are input, forget, candidate, output; torch adds bias_hh, which stays 0.
                parameter.data.unflatten(0, (4, -1))[1] = 1.0


def normalise(scores: Tensor, mask: Tensor, pairwise: Tensor | None) -> Tensor:
    """Return the weight of each position by softmax, or `chain_marginals` given `pairwise` `[2,
    2]`.

    `scores` are `[..., positions]`, `mask` broadcasts to them; masked positions are 0. Softmax rows
    sum to 1 and need an unmasked position; marginals are each between 0 and 1.
    """
    if pairwise is not None:
        return chain_marginals(scores, mask, pairwise)
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def chain_marginals(unary: Tensor, mask: Tensor, pairwise: Tensor) -> Tensor:
    """Return p(z = 1) of each position in a chain of z in {0, 1} (section 3.1 of Kim et al., ICLR
    2017).

    p(z) is proportional to exp(sum_i unary_i z_i + sum_i pairwise[z_i, z_(i+1)]), with `unary`
    `[..., positions]` and `pairwise` `[2, 2]`. As in the paper a row is not normalised. A position
    masked out (`mask` broadcasts) has 0 and is left out of the chain. Time is linear.
    """
    mask = mask.expand(unary.shape)
    # A masked score may be NaN or infinite: its value must reach no gradient.
    unary = unary.masked_fill(~mask, 0.0)
    # The backward messages are those of the chain from right to left.
    before, after = _messages(
        unary=torch.stack([unary, unary.flip(-1)]),
        mask=torch.stack([mask, mask.flip(-1)]),
        pairwise=torch.stack([pairwise, pairwise.T]),
    )
    log_odds = before + unary + after.flip(-1)
    marginals: Tensor = log_odds.sigmoid()
    return marginals.masked_fill(~mask, 0.0)


def _messages(unary: Tensor, mask: Tensor, pairwise: Tensor) -> Tensor:
    """Return the message that reaches each position from those before it, as log-odds of z = 1.

    That is all a forward-backward pass in log space carries: `[directions, ..., positions]`, 0
    before the first unmasked one; `pairwise` is `[directions, 2, 2]`.
    """
    batch_axes = unary.dim() - 2
    # [directions, 4, 1, ...]: of two neighbours that are 0 and 0, 0 and 1, 1 and 0, 1 and 1.
    potentials = pairwise.view(-1, 4, *[1] * batch_axes)
    stay_0, to_1, to_0, stay_1 = potentials.unbind(1)
    message = torch.zeros_like(unary[..., 0])
    messages = []
    for score, is_unmasked in zip(unary.unbind(-1), mask.unbind(-1), strict=True):
        messages.append(message)
        log_odds = score + message
        next_is_1 = torch.logaddexp(to_1, log_odds + stay_1)
        next_is_0 = torch.logaddexp(stay_0, log_odds + to_0)
        message = torch.where(is_unmasked, next_is_1 - next_is_0, message)
    return torch.stack(messages, dim=-1)
