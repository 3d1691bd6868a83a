"""The flows of a night, a training and a benchmark: thin tasks around plain functions, for Prefect to run and log."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from types import FrameType
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.server.api.server import SubprocessASGIServer

from dtml.paper import SETS, shortened
from flows.benchmark import Study, members_of
from flows.benchmark_scores import Benchmark, run_benchmark
from flows.desk import Order, open_desk, open_stored_desk
from flows.night import Night, run_night
from flows.progress import training_progress
from flows.train import Model, train_model


@contextmanager
def signals_of(order: Order) -> Iterator[None]:
    """End an attended order on the first interrupt or termination, with Prefect's temporary server.

    Left to itself Prefect would spend minutes telling a server that the same signal has ended. Nothing is lost by
    leaving: what is stored is whole, and a training continues from its last epoch. Entered inside a flow, because
    Prefect takes SIGTERM for itself when it starts one.
    """
    if not order.attended:
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        for server in list(SubprocessASGIServer._instances.values()):
            server.stop()
        print("interrupted: run the same command again to go on", file=sys.stderr)  # noqa: T201
        os._exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def as_task(name: str, work: Callable[[], Any]) -> Any:
    """Run one stage as a task of the flow around it."""
    return task(name=name, cache_policy=NO_CACHE)(work)()


@flow(name="nightly", flow_run_name="{order.market} {as_of}", persist_result=False)
def nightly(order: Order, as_of: date) -> Night:
    """One night of one market; see `flows.night.run_night`."""
    with signals_of(order):
        return run_night(open_desk(order), as_of, stage=as_task)


@flow(name="train", flow_run_name="{order.market} {as_of}", persist_result=False)
def train(order: Order, as_of: date) -> Model:
    """One training of one market's model on what is stored; see `flows.train.train_model`."""
    desk = open_stored_desk(order)

    def work() -> Model:
        with training_progress(desk.experiment.seeds()) as on_epoch:
            return train_model(desk, as_of, on_epoch)

    with signals_of(order):
        model: Model = as_task("train", work)
    return model


@flow(name="benchmark", flow_run_name="{order.market}", persist_result=False)
def benchmark(order: Order, seeds: tuple[int, ...], epochs: int | None, with_grid: bool) -> Benchmark:
    """The published experiment on what is stored of its set; see `flows.benchmark_scores.run_benchmark`."""
    study = Study(open_stored_desk(order), shortened(SETS[order.market], epochs), seeds, with_grid)
    columns = members_of(study)
    windows = [recipe.window for _, recipe, _ in columns]
    with signals_of(order), training_progress(list(columns.values()), windows) as on_epoch:
        return run_benchmark(study, as_task, on_epoch)
