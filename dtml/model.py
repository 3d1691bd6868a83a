"""DTML, in the order of the paper's equations (Yoo, Soun, Park, Kang, KDD 2021).

Axes: `days` of a batch, `stocks` of a market, `window` sessions seen, `features`, `hidden` units.
Days never see each other; stocks of one day see each other in the data axis alone.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dtml.errors import UsageError
from translation.transformer import EncoderLayer

Normalisation = Literal["per_stock", "shared"]


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a DTML; the defaults are the paper's for ACL18."""

    features: int = 11
    hidden: int = 64
    heads: int = 4
    beta: float = 0.1  # weight of the index's context, eq. 4
    dropout: float = 0.15
    normalisation: Normalisation = "per_stock"  # gains of eq. 3 per (stock, unit), or per unit for a live universe
    identity: float = 0.0  # spread of the initial offsets of eq. 3: 0 in the paper; above, stocks differ from the start
    data_axis: bool = True  # False: each stock alone, the control that shows what the data axis adds

    def __post_init__(self) -> None:
        if self.hidden < 1 or self.heads < 1 or self.hidden % self.heads:
            raise UsageError(
                f"hidden must be a positive multiple of heads, got hidden {self.hidden}, heads {self.heads}"
            )
        if not 0 <= self.dropout < 1 or self.beta < 0 or self.identity < 0:
            raise UsageError(
                "dropout lies in [0, 1), beta and identity are 0 or more; "
                f"got {self.dropout}, {self.beta}, {self.identity}"
            )


class DTML(nn.Module):
    """From windows of a market to the logit of each stock's rise in the next session.

    The attention of eq. 6 is multi-head, as the published runs', and so scaled by sqrt(hidden / heads).
    """

    def __init__(self, config: ModelConfig, stocks: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.beta = config.beta
        self.data_axis = config.data_axis
        self.transform = nn.Linear(config.features, hidden)
        self.lstm = LSTM(hidden)
        self.normalise = ContextNormalisation(stocks if config.normalisation == "per_stock" else 1, hidden)
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
        self,
        stocks: Float[Tensor, "days stocks window features"],
        index: Float[Tensor, "days window features"],
        observed: Bool[Tensor, "days stocks"],
        *,
        need_attention: bool = False,
    ) -> tuple[Float[Tensor, "days stocks"], Float[Tensor, "days heads stocks stocks"] | None]:
        """Return the logits and, on request, who moves whom: row u of the attention is what stock u looks at.

        Features are in percent. Stocks that are not `observed` are no key to any other and count in no statistic;
        their own logits mean nothing. Every day needs at least one observed stock.
        """
        together = torch.cat([stocks, index.unsqueeze(1)], dim=1)
        transformed = self.transform(together).tanh()  # feature transformation
        contexts = temporal_attention(self.lstm(transformed))  # eqs. 1-2
        normalised = self.normalise(contexts[:, :-1], observed)  # eq. 3
        multi_level = normalised + self.beta * contexts[:, -1:]  # eq. 4
        if self.data_axis:
            mixed, attention = self.mix(multi_level, observed.unsqueeze(1), need_weights=need_attention)  # eqs. 5-7
        else:
            mixed, attention = multi_level + self.mix.feed_forward(multi_level), None  # eq. 8 without the others
        return self.predict(mixed.tanh()).squeeze(-1), attention  # eqs. 8-9


class LSTM(nn.Module):
    """A long short-term memory over the window, written out so that it can be mapped over members and compiled.

    Gates lie in the order input, forget, output, candidate. Weights start uniform in +-1/sqrt(hidden), as torch's.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(hidden, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Float[Tensor, "*batch window hidden"]) -> Float[Tensor, "*batch window hidden"]:
        """Return the hidden state after each session of the window."""
        inputs = self.from_input(x.movedim(-2, 0).contiguous())  # all sessions in one product
        state = memory = torch.zeros_like(inputs[0, ..., : self.hidden])
        states = []
        for session in inputs.unbind(0):
            gates = session + self.from_state(state)
            enter, keep, leave = gates[..., : 3 * self.hidden].sigmoid().chunk(3, dim=-1)
            memory = keep * memory + enter * gates[..., 3 * self.hidden :].tanh()
            state = leave * memory.tanh()
            states.append(state)
        return torch.stack(states, dim=-2)


def temporal_attention(states: Float[Tensor, "*batch window hidden"]) -> Float[Tensor, "*batch hidden"]:
    """Sum the states, weighted by the softmax of their product with the last one (eqs. 1-2)."""
    weights = (states @ states[..., -1:, :].mT).softmax(dim=-2)
    return (weights * states).sum(dim=-2)


class ContextNormalisation(nn.Module):
    """Centre and scale the contexts of one day over its stocks and units together (eq. 3, with 1e-5 in the variance).

    `stocks` gains and offsets per unit: one row per stock ties the model to a fixed, ordered universe and is all that
    tells one stock from another; a single row is shared by any universe.
    """

    def __init__(self, stocks: int, hidden: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(stocks, hidden))
        self.offset = nn.Parameter(torch.zeros(stocks, hidden))

    def forward(
        self, contexts: Float[Tensor, "days stocks hidden"], observed: Bool[Tensor, "days stocks"]
    ) -> Float[Tensor, "days stocks hidden"]:
        """Normalise with the mean and the standard deviation of the observed stocks alone."""
        counted = observed.unsqueeze(-1).to(contexts.dtype)
        size = counted.sum(dim=(1, 2), keepdim=True) * contexts.shape[-1]
        mean = (contexts * counted).sum(dim=(1, 2), keepdim=True) / size
        centred = contexts - mean
        variance = (centred.square() * counted).sum(dim=(1, 2), keepdim=True) / size
        return self.gain * centred * (variance + 1e-5).rsqrt() + self.offset
