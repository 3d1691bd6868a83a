"""Train a network: the schedule, validation, checkpoints to resume from, and
the best weights of the last.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn

from translation.data.batches import Indices, batch_indices, batch_of
from translation.data.corpus import Examples
from translation.errors import UsageError
from translation.training import checkpoints
from translation.training.arithmetic import Precision, format_of
from translation.training.checkpoints import Progress, average_weights, load_weights
from translation.training.cpu_layers import use_fast_dropout, use_rounded_products
from translation.training.distributed import SINGLE_PROCESS, ProcessGroup
from translation.training.step import SeededBatch, TrainingStep, batch_loss, optimisers_of

SEEDS = 2**63  # torch takes seeds below it
FEW = 3  # checks of the shorter mean
# checks of a training of minutes at most, and how much longer than one it trains
CHECKS, VALIDATION_SHARE = (
    30,
    10,
)
SAID_EVERY_S = 60.0  # lines between checks
WARMUP = 4000  # updates, as published
Schedule = Literal["linear", "inverse_sqrt"]
Optimiser = Literal["adam", "muon"]
ValidationBleu = Callable[[nn.Module, ProcessGroup], float]


@dataclass(frozen=True)
class TrainingConfig:
    """Settings as published, but for the schedule and batches that suit a CPU.

    `batch_tokens` counts positions, padding included. The budget is `updates` or `minutes`,
    whichever ends first.
    """

    batch_tokens: int = 4096
    accumulate: int = 1  # batches an update, which all processes share
    updates: int = 100_000
    minutes: float | None = None  # limit of training time, interruptions left out
    optimiser: Optimiser = "adam"
    # down to 0 at the end of the budget, or 1 / sqrt(step), as published
    schedule: Schedule = "linear"
    warmup: float = 0.18  # a share of the budget; with inverse_sqrt, updates
    peak: float | None = None  # the highest learning rate; None as published
    label_smoothing: float = 0.1
    clip: float = 1.0  # largest norm of the gradient
    check_every: int | None = None  # updates; None for a share of the budget
    average: int = 10  # last checks whose weights are averaged at most
    seed: int = 0
    # In which a CPU multiplies matrices in layers, and in Muon's updates; "auto" is what it does
    # faster. CUDA always mixes bfloat16 and float32.
    precision: Precision = "auto"
    muon_precision: Precision = "auto"

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "accumulate", "updates", "check_every", "average"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name, kinds in (
            ("schedule", Schedule),
            ("optimiser", Optimiser),
            ("precision", Precision),
            ("muon_precision", Precision),
        ):
            if getattr(self, name) not in get_args(kinds):
                raise UsageError(
                    f"{name} must be one of {', '.join(get_args(kinds))}, not {getattr(self, name)}"
                )
        if not (0 < self.warmup < 1 if self.schedule == "linear" else self.warmup >= 1):
            units = (
                "a share of the budget, between 0 and 1"
                if self.schedule == "linear"
                else "1 update or more"
            )
            raise UsageError(
                f"warmup must be {units} with the schedule {self.schedule}, not {self.warmup:g}"
            )
        for name in ("minutes", "peak"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise UsageError(f"{name} must be more than 0, not {getattr(self, name)}")
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(
                f"label_smoothing must be 0 or more and below 1, not {self.label_smoothing}"
            )
        if not self.clip >= 0:
            raise UsageError(f"clip must be 0 (for none) or more, not {self.clip}")


@dataclass(frozen=True)
class Check:
    """The figures of one validation: losses in nats a target token, and BLEU if
    it was asked for.
    """

    step: int
    epoch: float
    tokens: int
    train_loss: float
    validation_loss: float
    validation_bleu: float | None
    learning_rate: float
    tokens_per_second: float  # target tokens, since the last check
    seconds_left: float

    def __str__(self) -> str:
        bleu = "" if self.validation_bleu is None else f", BLEU {self.validation_bleu:.1f}"
        figures = f"loss {self.train_loss:.3f}, validation {self.validation_loss:.3f}{bleu}"
        pace = (
            f"{self.tokens_per_second:.0f} tokens a second, {self.seconds_left / 60:.0f} min "
            "left at most"
        )
        return f"step {self.step:,}, epoch {self.epoch:.1f}: {figures}; {pace}"


@dataclass(frozen=True)
class TrainingContext:
    """Where a training runs, where it saves its state, and whom it tells of
    each check and in between.
    """

    folder: Path
    key: str  # identifies corpus and configuration
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    process_group: ProcessGroup = SINGLE_PROCESS
    on_check: Callable[[Check], object] = lambda _: None
    on_message: Callable[[str], object] = lambda _: None
    # BLEU of the validation set, which decides where it is given; all processes of the group call
    # it.
    bleu: ValidationBleu | None = None


def learning_rate(step: int, done: float, width: int, config: TrainingConfig) -> float:
    """Return the rate of a step, from 1 on, at a share `done` of the budget:
    linear, or eq. 3 of Vaswani et al.
    """
    warmup = config.warmup
    if config.schedule == "linear":
        peak = (width * WARMUP) ** -0.5 if config.peak is None else config.peak
        return peak * min(done / warmup, (1 - done) / (1 - warmup))
    peak = (width * warmup) ** -0.5 if config.peak is None else config.peak
    return peak * min(step / warmup, math.sqrt(warmup / step))


def train_network(
    network: nn.Module,
    width: int,
    training: Examples,
    validation: Examples,
    config: TrainingConfig,
    context: TrainingContext,
) -> Progress:
    """Train until the budget of updates or minutes is used up, then load in rank 0 what is best on
    validation.

    It is chosen from the last check, the best one, and means of the last; `Progress.saved` says
    which. An interrupted training resumes from its last check, with the same losses where its
    budget is updates. Raises TranslationError when memory runs out and when the loss is NaN or
    infinite.
    """
    training_step = training_step_of(network, config, context.device, context.process_group)
    optimisers = training_step.optimisers
    progress = checkpoints.restore_state(context.folder, network, optimisers, context.key)
    since, batches_of = _SinceCheck(), _updates(training, config, progress, context.process_group)
    while progress.step < config.updates and not _is_over_time(progress.seconds, config):
        progress.step += 1
        rate = learning_rate(
            progress.step, since.share_done(progress, config, context.process_group), width, config
        )
        done = training_step(next(batches_of), rate, check=since.asks_for_check(progress, config))
        if done is None:
            raise training_step.out_of_memory(training, config.batch_tokens)
        since.loss += done.loss
        since.tokens += done.tokens
        progress.tokens += done.tokens
        if done.check or progress.step == config.updates or _is_due(progress.step, config):
            seconds, begun = (
                context.process_group.broadcast(time.monotonic() - since.begun),
                time.monotonic(),
            )
            progress.seconds += seconds
            figures = (since.loss / since.tokens, since.tokens / seconds, rate)
            _check(network, optimisers, validation, progress, config, context, figures)
            since = _SinceCheck(begun)
        else:
            since.say(progress, config, context)
    if context.process_group.rank == 0:
        _load_best(network.eval(), validation, progress, config, context)
    return progress


def training_step_of(
    network: nn.Module, config: TrainingConfig, device: torch.device, process_group: ProcessGroup
) -> TrainingStep:
    """Move a network to a device, make it ready to train there, and return the
    step that trains it.
    """
    dtype = next(network.parameters()).dtype
    precision = format_of(config.precision, dtype)
    muon_precision = format_of(config.muon_precision, dtype)
    use_fast_dropout(network)
    if precision == "bfloat16":
        use_rounded_products(network)
    network.to(device).train()
    on_cuda = device.type == "cuda"
    muon_products = torch.bfloat16 if on_cuda else getattr(torch, muon_precision)
    return TrainingStep(
        network=network,
        optimisers=optimisers_of(network, config.optimiser, muon_products),
        label_smoothing=config.label_smoothing,
        clip=config.clip,
        device=device,
        process_group=process_group,
        products=getattr(torch, precision),
    )


@dataclass
class _SinceCheck:
    """Sums of the updates since the last check, whose validation `begun`, in
    seconds of the monotonic clock.
    """

    begun: float = field(default_factory=time.monotonic)
    trained_from: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)
    loss: float = 0.0
    tokens: int = 0

    def share_done(
        self, progress: Progress, config: TrainingConfig, process_group: ProcessGroup
    ) -> float:
        """Return the share of the budget that is over, the same for all processes, 1 at most."""
        done = progress.step / (config.updates + 1)
        if config.minutes is None or config.schedule != "linear":
            return done
        seconds = progress.seconds + time.monotonic() - self.begun
        return min(1.0, max(done, process_group.broadcast(seconds) / (60 * config.minutes)))

    def asks_for_check(self, progress: Progress, config: TrainingConfig) -> bool:
        """Return whether the clock asks for a check: time is over, or it counts
        minutes and the next is due.
        """
        now = time.monotonic()
        if config.minutes is None:
            return False
        if config.check_every is not None:
            return _is_over_time(progress.seconds + now - self.begun, config)
        validated = self.trained_from - self.begun
        due = now - self.trained_from > max(
            60 * config.minutes / CHECKS, VALIDATION_SHARE * validated
        )
        return due or _is_over_time(progress.seconds + now - self.begun, config)

    def say(self, progress: Progress, config: TrainingConfig, context: TrainingContext) -> None:
        """Say now and then how the training goes between its checks."""
        now = time.monotonic()
        if now - self.said < SAID_EVERY_S:
            return
        self.said = now
        pace = f"{self.tokens / (now - self.trained_from):.0f} tokens a second"
        loss = f"loss {self.loss / self.tokens:.3f}"
        context.on_message(f"step {progress.step:,} of at most {config.updates:,}: {loss}, {pace}")


def _is_due(step: int, config: TrainingConfig) -> bool:
    """Return whether the number of a step asks for a check."""
    if config.check_every is None and config.minutes is not None:
        return False
    return step % (config.check_every or max(1, config.updates // CHECKS)) == 0


def _is_over_time(seconds: float, config: TrainingConfig) -> bool:
    return config.minutes is not None and seconds > 60 * config.minutes


def _load_best(
    network: nn.Module,
    validation: Examples,
    progress: Progress,
    config: TrainingConfig,
    context: TrainingContext,
) -> None:
    """Load the weights that are best by the figure that the checks went by, and
    note their steps in `progress`.
    """

    def figure(steps: list[int]) -> float:
        load_weights(network, average_weights(context.folder, steps))
        if context.bleu is not None:
            return context.bleu(network, SINGLE_PROCESS)
        return -validation_loss(network, validation, config.batch_tokens, context.device)

    progress.saved = max(_candidates(progress, config), key=figure)
    load_weights(network, average_weights(context.folder, progress.saved))


def _candidates(progress: Progress, config: TrainingConfig) -> list[list[int]]:
    """Return the steps whose mean weights may be saved: the last `average`, the
    last 3, the last one, the best one.
    """
    # No mean has weights of the warm-up, which are far apart.
    warmup = config.warmup * progress.step if config.schedule == "linear" else config.warmup
    after = [step for step in progress.kept if step > warmup]
    found = [
        after[-config.average :],
        after[-min(FEW, config.average) :],
        progress.kept[-1:],
        [progress.best_step],
    ]
    return [list(steps) for steps in dict.fromkeys(map(tuple, found)) if steps]


def _updates(
    examples: Examples, config: TrainingConfig, progress: Progress, process_group: ProcessGroup
) -> Iterator[list[SeededBatch]]:
    """Yield this process's share of each update, from where the training
    stands, epoch after epoch without end.
    """
    # The recipe alone decides the pairs of an update: `accumulate` batches. Each part of it has a
    # seed of its own, so that a resumed training, and another process, draws the same dropout.
    while True:
        generator = torch.Generator().manual_seed(
            (config.seed * 1_000_003 + progress.epoch) % SEEDS
        )
        batches = batch_indices(examples, config.batch_tokens, generator)
        progress.batches = len(batches)
        while progress.place + config.accumulate <= len(batches) or (
            progress.place == 0 and batches
        ):
            chosen = batches[progress.place : progress.place + config.accumulate]
            progress.place += config.accumulate
            first = (config.seed * 1_000_003 + progress.step) * 1_009
            mine = share(chosen, process_group)
            yield [((first + number) % SEEDS, batch_of(examples, part)) for number, part in mine]
        progress.epoch, progress.place = progress.epoch + 1, 0


def share(batches: Sequence[Indices], process_group: ProcessGroup) -> list[tuple[int, Indices]]:
    """Return the parts of an update that a process computes, each with its number in the update.

    With more processes than batches, each batch is cut into parts of about the same lengths; none
    is empty.
    """
    cuts = math.ceil(process_group.world_size / len(batches))
    parts = [batch[cut::cuts] for batch in batches for cut in range(cuts)]
    mine = list(enumerate(parts))[process_group.rank :: process_group.world_size]
    return [(number, part) for number, part in mine if len(part)]


@torch.no_grad()
def validation_loss(
    network: nn.Module,
    examples: Examples,
    tokens: int,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
) -> float:
    """Return the unsmoothed cross-entropy in nats a target token, of all
    processes' shares; the mode stays as is.
    """
    was, loss, count = network.training, 0.0, 0
    network.eval()
    for indices in batch_indices(examples, tokens, None)[group.rank :: group.world_size]:
        batch = batch_of(examples, indices)
        loss, count = loss + batch_loss(network, batch, 0.0, device).item(), count + batch.tokens
    network.train(was)
    total = group.all_reduce(torch.tensor([loss, count], dtype=torch.float64))
    return float(total[0] / total[1])


def _check(
    network: nn.Module,
    optimisers: Sequence[torch.optim.Optimizer],
    validation: Examples,
    progress: Progress,
    config: TrainingConfig,
    context: TrainingContext,
    since: tuple[float, float, float],
) -> None:
    """Validate, note whether the figure improved, report, and save weights and state."""
    # `since` is loss, tokens a second and learning rate since the last check. Reporting comes
    # first: a training killed in between reports its check again when it resumes, so none is lost.
    loss = validation_loss(
        network, validation, config.batch_tokens, context.device, context.process_group
    )
    bleu = None if context.bleu is None else context.bleu(network, context.process_group)
    left = (config.updates - progress.step) * (progress.seconds / progress.step)
    if config.minutes is not None:
        left = min(left, 60 * config.minutes - progress.seconds)
    figure = context.process_group.broadcast(-loss if bleu is None else bleu)
    if progress.best is None or figure > progress.best:
        progress.best, progress.best_step, progress.checks_since = figure, progress.step, 0
    else:
        progress.checks_since += 1
    if context.process_group.rank == 0:
        epoch = progress.epoch + progress.place / progress.batches
        figures = (since[0], loss, bleu, since[2], since[1], max(0.0, left))
        context.on_check(Check(progress.step, epoch, progress.tokens, *figures))
        checkpoints.keep_weights(
            context.folder, network, progress, config.average + progress.checks_since
        )
        checkpoints.save_state(context.folder, network, optimisers, progress, context.key)
        checkpoints.drop_older_weights(context.folder, progress.kept)
