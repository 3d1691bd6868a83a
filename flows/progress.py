"""Show that long steps move: a bar on a terminal, a line now and then in a log."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import progress as bars

from dtml.published import name_of
from dtml.training.fit import EpochReport
from dtml.training.recipe import Epoch, Member
from flows.settings import err

log = logging.getLogger(__name__)

LOGGED_SHARE = 10  # a log gets a line every tenth of the epochs
PACE_SECONDS = 300.0  # the time left is estimated from the pace of the last minutes


@contextmanager
def training_progress(
    members: Sequence[Member], windows: Sequence[int] | None = None
) -> Iterator[EpochReport]:
    """Yield the function that a training calls after each epoch; one bar is for all members, by
    what each costs.

    `windows` are the sessions that each member sees, where they differ. Epochs that a resumed
    training had reported before are counted, and not logged again.
    """
    costs = [
        _cost(member) * window
        for member, window in zip(members, windows or [1] * len(members), strict=True)
    ]
    cost = dict(zip(members, costs, strict=True))
    done = dict.fromkeys(members, 0)
    several = len({name_of(member.model) for member in members}) > 1
    total = sum(cost[member] * member.training.epochs for member in members)
    with _bar("training", PACE_SECONDS, bars.TextColumn("{task.fields[last]}")) as progress:
        bar = progress.add_task("training", total=total, last="")

        def report(member: Member, epoch: Epoch) -> None:
            said = f"loss {epoch.loss:.4f}, validation ACC {epoch.validation_acc:.4f}"
            is_old = epoch.number > done[member] + 1
            done[member] = epoch.number
            completed = sum(cost[each] * count for each, count in done.items())
            if is_old:
                # it took no time now, so the pace starts anew
                progress.reset(bar, completed=completed, last=said)
                return
            progress.update(bar, completed=completed, last=said)
            epochs = member.training.epochs
            if epoch.number % max(1, epochs // LOGGED_SHARE) == 0:
                who = (
                    f"{name_of(member.model)}, seed {member.seed}"
                    if several
                    else f"seed {member.seed}"
                )
                log.info("%s, epoch %d of %d: %s", who, epoch.number, epochs, said)

        yield report


def _cost(member: Member) -> int:
    """Return what an epoch costs, in proportion: the multiplications of a recurrence."""
    hidden = int(getattr(member.model, "hidden", 1))
    return hidden * (hidden + 32)  # narrow layers are slower than their multiplications suggest


@contextmanager
def fold_progress(first: int, of: int) -> Iterator[Callable[[int], None]]:
    """Yield the function that a backtest calls with the number of folds done;
    `first` were done before.
    """
    begun = time.monotonic()
    with _bar("fold {task.completed:.0f} of {task.total:.0f}", 3600) as progress:
        bar = progress.add_task("folds", total=of, completed=first)

        def report(done: int) -> None:
            progress.update(bar, completed=done)
            spent = time.monotonic() - begun
            left = spent / max(1, done - first) * (of - done)
            log.info("fold %d of %d done after %.0f s, about %.0f s left", done, of, spent, left)

        yield report


def _bar(text: str, pace_seconds: float, *more: bars.ProgressColumn) -> bars.Progress:
    done = (
        bars.TextColumn(text),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TimeElapsedColumn(),
    )
    left = (bars.TextColumn("left"), bars.TimeRemainingColumn(), *more)
    return bars.Progress(
        *done, *left, console=err, transient=True, speed_estimate_period=pace_seconds
    )
