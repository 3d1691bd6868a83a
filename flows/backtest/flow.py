"""The Prefect flow of a backtest, and its folds as tasks: in this process, on processes beside it, or on Dask."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from dtml.errors import DtmlError, UsageError
from flows.backtest.folds import Job, Plan, jobs_of, open_backtest, run_fold
from flows.backtest.results import Result, run_backtest
from flows.backtest.worker_pool import WorkerPool
from flows.nightly.context import RunRequest
from flows.progress import fold_progress
from flows.settings import prepare_torch
from flows.signals import end_with_parent, signals_of

WORKER_GONE = (
    "a process that trained folds was ended from outside, as systems do for want of memory: run the same command "
    "again to go on, with fewer --workers"
)


@task(name="fold", task_run_name="fold {job.fold.number}, as of {job.fold.as_of}", cache_policy=NO_CACHE)
def fold(job: Job) -> Path:
    """Run one fold of a backtest, in whichever process; see `flows.backtest.folds.run_fold`."""
    end_with_parent()
    prepare_torch()
    return run_fold(job)


@flow(name="backtest", flow_run_name="{request.market} {plan.first} .. {plan.last}", persist_result=False)
def backtest(
    request: RunRequest, plan: Plan, attention_on: Sequence[date], submit: bool = False, threads: int | None = None
) -> Result:
    """Run a backtest over what is stored of a market; see `flows.backtest.results.run_backtest`.

    Its folds run one by one in this process or, with `submit`, on the flow's task runner, on so many threads each.
    """
    found = open_backtest(request, plan)
    done = [job.card.exists() for job in jobs_of(found)]

    def submitted(jobs: Sequence[Job]) -> Iterator[Path]:
        if not submit:
            yield from (fold(job) for job in jobs)
        else:
            futures = [fold.submit(replace(job, threads=threads)) for job in jobs]
            try:
                yield from (future.result() for future in futures)
            except BrokenProcessPool as error:
                raise DtmlError(WORKER_GONE) from error

    with signals_of(request.attended), fold_progress(sum(done), len(done)) as on_fold:
        return run_backtest(found, submitted, on_fold, attention_on)


def backtest_flow(
    request: RunRequest, plan: Plan, attention_on: Sequence[date], *, workers: int, cluster: str | None
) -> Result:
    """Run a backtest with its folds here, in so many processes of this machine, or on a Dask cluster."""
    if cluster is not None:
        try:
            from prefect_dask.task_runners import DaskTaskRunner
        except ImportError as error:
            raise UsageError("--cluster needs Dask: pip install -c constraints.txt -e '.[dask]'") from error
        return _on(DaskTaskRunner(address=cluster))(request, plan, attention_on, submit=True)
    if workers == 1:
        return backtest(request, plan, attention_on)
    pool, threads = WorkerPool(max_workers=workers), max(1, torch.get_num_threads() // workers)
    return _on(pool)(request, plan, attention_on, submit=True, threads=threads)


def _on(task_runner: Any) -> Callable[..., Result]:  # Prefect's annotations leave its own runners out
    return backtest.with_options(task_runner=task_runner)
