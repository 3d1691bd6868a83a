"""Fit a translator: batches by length, the published schedule, checkpoints to go on from, the last ones' mean."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor, nn

from translation.batches import Batch, batch_of, order
from translation.checkpointing import (
    Progress,
    average_weights,
    drop_older_weights,
    keep_weights,
    load_weights,
    restore_state,
    save_state,
)
from translation.corpus import Examples
from translation.errors import TranslationError, UsageError
from translation.group import ALONE, Group
from translation.loss import smoothed_loss
from translation.memory import is_out_of_memory, out_of_memory
from translation.transformer import PADDING

SEEDS = 2**63  # that torch knows


class Translator(Protocol):
    """What a network offers to a training: see `translation.transformer.Transformer`."""

    output_weight: Tensor

    def __call__(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """`[sentences, target positions, d_model]`."""


@dataclass(frozen=True)
class TrainingConfig:
    """As published, but for batches that suit a processor; tokens are positions, padding included."""

    batch_tokens: int = 4096
    accumulate: int = 1  # batches an update
    updates: int = 100_000
    minutes: float | None = None  # an end by time, over all sittings
    warmup: int = 4000
    peak: float | None = None  # the highest learning rate; None as published
    label_smoothing: float = 0.1
    clip: float = 1.0  # the norm that a gradient may have
    check_every: int = 500  # updates
    patience: int = 10  # checks without a better figure
    average: int = 10  # of the last checks' weights
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "accumulate", "updates", "warmup", "check_every", "patience", "average"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is 1 or more, not {getattr(self, name)}")
        for name in ("minutes", "peak"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise UsageError(f"{name} is more than 0, not {getattr(self, name)}")
        if not (0 <= self.label_smoothing < 1 and self.clip >= 0):
            told = f"{self.label_smoothing} and {self.clip}"
            raise UsageError(f"label_smoothing is 0 or more and below 1, and clip 0 (for none) or more, not {told}")


@dataclass(frozen=True)
class Check:
    """What is known at a check: losses in nats a target token, BLEU of the validation set where it was asked for."""

    step: int
    epoch: float
    tokens: int
    train_loss: float
    validation_loss: float
    validation_bleu: float | None
    learning_rate: float
    tokens_per_second: float  # target tokens, since the last check
    seconds_left: float


@dataclass(frozen=True)
class Sitting:
    """Who watches a training, and where it runs."""

    folder: Path
    key: str  # of the corpus and the configuration
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: Group = ALONE
    on_check: Callable[[Check], object] = lambda _: None
    bleu: Callable[[nn.Module], float] | None = None  # of a network on the validation set; decides, where given


def learning_rate(step: int, width: int, config: TrainingConfig) -> float:
    """Linear up to `warmup`, then the inverse square root of the step (eq. 3 of Vaswani et al.); steps from 1 on."""
    peak = (width * config.warmup) ** -0.5 if config.peak is None else config.peak
    return peak * min(step / config.warmup, math.sqrt(config.warmup / step))


def train(
    network: nn.Module, width: int, training: Examples, validation: Examples, config: TrainingConfig, sitting: Sitting
) -> Progress:
    """Train to the end of the time, the updates or the patience; the network has the mean of the last weights then.

    An interrupted training goes on from its last check, to the same losses. Raises TranslationError when the memory
    does not suffice and when the loss is no number.
    """
    network.to(sitting.device).train()
    optimiser = torch.optim.Adam(network.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    progress = restore_state(sitting.folder, network, optimiser, sitting.key)
    since, losses, tokens = time.monotonic(), 0.0, 0
    updates = _updates(training, config, progress, sitting.group)
    while not _is_over(progress, config):
        batches = next(updates)
        progress.step += 1
        # Drawn anew at each step, so that a training that goes on draws what it would have drawn.
        torch.manual_seed(((config.seed * 1_000_003 + progress.step) * 1_009 + sitting.group.rank) % SEEDS)
        rate = learning_rate(progress.step, width, config)
        done = _update(network, optimiser, batches, rate, config, sitting)
        if done is None:
            raise _out_of_memory(network, optimiser, training, config, sitting)
        loss, count = done
        losses, tokens = losses + loss, tokens + count
        progress.tokens += count
        if progress.step % config.check_every == 0 or progress.step == config.updates:
            seconds, since = sitting.group.agree(time.monotonic() - since), time.monotonic()
            progress.seconds += seconds
            check = _check(network, validation, progress, config, sitting, (losses / tokens, tokens / seconds, rate))
            _keep(network, optimiser, progress, check, config, sitting)
            losses, tokens = 0.0, 0
    if sitting.group.rank > 0:
        return progress
    if not progress.kept:
        raise TranslationError("the training ended before its first check: give it more time, or check more often")
    load_weights(network, average_weights(sitting.folder, progress.kept))
    network.eval()
    return progress


def _is_over(progress: Progress, config: TrainingConfig) -> bool:
    over_time = config.minutes is not None and progress.seconds > 60 * config.minutes
    return progress.step >= config.updates or progress.checks_since >= config.patience or over_time


def _updates(examples: Examples, config: TrainingConfig, progress: Progress, group: Group) -> Iterator[list[Batch]]:
    """The batches of each update from where a training stands, epoch after epoch; of a group, this member's share."""
    each = config.accumulate * group.size
    while True:
        generator = torch.Generator().manual_seed((config.seed * 1_000_003 + progress.epoch) % SEEDS)
        batches = order(examples, config.batch_tokens, generator)
        progress.batches = len(batches)
        while progress.place + each <= len(batches) or (progress.place == 0 and batches):
            chosen = batches[progress.place : progress.place + each]
            progress.place += each
            mine = chosen[group.rank :: group.size] or chosen[:1]
            yield [batch_of(examples, indices) for indices in mine]
        progress.epoch, progress.place = progress.epoch + 1, 0


def _update(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    batches: list[Batch],
    rate: float,
    config: TrainingConfig,
    sitting: Sitting,
) -> tuple[float, int] | None:
    """One step; the summed loss of its batches and their target tokens, over the whole group; None without memory."""
    try:
        return _step(network, optimiser, batches, rate, config, sitting)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    return None  # from here, where the error no longer holds what the step had in memory


def _step(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    batches: list[Batch],
    rate: float,
    config: TrainingConfig,
    sitting: Sitting,
) -> tuple[float, int]:
    optimiser.zero_grad()
    loss, count = 0.0, 0
    for batch in batches:
        summed = _loss(network, batch, config.label_smoothing, sitting.device)
        summed.backward()
        loss, count = loss + summed.item(), count + batch.tokens
    loss, count = sitting.group.sum_up(network, loss, count)
    if not math.isfinite(loss):
        raise TranslationError(f"the loss is {loss}: train anew with a lower peak of the learning rate")
    for parameter in network.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(count)
    if config.clip:
        nn.utils.clip_grad_norm_(network.parameters(), config.clip)
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.step()
    return loss, count


def _loss(network: nn.Module, batch: Batch, smoothing: float, device: torch.device) -> Tensor:
    """The loss of a batch, summed over its real target tokens; padding never reaches the output layer."""
    source, target, expected = (x.to(device) for x in (batch.source, batch.target_input, batch.target_output))
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        translator = cast(Translator, network)
        decoded, _ = translator(source, target)
        real = expected != PADDING
        return smoothed_loss(decoded[real], translator.output_weight, expected[real], smoothing)


@torch.no_grad()
def validation_loss(network: nn.Module, examples: Examples, tokens: int, device: torch.device) -> float:
    """Cross-entropy in nats a target token, without smoothing; the network is left in training mode as it was."""
    was, loss, count = network.training, 0.0, 0
    network.eval()
    for indices in order(examples, tokens, None):
        batch = batch_of(examples, indices)
        loss, count = loss + _loss(network, batch, 0.0, device).item(), count + batch.tokens
    network.train(was)
    return loss / count


def _check(
    network: nn.Module,
    validation: Examples,
    progress: Progress,
    config: TrainingConfig,
    sitting: Sitting,
    since: tuple[float, float, float],
) -> Check:
    """Validate; `since` holds the loss, the tokens a second and the learning rate since the last check."""
    loss = validation_loss(network, validation, config.batch_tokens, sitting.device)
    bleu = None if sitting.bleu is None else sitting.bleu(network)
    per_step = progress.seconds / progress.step
    left = (config.updates - progress.step) * per_step
    if config.minutes is not None:
        left = min(left, 60 * config.minutes - progress.seconds)
    epoch = progress.epoch + progress.place / progress.batches
    return Check(progress.step, epoch, progress.tokens, since[0], loss, bleu, since[2], since[1], max(0.0, left))


def _keep(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    check: Check,
    config: TrainingConfig,
    sitting: Sitting,
) -> None:
    """Note whether it became better, keep the weights and the state, and tell."""
    figure = -check.validation_loss if check.validation_bleu is None else check.validation_bleu
    figure = sitting.group.agree(figure)  # or some of a group might end for want of patience, and others wait for them
    if progress.best is None or figure > progress.best:
        progress.best, progress.best_step, progress.checks_since = figure, progress.step, 0
    else:
        progress.checks_since += 1
    if sitting.group.rank == 0:
        keep_weights(sitting.folder, network, progress, config.average)
        save_state(sitting.folder, network, optimiser, progress, sitting.key)
        drop_older_weights(sitting.folder, progress.kept)
        sitting.on_check(check)


def _out_of_memory(
    network: nn.Module, optimiser: torch.optim.Optimizer, examples: Examples, config: TrainingConfig, sitting: Sitting
) -> TranslationError:
    """What batches fit: both passes over the largest and the longest, beside all that a later update holds."""

    def attempt(tokens: int) -> None:
        optimiser.zero_grad()
        parameters = [] if optimiser.state else [*network.parameters()] * 2
        moments = [torch.empty_like(each) for each in parameters]
        batches = order(examples, tokens, None)
        for indices in (max(batches, key=lambda each: _positions(examples, each)), batches[-1]):
            _loss(network, batch_of(examples, indices), config.label_smoothing, sitting.device).backward()
        moments.clear()

    optimiser.zero_grad()
    longest = max(int(examples.source_lengths.max()), int(examples.target_lengths.max())) + 1
    return out_of_memory(config.batch_tokens, longest, attempt)


def _positions(examples: Examples, indices: Int[ndarray, " sentences"]) -> int:
    """Of both sides of a batch, padding included."""
    widths = examples.source_lengths[indices].max() + examples.target_lengths[indices].max() + 2
    return int(len(indices) * widths)
