"""Train networks side by side; an interrupted training resumes where it stopped.

Read downwards: the recipe, a member, its state, all members, the epochs, a step.

A member is one seed of one configuration, whose weights do not depend on those trained beside it.
On a CPU each trains on a thread. A step goes through the network a few days at a time and adds up
their gradients: the loss separates by day, and these fit into a core's cache. On a GPU the members
of a configuration train as one network (`dtml.stacked`).
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, fields
from itertools import chain, cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dtml.errors import DtmlError, UsageError, one_line
from dtml.markets.definition import LabelProtocol
from dtml.network import (
    Network,
    NetworkConfig,
    cross_entropy,
    days_at_once,
    gpu_errors_reported,
    use_generator,
)
from dtml.span import Span
from dtml.stacked import Stack, member_days
from dtml.windows import Windows
from translation import artifacts
from translation.artifacts import (
    ArtifactError,
    Tensors,
    moments_of,
    prefixed,
    restore_moments,
    under,
)

# Of members that a GPU trains one by one: Python needs longer to start the kernels of a step than
# the GPU to compute them, so that a single thread would leave it idle.
THREADS_OF_A_GPU = 3
SAVE_INTERVAL_S = 10.0  # between states of members that a GPU trains, whose epochs are short


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe; the defaults are the paper's."""

    protocol: LabelProtocol = "published"  # the stock-days that the loss and the validation count
    epochs: int = 200
    batch_days: int = 64
    learning_rate: float = 1e-3
    penalty: float = 1.0  # weight of the network's own regularisation: lambda, for DTML
    first_kept_epoch: int = 10  # earlier ones are never kept
    patience: int | None = None  # epochs without a better validation accuracy before the fit stops
    clip: float | None = None  # largest norm of a step's gradient
    # Stocks drawn for each step, for a universe of thousands; None: all stocks.
    stocks_a_step: int | None = None

    def __post_init__(self) -> None:
        # None is valid for `patience`, `stocks_a_step` and `clip`.
        for name in ("epochs", "batch_days", "first_kept_epoch", "patience", "stocks_a_step"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise UsageError(f"{name} must be 1 or more, got {count}")
        for name in ("learning_rate", "clip"):
            size = getattr(self, name)
            if size is not None and size <= 0:
                raise UsageError(f"{name} must be above 0, got {size}")
        if self.penalty < 0:
            raise UsageError(f"penalty must be 0 or more, got {self.penalty}")


def settings_of(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of a configuration, which is a dataclass or one of it."""
    return {each.name: values[each.name] for each in fields(config) if each.name in values}


@dataclass(frozen=True)
class Member:
    """One seed of one configuration, whose training no other member changes."""

    seed: int
    model: NetworkConfig
    training: TrainingConfig

    def __post_init__(self) -> None:
        # A step of drawn stocks has no fixed list of stocks.
        if self.training.stocks_a_step is not None and self.model.is_tied:
            raise UsageError(
                f"stocks_a_step is {self.training.stocks_a_step}, but normalisation is "
                '"per_stock", with gains for a fixed list of stocks: in [model] of the market\'s '
                'file, set normalisation = "shared", or leave out stocks_a_step'
            )

    @property
    def name(self) -> str:
        """Return the seed and a digest of the configuration, the same in every run."""
        return f"{self.seed}-{self.config_digest}"

    @property
    def config_digest(self) -> str:
        """Return a digest of the configuration, the same in every run."""
        config = [type(self.model).__name__, asdict(self.model), asdict(self.training)]
        return hashlib.sha256(json.dumps(config).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Epoch:
    """The figures of one pass over the training days.

    `loss` is the objective's mean over batches; others, over counted validation stock-days, the
    cross-entropy and `Network.correct`.
    """

    number: int
    loss: float
    validation_loss: float
    validation_acc: float


class ResumedEpoch(Epoch):
    """The last epoch that a resumed fit had done in an earlier run, when it is reported again."""


def state_file(folder: Path, member: Member, device: torch.device) -> Path:
    """Return the file of a member's state on a type of device, whose random numbers differ."""
    return folder / f"{member.name}-{device.type}.safetensors"


EpochReport = Callable[[Member, Epoch], None]


def no_report(_member: Member, _epoch: Epoch) -> None:
    """Report nothing of an epoch."""


@dataclass
class Fit:
    """The state of one member in training."""

    member: Member
    network: Network
    penalty: Float[Tensor, ""]  # of the recipe, on the device that trains
    optimiser: torch.optim.Adam
    order: torch.Generator  # shuffles days
    random: torch.Generator  # of dropout and latent variables
    days_at_once: int  # days that go through the network at once
    best: Tensors = field(default_factory=dict)  # of the best epoch; on CPU after the last one
    best_epoch: int = 0  # counted from 1; 0 before there is one
    steps: int = 0
    epochs: list[Epoch] = field(default_factory=list)

    @classmethod
    def start(cls, member: Member, stocks: int, device: torch.device) -> "Fit":
        """Return a member before its first epoch, from its seed alone."""
        states = np.random.SeedSequence(member.seed).generate_state(3)
        weights_seed, order_seed, random_seed = states.tolist()
        network = member.model.build(stocks)
        network.initialise(torch.Generator().manual_seed(weights_seed))
        random = torch.Generator(device).manual_seed(random_seed)
        use_generator(network.to(device), random)
        recipe = member.training
        return cls(
            member=member,
            network=network,
            penalty=torch.tensor(recipe.penalty, device=device),
            optimiser=torch.optim.Adam(network.parameters(), lr=recipe.learning_rate, fused=True),
            order=torch.Generator().manual_seed(order_seed),
            random=random,
            days_at_once=days_at_once(min(stocks, recipe.stocks_a_step or stocks), device),
        )

    @property
    def best_acc(self) -> float:
        """Return the validation accuracy of the best epoch; -1 before there is one."""
        if self.best_epoch == 0:
            return -1.0
        return self.epochs[self.best_epoch - 1].validation_acc

    @property
    def finished(self) -> bool:
        """Return whether all epochs are done, or patience has run out."""
        config = self.member.training
        epochs_done = len(self.epochs)
        if epochs_done >= config.epochs:
            return True
        if config.patience is None or self.best_epoch == 0:
            return False
        return epochs_done - self.best_epoch >= config.patience

    def end_epoch(self, loss: float, validation_loss: float, validation_acc: float) -> None:
        """Record the epoch, and keep its weights if it is the first best on validation.

        From `first_kept_epoch` on, or the last of a shorter training. Raises DtmlError for an
        infinite loss.
        """
        number = len(self.epochs) + 1
        config = self.member.training
        if not np.isfinite(loss):
            raise DtmlError(
                f"the loss of seed {self.member.seed} is {loss} in epoch {number}, at a learning "
                f"rate of {config.learning_rate:g}: lower learning_rate in [model] of the market's "
                "file or, where the rate is fixed (audits, benchmarks, networks that rank), look "
                "for extreme prices"
            )
        self.epochs.append(
            Epoch(
                number=number,
                loss=loss,
                validation_loss=validation_loss,
                validation_acc=validation_acc,
            )
        )
        # The last epoch may be kept in any case, so that a short training has weights.
        may_be_kept = number >= min(config.first_kept_epoch, config.epochs)
        if may_be_kept and validation_acc > self.best_acc:
            self.best_epoch = number
            weights = self.network.state_dict()
            self.best = {name: value.clone() for name, value in weights.items()}

    def fetch_best(self) -> None:
        """Move the best weights to the CPU, from a device that keeps them while it trains."""
        self.best = {name: value.cpu() for name, value in self.best.items()}

    def save(self, folder: Path) -> None:
        """Write everything that the next epoch needs, whole or not at all."""
        tensors = {
            **prefixed("weights.", self.network.state_dict()),
            **prefixed("best.", self.best),
            **prefixed("adam.", moments_of(self.optimiser)),
            "order": self.order.get_state(),
            "random": self.random.get_state(),
        }
        card = {
            "best_epoch": self.best_epoch,
            "steps": self.steps,
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }
        artifacts.write(state_file(folder, self.member, self.penalty.device), tensors, card)

    def restore(self, folder: Path) -> bool:
        """Restore the state that `save` wrote, exactly on a CPU, and return whether there was any.

        Raises DtmlError for a damaged file.
        """
        file = state_file(folder, self.member, self.penalty.device)
        if not file.exists():
            return False
        try:
            tensors, card = artifacts.read(file)
            self.network.load_state_dict(under("weights.", tensors))
            self.best = under("best.", tensors)
            self.best_epoch = card["best_epoch"]
            self.steps = card["steps"]
            self.epochs = [Epoch(**epoch) for epoch in card["epochs"]]
            self.order.set_state(tensors["order"])
            self.random.set_state(tensors["random"])
            restore_moments(self.optimiser, under("adam.", tensors))
        except (ArtifactError, KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = one_line(error)
            raise DtmlError(
                f"the saved state of a training run is damaged ({reason}): delete {file} to start "
                "over"
            ) from error
        return True


def stack_members(fits: Sequence[Fit]) -> Tensors:
    """Return the best weights of all members, each parameter with a leading axis of members."""
    return {name: torch.stack([fit.best[name] for fit in fits]) for name in fits[0].best}


def fit_members(
    train: Windows,
    validation: Windows,
    members: Sequence[Member],
    *,
    device: torch.device,
    state_folder: Path | None = None,
    on_epoch: EpochReport = no_report,
    begin: Sequence[Tensors] | None = None,
) -> list[Fit]:
    """Train all members and return them in their order, each with its best epoch on validation.

    "cuda" without a number is all GPUs. A fit resumes from its state in `state_folder`, which is
    for one pair of spans and first weights. `on_epoch` is called in the thread of each epoch;
    resumed, first with a `ResumedEpoch`. `begin` holds the first weights, else they are drawn.
    Raises DtmlError for a span without a label, an infinite loss, a damaged state, and too little
    memory of a GPU.
    """
    protocols = sorted({member.training.protocol for member in members})
    for protocol in protocols:
        _require_labels("training", train, protocol)
        _require_labels("validation", validation, protocol)
    devices = devices_of(device)[: len(members)]
    fits = [
        Fit.start(member, len(train.symbols), place)
        for member, place in zip(members, cycle(devices), strict=False)
    ]
    if begin is not None:
        for fit, weights in zip(fits, begin, strict=True):
            fit.network.load_state_dict(weights)
    spans = {
        (protocol, place): (Span.of(train, protocol, place), Span.of(validation, protocol, place))
        for protocol, place in product(protocols, devices)
    }
    if state_folder is not None:
        for fit in fits:
            # A restored state has one epoch or more, the last of which is reported again.
            if fit.restore(state_folder):
                on_epoch(fit.member, ResumedEpoch(**asdict(fit.epochs[-1])))
    if device.type == "cpu":
        runs = [
            _epochs(fit, *spans[fit.member.training.protocol, device], state_folder, on_epoch)
            for fit in fits
        ]
        _take_turns(runs, torch.get_num_threads())
    else:
        _train_on_gpus(fits, devices, train, spans, state_folder, on_epoch)
    return fits


def devices_of(device: torch.device) -> list[torch.device]:
    """Return the devices for the members: every GPU, unless one is named by its number."""
    if device.type != "cuda" or device.index is not None:
        return [device]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def _require_labels(span: str, windows: Windows, protocol: LabelProtocol) -> None:
    """Raise DtmlError, with the likely reason, unless a stock-day counts and moved."""
    has_moved = windows.movement != 0  # true for an unknown movement, which is never labelled
    if (windows.labelled(protocol) & has_moved).any():
        return
    is_known = windows.movement.isfinite()
    if not windows.observed.any():
        reason = (
            "no stock can be used on any of its days; check that the prices have a bar for every "
            "session, and that the market's file lists constituents of that time"
        )
    elif (windows.observed & is_known).any():
        reason = (
            "no known return is large enough for a label; check that the prices change, and in "
            "particular those that `returns` in the market's file names"
        )
    else:
        reason = "no return is known; check that the prices have a bar for every session"
    first = windows.target[0].date()
    last = windows.target[-1].date()
    raise DtmlError(f"no day of the {span} span, {first} to {last}, has a label: {reason}")


def _take_turns(runs: Sequence[Iterator[int]], workers: int) -> None:
    """Run all iterators to their end on threads, at most `workers`, on each of which torch has one.

    In turns, so that none is idle before the last epochs. After an error those under way end their
    epoch.
    """
    threads = torch.get_num_threads()
    try:
        # Each fit computes on one thread, so that the number of cores never changes its weights.
        torch.set_num_threads(1)
        count = max(1, min(len(runs), workers))
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            waiting = {pool.submit(next, run, None): run for run in runs}
            try:
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for turn in done:
                        run = waiting.pop(turn)
                        if turn.result() is not None:
                            waiting[pool.submit(next, run, None)] = run
            finally:
                pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(threads)


def _epochs(
    fit: Fit, train: Span, validation: Span, state_folder: Path | None, on_epoch: EpochReport
) -> Iterator[int]:
    """Train a member alone, saving its state to `state_folder`; yield the epochs done."""
    while not fit.finished:
        with gpu_errors_reported():
            loss = _epoch(fit, train)
            validation_loss, validation_acc = _validate(fit, validation)
        fit.end_epoch(loss, validation_loss, validation_acc)
        if state_folder is not None:
            fit.save(state_folder)
        on_epoch(fit.member, fit.epochs[-1])
        yield len(fit.epochs)
    fit.fetch_best()


def _train_on_gpus(
    fits: Sequence[Fit],
    devices: Sequence[torch.device],
    train: Windows,
    spans: Mapping[tuple[LabelProtocol, torch.device], tuple[Span, Span]],
    state_folder: Path | None,
    on_epoch: EpochReport,
) -> None:
    """Train members, which are dealt out to the devices, as one network where they can be."""
    together: list[Iterator[int]] = []  # one of each GPU
    alone: list[Iterator[int]] = []
    for number, device in enumerate(devices):
        stacks: list[Iterator[int]] = []
        for part, is_stack in _parts(fits[number :: len(devices)], train):
            of_part = spans[part[0].member.training.protocol, device]
            if is_stack:
                stacks.append(_stacked_epochs(part, *of_part, state_folder, on_epoch))
            else:
                alone += [_epochs(fit, *of_part, state_folder, on_epoch) for fit in part]
        together.append(chain(*stacks))
    _take_turns(together, len(devices))
    _take_turns(alone, THREADS_OF_A_GPU * len(devices))


def _parts(fits: Sequence[Fit], train: Windows) -> Iterator[tuple[list[Fit], bool]]:
    """Yield the unfinished members of a GPU in parts, and whether each trains as one network.

    Such a part is of one configuration, after as many epochs, and fits into the memory. The steps
    of others draw stocks, or one member's step fills the memory.
    """
    groups: dict[tuple[str, int], list[Fit]] = {}
    for fit in fits:
        if not fit.finished:
            # Members that were interrupted may have done fewer epochs than others.
            alike = (fit.member.config_digest, len(fit.epochs))
            groups.setdefault(alike, []).append(fit)
    for group in groups.values():
        model, recipe = group[0].member.model, group[0].member.training
        most = member_days(train.rows.shape[1], train.window, model.hidden, group[0].penalty.device)
        at_once = most // min(recipe.batch_days, len(train))
        if recipe.stocks_a_step is not None or at_once == 0:
            yield group, False
            continue
        count = -(-len(group) // at_once)
        for number in range(count):
            yield group[number::count], True


def _stacked_epochs(
    fits: Sequence[Fit],
    train: Span,
    validation: Span,
    state_folder: Path | None,
    on_epoch: EpochReport,
) -> Iterator[int]:
    """Train members of one configuration, after as many epochs, as one network.

    One whose patience runs out stays in it until the others end, and is reported no more.
    """
    first = fits[0].member
    with gpu_errors_reported():
        stack = Stack(
            network=first.model.build(train.observed.shape[1]),
            networks=[fit.network for fit in fits],
            optimisers=[fit.optimiser for fit in fits],
            generators=[fit.random for fit in fits],
            penalty=fits[0].penalty,
            clip=first.training.clip,
            steps=fits[0].steps,
            train=train,
            validation=validation,
            hidden=first.model.hidden,
        )
    saved = -math.inf
    try:
        while in_training := [fit for fit in fits if not fit.finished]:
            with stack.recorder.stream, gpu_errors_reported():
                orders = torch.stack(
                    [torch.randperm(len(train.days), generator=fit.order) for fit in fits]
                )
                days = train.days[orders].to(fits[0].penalty.device)
                batches = days.split(first.training.batch_days, dim=1)
                losses = stack.epoch(batches)
                figures = stack.validate()
                for fit, loss, of_validation in zip(fits, losses, figures, strict=True):
                    if not fit.finished:
                        fit.steps += len(batches)
                        fit.end_epoch(loss, *of_validation)
                is_due = time.monotonic() - saved >= SAVE_INTERVAL_S
                for fit in in_training:
                    if state_folder is not None and (is_due or fit.finished):
                        fit.save(state_folder)
                    if fit.finished:
                        fit.fetch_best()
                if is_due:
                    saved = time.monotonic()
            for fit in in_training:
                on_epoch(fit.member, fit.epochs[-1])
            yield len(in_training[0].epochs)
    finally:
        stack.forget()


def _epoch(fit: Fit, train: Span) -> float:
    """Pass once over the training days in the member's own order; return the mean objective."""
    fit.network.train()
    order = torch.randperm(len(train.days), generator=fit.order)
    batches = train.days[order].split(fit.member.training.batch_days)
    total = sum(_step(fit, train, days) for days in batches)
    return float(total) / len(batches)


def _step(fit: Fit, train: Span, days: Int[Tensor, " days"]) -> Tensor:
    """Take one step of the optimiser and return the objective, by parts of the days.

    Where the stocks drawn for it count on none of the days: no step, 0.
    """
    stocks = None
    is_counted = train.counted[days.to(train.counted.device)]  # [days stocks]
    stocks_a_step = fit.member.training.stocks_a_step
    if stocks_a_step is not None:
        shuffled_stocks = torch.randperm(is_counted.shape[1], generator=fit.order)
        stocks = shuffled_stocks[:stocks_a_step].sort().values.to(is_counted.device)
        is_counted = is_counted[:, stocks]
        days = days[is_counted.any(dim=1).cpu()]  # the days on which a drawn stock counts
        if len(days) == 0:
            return fit.penalty.new_zeros(())
    counted = is_counted.sum()
    total = torch.zeros_like(fit.penalty)
    for part in days.split(fit.days_at_once):
        batch = train.batch(part, fit.steps, stocks)
        weight = batch.counted.sum() / counted
        part_of_loss = fit.network.objective(batch, fit.penalty) * weight
        part_of_loss.backward()
        total += part_of_loss.detach()
    if fit.member.training.clip is not None:
        nn.utils.clip_grad_norm_(fit.network.parameters(), fit.member.training.clip)
    fit.optimiser.step()
    fit.optimiser.zero_grad()
    fit.steps += 1
    return total


@torch.no_grad()
def _validate(fit: Fit, span: Span) -> tuple[float, float]:
    """Return cross-entropy and `Network.correct`, means over a span's counted stock-days."""
    fit.network.eval()
    device = span.rows.device
    loss = torch.zeros((), device=device)
    correct = torch.zeros((), device=device)
    counted = torch.zeros((), device=device)
    for part in span.days.split(days_at_once(span.observed.shape[1], device)):
        batch = span.batch(part)
        logits = fit.network.logits(batch.rows, batch.windows, batch.observed)
        size = batch.counted.sum()
        loss += size * cross_entropy(logits, batch.rises, batch.counted)
        is_correct = fit.network.correct(logits, batch)
        correct += (is_correct * batch.counted).sum()
        counted += size
    return float(loss / counted), float(correct / counted)
