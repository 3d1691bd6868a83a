"""Run a backtest, whose folds share this process, others of this machine, or a Dask cluster."""

from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from dtml.errors import UsageError
from flows.backtest.walk import (
    Job,
    Plan,
    Result,
    Runner,
    jobs_of,
    open_backtest,
    run_backtest,
    run_fold,
    run_seed,
)
from flows.markets.opened import RunRequest
from flows.progress import fold_progress
from flows.service.studies import as_task
from flows.signals import signals_of
from flows.workers import worker_pool


def backtest(
    request: RunRequest,
    plan: Plan,
    attention_on: Sequence[date],
    workers: int = 1,
    cluster: str | None = None,
) -> Result:
    """Run a backtest over the stored prices of a market; see `flows.backtest.walk.run_backtest`.

    Its folds run on the Dask cluster at the address `cluster` or, without one, one by one here, or
    in several `workers` beside this process, which share the threads that torch would use here. On
    a cluster, each seed of a fold is trained by a task of its own before the fold's task, if the
    experiment has several seeds and makes no warm start. Raises UsageError if Dask is not
    installed, and DtmlError if a worker is killed.
    """
    opened = open_backtest(request, plan)
    experiment = opened.context.experiment
    is_done = [job.card.exists() for job in jobs_of(opened)]
    runner: Runner = _here
    if cluster is not None:
        # With a warm start, a seed begins with the weights of the fold before. That fold would have
        # to be done first, and `run_seed` trains from random weights.
        seeds = experiment.seeds if experiment.seeds > 1 and not experiment.warm_start else 0
        runner = partial(_on_cluster, cluster, seeds)
    elif workers > 1:
        runner = partial(_beside, workers)
    with signals_of(request.attended), fold_progress(sum(is_done), len(is_done)) as on_fold:
        return run_backtest(opened, runner, on_fold, attention_on)


def _here(jobs: Sequence[Job]) -> Iterator[Path]:
    for job in jobs:
        yield as_task(f"fold {job.fold.number}", partial(run_fold, job))


def _beside(workers: int, jobs: Sequence[Job]) -> Iterator[Path]:
    threads = max(1, torch.get_num_threads() // workers)
    with worker_pool(workers, torch.set_num_threads, threads) as pool:
        futures = [pool.submit(run_fold, job) for job in jobs]
        for job, future in zip(jobs, futures, strict=True):
            yield as_task(f"fold {job.fold.number}", future.result)


def _on_cluster(address: str, seeds: int, jobs: Sequence[Job]) -> Iterator[Path]:
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "Dask, which --cluster uses, is not installed: run pip install 'dtml-nightshift[dask]'"
        ) from error
    with cast(Any, Client)(address) as client:
        futures = []
        for job in jobs:
            numbers = [] if job.card.exists() else range(seeds)
            trained = [client.submit(_try_seed, job, number, pure=False) for number in numbers]
            futures.append(client.submit(_fold_after, job, trained, pure=False))
        for job, future in zip(jobs, futures, strict=True):
            yield as_task(f"fold {job.fold.number}", future.result)


def _try_seed(job: Job, seed: int) -> None:
    """Train a seed; if that fails, the fold trains it again, and raises the error."""
    try:
        run_seed(job, seed)
    except Exception:  # noqa: BLE001
        return


def _fold_after(job: Job, _trained: Sequence[Any]) -> Path:
    """Run a fold once its seeds are trained."""
    return run_fold(job)
