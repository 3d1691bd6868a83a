"""LSTM, ALSTM and Adv-ALSTM: recurrent networks that see one stock at a time.

After Feng, Chen, He, Ding, Sun, Chua, "Enhancing Stock Movement Prediction with Adversarial
Training", IJCAI 2019. Axes as in `dtml.model`; the rows hold the index, which is never read.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dtml.model import LSTM
from dtml.network import Batch, Network, NetworkConfig, Positions, Rows, Scores, StockDays


@dataclass(frozen=True)
class RecurrentConfig(NetworkConfig):
    """The shape of an LSTM over the window of one stock.

    Without attention, the LSTM of Feng et al. (after Nelson, Pereira, de Oliveira, IJCNN 2017);
    with it, ALSTM (Qin et al., IJCAI 2017); with `epsilon` and `adversarial` above 0 too (.01 in
    the authors' code), Adv-ALSTM.
    """

    features: int = 11
    hidden: int = 16
    attention: bool = True  # False: the last hidden state alone
    epsilon: float = 0.0  # length of the adversarial perturbation of the latent
    adversarial: float = 0.0  # weight of the perturbed loss, beta in the paper

    def build(self, stocks: int) -> "RecurrentNetwork":  # noqa: ARG002 - the same for any number
        """Return the network, which is the same for any number of stocks."""
        return RecurrentNetwork(self)

    @property
    def name(self) -> str:
        """Return the name in the published table."""
        if not self.attention:
            return "lstm"
        return "adv_alstm" if self.epsilon else "alstm"


class RecurrentNetwork(Network):
    """Feature layer, LSTM, attention over the window, linear score, trained with a hinge loss."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.epsilon = config.epsilon
        self.adversarial = config.adversarial
        self.transform = nn.Linear(config.features, config.features)
        self.lstm = LSTM(hidden, config.features)
        self.attention = AdditiveAttention(hidden) if config.attention else None
        latent = 2 * hidden if config.attention else hidden
        self.predict = nn.Linear(latent, 1)

    def latent(self, rows: Rows, windows: Positions) -> Float[Tensor, "days stocks latent"]:
        """Return the last hidden state and, with attention, the context beside it."""
        transformed = self.transform(rows[:, :-1]).tanh()  # without the index
        states: Tensor = self.lstm(transformed, windows)
        last = states[-1]
        if self.attention is None:
            return last
        return torch.cat([last, self.attention(states)], dim=-1)

    def logits(
        self,
        rows: Rows,
        windows: Positions,
        observed: StockDays,  # noqa: ARG002 - no stock sees another
    ) -> Scores:
        """Return the score; a hinge loss makes its sigmoid no probability, but in the same
        order.
        """
        return self._score(self.latent(rows, windows))

    def objective(self, batch: Batch, penalty: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the hinge loss, plus the weighted loss of perturbed latents, plus a penalty.

        `penalty` / 2 times the squared norm of the last layer.
        """
        latent = self.latent(batch.rows, batch.windows)
        score = self._score(latent)
        perturbation = self.perturbation(score, batch.rises)
        perturbed_score = self._score(latent + perturbation)
        loss = hinge_loss(score, batch.rises, batch.counted)
        perturbed_loss = hinge_loss(perturbed_score, batch.rises, batch.counted)
        last_layer = self.predict.weight.square().sum() + self.predict.bias.square().sum()
        return loss + self.adversarial * perturbed_loss + penalty / 2 * last_layer

    def perturbation(self, score: Scores, rises: StockDays) -> Float[Tensor, "days stocks latent"]:
        """Return the step of length epsilon that raises the hinge of each stock-day most.

        Where the hinge is active its gradient is -y times the weights of the score, else 0. The
        backward pass takes the step as constant, which changes no gradient: the score is linear.
        """
        sign = _sign(rises, score)
        active = (sign * score < 1).to(score.dtype)
        weight = self.predict.weight.squeeze(0)
        # Weights of 0 have no direction; the step is then 0, not NaN.
        norm = weight.norm().clamp_min(torch.finfo(weight.dtype).tiny)
        direction = weight / norm
        step: Tensor = -self.epsilon * (active * sign).unsqueeze(-1) * direction
        return step.detach()

    def _score(self, latent: Float[Tensor, "days stocks latent"]) -> Scores:
        score: Tensor = self.predict(latent)
        return score.squeeze(-1)


class AdditiveAttention(nn.Module):
    """Weights of the sessions from a small network that sees one hidden state at a time."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.project = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(
        self, states: Float[Tensor, "window *batch hidden"]
    ) -> Float[Tensor, "*batch hidden"]:
        """Sum the states, weighted by the softmax of u . tanh(W h + b) over the window."""
        scores = self.score(self.project(states).tanh())
        weights = scores.softmax(dim=0)
        context: Tensor = (weights * states).sum(dim=0)
        return context


def hinge_loss(score: Scores, rises: StockDays, counted: StockDays) -> Float[Tensor, ""]:
    """Return the mean of max(0, 1 - y score) over counted stock-days; y is 1 for a rise, else
    -1.
    """
    hinge = (1 - _sign(rises, score) * score).clamp_min(0)
    return (hinge * counted).sum() / counted.sum()


def _sign(rises: StockDays, like: Tensor) -> Scores:
    """Return 1 for a rise and -1 for a fall, in the type of `like`."""
    return 2 * rises.to(like.dtype) - 1
