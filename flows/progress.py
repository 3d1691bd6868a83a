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
def step_progress(
    text: str,
    total: int | None = None,
    *,
    already_done: int = 0,
    every: int = 1,
    pace_seconds: float | None = None,
) -> Iterator[Callable[..., None]]:
    """Yield the function that work calls after each step, with its name if it has one.

    One step in `every` gets a line in a log. `already_done` of the `total` were done earlier. With
    `pace_seconds`, the time left is told, by the pace of this run.
    """
    begun = time.monotonic()
    numbers = count(already_done + 1)
    of_total = f" of {total}" if total else ""
    with _bar(f"{text} {{task.completed:.0f}}{of_total}", total, pace_seconds) as (progress, bar):
        progress.advance(bar, already_done)

        def report(name: str = "") -> None:
            progress.advance(bar)
            done = next(numbers)
            spent = time.monotonic() - begun
            left = ""
            if total and pace_seconds:
                left = f", about {spent / (done - already_done) * (total - done):.0f} s left"
            if done % every == 0:
                words = f"{text} {done}{of_total} {name}".rstrip()
                log.info("%s, done after %.0f s%s", words, spent, left)

        yield report


@contextmanager
def rankings_progress(what: str, total: int) -> Iterator[Callable[[str, Callable[[], T]], T]]:
    """Yield the function that runs and counts a training of a walk of rankings, by its name.

    The costs of the `total` trainings differ a hundredfold: no time left is told.
    """
    with step_progress(f"{what}, training", total) as step:

        def counted(name: str, train: Callable[[], T]) -> T:
            trained = train()
            step(name)
            return trained

        yield counted


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
