"""DTML, in the order of the paper's equations (Yoo, Soun, Park, Kang, KDD 2021).

Axes: `days` of a batch, `stocks` of a market, `window` sessions, `features`, `hidden` units. Days
never see each other; stocks of a day do in the data axis, and in the mean and deviation before it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dtml.errors import UsageError
from dtml.network import (
    Batch,
    Network,
    NetworkConfig,
    Positions,
    Rows,
    Scores,
    StockDays,
    cross_entropy,
)
from translation.transformer import EncoderLayer

Normalisation = Literal["per_stock", "shared"]


@dataclass(frozen=True)
class ModelConfig(NetworkConfig):
    """The shape of a DTML; the defaults are the paper's for ACL18."""

    features: int = 11
    hidden: int = 64
    heads: int = 4
    beta: float = 0.1  # weight of the index's context, eq. 4
    dropout: float = 0.15
    # Gains of eq. 3 per (stock, unit), or per unit for a universe that changes.
    normalisation: Normalisation = "per_stock"
    identity: float = 0.0  # standard deviation of the initial offsets of eq. 3 (0 in the paper)
    # False: no stock attends to another, the control that shows what the data axis adds.
    data_axis: bool = True

    def __post_init__(self) -> None:
        if self.hidden < 1 or self.heads < 1 or self.hidden % self.heads:
            raise UsageError(
                "hidden must be a positive multiple of heads, and heads 1 or more, "
                f"got hidden {self.hidden}, heads {self.heads}"
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be 0 or more and below 1, got {self.dropout}")
        for name in ("beta", "identity"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be 0 or more, got {getattr(self, name)}")

    def build(self, stocks: int) -> "DTML":
        """Return the network for a number of stocks."""
        return DTML(self, stocks)

    @property
    def name(self) -> str:
        """Return the name in the published table."""
        return "dtml"

    @property
    def is_tied(self) -> bool:
        """Return whether eq. 3 has gains for each stock."""
        return self.normalisation == "per_stock"


class LSTM(nn.Module):
    """torch's long short-term memory over windows of sessions, with one bias where torch has two.

    Gates: input, forget, output, candidate. `inputs` is the number of values of a session, None for
    `hidden`. Weights start uniform in +-1/sqrt(n), n the values that the map reads (torch: hidden).
    """

    def __init__(self, hidden: int, inputs: int | None = None) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs or hidden, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)
        # In products and sums, on rows that hold the sessions of each window, the oldest first.
        self.unrolled = False

    def forward(
        self, rows: Float[Tensor, "sessions symbols inputs"], windows: Positions
    ) -> Float[Tensor, "window days symbols hidden"]:
        """Return the hidden state after each session of each day's window, from a start of zero."""
        if self.unrolled:
            return self._unrolled(rows.unflatten(0, windows.mT.shape))
        inputs = rows[windows.mT]  # [window days symbols inputs]
        sequences = inputs[0, ..., 0].numel()  # one for each day and symbol
        begin = rows.new_zeros(1, sequences, self.from_state.in_features)
        states: Tensor = torch.lstm(
            inputs.flatten(1, 2),
            (begin, begin),
            self._weights_of_torch(),
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=False,
        )[0]  # the states of all sessions; the others are those of the last session alone
        return states.view(*inputs.shape[:3], -1)  # days and symbols are separate axes again

    def _unrolled(
        self, inputs: Float[Tensor, "window days symbols inputs"]
    ) -> Float[Tensor, "window days symbols hidden"]:
        """Return the states by products and sums alone, which `vmap` can batch."""
        from_inputs = self.from_input(inputs)
        hidden = cell = torch.zeros_like(from_inputs[0, ..., : self.from_state.in_features])
        states: list[Tensor] = []
        for from_input in from_inputs.unbind():
            gates = from_input + self.from_state(hidden)
            *sigmoid_gates, candidate = gates.chunk(4, dim=-1)
            input_gate, forget_gate, output_gate = (gate.sigmoid() for gate in sigmoid_gates)
            cell = forget_gate * cell + input_gate * candidate.tanh()
            hidden = output_gate * cell.tanh()
            states.append(hidden)
        return torch.stack(states)

    def _weights_of_torch(self) -> list[Tensor]:
        """Return the weights in torch's order: input, state, and two biases, the second 0."""
        bias = self.from_input.bias
        weights = [
            _in_torchs_order(self.from_input.weight),
            _in_torchs_order(self.from_state.weight),
            _in_torchs_order(bias),
            torch.zeros_like(bias),
        ]
        return _in_one_piece(weights) if bias.is_cuda else weights


def _in_torchs_order(gates: Float[Tensor, "gates ..."]) -> Float[Tensor, "gates ..."]:
    """Return the rows of the gates in torch's order: input, forget, candidate, output."""
    input_gate, forget_gate, output_gate, candidate = gates.chunk(4)
    return torch.cat([input_gate, forget_gate, candidate, output_gate])


def _in_one_piece(tensors: list[Tensor]) -> list[Tensor]:
    """Copy tensors into one piece of memory, as cuDNN would otherwise do at each call, and warn."""
    piece = torch.cat([tensor.flatten() for tensor in tensors])
    parts = piece.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def temporal_attention(
    states: Float[Tensor, "window *batch hidden"],
) -> Float[Tensor, "*batch hidden"]:
    """Sum the states, weighted by the softmax of their products with the last one (eqs. 1-2)."""
    products = (states * states[-1]).sum(dim=-1, keepdim=True)
    weights = products.softmax(dim=0)
    return (weights * states).sum(dim=0)


class ContextNormalisation(nn.Module):
    """Centre and scale the contexts of one day over its stocks and units together (eq. 3).

    1e-5 is added to the variance. One row of gains and offsets per stock ties the model to a fixed,
    ordered list, and is all that tells stocks apart; a single row is shared.
    """

    def __init__(self, stocks: int, hidden: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(stocks, hidden))
        self.offset = nn.Parameter(torch.zeros(stocks, hidden))

    def forward(
        self, contexts: Float[Tensor, "days stocks hidden"], observed: StockDays
    ) -> Float[Tensor, "days stocks hidden"]:
        """Normalise with the mean and the standard deviation of the observed stocks alone."""
        counted = observed.unsqueeze(-1).to(contexts.dtype)
        # The number of values of each day: its observed stocks times the units.
        size = counted.sum(dim=(1, 2), keepdim=True) * contexts.shape[-1]
        mean = (contexts * counted).sum(dim=(1, 2), keepdim=True) / size
        centred = contexts - mean
        variance = (centred.square() * counted).sum(dim=(1, 2), keepdim=True) / size
        scale = (variance + 1e-5).rsqrt()
        return self.gain * centred * scale + self.offset


class DTML(Network):
    """The network, from the sessions of a market to each stock's logit of a rise in the next one.

    The attention of eq. 6 is multi-head, as in the published runs, so scaled by sqrt(hidden /
    heads).
    """

    def __init__(self, config: ModelConfig, stocks: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.beta = config.beta
        self.data_axis = config.data_axis
        self.transform = nn.Linear(config.features, hidden)
        self.lstm = LSTM(hidden)
        self.identity = config.identity
        self.normalise = ContextNormalisation(stocks if config.is_tied else 1, hidden)
        # Eqs. 5-8 have no layer normalisation and no projection of the attention's output.
        self.mix = EncoderLayer(
            hidden,
            config.heads,
            4 * hidden,
            norm="none",
            activation_dropout=config.dropout,
            output_projection=False,
        )
        self.predict = nn.Linear(hidden, 1)

    def forward(
        self, rows: Rows, windows: Positions, observed: StockDays, *, need_attention: bool = False
    ) -> tuple[Scores, Float[Tensor, "days heads stocks stocks"] | None]:
        """Return the logits and, with `need_attention` and a data axis, the attention, by looking
        stock.

        `rows` are features in percent, with the index as the last symbol; `windows` the positions
        in them of each day's sessions, oldest first. Stocks not `observed` are neither attended to
        nor counted, and their logits mean nothing; every day needs one that is.
        """
        transformed = self.transform(rows).tanh()  # feature transformation, once a session
        contexts = temporal_attention(self.lstm(transformed, windows))  # eqs. 1-2
        stock_contexts = contexts[:, :-1]
        index_context = contexts[:, -1:]  # [days 1 hidden]: added to that of every stock
        normalised = self.normalise(stock_contexts, observed)  # eq. 3
        multi_level = normalised + self.beta * index_context  # eq. 4
        if self.data_axis:  # eqs. 5-8
            # [days 1 stocks]: every stock of a day may look at the same stocks.
            is_visible = observed.unsqueeze(1)
            mixed, attention = self.mix(multi_level, is_visible, need_weights=need_attention)
        else:  # eq. 8 without the other stocks
            mixed = multi_level + self.mix.feed_forward(multi_level)
            attention = None
        logits = self.predict(mixed.tanh())  # the tanh of eq. 8, then eq. 9
        return logits.squeeze(-1), attention

    def logits(self, rows: Rows, windows: Positions, observed: StockDays) -> Scores:
        """Return the logits without the attention."""
        logits: Tensor = self(rows, windows, observed)[0]
        return logits

    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the cross-entropy plus `penalty` times the last layer's square (section 3.4)."""
        logits = self.logits(batch.rows, batch.windows, batch.observed)
        last_layer = self.predict.weight.square().sum() + self.predict.bias.square().sum()
        loss = cross_entropy(logits, batch.rises, batch.counted)
        return loss + penalty * last_layer

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the linear maps, then the offsets of eq. 3: the maps are the same without them."""
        super().initialise(generator)
        if self.identity:
            nn.init.normal_(self.normalise.offset, std=self.identity, generator=generator)
