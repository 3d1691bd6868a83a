"""Run the published experiment."""

from dtml.published import SETS, shortened
from flows.benchmark.published import Benchmark, PublishedExperiment, members_of, run_benchmark
from flows.markets.opened import RunRequest
from flows.nightly.context import open_stored_context
from flows.progress import training_progress
from flows.service.studies import as_task
from flows.signals import signals_of


def benchmark(
    request: RunRequest, seeds: tuple[int, ...], epochs: int | None, with_grid: bool
) -> Benchmark:
    """Run the published experiment on the stored prices of its set.

    See `run_benchmark`. `epochs` is the most that a network is trained for; None is the number of
    the experiment. With `with_grid`, DTML is trained with the other configurations of the grid too.
    """
    experiment = PublishedExperiment(
        context=open_stored_context(request),
        paper=shortened(SETS[request.market], epochs),
        seeds=seeds,
        with_grid=with_grid,
    )
    members = members_of(experiment)
    windows = [recipe.window for _model, recipe, _seed in members]
    with (
        signals_of(request.attended),
        training_progress(list(members.values()), windows) as on_epoch,
    ):
        return run_benchmark(experiment, as_task, on_epoch)
