"""How long steps show that they move: a bar on a terminal, a line now and then in a log."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dtml.members import Epoch, Member
from dtml.training import EpochReport
from flows.settings import err

log = logging.getLogger(__name__)

LOGGED_SHARE = 10  # a log gets a line every tenth of the epochs
PACE_SECONDS = 300.0  # the time left is reckoned from the pace of the last minutes: epochs of one model are alike


@contextmanager
def training_progress(members: Sequence[Member], windows: Sequence[int] | None = None) -> Iterator[EpochReport]:
    """Give the function that a training calls after each epoch; all members share one bar, by what an epoch costs.

    `windows` are the sessions that each member sees, where they differ. What an interrupted training had done is
    counted with a member's first new epoch.
    """
    costs = [_cost(member) * window for member, window in zip(members, windows or [1] * len(members), strict=True)]
    cost = dict(zip(members, costs, strict=True))
    done = dict.fromkeys(members, 0)
    total = sum(cost[member] * member.training.epochs for member in members)
    columns = (
        TextColumn("training"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=err, transient=True, speed_estimate_period=PACE_SECONDS) as progress:
        bar = progress.add_task("training", total=total, last="")

        def report(member: Member, epoch: Epoch) -> None:
            said = f"loss {epoch.loss:.4f}, validation ACC {epoch.validation_acc:.4f}"
            done[member] = epoch.number
            progress.update(bar, completed=sum(cost[each] * count for each, count in done.items()), last=said)
            epochs = member.training.epochs
            if epoch.number % max(1, epochs // LOGGED_SHARE) == 0:
                log.info("seed %d, epoch %d of %d: %s", member.seed, epoch.number, epochs, said)

        yield report


def _cost(member: Member) -> int:
    """What an epoch costs, in proportion: the multiplications of a recurrence."""
    hidden = int(getattr(member.model, "hidden", 1))
    return hidden * (hidden + 32)  # narrow layers are slower than their multiplications
