"""Run work plainly or, with a Prefect server, as its flows and tasks."""

import os
from collections.abc import Callable
from typing import TypeVar

from flows.log_lines import flow_run_id, logged_stage
from flows.settings import import_prefect

T = TypeVar("T")


def as_flow(name: str, run_name: str, work: Callable[[], T]) -> T:
    """Run work plainly or, with PREFECT_API_URL, as a flow whose run has this name."""
    if not os.environ.get("PREFECT_API_URL"):
        return work()
    import_prefect()
    from prefect import flow

    return flow(name=name, flow_run_name=run_name, persist_result=False)(work)()


def as_task(name: str, work: Callable[[], T]) -> T:
    """Run one stage, inside a flow as a task of it, and return its result."""
    with logged_stage(name):
        if flow_run_id() is None:
            return work()
        from prefect import task
        from prefect.cache_policies import NO_CACHE

        return task(name=name, cache_policy=NO_CACHE)(work)()
