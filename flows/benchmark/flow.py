"""The Prefect flow of the published experiment."""

from prefect import flow

from dtml.published import SETS, shortened
from flows.benchmark.results import Benchmark, run_benchmark
from flows.benchmark.train import Study, members_of
from flows.nightly.context import Order, open_stored_desk
from flows.progress import training_progress
from flows.service.flows import as_task
from flows.signals import signals_of


@flow(name="benchmark", flow_run_name="{order.market}", persist_result=False)
def benchmark(order: Order, seeds: tuple[int, ...], epochs: int | None, with_grid: bool) -> Benchmark:
    """Run the published experiment on what is stored of its set; see `flows.benchmark.results.run_benchmark`."""
    study = Study(open_stored_desk(order), shortened(SETS[order.market], epochs), seeds, with_grid)
    columns = members_of(study)
    windows = [recipe.window for _, recipe, _ in columns]
    with signals_of(order.attended), training_progress(list(columns.values()), windows) as on_epoch:
        return run_benchmark(study, as_task, on_epoch)
