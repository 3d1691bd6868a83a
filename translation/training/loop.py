"""Train a network: its schedule, validation, checkpoints to resume from, and its best weights."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from translation.data.batches import Indices, batch_indices, batch_of
from translation.data.corpus import Examples
from translation.errors import TranslationError, UsageError
from translation.out_of_memory import is_out_of_memory
from translation.training import checkpoints
from translation.training.checkpoints import Progress, average_weights, load_weights
from translation.training.distributed import SINGLE_PROCESS, ProcessGroup
from translation.training.dropout import FastDropout
from translation.training.step import (
    Gradients,
    SeededBatch,
    TrainingStep,
    batch_loss,
    optimisers_of,
)
from translation.transformer import replace_dropout

SEEDS = 2**63  # torch takes seeds below this number
SHORT_AVERAGE = 3  # the checks of the shorter of the two means that may be saved
CHECKS = 30  # in a budget, about; at most, if it is of minutes
TRAINING_TO_VALIDATION = 10  # the least ratio of their times, if the budget is of minutes
MESSAGE_INTERVAL_S = 60.0
WARMUP = 4000  # updates, as published
Schedule = Literal["linear", "inverse_sqrt"]
Optimiser = Literal["adam", "muon"]
ValidationBleu = Callable[[nn.Module, ProcessGroup], float]


@dataclass(frozen=True)
class TrainingConfig:
    """Settings as published, except for the schedule and the batches, which suit a CPU.

    `batch_tokens` counts padding too. The budget is `updates` or `minutes`, whichever ends first.
    """

    batch_tokens: int = 4096
    accumulate: int = 1  # batches an update, which all processes share
    updates: int = 100_000
    minutes: float | None = None  # limit of training time, interruptions left out
    optimiser: Optimiser = "adam"
    # Down to 0 at the end of the budget, or 1 / sqrt(step), as published.
    schedule: Schedule = "linear"
    warmup: float = 0.18  # a share of the budget; with inverse_sqrt, updates
    peak: float | None = None  # the highest learning rate; None as published
    label_smoothing: float = 0.1
    clip: float = 1.0  # largest norm of the gradient
    check_every: int | None = None  # updates; None for a share of the budget
    average: int = 10  # last checks whose weights are averaged at most
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "accumulate", "updates", "check_every", "average"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be 1 or more, not {value}")
        is_linear = self.schedule == "linear"
        is_possible = 0 < self.warmup < 1 if is_linear else self.warmup >= 1
        if not is_possible:
            units = "a share of the budget above 0 and below 1" if is_linear else "1 update or more"
            raise UsageError(
                f"with the schedule {self.schedule}, warmup must be {units}, not {self.warmup:g}"
            )
        for name in ("minutes", "peak"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} must be more than 0, not {value}")
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(
                f"label_smoothing must be 0 or more and below 1, not {self.label_smoothing}"
            )
        if not self.clip >= 0:  # also true of NaN
            raise UsageError(f"clip must be 0 (for none) or more, not {self.clip}")


@dataclass(frozen=True)
class Check:
    """The figures of one validation: losses in nats a target token, and BLEU on request."""

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
        minutes_left = self.seconds_left / 60
        pace = f"{self.tokens_per_second:.0f} tokens a second, {minutes_left:.0f} min left at most"
        return f"step {self.step:,}, epoch {self.epoch:.1f}: {figures}; {pace}"


@dataclass(frozen=True)
class TrainingContext:
    """Hold where a training runs, where it saves its state, and what it calls with its progress."""

    folder: Path
    key: str  # identifies corpus and configuration
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    process_group: ProcessGroup = SINGLE_PROCESS
    on_check: Callable[[Check], object] = lambda _: None
    on_message: Callable[[str], object] = lambda _: None
    # Of the validation set; if given, it decides in place of the loss. All processes call it.
    bleu: ValidationBleu | None = None


def learning_rate(step: int, done: float, width: int, config: TrainingConfig) -> float:
    """Return the learning rate of a step, from 1 on, at a share `done` of the budget.

    Linear up and down, or eq. 3 of Vaswani et al.; `width` is d_model.
    """
    warmup = config.warmup
    is_linear = config.schedule == "linear"
    peak = config.peak
    if peak is None:  # the highest of eq. 3, with the published warm-up where ours is a share
        steps_to_peak = WARMUP if is_linear else warmup
        peak = (width * steps_to_peak) ** -0.5
    if is_linear:
        return peak * min(done / warmup, (1 - done) / (1 - warmup))
    return peak * min(step / warmup, math.sqrt(warmup / step))


def train_network(
    network: nn.Module,
    width: int,
    training: Examples,
    validation: Examples,
    config: TrainingConfig,
    context: TrainingContext,
) -> Progress:
    """Train until the budget is used up, then load the best weights on validation in rank 0.

    They are those of the last check, of the best one, or a mean of the last ones
    (`Progress.saved`). An interrupted training resumes from its last check, with the same losses if
    its budget is in updates. `width` is d_model. Raises TranslationError if memory runs out, the
    loss is not finite, a process is lost or the saved state is unusable.
    """
    step = training_step_of(network, config, context.device, context.process_group)
    with step.gradients.recorder.stream:
        progress = checkpoints.restore_state(context.folder, network, step.optimisers, context.key)
        run = _Run(network, step, training, validation, config, context, progress)
        try:
            run.train(width)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise TranslationError(
                f"out of memory with batch_tokens = {config.batch_tokens}: set a smaller "
                "batch_tokens under [training], a smaller size under [network] or a smaller "
                "longest under [rules], and delete the folder of the saved training state if the "
                "next run names it"
            ) from error
        if context.process_group.rank == 0:
            network = network.eval()
            # The best is loaded once more, because other candidates may have been loaded since.
            progress.saved = max(_candidates(progress, config), key=run.load_and_validate)
            load_weights(network, average_weights(context.folder, progress.saved))
    return progress


def training_step_of(
    network: nn.Module, config: TrainingConfig, device: torch.device, process_group: ProcessGroup
) -> TrainingStep:
    """Move a network to a device, replace its slow layers, and return its training step."""
    replace_dropout(network, FastDropout)
    network.to(device).train()
    return TrainingStep(
        network=network,
        gradients=Gradients(network, config.label_smoothing, device),
        optimisers=optimisers_of(network, config.optimiser),
        clip=config.clip,
        process_group=process_group,
    )


@dataclass
class _Run:
    """A training under way, and sums since the last check, in monotonic seconds."""

    network: nn.Module
    step: TrainingStep
    training: Examples
    validation: Examples
    config: TrainingConfig
    context: TrainingContext
    progress: Progress
    begun: float = field(default_factory=time.monotonic)  # when the last check began
    trained_from: float = field(default_factory=time.monotonic)  # when the last check ended
    reported: float = field(default_factory=time.monotonic)  # of the last message or check
    validation_seconds: float = 0.0  # of the last check, by the clock of rank 0
    loss: float = 0.0
    tokens: int = 0

    def train(self, width: int) -> None:
        config = self.config
        progress = self.progress
        updates = self._updates()
        # `progress.seconds` grows at checks alone, and a check is made as soon as time is over.
        while progress.step < config.updates and not self._is_over_time(progress.seconds):
            progress.step += 1
            seconds = self._seconds()
            rate = learning_rate(progress.step, self._share_done(seconds), width, config)
            result = self.step(next(updates), rate)
            self.loss += result.loss
            self.tokens += result.tokens
            progress.tokens += result.tokens
            if self._is_check_due(seconds):
                self._check(rate)
            elif time.monotonic() - self.reported >= MESSAGE_INTERVAL_S:
                self.reported = time.monotonic()
                pace = f"{self.tokens / (self.reported - self.trained_from):.0f} tokens a second"
                self.context.on_message(
                    f"step {progress.step:,} of at most {config.updates:,}: loss "
                    f"{self.loss / self.tokens:.3f}, {pace}"
                )

    def load_and_validate(self, steps: list[int]) -> float:
        """Load the mean of the weights of some checks, and return their figure on validation."""
        load_weights(self.network, average_weights(self.context.folder, steps))
        if self.context.bleu is not None:
            return self.context.bleu(self.network, SINGLE_PROCESS)  # only rank 0 is here
        return -validation_loss(
            self.network, self.validation, self.config.batch_tokens, self.context.device
        )

    def _seconds(self) -> float:
        """Return the seconds of training by the clock of rank 0; 0 if they are no budget."""
        if self.config.minutes is None:
            return 0.0
        seconds = self.progress.seconds + time.monotonic() - self.begun
        return self.context.process_group.broadcast(seconds)

    def _share_done(self, seconds: float) -> float:
        share_of_updates = self.progress.step / (self.config.updates + 1)  # below 1: no rate is 0
        if self.config.minutes is None:
            return share_of_updates
        return min(1.0, max(share_of_updates, seconds / (60 * self.config.minutes)))

    def _is_check_due(self, seconds: float) -> bool:
        """Return whether a check is due: at the end of the budget and at regular intervals."""
        config = self.config
        step = self.progress.step
        if step == config.updates or self._is_over_time(seconds):
            return True
        if config.check_every is not None:
            return step % config.check_every == 0
        if config.minutes is None:
            return step % max(1, config.updates // CHECKS) == 0
        trained = seconds - self.progress.seconds - self.validation_seconds
        least = TRAINING_TO_VALIDATION * self.validation_seconds
        return trained > max(60 * config.minutes / CHECKS, least)

    def _is_over_time(self, seconds: float) -> bool:
        return self.config.minutes is not None and seconds > 60 * self.config.minutes

    def _updates(self) -> Iterator[list[SeededBatch]]:
        """Yield this process's share of each update, epoch after epoch; the caller counts
        `progress.step`.

        An update is `accumulate` batches, or all of an epoch; the rest of an epoch is left out.
        Each part has its own seed, whichever process computes it.
        """
        config = self.config
        progress = self.progress
        while True:
            order_seed = (config.seed * 1_000_003 + progress.epoch) % SEEDS
            generator = torch.Generator().manual_seed(order_seed)
            batches = batch_indices(self.training, config.batch_tokens, generator)
            progress.batches = len(batches)
            # The first update of an epoch may have fewer batches than `accumulate`: a small corpus
            # has no more.
            while 0 == progress.place < progress.batches or (
                progress.place + config.accumulate <= progress.batches
            ):
                update = batches[progress.place : progress.place + config.accumulate]
                progress.place += config.accumulate
                # All seeds differ for up to 1,000,003 steps, each of up to 1,009 parts.
                first_seed = (config.seed * 1_000_003 + progress.step) * 1_009
                seeded_batches: list[SeededBatch] = []
                for number, part in share(update, self.context.process_group):
                    seed = (first_seed + number) % SEEDS
                    seeded_batches.append((seed, batch_of(self.training, part)))
                yield seeded_batches
            progress.epoch += 1
            progress.place = 0

    def _check(self, rate: float) -> None:
        """Validate in all processes, note whether the figure improved; in rank 0, report, then
        save.

        Killed in between, a resumed training reports this check again: none is lost.
        """
        config = self.config
        context = self.context
        progress = self.progress
        process_group = context.process_group
        seconds = process_group.broadcast(time.monotonic() - self.begun)
        self.begun = time.monotonic()  # the check itself counts to the next interval
        progress.seconds += seconds
        loss = validation_loss(
            self.network, self.validation, config.batch_tokens, context.device, process_group
        )
        bleu = None if context.bleu is None else context.bleu(self.network, process_group)
        # The figure of rank 0, so that all processes have the same progress.
        figure = process_group.broadcast(-loss if bleu is None else bleu)
        if progress.best is None or figure > progress.best:
            progress.best = figure
            progress.best_step = progress.step
            progress.checks_since = 0
        else:
            progress.checks_since += 1
        if process_group.rank == 0:
            seconds_left = (config.updates - progress.step) * progress.seconds / progress.step
            if config.minutes is not None:
                seconds_left = min(seconds_left, 60 * config.minutes - progress.seconds)
            check = Check(
                step=progress.step,
                epoch=progress.epoch + progress.place / progress.batches,
                tokens=progress.tokens,
                train_loss=self.loss / self.tokens,
                validation_loss=loss,
                validation_bleu=bleu,
                learning_rate=rate,
                tokens_per_second=self.tokens / seconds,
                seconds_left=max(0.0, seconds_left),
            )
            context.on_check(check)
            # As far back as the best check, whose weights may be saved at the end.
            count = config.average + progress.checks_since
            optimisers = self.step.optimisers
            checkpoints.keep_weights(context.folder, self.network, progress, count)
            checkpoints.save_state(context.folder, self.network, optimisers, progress, context.key)
            checkpoints.drop_older_weights(context.folder, progress.kept)
        self.loss = 0.0
        self.tokens = 0
        self.reported = time.monotonic()
        self.trained_from = self.reported
        self.validation_seconds = process_group.broadcast(self.trained_from - self.begun)


def _candidates(progress: Progress, config: TrainingConfig) -> list[list[int]]:
    """Return the lists of steps of checks whose mean weights may be saved, without repetitions.

    The last `average` after the warm-up, the last `SHORT_AVERAGE`, the last one, the best one.
    """
    # No mean has weights of the warm-up, which differ much. Here `warmup` counts updates: with the
    # linear schedule it is a share of those made.
    warmup = config.warmup * progress.step if config.schedule == "linear" else config.warmup
    after_warmup = [step for step in progress.kept if step > warmup]
    candidates = [
        after_warmup[-config.average :],
        after_warmup[-min(SHORT_AVERAGE, config.average) :],
        progress.kept[-1:],
        [progress.best_step],
    ]
    distinct: list[list[int]] = []
    for steps in candidates:
        if steps and steps not in distinct:
            distinct.append(steps)
    return distinct


def share(batches: Sequence[Indices], process_group: ProcessGroup) -> list[tuple[int, Indices]]:
    """Return the parts of an update that a process computes, each with its number in the update.

    With more processes than batches, batches are cut by lengths. No part is empty.
    """
    cuts = math.ceil(process_group.world_size / len(batches))
    parts: list[Indices] = []
    for batch in batches:
        parts.extend(batch[first::cuts] for first in range(cuts))
    numbers = range(process_group.rank, len(parts), process_group.world_size)
    return [(number, parts[number]) for number in numbers if len(parts[number])]


@torch.no_grad()
def validation_loss(
    network: nn.Module,
    examples: Examples,
    tokens: int,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
) -> float:
    """Return the unsmoothed cross-entropy in nats a target token, over all processes' shares.

    `tokens` is the limit of a batch's positions.
    """
    was_training = network.training
    network.eval()
    loss = torch.zeros((), device=device, dtype=torch.float64)
    count = 0
    batches = batch_indices(examples, tokens, None)
    for indices in batches[group.rank :: group.world_size]:
        batch = batch_of(examples, indices)
        loss += batch_loss(network, [side.to(device) for side in batch.sides], 0.0)
        count += batch.tokens
    network.train(was_training)
    figures = torch.tensor([loss.item(), count], dtype=torch.float64)
    total_loss, total_count = group.all_reduce(figures)
    return float(total_loss / total_count)
