"""Train the members of one configuration as one network, whose parameters have an axis of members.

For GPUs, on which a step takes as long for many members as for one. No member's numbers go into
another's: sums are over its own axis, and its random numbers come from its own generator.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dtml.model import LSTM
from dtml.network import PAIRS, Batch, Network, cross_entropy, use_generators
from dtml.span import Span
from translation.artifacts import Tensors, prefixed
from translation.recorded import Recorded, Recorder
from translation.transformer import MultiHeadAttention

# Of a GPU's memory, for a hidden unit of a stock in a session with all that its gradient needs: 45
# bytes of a DTML and 125 of a StockNet were measured, without the gradients themselves.
BYTES_A_UNIT = 256
# The axes of a batch along which members differ: they share the layout of windows and the step.
PER_MEMBER = Batch._make((0, None, 0, 0, 0, None, 0))


class _Method(nn.Module):
    """A network whose call is that of one of its methods, as `functional_call` needs."""

    def __init__(self, network: Network, name: str) -> None:
        super().__init__()
        self.network = network
        self.name = name

    def forward(self, *arguments: object) -> Tensor:
        result: Tensor = getattr(self.network, self.name)(*arguments)
        return result


def member_days(symbols: int, window: int, hidden: int, device: torch.device) -> int:
    """Return how many days, of all members together, fit into the memory of a GPU; 0 or more."""
    of_attention = PAIRS // symbols**2
    if device.type != "cuda":
        return of_attention
    memory = torch.cuda.get_device_properties(device).total_memory
    return min(of_attention, memory // (BYTES_A_UNIT * symbols * window * hidden))


class Stack:
    """Members that train together; the weights and moments of each are views into those of all.

    `networks` and their `optimisers`, each an Adam after `steps` steps, are the members'; `network`
    has their shape, and its own weights are not used.
    """

    def __init__(
        self,
        network: Network,
        networks: Sequence[Network],
        optimisers: Sequence[torch.optim.Adam],
        generators: Sequence[torch.Generator],
        *,
        penalty: Float[Tensor, ""],
        clip: float | None,
        steps: int,
        train: Span,
        validation: Span,
        hidden: int,
    ) -> None:
        self.network = network
        self.recorder = Recorder(penalty.device, generators)
        self.penalty = penalty
        self.clip = clip
        self.train = train
        self.validation = validation
        symbols = validation.rows.shape[1]
        most = member_days(symbols, validation.window, hidden, penalty.device)
        self.days_at_once = max(1, most // len(networks))  # of a validation
        use_generators(network, generators)
        for module in network.modules():
            if isinstance(module, LSTM):
                module.unrolled = True
            elif isinstance(module, MultiHeadAttention):
                module.in_products = True
        with self.recorder.stream:
            self.weights = _stacked_weights(networks)
            self.optimiser = _stacked_optimiser(self.weights, networks, optimisers, steps)
            # What recorded work reads and writes.
            self.step = torch.full_like(penalty, steps)
            self.loss = penalty.new_zeros(len(networks))
            self.sums = penalty.new_zeros(3, len(networks))  # loss, correct, counted stock-days
            self.validation_days = validation.days.to(penalty.device)
        self.steps: dict[int, tuple[Tensor, Recorded]] = {}  # by the number of days that it reads
        self.validate_once = Recorded(self.recorder, self._validate)

    def epoch(self, batches: Sequence[Int[Tensor, "members days"]]) -> list[float]:
        """Take a step for each batch on the device; return each member's mean objective."""
        self.network.train()
        self.loss.zero_()
        for batch in batches:
            size = batch.shape[1]
            if size not in self.steps:
                days = torch.empty_like(batch)
                self.steps[size] = (days, Recorded(self.recorder, partial(self._step, days)))
            days, step = self.steps[size]
            days.copy_(batch)
            step()
        return [loss / len(batches) for loss in self.loss.tolist()]

    def validate(self) -> list[tuple[float, float]]:
        """Return each member's cross-entropy and `Network.correct`, means over stock-days."""
        self.network.eval()
        self.validate_once()
        loss, correct, counted = self.sums.tolist()
        return [(a / size, b / size) for a, b, size in zip(loss, correct, counted, strict=True)]

    def forget(self) -> None:
        """Free what is recorded: it refers to the stack, and holds memory of the GPU."""
        self.steps.clear()
        del self.validate_once

    def _step(self, days: Int[Tensor, "members days"]) -> None:
        """Take one step of the optimiser."""
        batch = self.train.stacked(days, self.step)
        losses = self._call("objective", (PER_MEMBER, None), batch, self.penalty)
        losses.sum().backward()
        if self.clip is not None:
            _clip(self.weights.values(), self.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.loss += losses.detach()
        self.step += 1

    @torch.no_grad()
    def _validate(self) -> None:
        self.sums.zero_()
        for days in self.validation_days.split(self.days_at_once):
            batch = self.validation.stacked(days, self.step)
            logits = self._call(
                "logits", (None, None, None), batch.rows, batch.windows, batch.observed
            )
            size = batch.counted.sum()
            of_member = partial(cross_entropy, rises=batch.rises, counted=batch.counted)
            is_correct = self.network.correct(logits, batch)
            self.sums[0] += size * vmap(of_member)(logits)
            self.sums[1] += (is_correct * batch.counted).sum(dim=(1, 2))
            self.sums[2] += size

    def _call(self, name: str, axes: tuple[object, ...], *arguments: object) -> Tensor:
        """Call a method of each member's network; `axes` are those of members in the arguments."""
        method = _Method(self.network, name)

        def of_member(weights: Tensors, *its_arguments: object) -> Tensor:
            result: Tensor = functional_call(method, weights, its_arguments)
            return result

        weights: Tensors = prefixed("network.", self.weights)
        result: Tensor = vmap(of_member, in_dims=(0, *axes))(weights, *arguments)
        return result


def _stacked_weights(networks: Sequence[Network]) -> dict[str, nn.Parameter]:
    """Return all members' weights, of which those of each network become views."""
    by_member = [dict(network.named_parameters()) for network in networks]
    stacked: dict[str, nn.Parameter] = {}
    for name in by_member[0]:
        of_all = torch.stack([weights[name].detach() for weights in by_member])
        for weights, of_member in zip(by_member, of_all, strict=True):
            weights[name].data = of_member
        stacked[name] = nn.Parameter(of_all)
    return stacked


def _stacked_optimiser(
    stacked: Mapping[str, nn.Parameter],
    networks: Sequence[Network],
    optimisers: Sequence[torch.optim.Adam],
    steps: int,
) -> torch.optim.Adam:
    """Return an Adam of all members' weights, of which the moments of each become views."""
    rate = optimisers[0].param_groups[0]["lr"]
    optimiser = torch.optim.Adam(stacked.values(), lr=rate, fused=True, capturable=True)
    for name, of_all in stacked.items():
        states = [
            each.state[network.get_parameter(name)]
            for each, network in zip(optimisers, networks, strict=True)
        ]
        step = torch.tensor(float(steps), device=of_all.device)
        optimiser.state[of_all]["step"] = step
        for moment in ("exp_avg", "exp_avg_sq"):
            zeros = torch.zeros_like(of_all[0])  # before the first step
            moments = torch.stack([state.get(moment, zeros) for state in states])
            optimiser.state[of_all][moment] = moments
            for state, of_member in zip(states, moments, strict=True):
                state |= {"step": step, moment: of_member}
    return optimiser


def _clip(weights: Iterable[nn.Parameter], most: float) -> None:
    """Scale the gradients of weights `[members ...]` to a norm of at most `most` a member."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    squares = [gradient.flatten(1).square().sum(dim=1) for gradient in gradients]
    norm = torch.stack(squares).sum(dim=0).sqrt()
    factor = (most / (norm + 1e-6)).clamp_max(1)  # as `nn.utils.clip_grad_norm_`
    for gradient in gradients:
        gradient.movedim(0, -1).mul_(factor)
