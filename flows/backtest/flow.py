"""The Prefect flow of a backtest, whose folds are tasks.

They run in this process, in other processes of this machine, or on a Dask cluster.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from datetime import date
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from prefect import allow_failure, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import ProcessPoolTaskRunner

from dtml.errors import DtmlError, UsageError
from flows.backtest.walk import (
    Job,
    Plan,
    Result,
    jobs_of,
    open_backtest,
    run_backtest,
    run_fold,
    run_seed,
)
from flows.markets.opened import RunRequest
from flows.progress import fold_progress
from flows.signals import end_with_parent, signals_of

KILL_EVERY_S = 0.2  # seconds from one killing of a pool's workers to the next
WORKER_GONE = (
    "a process that trained folds was killed, perhaps because the machine ran out of memory: run "
    "the same command again with fewer --workers; it goes on where this one stopped"
)


@task(
    name="fold",
    task_run_name="fold {job.fold.number}, as of {job.fold.as_of}",
    cache_policy=NO_CACHE,
)
def fold(job: Job) -> Path:
    """Run one fold of a backtest, in any process; see `flows.backtest.walk.run_fold`."""
    end_with_parent()
    return run_fold(job)


@task(name="seed", task_run_name="fold {job.fold.number}, seed {number}", cache_policy=NO_CACHE)
def seed(job: Job, number: int) -> None:
    """Train one seed of a fold, in any process; see `flows.backtest.walk.run_seed`."""
    end_with_parent()
    run_seed(job, number)


@flow(
    name="backtest",
    flow_run_name="{request.market} {plan.first} .. {plan.last}",
    persist_result=False,
)
def backtest(
    request: RunRequest,
    plan: Plan,
    attention_on: Sequence[date],
    submit: bool = False,
    threads: int | None = None,
) -> Result:
    """Run a backtest over the stored prices of a market.

    See `flows.backtest.walk.run_backtest`. Its folds run one by one in this process or, with
    `submit`, as tasks on the flow's task runner. `threads` is the number of torch's threads in such
    a task; None, as on a cluster, lets torch choose the number. Submitted without `threads`, each
    seed of a fold is trained by a task of its own before the fold's task, if the experiment has
    several seeds and makes no warm start.
    """
    opened = open_backtest(request, plan)
    experiment = opened.context.experiment
    is_done = [job.card.exists() for job in jobs_of(opened)]
    is_on_cluster = submit and threads is None
    # With a warm start, a seed begins with the weights of the fold before. That fold would have to
    # be done first, and `run_seed` trains from random weights.
    seeds_are_tasks = is_on_cluster and experiment.seeds > 1 and not experiment.warm_start

    def submit_fold(job: Job) -> PrefectFuture[Path]:
        """Submit the seeds of a fold, if they are tasks, and the fold, which waits for them.

        The fold begins even if a seed failed: it trains that seed again, and raises the error if
        the seed fails again.
        """
        seeds: list[Any] = []
        if seeds_are_tasks and not job.card.exists():
            seeds = [allow_failure(seed.submit(job, number)) for number in range(experiment.seeds)]
        return fold.submit(job, return_state=False, wait_for=seeds)

    def run_here(jobs: Sequence[Job]) -> Iterator[Path]:
        for job in jobs:
            yield fold(job)

    def run_on_task_runner(jobs: Sequence[Job]) -> Iterator[Path]:
        futures = [submit_fold(replace(job, threads=threads)) for job in jobs]
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool as error:
            raise DtmlError(WORKER_GONE) from error

    runner = run_on_task_runner if submit else run_here
    with signals_of(request.attended), fold_progress(sum(is_done), len(is_done)) as on_fold:
        return run_backtest(opened, runner, on_fold, attention_on)


def backtest_flow(
    request: RunRequest,
    plan: Plan,
    attention_on: Sequence[date],
    *,
    workers: int,
    cluster: str | None,
) -> Result:
    """Run a backtest on the Dask cluster at the address `cluster`; None is this machine.

    `workers` counts on this machine only: a single worker is this process; several are processes
    beside it, and share the threads that torch would use here. Raises UsageError if Dask is not
    installed, and DtmlError if one of these processes is killed.
    """
    if cluster is not None:
        try:
            from prefect_dask.task_runners import DaskTaskRunner
        except ImportError as error:
            raise UsageError(
                "Dask, which --cluster uses, is not installed: "
                "run pip install 'dtml-nightshift[dask]'"
            ) from error
        on_cluster = _backtest_on(DaskTaskRunner(address=cluster))
        return on_cluster(request, plan, attention_on, submit=True)
    if workers == 1:
        return backtest(request, plan, attention_on)
    on_workers = _backtest_on(WorkerPool(max_workers=workers))
    threads = max(1, torch.get_num_threads() // workers)
    return on_workers(request, plan, attention_on, submit=True, threads=threads)


def _backtest_on(task_runner: Any) -> Callable[..., Result]:
    return backtest.with_options(task_runner=task_runner)


class WorkerPool(ProcessPoolTaskRunner):
    """Run tasks on Prefect's pool of processes, and end when a worker is killed from outside.

    By default a pool that lost a worker asks the others to end and waits for them. It would wait
    for ever in three cases: for a worker that was just starting, for a worker in whose task Prefect
    turns that request into an exception, and, when this process ends, for the lock of a pipe that
    the lost worker held. Where a worker was lost, this pool kills the others instead.
    """

    def cancel_all(self) -> None:
        """End the pool; kill its workers if one of them was lost."""
        if self._executor is not None and self._executor._broken:
            killer = Thread(target=_kill, args=(self._executor._processes,), daemon=True)
            killer.start()
            if self._subprocess_message_queue is not None:
                # The thread that feeds the queue may wait for the lock that the lost worker held.
                self._subprocess_message_queue.cancel_join_thread()
        super().cancel_all()


def _kill(workers: Mapping[int, BaseProcess]) -> None:
    """Kill workers until this process ends: the pool may start another one meanwhile."""
    while True:
        for worker in list(workers.values()):
            worker.kill()
        time.sleep(KILL_EVERY_S)
