"""Show the progress of long steps: a bar on a terminal, a line now and then in a log."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import TypeVar

from rich import progress as bars

from dtml.pages.figures import figure, percent
from dtml.training import Epoch, EpochReport, Member, ResumedEpoch
from flows.settings import err

T = TypeVar("T")

log = logging.getLogger(__name__)

LOGGED_EPOCHS = 10  # so many of a member's epochs get a line in a log, or up to twice as many
TOLD_DAYS = 50  # between two lines about work of many days
PACE_SECONDS = 300.0  # the time left is estimated from the pace of the last five minutes


@contextmanager
def training_progress(
    members: Sequence[Member], windows: Sequence[int] | None = None
) -> Iterator[EpochReport]:
    """Yield the function that a training calls after each epoch: one bar, weighted by cost.

    `windows`: sessions of each member's windows, where they differ. LOGGED_EPOCHS epochs of each
    member are logged, not those of before a resumption.
    """
    costs = {}  # of an epoch of each member
    for member, sessions in zip(members, windows or [1] * len(members), strict=True):
        # Narrow layers are slower than the square of their width suggests.
        hidden = int(getattr(member.model, "hidden", 1))
        costs[member] = hidden * (hidden + 32) * sessions
    epochs_done = dict.fromkeys(members, 0)
    has_several_models = len({member.model.name for member in members}) > 1
    total = sum(costs[member] * member.training.epochs for member in members)
    with _bar("training", total, PACE_SECONDS, bars.TextColumn("{task.fields[last]}")) as (
        progress,
        bar,
    ):

        def report(member: Member, epoch: Epoch) -> None:
            """Move the bar to what all members together have done, and log some of the epochs."""
            figures = f"loss {figure(epoch.loss)}, validation ACC {percent(epoch.validation_acc)}"
            epochs_done[member] = epoch.number
            completed = sum(costs[trained] * done for trained, done in epochs_done.items())
            if isinstance(epoch, ResumedEpoch):
                # This run spent no time on the epochs so far: without a reset of the bar's clock,
                # they would count as done at once, and the time left would be far too short.
                progress.reset(bar, completed=completed, last=figures)
                return
            progress.update(bar, completed=completed, last=figures)
            epochs = member.training.epochs
            if epoch.number % max(1, epochs // LOGGED_EPOCHS) == 0:
                model = f"{member.model.name}, " if has_several_models else ""
                name = f"{model}seed {member.seed}"
                log.info("%s, epoch %d of %d: %s", name, epoch.number, epochs, figures)

        yield report


@contextmanager
def fold_progress(already_done: int, total: int) -> Iterator[Callable[[], None]]:
    """Yield the function that a backtest calls after each fold of this run.

    `already_done` of `total` were done earlier; the time left is by this run's.
    """
    text = "fold {task.completed:.0f} of {task.total:.0f}"
    # A fold can take many minutes.
    with _steps(text, total, already_done=already_done, pace_seconds=3600) as step:

        def report() -> None:
            done, spent_s = step()
            left_s = spent_s / (done - already_done) * (total - done)
            log.info(
                "fold %d of %d done after %.0f s, about %.0f s left", done, total, spent_s, left_s
            )

        yield report


@contextmanager
def rankings_progress(what: str, total: int) -> Iterator[Callable[[str, Callable[[], T]], T]]:
    """Yield the function that runs and counts a training of a walk of rankings, by its name.

    The costs of the `total` trainings differ a hundredfold: no time left is told.
    """
    text = f"{what}, training {{task.completed:.0f}} of {{task.total:.0f}}"
    with _steps(text, total) as step:

        def counted(name: str, train: Callable[[], T]) -> T:
            trained = train()
            done, spent_s = step()
            log.info(
                "%s: %s, training %d of %d, done after %.0f s", what, name, done, total, spent_s
            )
            return trained

        yield counted


@contextmanager
def day_progress(what: str) -> Iterator[Callable[[], None]]:
    """Yield the function that work of many days calls after each; what takes long is logged."""
    with _steps(f"{what}, {{task.completed:.0f}} sessions", None) as step:

        def report() -> None:
            done, spent_s = step()
            if done % TOLD_DAYS == 0:
                log.info("%s: %d sessions after %.0f s", what, done, spent_s)

        yield report


@contextmanager
def _steps(
    text: str, total: int | None, *, already_done: int = 0, pace_seconds: float | None = None
) -> Iterator[Callable[[], tuple[int, float]]]:
    """Yield the function that counts a step on a bar: it returns how many are done, and seconds."""
    begun = time.monotonic()
    numbers = count(already_done + 1)
    with _bar(text, total, pace_seconds) as (progress, bar):
        progress.advance(bar, already_done)

        def step() -> tuple[int, float]:
            progress.advance(bar)
            return next(numbers), time.monotonic() - begun

        yield step


@contextmanager
def _bar(
    text: str, total: float | None, pace_seconds: float | None = None, *more: bars.ProgressColumn
) -> Iterator[tuple[bars.Progress, bars.TaskID]]:
    """Yield a bar: what is done, its time, and with `pace_seconds` the time left."""
    left = [bars.TextColumn("left"), bars.TimeRemainingColumn()] if pace_seconds else []
    progress = bars.Progress(
        bars.TextColumn(text),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TimeElapsedColumn(),
        *left,
        *more,
        console=err,
        transient=True,
        speed_estimate_period=pace_seconds or 0,
    )
    # Elsewhere than on a terminal, Rich would print an empty line in place of the bar.
    with progress if err.is_interactive else nullcontext():
        yield progress, progress.add_task(text, total=total, last="")
