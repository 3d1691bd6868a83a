"""Fit networks, many at once; an interrupted fit continues where it stopped.

A member is one seed of one configuration: its initial weights, the order of its batches and its noise come from
generators of its own, so its weights are the same whoever trains beside it.
"""

import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from threading import Event

import torch
from torch import Tensor

from dtml.checkpoints import Weights
from dtml.markets.definition import LabelProtocol
from dtml.training.members import Epoch, Fit, Member, optimiser_of, restore_state, save_state, start, state_file
from dtml.training.stacked import Captured, Program, Span
from dtml.windows import Windows

STACK_BYTES = 32 * 2**20  # of gates: what the members of a program may hold at once on CPU
SWITCH_SECONDS = 0.0002  # for which a thread may keep the interpreter from the others, between two operations
MOST_STACKED = 3  # on CPU: 10 seeds then fill 4 threads

EpochReport = Callable[[Member, Epoch], None]


def no_report(_member: Member, _epoch: Epoch) -> None:
    """Say nothing."""


def fit_members(
    train: Windows,
    validation: Windows,
    members: Sequence[Member],
    *,
    device: torch.device,
    state_folder: Path | None = None,
    on_epoch: EpochReport = no_report,
    stack: int | None = None,
    begin: Sequence[Weights] | None = None,
) -> list[Fit]:
    """Train all members and return them in their order, each with its best epoch on validation.

    Members are stacked into programs of at most `stack`, which changes nothing of what a member becomes; by default
    all that can be on CUDA, and on CPU as many as a thread's cache holds. Programs run on a thread each. With a
    `state_folder`, the state after each epoch lies there, and a fit that finds one continues from it. `on_epoch` is
    called from the program's thread, first with the last epoch done of a fit that is continued. `begin` holds the
    first weights of each member; without it they are drawn.
    """
    groups = _programs(members, train, device, stack)
    fits = {i: start(member, len(train.symbols), device) for i, member in enumerate(members)}
    for fit, weights in zip(fits.values(), begin or (), strict=begin is not None):
        fit.start_from(weights)
    spans: dict[LabelProtocol, tuple[Span, Span]] = {}
    for member in members:
        protocol = member.training.protocol
        if protocol not in spans:
            spans[protocol] = (Span.of(train, protocol, device), Span.of(validation, protocol, device))
    programs = deque(
        _fit_program([fits[i] for i in group], *spans[members[group[0]].training.protocol], state_folder, on_epoch)
        for group in groups
    )

    _advance(programs, device)
    return [fits[i] for i in range(len(members))]


def _advance(programs: "deque[Iterator[int]]", device: torch.device) -> None:
    """Run all programs to their end: on CPU by turns, on as many threads as there are cores, each computing on one."""
    interrupted = Event()
    on_cpu = device.type == "cpu"

    def work() -> None:
        """Take a program, give it an epoch, put it back: by turns, so that no thread is idle before the last epoch."""
        while programs and not interrupted.is_set():
            try:
                program = programs.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                goes_on = next(program, None) is not None
            except BaseException:
                interrupted.set()  # here, as nobody may be waiting for this thread before the others have ended
                raise
            if goes_on:
                (programs.append if on_cpu else programs.appendleft)(program)

    threads, interval = torch.get_num_threads(), sys.getswitchinterval()
    workers = min(len(programs), threads) if on_cpu else 1
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
    """The kept weights of all members, each parameter with a leading axis of members."""
    return {name: torch.stack([fit.best[name] for fit in fits]) for name in fits[0].best}


def _stack_size(alike: Sequence[Member], train: Windows, device: torch.device) -> int:
    """How many of these members one program takes: the same on every machine, so that weights are, to the last bit.

    On CPU a stack of large networks leaves the cache (10 DTMLs of ACL18 were trained at 0.6 times the pace of one
    after the other), and one of small networks spares the threads their quarrel over the interpreter: the LSTMs of
    ACL18, each alone in its program, gained nothing from four threads.
    """
    if device.type != "cpu":
        return len(alike)
    rows = alike[0].training.batch_days * (len(train.symbols) + 1) * train.window
    gates = 4 * rows * int(getattr(alike[0].model, "hidden", 1)) * train.stocks.element_size()
    return max(1, min(MOST_STACKED, STACK_BYTES // gates))


def state_files(folder: Path, members: Sequence[Member], train: Windows, device: torch.device) -> list[Path]:
    """Where `fit_members` keeps the state of these members in this folder, a file a program."""
    groups = _programs(members, train, device, None)
    return [state_file(folder, [members[position] for position in group]) for group in groups]


def _programs(members: Sequence[Member], train: Windows, device: torch.device, stack: int | None) -> list[list[int]]:
    """Positions of members that one program can train together: the same network but for its buffers, and batches."""

    def likeness(position: int) -> Hashable:
        member = members[position]
        varied = {name for name, _ in member.model.build(len(train.symbols)).named_buffers()}
        config = asdict(member.model)
        same = tuple((name, value) for name, value in config.items() if name not in varied)
        return type(member.model).__name__, same, member.training.protocol, member.training.batch_days

    alike = groupby(sorted(range(len(members)), key=lambda i: (repr(likeness(i)), i)), key=likeness)
    groups = [list(positions) for _, positions in alike]
    stacks = [(group, stack or _stack_size([members[i] for i in group], train, device)) for group in groups]
    return sorted(group[first : first + size] for group, size in stacks for first in range(0, len(group), size))


def _fit_program(
    fits: list[Fit], train: Span, validation: Span, state_folder: Path | None, on_epoch: EpochReport
) -> Iterator[int]:
    """Train these members together; yields after each epoch. One that has finished leaves the stack."""
    stocks, device = train.observed.shape[1], train.rows.device
    file = None if state_folder is None else state_file(state_folder, [fit.member for fit in fits])
    if file is not None and file.exists():
        restore_state(fits, file)
        for fit in fits:
            on_epoch(fit.member, fit.epochs[-1])
    while active := [fit for fit in fits if not fit.finished]:
        program = _assemble(active, stocks, device)
        step = _Step(program, [fit.noise for fit in active])
        while not any(fit.finished for fit in active):
            _epoch(active, program, step, train, validation)
            if file is not None:
                save_state(fits, file)
            for fit in active:
                on_epoch(fit.member, fit.epochs[-1])
            yield len(active[0].epochs)


class _Step:
    """Losses and gradients of a batch; on CUDA a captured graph, made of the first batch."""

    def __init__(self, program: Program, generators: Sequence[torch.Generator]) -> None:
        self.program = program
        self.generators = generators
        self.captured: Captured | None = None

    def __call__(self, span: Span, days: Tensor, fits: Sequence[Fit]) -> tuple[Tensor, list[Weights]]:
        steps = [fit.steps for fit in fits]
        if span.rows.device.type != "cuda":
            losses = self.program.losses(span.batch(days, steps))
            return losses.detach(), self.program.gradients(losses)
        batch = span.batch(days, steps, width=fits[0].member.training.batch_days)
        self.captured = self.captured or Captured(self.program, batch, self.generators)
        return self.captured(batch)


def _epoch(fits: Sequence[Fit], program: Program, step: _Step, train: Span, validation: Span) -> None:
    """One pass over the training days of every member, each in its own order."""
    orders = [train.days[torch.randperm(len(train.days), generator=fit.order)] for fit in fits]
    batches = torch.stack(orders).split(fits[0].member.training.batch_days, dim=1)
    total = torch.zeros(len(fits), device=train.rows.device)
    for days in batches:
        losses, gradients = step(train, days, fits)
        for fit, own in zip(fits, gradients, strict=True):
            fit.step(own)
        total += losses.detach()
    validation_loss, validation_acc = program.validate(validation)
    measured = torch.stack([total / len(batches), validation_loss, validation_acc], dim=1).tolist()
    for fit, row in zip(fits, measured, strict=True):
        fit.end_epoch(*row)


def _assemble(fits: Sequence[Fit], stocks: int, device: torch.device) -> Program:
    """Stack the members, and let each optimiser go on with its row of the stack."""
    networks = [fit.member.model.build(stocks) for fit in fits]
    for fit, network in zip(fits, networks, strict=True):
        network.load_state_dict(fit.weights)
    penalties = [fit.member.training.penalty for fit in fits]
    program = Program(networks, [fit.noise for fit in fits], penalties, device)
    for position, fit in enumerate(fits):
        state = fit.optimiser.state_dict()
        fit.weights = program.member(position)
        fit.optimiser = optimiser_of(fit.member, fit.weights)
        fit.optimiser.load_state_dict(state)
    return program
