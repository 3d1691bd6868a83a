"""Many trainings as one program: parameters, hyper-parameters and batches carry a leading axis of members.

The sessions of a span lie on the device once; a batch is a list of days a member, its windows are positions. One
code path: a single model is a program of one member. A member's losses do not depend on who stands beside it.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dtml.layers.network import Batch, Network, cross_entropy
from dtml.layers.random import use_generators
from dtml.markets.definition import LabelProtocol
from dtml.windows import Windows

VALIDATED_DAYS = 64  # that all members see at once; how many they train on at once, their recipe says


@dataclass(frozen=True)
class Span:
    """The days of one span of time, whole, on one device; `days` are those on which a stock counts, on CPU."""

    rows: Float[Tensor, "sessions symbols features"]
    observed: Bool[Tensor, "all_days stocks"]
    rises: Bool[Tensor, "all_days stocks"]
    counted: Bool[Tensor, "all_days stocks"]
    days: Int[Tensor, " days"]
    window: int

    @classmethod
    def of(cls, windows: Windows, protocol: LabelProtocol, device: torch.device) -> "Span":
        """The span of these windows; `protocol` says which stock-days count."""
        counted = windows.labelled(protocol)
        return cls(
            rows=windows.rows().to(device),
            observed=windows.observed.to(device),
            rises=windows.rises().to(device),
            counted=counted.to(device),
            days=counted.any(dim=1).nonzero().squeeze(1),
            window=windows.window,
        )

    def batch(self, days: Int[Tensor, "members days"], steps: Sequence[int], *, width: int | None = None) -> Batch:
        """The batch of each member's days, as a `Batch` whose tensors have the leading axis of members.

        A day is a row of the span. With a `width`, every member gets that many days, and distinct sessions for as
        many: those added count nowhere, and shapes stay the same from step to step, as a captured graph needs.
        """
        real = days.shape[1]
        if width is not None and width > real:
            days = torch.cat([days, days[:, :1].expand(-1, width - real)], dim=1)
        sessions, windows = zip(*(self._sessions(each) for each in days), strict=True)
        most = max(map(len, sessions)) if width is None else min(days[0].numel() * self.window, len(self.rows))
        needed = torch.stack([nn.functional.pad(each, (0, most - len(each))) for each in sessions])
        device = self.rows.device
        there = days.to(device)
        counted = self.counted[there]
        counted[:, real:] = False
        return Batch(
            rows=self.rows[needed.to(device)],
            windows=torch.stack(windows).to(device),
            observed=self.observed[there],
            rises=self.rises[there],
            counted=counted,
            step=torch.tensor(steps, dtype=torch.float32, device=device),
        )

    def _sessions(self, days: Int[Tensor, " days"]) -> tuple[Tensor, Tensor]:
        """The distinct sessions that the windows of these days hold, and each window as positions in them."""
        held = days.unsqueeze(1) + torch.arange(self.window)
        sessions, position = held.unique(return_inverse=True)
        return sessions, position

    def in_order(self) -> Iterator[Batch]:
        """All counted days in order, a few at a time, for a program of any number of members: no leading axis."""
        for days in self.days.split(VALIDATED_DAYS):
            yield Batch(*(value[0] for value in self.batch(days.unsqueeze(0), [0])))


class _Objective(nn.Module):
    """A network whose call is its objective: what `functional_call` needs."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Batch, penalty: Tensor) -> Tensor:
        """The objective of one member."""
        return self.network.objective(batch, penalty)


class _Logits(nn.Module):
    """A network whose call is its logits."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Batch) -> Tensor:
        """The logits of one member."""
        return self.network.logits(batch.rows, batch.windows, batch.observed)


class Program:
    """Networks of one shape, stacked: losses and validation of all members at once.

    `parameters` maps each name to a leaf tensor `[members, ...]`; each member's own parameters, which its optimiser
    steps, are its rows.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        generators: Sequence[torch.Generator],
        penalty: Sequence[float],
        device: torch.device,
    ) -> None:
        # torch maps attention on CPU one member at a time and warns of it: there, programs have one
        warnings.filterwarnings("ignore", message=".*_scaled_dot_product_flash_attention_for_cpu")
        self.network = networks[0].to(device)
        use_generators(self.network, *generators)
        self.parameters = {
            name: torch.stack([dict(network.named_parameters())[name].detach().to(device) for network in networks])
            for name, _ in self.network.named_parameters()
        }
        self.buffers = {
            name: torch.stack([dict(network.named_buffers())[name].to(device) for network in networks])
            for name, _ in self.network.named_buffers()
        }
        for stacked in self.parameters.values():
            stacked.requires_grad_()
        self.penalty = torch.tensor(penalty, device=device)

    def member(self, position: int) -> dict[str, Tensor]:
        """One member's parameters: rows of the stacks, in the same memory."""
        return {name: stacked.detach()[position] for name, stacked in self.parameters.items()}

    def losses(self, batch: Batch) -> Float[Tensor, " members"]:
        """The objective of each member on its own batch, in training."""
        self.network.train()
        state = _prefixed("network.", self.parameters), _prefixed("network.", self.buffers)
        call = _Objective(self.network)
        losses: Tensor = vmap(lambda own, each, weight: functional_call(call, own, (each, weight)))(
            state, batch, self.penalty
        )
        return losses

    def gradients(self, losses: Float[Tensor, " members"]) -> list[dict[str, Tensor]]:
        """Each member's gradients, by the names of its parameters, laid out as these: a fused optimiser takes it so."""
        parameters = tuple(self.parameters.values())
        found = torch.autograd.grad(losses.sum(), parameters, materialize_grads=True)  # zeros for a part left out
        named = dict(zip(self.parameters, found, strict=True))
        return [{name: stacked[i].contiguous() for name, stacked in named.items()} for i in range(len(losses))]

    @torch.no_grad()
    def validate(self, span: Span) -> tuple[Float[Tensor, " members"], Float[Tensor, " members"]]:
        """Cross-entropy and accuracy of each member over the counted stock-days of a span, counted on the device."""
        self.network.eval()
        state = _prefixed("network.", self.parameters), _prefixed("network.", self.buffers)
        call = _Logits(self.network)
        loss, right, counted = (torch.zeros_like(self.penalty) for _ in range(3))
        for batch in span.in_order():
            logits = vmap(lambda own, days: functional_call(call, own, (days,)), in_dims=(0, None))(state, batch)
            size = batch.counted.sum()
            loss += size * vmap(cross_entropy, in_dims=(0, None, None))(logits, batch.rises, batch.counted)
            right += (((logits > 0) == batch.rises) & batch.counted).sum(dim=(1, 2))
            counted += size
        return loss / counted, right / counted


class Captured:
    """A program's step on CUDA, recorded once as a graph and replayed: losses and gradients of one batch.

    Every batch has the shapes of the first. Masks keep coming from the members' own generators.
    """

    def __init__(self, program: Program, batch: Batch, generators: Sequence[torch.Generator]) -> None:
        self.batch = Batch(*(value.clone() for value in batch))
        states = [generator.get_state() for generator in generators]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries choose their kernels and workspaces before a recording
            for _ in range(3):
                program.gradients(program.losses(self.batch))
        torch.cuda.current_stream().wait_stream(aside)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            self.losses = program.losses(self.batch)
            self.gradients = program.gradients(self.losses)

    def __call__(self, batch: Batch) -> tuple[Float[Tensor, " members"], list[dict[str, Tensor]]]:
        """Losses and gradients, in memory that the next call overwrites."""
        for mine, new in zip(self.batch, batch, strict=True):
            mine.copy_(new)
        self.graph.replay()
        return self.losses, self.gradients


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}
