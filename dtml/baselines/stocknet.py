"""StockNet without tweets, its "TechnicalAnalyst", in the order of the paper (Xu, Cohen, ACL 2018).

Axes: `window` sessions, `days`, `stocks`, `hidden` units of the recurrence, `latent` variables,
`movement` units of the decoded movement. Each stock is seen alone; the rows hold the index, which
is never read. The sessions inside the
window have movements of their own, known from the rows: they are auxiliary targets.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dtml.errors import UsageError
from dtml.features import FEATURES
from dtml.layers.network import (
    Batch,
    Dropout,
    Gaussian,
    Network,
    NetworkConfig,
    Positions,
    Rows,
    Scores,
    StockDays,
)

Z_ADJ_CLOSE = FEATURES.index("z_adj_close")
Inputs = Float[Tensor, "window days stocks features"]


@dataclass(frozen=True)
class StockNetConfig(NetworkConfig):
    """The shape of a StockNet; the defaults are those of the authors' public code."""

    features: int = 11
    hidden: int = 150
    latent: int = 150  # as many as hidden, in that code
    movement: int = 50
    dropout: float = 0.3  # of the inputs
    alpha: float = 0.5  # weight of the auxiliary targets
    annealing: float = 0.005  # the weight of the KL divergence grows by this a step, up to 1
    posterior_past: bool = (
        False  # True: with posteriors where the next session was seen, as in that code
    )
    movement_feature: int = Z_ADJ_CLOSE  # the feature whose sign is the movement of a session

    def __post_init__(self) -> None:
        sizes = (self.hidden, self.latent, self.movement)
        if min(sizes) < 1 or self.features <= self.movement_feature:
            features = f"features above {self.movement_feature}; got {sizes}, {self.features}"
            raise UsageError(f"hidden, latent and movement are 1 or more, {features}")
        if not 0 <= self.dropout < 1 or self.alpha < 0 or self.annealing <= 0:
            got = f"{self.dropout}, {self.alpha}, {self.annealing}"
            raise UsageError(
                f"dropout lies in [0, 1), alpha is 0 or more, annealing above 0; got {got}"
            )

    def build(self, stocks: int) -> "StockNet":  # noqa: ARG002 - every config builds for a number of stocks
        """Return the network, which is the same for any number of stocks."""
        return StockNet(self)


class Normal(NamedTuple):
    """Independent normal variables."""

    mean: Float[Tensor, "*batch latent"]
    log_variance: Float[Tensor, "*batch latent"]


class Decoded(NamedTuple):
    """A decoded window: its hidden states, and its latent variables, drawn or at their means."""

    hidden: Float[Tensor, "window days stocks hidden"]
    latent: Float[Tensor, "window days stocks latent"]
    posterior: (
        Normal | None
    )  # of the sessions whose movements were given; None where there are none


class Prediction(NamedTuple):
    """Logits of a rise: of the target, of each earlier session of the window,
    and the attention on those.
    """

    target: Scores
    auxiliary: Float[Tensor, "earlier days stocks"]
    attention: Float[Tensor, "earlier days stocks"]


class StockNet(Network):
    """A variational movement decoder with attention over the movements inside the window.

    The two classes of the paper's softmax are one logit here, their difference. Hidden state and
    latent start from 0.
    """

    def __init__(self, config: StockNetConfig) -> None:
        super().__init__()
        hidden, latent, movement = config.hidden, config.latent, config.movement
        self.alpha, self.annealing = config.alpha, config.annealing
        self.sizes = (hidden, latent)
        self.posterior_past, self.movement_feature = config.posterior_past, config.movement_feature
        self.dropout = Dropout(config.dropout)
        self.gaussian = Gaussian()
        self.gates = nn.Linear(config.features + hidden + latent, 2 * hidden)  # reset and update
        self.candidate = nn.Linear(config.features + hidden + latent, hidden)
        self.prior = NormalLayer(config.features + hidden, latent)
        self.posterior = NormalLayer(config.features + hidden + 1, latent)
        self.decode_movement = nn.Linear(config.features + hidden + latent, movement)
        self.predict_auxiliary = nn.Linear(movement, 1)
        self.attention = MovementAttention(movement)
        self.predict = nn.Linear(1 + movement, 1)

    def logits(self, rows: Rows, windows: Positions, observed: StockDays) -> Scores:  # noqa: ARG002 - no stock sees another
        """Return the target's logit, its latent at the mean of its prior: the target's movement is
        not known yet.

        The earlier latents are means of priors too or, with `posterior_past`, of posteriors:
        training draws from these, and the movements that they depend on lie inside the window.
        """
        inputs = rows[windows.mT, :-1]
        x = self.dropout(inputs)
        known = past_movements(inputs, self.movement_feature)
        return self._predict(x, self.decode(x, known if self.posterior_past else known[:0])).target

    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the negative of the paper's objective, averaged over the counted stock-days.

        The target counts once, each earlier session alpha times its attention; each with the
        log-likelihood of its movement minus the weighted divergence of posterior from prior. That
        divergence is all the regularisation there
        is: `penalty` multiplies its annealed weight, and 1 is the published objective.
        """
        inputs = batch.rows[batch.windows.mT, :-1]
        x = self.dropout(inputs)
        returns = torch.cat(
            [past_movements(inputs, self.movement_feature), batch.rises.unsqueeze(0).to(x.dtype)]
        )
        decoded = self.decode(x, returns)
        predicted = self._predict(x, decoded)
        assert decoded.posterior is not None
        divergence = kl_divergence(
            decoded.posterior, self.prior(torch.cat([x, decoded.hidden], dim=-1))
        )
        movements = torch.cat([predicted.auxiliary, predicted.target.unsqueeze(0)])
        cost = nn.functional.binary_cross_entropy_with_logits(movements, returns, reduction="none")
        cost = cost + penalty * self.kl_weight(batch.step) * divergence
        each = cost[-1] + (self.alpha * predicted.attention * cost[:-1]).sum(dim=0)
        return (each * batch.counted).sum() / batch.counted.sum()

    def kl_weight(self, step: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the weight of the divergence after `step` steps, from 0 up to 1 (KL annealing)."""
        return (self.annealing * step).clamp_max(1)

    def decode(self, x: Inputs, returns: Float[Tensor, "known days stocks"]) -> Decoded:
        """Run the recurrence (section 5.2) with latents from the posterior given `returns`, 1 a
        rise and 0 a fall.

        While not training, a posterior is taken at its mean. Sessions after the last known movement
        take the mean of their prior.
        """
        hidden, latent = (x.new_zeros(*x.shape[1:-1], size) for size in self.sizes)
        hiddens, latents, posteriors = [], [], []
        for t in range(len(x)):
            hidden = self._recur(x[t], hidden, latent)
            seen = torch.cat([x[t], hidden], dim=-1)
            if t < len(returns):
                posterior = self.posterior(torch.cat([seen, returns[t].unsqueeze(-1)], dim=-1))
                latent = posterior.mean + (posterior.log_variance / 2).exp() * self.gaussian(
                    posterior.mean
                )
                posteriors.append(posterior)
            else:
                latent = self.prior(seen).mean
            hiddens.append(hidden)
            latents.append(latent)
        posterior = (
            Normal(*(torch.stack(each) for each in zip(*posteriors, strict=True)))
            if posteriors
            else None
        )
        return Decoded(torch.stack(hiddens), torch.stack(latents), posterior)

    def _recur(self, x: Tensor, hidden: Tensor, latent: Tensor) -> Tensor:
        """Take one step of a gated recurrent unit whose gates also read the previous latent."""
        gates: Tensor = self.gates(torch.cat([x, hidden, latent], dim=-1)).sigmoid()
        reset, update = gates.chunk(2, dim=-1)
        candidate: Tensor = self.candidate(torch.cat([x, reset * hidden, latent], dim=-1)).tanh()
        return hidden + update * (candidate - hidden)

    def _predict(self, x: Tensor, decoded: Decoded) -> Prediction:
        """Predict movements from hidden states and latents; the target's from
        its own and the attended earlier ones.
        """
        movement: Tensor = self.decode_movement(
            torch.cat([x, decoded.hidden, decoded.latent], dim=-1)
        ).tanh()
        earlier, last = movement[:-1], movement[-1]
        auxiliary = self.predict_auxiliary(earlier).squeeze(-1)
        attention = self.attention(earlier, last)
        attended = (attention * auxiliary.sigmoid()).sum(
            dim=0
        )  # of two classes one probability says all
        target = self.predict(torch.cat([attended.unsqueeze(-1), last], dim=-1)).squeeze(-1)
        return Prediction(target, auxiliary, attention)


class NormalLayer(nn.Module):
    """Mean and log-variance of a latent from one tanh layer of its own width (section 5.2)."""

    def __init__(self, inputs: int, latent: int) -> None:
        super().__init__()
        self.expand = nn.Linear(inputs, latent)
        self.parameters_of = nn.Linear(latent, 2 * latent)

    def forward(self, seen: Float[Tensor, "*batch inputs"]) -> Normal:
        """Return the distribution, given what is seen."""
        mean, log_variance = self.parameters_of(self.expand(seen).tanh()).chunk(2, dim=-1)
        return Normal(mean, log_variance)


class MovementAttention(nn.Module):
    """Attention on the earlier sessions: the information in each times its
    dependency with the last (section 5.3).
    """

    def __init__(self, movement: int) -> None:
        super().__init__()
        self.project_information = nn.Linear(movement, movement, bias=False)
        self.information = nn.Linear(movement, 1, bias=False)
        self.project_dependency = nn.Linear(movement, movement, bias=False)

    def forward(
        self,
        earlier: Float[Tensor, "earlier days stocks movement"],
        last: Float[Tensor, "days stocks movement"],
    ) -> Float[Tensor, "earlier days stocks"]:
        """Return weights that sum to 1 over the earlier sessions."""
        information = self.information(self.project_information(earlier).tanh()).squeeze(-1)
        dependency = (self.project_dependency(earlier).tanh() * last).sum(dim=-1)
        weights: Tensor = (information * dependency).softmax(dim=0)
        return weights


def past_movements(
    inputs: Inputs, feature: int = Z_ADJ_CLOSE
) -> Float[Tensor, "earlier days stocks"]:
    """Return 1 where the next session is a rise, else 0, for all sessions but
    the last, read from the next row.
    """
    return (inputs[1:, ..., feature] > 0).to(inputs.dtype)


def kl_divergence(of: Normal, given: Normal) -> Float[Tensor, "*batch"]:
    """Return KL(of || given) in nats, summed over the latents; 0 or more."""
    ratio = of.log_variance - given.log_variance
    apart = (of.mean - given.mean).square() * (-given.log_variance).exp()
    return (ratio.exp() - 1 - ratio + apart).sum(dim=-1) / 2
