"""StockNet without tweets, its "TechnicalAnalyst", in the order of the paper (Xu, Cohen, ACL 2018).

Axes: `window` sessions, `days`, `stocks`, `hidden` units, `latent` variables, `movement` units.
Each stock is seen alone, without the index. Movements inside the window are auxiliary targets.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dtml.features import FEATURES
from dtml.network import (
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
    # Whether predictions take the latents of earlier sessions, whose movements are known, from
    # posteriors, as in that code, and not from priors.
    posterior_past: bool = False
    movement_feature: int = Z_ADJ_CLOSE  # the feature whose sign is the movement of a session

    def build(self, stocks: int) -> "StockNet":  # noqa: ARG002 - the same for any number
        """Return the network, which is the same for any number of stocks."""
        return StockNet(self)

    @property
    def name(self) -> str:
        """Return the name in the published table."""
        return "stocknet"


class Normal(NamedTuple):
    """Independent normal variables."""

    mean: Float[Tensor, "*batch latent"]
    log_variance: Float[Tensor, "*batch latent"]


class Decoded(NamedTuple):
    """A decoded window: its hidden states, and its latent variables, drawn or at their means."""

    hidden: Float[Tensor, "window days stocks hidden"]
    latent: Float[Tensor, "window days stocks latent"]
    posterior: Normal | None  # of the sessions with given movements; None without any


class Prediction(NamedTuple):
    """Logits of a rise: of the target and of earlier sessions, and the `attention` on these."""

    target: Scores
    auxiliary: Float[Tensor, "earlier days stocks"]
    attention: Float[Tensor, "earlier days stocks"]


class StockNet(Network):
    """A variational movement decoder with attention over the movements inside the window.

    The paper's two classes are one logit, their difference. States start from 0.
    """

    def __init__(self, config: StockNetConfig) -> None:
        super().__init__()
        hidden = config.hidden
        latent = config.latent
        movement = config.movement
        self.alpha = config.alpha
        self.annealing = config.annealing
        self.sizes = (hidden, latent)
        self.posterior_past = config.posterior_past
        self.movement_feature = config.movement_feature
        self.dropout = Dropout(config.dropout)
        self.gaussian = Gaussian()
        inputs = config.features + hidden  # of the layers that see a session and its hidden state
        self.gates = nn.Linear(inputs + latent, 2 * hidden)  # reset and update
        self.candidate = nn.Linear(inputs + latent, hidden)
        self.prior = NormalLayer(inputs, latent)
        self.posterior = NormalLayer(inputs + 1, latent)  # 1: the movement
        self.decode_movement = nn.Linear(inputs + latent, movement)
        self.predict_auxiliary = nn.Linear(movement, 1)
        self.attention = MovementAttention(movement)
        # The attended probability of a rise, and the decoded movement of the target.
        self.predict = nn.Linear(1 + movement, 1)

    def logits(
        self,
        rows: Rows,
        windows: Positions,
        observed: StockDays,  # noqa: ARG002 - no stock sees another
    ) -> Scores:
        """Return the target's logit, with its latent at the mean of its prior.

        Earlier latents are means too or, with `posterior_past`, of posteriors, as training draws.
        """
        inputs = rows[windows.mT, :-1]  # [window days stocks features], without the index
        x = self.dropout(inputs)
        movements = past_movements(inputs, self.movement_feature)
        if not self.posterior_past:
            movements = movements[:0]  # `decode` takes priors where no movement is given
        decoded = self.decode(x, movements)
        return self._predict(x, decoded).target

    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the negative of the paper's objective, averaged over the counted stock-days.

        A session adds its log-likelihood less the weighted divergence of posterior from prior; the
        target counts once, earlier ones alpha times their attention. `penalty` multiplies the
        annealed weight of the divergence, 1 as published.
        """
        # [window days stocks features], without the index.
        inputs = batch.rows[batch.windows.mT, :-1]
        x = self.dropout(inputs)
        earlier = past_movements(inputs, self.movement_feature)
        target = batch.rises.unsqueeze(0).to(x.dtype)
        movements = torch.cat([earlier, target])
        # Training knows the movement of every session, so that all latents are from posteriors.
        decoded = self.decode(x, movements)
        predicted = self._predict(x, decoded)
        assert decoded.posterior is not None
        x_and_hidden = torch.cat([x, decoded.hidden], dim=-1)
        prior = self.prior(x_and_hidden)
        divergence = kl_divergence(decoded.posterior, prior)
        # [window days stocks], the target last, like `movements`.
        logits = torch.cat([predicted.auxiliary, predicted.target.unsqueeze(0)])
        cost = nn.functional.binary_cross_entropy_with_logits(logits, movements, reduction="none")
        cost = cost + penalty * self.kl_weight(batch.step) * divergence
        of_target = cost[-1]
        weighted_earlier = self.alpha * predicted.attention * cost[:-1]
        of_earlier = weighted_earlier.sum(dim=0)
        of_stock_day = of_target + of_earlier
        return (of_stock_day * batch.counted).sum() / batch.counted.sum()

    def kl_weight(self, step: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the weight of the divergence after `step` steps, from 0 up to 1 (KL annealing)."""
        return (self.annealing * step).clamp_max(1)

    def decode(self, x: Inputs, movements: Float[Tensor, "known days stocks"]) -> Decoded:
        """Run the recurrence (section 5.2) with latents from the posterior given `movements`.

        A row for each of the first sessions, or none: 1 where the next is a rise, else 0. Others
        take the mean of their prior; outside training so do posteriors.
        """
        hidden_size, latent_size = self.sizes
        hidden = x.new_zeros(*x.shape[1:-1], hidden_size)
        latent = x.new_zeros(*x.shape[1:-1], latent_size)
        hiddens = []
        latents = []
        posteriors = []
        for t in range(len(x)):
            hidden = self._recur(x[t], hidden, latent)
            x_and_hidden = torch.cat([x[t], hidden], dim=-1)
            if t < len(movements):
                movement = movements[t].unsqueeze(-1)
                posterior = self.posterior(torch.cat([x_and_hidden, movement], dim=-1))
                deviation = (posterior.log_variance / 2).exp()
                latent = posterior.mean + deviation * self.gaussian(posterior.mean)
                posteriors.append(posterior)
            else:
                latent = self.prior(x_and_hidden).mean
            hiddens.append(hidden)
            latents.append(latent)
        return Decoded(
            hidden=torch.stack(hiddens),
            latent=torch.stack(latents),
            posterior=Normal(
                mean=torch.stack([normal.mean for normal in posteriors]),
                log_variance=torch.stack([normal.log_variance for normal in posteriors]),
            )
            if posteriors
            else None,
        )

    def _recur(self, x: Tensor, hidden: Tensor, latent: Tensor) -> Tensor:
        """Take one step of a gated recurrent unit whose gates also read the previous latent."""
        inputs = torch.cat([x, hidden, latent], dim=-1)
        gates: Tensor = self.gates(inputs).sigmoid()
        reset, update = gates.chunk(2, dim=-1)
        reset_inputs = torch.cat([x, reset * hidden, latent], dim=-1)
        candidate: Tensor = self.candidate(reset_inputs).tanh()
        return hidden + update * (candidate - hidden)

    def _predict(self, x: Tensor, decoded: Decoded) -> Prediction:
        """Predict movements; the target's from its own and, by attention, from earlier
        predictions.
        """
        inputs = torch.cat([x, decoded.hidden, decoded.latent], dim=-1)
        movement: Tensor = self.decode_movement(inputs).tanh()
        earlier = movement[:-1]
        last = movement[-1]
        auxiliary = self.predict_auxiliary(earlier).squeeze(-1)
        attention = self.attention(earlier, last)
        # The paper attends to the probabilities of both classes; the second is 1 less the first.
        attended = (attention * auxiliary.sigmoid()).sum(dim=0)
        target_inputs = torch.cat([attended.unsqueeze(-1), last], dim=-1)
        target = self.predict(target_inputs).squeeze(-1)
        return Prediction(target=target, auxiliary=auxiliary, attention=attention)


class NormalLayer(nn.Module):
    """Mean and log-variance of a latent from one tanh layer of its own width (section 5.2)."""

    def __init__(self, inputs: int, latent: int) -> None:
        super().__init__()
        self.expand = nn.Linear(inputs, latent)
        self.parameters_of = nn.Linear(latent, 2 * latent)

    def forward(self, inputs: Float[Tensor, "*batch inputs"]) -> Normal:
        """Return the distribution given the inputs."""
        expanded = self.expand(inputs).tanh()
        mean, log_variance = self.parameters_of(expanded).chunk(2, dim=-1)
        return Normal(mean, log_variance)


class MovementAttention(nn.Module):
    """Attention on earlier sessions (section 5.3): information times dependency with the last."""

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
        projected_information = self.project_information(earlier).tanh()
        information = self.information(projected_information).squeeze(-1)
        projected_dependency = self.project_dependency(earlier).tanh()
        dependency = (projected_dependency * last).sum(dim=-1)
        weights: Tensor = (information * dependency).softmax(dim=0)
        return weights


def past_movements(
    inputs: Inputs, feature: int = Z_ADJ_CLOSE
) -> Float[Tensor, "earlier days stocks"]:
    """Return 1 where the next session is a rise, else 0, of every session but the last."""
    return (inputs[1:, ..., feature] > 0).to(inputs.dtype)


def kl_divergence(of: Normal, given: Normal) -> Float[Tensor, "*batch"]:
    """Return KL(of || given) in nats, summed over the latents; 0 or more."""
    log_ratio = of.log_variance - given.log_variance
    distance = (of.mean - given.mean).square() * (-given.log_variance).exp()
    return (log_ratio.exp() - 1 - log_ratio + distance).sum(dim=-1) / 2
