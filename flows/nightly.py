"""The flows: thin tasks around plain functions, for Prefect to run and log."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.server.api.server import SubprocessASGIServer
from prefect.task_runners import ProcessPoolTaskRunner

from dtml.errors import UsageError
from dtml.paper import SETS, shortened
from flows.backtest import Job, Plan, jobs_of, open_backtest, run_fold
from flows.backtest_scores import Result, run_backtest
from flows.benchmark import Study, members_of
from flows.benchmark_scores import Benchmark, run_benchmark
from flows.desk import Order, open_desk, open_stored_desk
from flows.night import Night, run_night
from flows.progress import fold_progress, training_progress
from flows.settings import prepare_torch
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
        _stop_temporary_servers()
        print("interrupted: run the same command again to go on", file=sys.stderr)  # noqa: T201
        os._exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _share_temporary_server() -> None:
    """Let processes that this one starts use its server; each would start one of its own."""
    for server in SubprocessASGIServer._instances.values():
        os.environ.setdefault("PREFECT_API_URL", server.api_url)


def _stop_temporary_servers() -> None:
    for server in list(SubprocessASGIServer._instances.values()):
        server.stop()


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


@task(name="fold", task_run_name="fold {job.fold.number}, as of {job.fold.as_of}", cache_policy=NO_CACHE)
def fold(job: Job) -> Path:
    """One fold of a backtest, in whichever process; see `flows.backtest.run_fold`."""
    _end_with_parent()
    prepare_torch()
    return run_fold(job)


@flow(name="backtest", flow_run_name="{order.market} {plan.first} .. {plan.last}", persist_result=False)
def backtest(
    order: Order, plan: Plan, attention_on: Sequence[date], submit: bool = False, threads: int | None = None
) -> Result:
    """A backtest over what is stored of a market; see `flows.backtest_scores.run_backtest`.

    Its folds run one by one in this process, or, to `submit`, on the flow's task runner, each on so many threads.
    """
    found = open_backtest(order, plan)
    done = [job.card.exists() for job in jobs_of(found)]

    def submitted(jobs: Sequence[Job]) -> Iterator[Path]:
        if not submit:
            yield from (fold(job) for job in jobs)
        else:
            _share_temporary_server()
            futures = [fold.submit(replace(job, threads=threads)) for job in jobs]
            yield from (future.result() for future in futures)

    with signals_of(order), fold_progress(sum(done), len(done)) as on_fold:
        return run_backtest(found, submitted, on_fold, attention_on)


def backtest_flow(
    order: Order, plan: Plan, attention_on: Sequence[date], *, workers: int, cluster: str | None
) -> Result:
    """Run a backtest with its folds here, in so many processes of this machine, or on a Dask cluster."""
    if cluster is not None:
        try:
            from prefect_dask.task_runners import DaskTaskRunner
        except ImportError as error:
            raise UsageError("--cluster needs Dask: pip install -c constraints.txt -e '.[dask]'") from error
        return _on(DaskTaskRunner(address=cluster))(order, plan, attention_on, submit=True)
    if workers == 1:
        return backtest(order, plan, attention_on)
    pool, threads = ProcessPoolTaskRunner(max_workers=workers), max(1, (os.cpu_count() or 1) // workers)
    return _on(pool)(order, plan, attention_on, submit=True, threads=threads)


def _on(task_runner: Any) -> Callable[..., Result]:  # Prefect's annotations leave its own runners out
    return backtest.with_options(task_runner=task_runner)


@cache
def _end_with_parent() -> None:
    """End this process when the one that started it ends, however that was: a pool's worker would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        _stop_temporary_servers()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
