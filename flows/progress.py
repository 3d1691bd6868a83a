"""How long steps show that they move: a bar on a terminal, a line now and then in a log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dtml.experiments import Experiment
from dtml.training import Epoch
from flows.settings import err
from flows.train import EpochReport

log = logging.getLogger(__name__)

LOGGED_SHARE = 10  # a log gets a line every tenth of the epochs


@contextmanager
def training_progress(experiment: Experiment) -> Iterator[EpochReport]:
    """Give the function that a training calls after each epoch; all members share one bar."""
    epochs = experiment.training.epochs
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        bar = progress.add_task("training", total=epochs * experiment.members, last="")

        def report(seed: int, epoch: Epoch) -> None:
            said = f"loss {epoch.loss:.4f}, validation ACC {epoch.validation_acc:.4f}"
            progress.update(bar, advance=1, last=said)
            if epoch.number % max(1, epochs // LOGGED_SHARE) == 0:
                log.info("seed %d, epoch %d of %d: %s", seed, epoch.number, epochs, said)

        yield report
