"""Fit networks, many at once; an interrupted fit resumes where it stopped.

A member is one seed of one configuration: its initial weights, the order of its batches and its random numbers come
from generators of its own, so its weights are the same whoever trains beside it.

Members of one shape are trained as a stack: parameters, hyper-parameters and batches carry a leading axis of
members. The sessions of a span lie on the device once; a batch is a list of days a member, its windows are positions.
There is one code path: a single model is a stack of one member.
"""

import sys
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from threading import Event

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from dtml.checkpoints import Weights
from dtml.errors import DtmlError
from dtml.layers.network import Batch, Network, cross_entropy
from dtml.layers.random import use_generators
from dtml.markets.definition import LabelProtocol
from dtml.training.recipe import Epoch, Member
from dtml.training.state import Fit, StateFolder, optimiser_of, start
from dtml.windows import Windows

STACK_BYTES = 32 * 2**20  # of gates: what the members of a stack may hold at once on CPU
SWITCH_SECONDS = 0.0002  # for which a thread may keep the interpreter from the others, between two operations
MOST_STACKED = 3  # on CPU: 10 seeds then fill 4 threads
VALIDATED_DAYS = 64  # that all members see at once; how many they train on at once, their recipe says

EpochReport = Callable[[Member, Epoch], None]
no_report: EpochReport = lambda *_: None  # noqa: E731 - the default of several functions


@dataclass(frozen=True)
class Span:
    """The days of a training or validation span on one device; `days`, on CPU, are those on which a stock counts."""

    rows: Float[Tensor, "sessions symbols features"]
    observed: Bool[Tensor, "all_days stocks"]
    rises: Bool[Tensor, "all_days stocks"]
    counted: Bool[Tensor, "all_days stocks"]
    movement: Float[Tensor, "all_days stocks"]
    days: Int[Tensor, " days"]
    window: int

    @classmethod
    def of(cls, windows: Windows, protocol: LabelProtocol, device: torch.device) -> "Span":
        """Return the span of these windows; `protocol` says which stock-days count."""
        labelled = windows.labelled(protocol)
        parts = (windows.rows(), windows.observed, windows.rises(), labelled, windows.movement.nan_to_num())
        rows, observed, rises, counted, movement = (each.to(device) for each in parts)
        days = labelled.any(dim=1).nonzero().squeeze(1)
        return cls(rows, observed, rises, counted, movement, days, windows.window)

    def batch(self, days: Int[Tensor, "members days"], steps: Sequence[int]) -> Batch:
        """Return the batch of each member's days, rows of the span; its tensors have a leading axis of members."""
        sessions, windows = zip(*(self._sessions(each) for each in days), strict=True)
        most = max(map(len, sessions))
        needed = torch.stack([nn.functional.pad(each, (0, most - len(each))) for each in sessions])
        device = self.rows.device
        rows, places, there = self.rows[needed.to(device)], torch.stack(windows).to(device), days.to(device)
        labels = self.observed[there], self.rises[there], self.counted[there]
        step = torch.tensor(steps, dtype=torch.float32, device=device)
        return Batch(rows, places, *labels, step, self.movement[there])

    def _sessions(self, days: Int[Tensor, " days"]) -> tuple[Tensor, Tensor]:
        """Return the distinct sessions in the windows of these days, and each window as positions in them."""
        sessions, position = (days.unsqueeze(1) + torch.arange(self.window)).unique(return_inverse=True)
        return sessions, position

    def in_order(self) -> Iterator[Batch]:
        """Yield all counted days in order, a few at a time, the same for all members: no leading axis."""
        for days in self.days.split(VALIDATED_DAYS):
            yield Batch(*(value[0] for value in self.batch(days.unsqueeze(0), [0])))


class _Calling(nn.Module):
    """A network that is called by one of its methods: what `functional_call` needs."""

    def __init__(self, network: Network, method: str) -> None:
        super().__init__()
        self.network, self.method = network, method

    def forward(self, *inputs: object) -> Tensor:
        """Call the method for one member."""
        found: Tensor = getattr(self.network, self.method)(*inputs)
        return found


class Stack:
    """Networks of one shape, stacked: losses and validation of all members at once.

    `parameters` maps each name to a leaf tensor `[members, ...]`; each member's own parameters, which its optimiser
    steps, are its rows.
    """

    def __init__(
        self, networks: list[Network], generators: list[torch.Generator], penalty: list[float], device: torch.device
    ) -> None:
        # torch maps attention on CPU one member at a time and warns of it: there, stacks have one
        warnings.filterwarnings("ignore", message=".*_scaled_dot_product_flash_attention_for_cpu")
        self.parameters, self.buffers = stack_module_state([network.to(device) for network in networks])
        self.network = networks[0]
        use_generators(self.network, *generators)
        self.penalty = torch.tensor(penalty, device=device)

    def member(self, position: int) -> dict[str, Tensor]:
        """Return one member's parameters: rows of the stacks, in the same memory."""
        return {name: stacked.detach()[position] for name, stacked in self.parameters.items()}

    def losses(self, batch: Batch) -> Float[Tensor, " members"]:
        """Return the objective of each member on its own batch, in training."""
        self.network.train()
        objective = _Calling(self.network, "objective")
        loss = vmap(lambda own, each, weight: functional_call(objective, own, (each, weight)))
        losses: Tensor = loss(self._state(), batch, self.penalty)
        return losses

    def gradients(self, losses: Float[Tensor, " members"]) -> list[dict[str, Tensor]]:
        """Return each member's gradients by parameter, laid out like the parameters, as a fused optimiser needs."""
        parameters = tuple(self.parameters.values())
        found = torch.autograd.grad(losses.sum(), parameters, materialize_grads=True)  # zeros for a part left out
        named = dict(zip(self.parameters, found, strict=True))
        return [{name: stacked[i].contiguous() for name, stacked in named.items()} for i in range(len(losses))]

    @torch.no_grad()
    def validate(self, span: Span) -> tuple[Float[Tensor, " members"], Float[Tensor, " members"]]:
        """Return the cross-entropy of each member on a span, and the mean of what its network calls correct."""
        self.network.eval()
        state, network = self._state(), _Calling(self.network, "logits")
        loss, correct, counted = (torch.zeros_like(self.penalty) for _ in range(3))
        for batch in span.in_order():
            inputs = (batch.rows, batch.windows, batch.observed)
            logits = vmap(lambda own, days: functional_call(network, own, days), in_dims=(0, None))(state, inputs)
            size = batch.counted.sum()
            loss += size * vmap(cross_entropy, in_dims=(0, None, None))(logits, batch.rises, batch.counted)
            correct += (self.network.correct(logits, batch) * batch.counted).sum(dim=(1, 2))
            counted += size
        return loss / counted, correct / counted

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return parameters and buffers by the names that they have in `_Calling`."""
        named = ({f"network.{name}": value for name, value in each.items()} for each in (self.parameters, self.buffers))
        return next(named), next(named)


def fit_members(
    train: Windows,
    validation: Windows,
    members: Sequence[Member],
    *,
    device: torch.device,
    state_folder: StateFolder | None = None,
    on_epoch: EpochReport = no_report,
    stack: int | None = None,
    begin: Sequence[Weights] | None = None,
) -> list[Fit]:
    """Train all members and return them in their order, each with its best epoch on validation.

    Members are trained in stacks of at most `stack`, which does not change what a member becomes; by default as
    many as can be on CUDA, and on CPU as many as a thread's cache holds. Each stack runs on a thread. With a
    `state_folder`, the state is kept there after each epoch, and a fit that finds one resumes from it. `on_epoch` is
    called from the stack's thread, for a fit that resumes first with the last epoch that was done. `begin` holds the
    first weights of each member; without it they are drawn. Raises DtmlError for a span without a label.
    """
    protocols = sorted({member.training.protocol for member in members})
    for protocol in protocols:
        _require_labels("training", train, protocol)
        _require_labels("validation", validation, protocol)
    groups = _stacks(members, train, device, stack)
    fits = {i: start(member, len(train.symbols), device) for i, member in enumerate(members)}
    for fit, weights in zip(fits.values(), begin or (), strict=begin is not None):
        for name, value in fit.weights.items():
            value.copy_(weights[name])
    spans = {each: (Span.of(train, each, device), Span.of(validation, each, device)) for each in protocols}
    together = (([fits[i] for i in group], spans[members[group[0]].training.protocol]) for group in groups)
    _advance(deque(_fit_stack(each, *both, state_folder, on_epoch) for each, both in together), device)
    return [fits[i] for i in range(len(members))]


def _require_labels(span: str, windows: Windows, protocol: LabelProtocol) -> None:
    """Raise DtmlError, with the likely reason, when no stock-day of a span counts, or none of them moved."""
    if (windows.labelled(protocol) & (windows.movement != 0)).any():
        return
    known = (windows.observed & windows.movement.isfinite()).any()
    none = "no return is known: are there bars of every session, as daily prices have?"
    small = "no known return is large enough for one: do the prices change, those from which returns are computed too?"
    first, last = windows.target[0].date(), windows.target[-1].date()
    raise DtmlError(f"no day of {span} has a label, {first} to {last}: {small if known else none}")


def _advance(stacks: "deque[Iterator[int]]", device: torch.device) -> None:
    """Run all stacks to their end: on CPU by turns, on as many threads as there are cores, each computing on one."""
    interrupted = Event()
    on_cpu = device.type == "cpu"

    def work() -> None:
        """Take a stack, give it an epoch, put it back: by turns, so that no thread is idle before the last epoch."""
        while stacks and not interrupted.is_set():
            try:
                stack = stacks.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                goes_on = next(stack, None) is not None
            except BaseException:
                interrupted.set()  # here, as nobody may be waiting for this thread before the others have ended
                raise
            if goes_on:
                (stacks.append if on_cpu else stacks.appendleft)(stack)

    threads, interval = torch.get_num_threads(), sys.getswitchinterval()
    workers = min(len(stacks), threads) if on_cpu else 1
    try:
        torch.set_num_threads(1)
        sys.setswitchinterval(SWITCH_SECONDS)
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for future in [pool.submit(work) for _ in range(workers)]:
                    future.result()
            except BaseException:
                interrupted.set()  # the others stop after their epoch, which is saved
                raise
    finally:
        torch.set_num_threads(threads)
        sys.setswitchinterval(interval)


def stack_members(fits: Sequence[Fit]) -> Weights:
    """Return the kept weights of all members, each parameter with a leading axis of members."""
    return {name: torch.stack([fit.best[name] for fit in fits]) for name in fits[0].best}


def _stack_size(alike: Sequence[Member], train: Windows, device: torch.device) -> int:
    """Return how many of these members one stack takes: the same on every machine, as it decides last bits.

    On CPU a stack of large networks leaves the cache (10 DTMLs of ACL18 were trained at 0.6 times the pace of one
    after the other), and a stack of small ones keeps the threads from waiting for the interpreter: the LSTMs of ACL18,
    each alone in its stack, gained nothing from four threads.
    """
    if device.type != "cpu":
        return len(alike)
    rows = alike[0].training.batch_days * (len(train.symbols) + 1) * train.window
    gates = 4 * rows * int(getattr(alike[0].model, "hidden", 1)) * train.stocks.element_size()
    return max(1, min(MOST_STACKED, STACK_BYTES // gates))


def state_files(folder: StateFolder, members: Sequence[Member], train: Windows, device: torch.device) -> list[Path]:
    """Return the files in which `fit_members` keeps the state of these members in this folder, one a stack."""
    return [folder.file([members[i] for i in group]) for group in _stacks(members, train, device, None)]


def _stacks(members: Sequence[Member], train: Windows, device: torch.device, stack: int | None) -> list[list[int]]:
    """Return the positions of members that train together: the same network but for its buffers, and batches."""

    def likeness(position: int) -> Hashable:
        member = members[position]
        varied = {name for name, _ in member.model.build(len(train.symbols)).named_buffers()}
        same = tuple((name, value) for name, value in asdict(member.model).items() if name not in varied)
        return type(member.model).__name__, same, member.training.protocol, member.training.batch_days

    alike = groupby(sorted(range(len(members)), key=lambda i: (repr(likeness(i)), i)), key=likeness)
    groups = [list(positions) for _, positions in alike]
    stacks = [(group, stack or _stack_size([members[i] for i in group], train, device)) for group in groups]
    return sorted(group[first : first + size] for group, size in stacks for first in range(0, len(group), size))


def _fit_stack(
    fits: list[Fit], train: Span, validation: Span, state_folder: StateFolder | None, on_epoch: EpochReport
) -> Iterator[int]:
    """Train these members together and yield after each epoch; one that has finished leaves the stack."""
    stocks, device = train.observed.shape[1], train.rows.device
    if state_folder is not None and state_folder.restore(fits):
        for fit in fits:
            on_epoch(fit.member, fit.epochs[-1])
    while active := [fit for fit in fits if not fit.finished]:
        stack = _assemble(active, stocks, device)
        while not any(fit.finished for fit in active):
            _epoch(active, stack, train, validation)
            if state_folder is not None:
                state_folder.save(fits)
            for fit in active:
                on_epoch(fit.member, fit.epochs[-1])
            yield len(active[0].epochs)


def _epoch(fits: Sequence[Fit], stack: Stack, train: Span, validation: Span) -> None:
    """Pass once over the training days of every member, each in its own order."""
    orders = [train.days[torch.randperm(len(train.days), generator=fit.order)] for fit in fits]
    batches = torch.stack(orders).split(fits[0].member.training.batch_days, dim=1)
    total = torch.zeros(len(fits), device=train.rows.device)
    for days in batches:
        losses = stack.losses(train.batch(days, [fit.steps for fit in fits]))
        for fit, own in zip(fits, stack.gradients(losses), strict=True):
            fit.step(own)
        total += losses.detach()
    validation_loss, validation_acc = stack.validate(validation)
    measured = torch.stack([total / len(batches), validation_loss, validation_acc], dim=1).tolist()
    for fit, row in zip(fits, measured, strict=True):
        fit.end_epoch(*row)


def _assemble(fits: Sequence[Fit], stocks: int, device: torch.device) -> Stack:
    """Stack the members, and let each optimiser continue on its row of the stack."""
    networks = [fit.member.model.build(stocks) for fit in fits]
    for fit, network in zip(fits, networks, strict=True):
        network.load_state_dict(fit.weights)
    stack = Stack(networks, [fit.random for fit in fits], [fit.member.training.penalty for fit in fits], device)
    for position, fit in enumerate(fits):
        state = fit.optimiser.state_dict()
        fit.weights = stack.member(position)
        fit.optimiser = optimiser_of(fit.member, fit.weights)
        fit.optimiser.load_state_dict(state)
    return stack
