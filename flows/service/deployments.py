"""Turn schedules into deployments on a Prefect server, and follow their runs."""

import hashlib
import logging
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.objects import (
    ConcurrencyLimitConfig,
    ConcurrencyLimitStrategy,
    FlowRun,
    State,
    StateType,
)
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments.runner import RunnerDeployment
from prefect.schedules import Cron
from prefect.states import Cancelled, Crashed
from prefect.types.entrypoint import EntrypointType

from db.engine import location, open_engine
from flows.log_lines import Run, log_ended_run
from flows.service.flows import scheduled_night, scheduled_refetch, scheduled_training
from flows.service.flows import watch as watch_all
from flows.service.schedules import Schedule, Work
from flows.settings import data_folder, out
from flows.translating.flow import translate_queue

FLOWS: dict[Work, Flow[Any, Any]] = {
    "night": scheduled_night,
    "training": scheduled_training,
    "refetch": scheduled_refetch,
    "watch": watch_all,
    "translations": translate_queue,
}
ENDED = [StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED]
LOOK_EVERY_S = 3.0

log = logging.getLogger(__name__)


def service_tag() -> str:
    """Return the tag of this machine, folder and store, which a service's deployments have."""
    owner = f"{platform.node()} {data_folder()} {location(open_engine())}"
    return f"dtml-{hashlib.sha256(owner.encode()).hexdigest()[:8]}"


def deployment_of(schedule: Schedule) -> RunnerDeployment:
    """Return the deployment of a schedule, of which only one run at a time is allowed.

    A second run is cancelled, but a night waits, unless `any_day`: it may be due while missed
    nights are caught up. Its name has the service's tag: servers identify deployments by name.
    """
    strategy = ConcurrencyLimitStrategy.CANCEL_NEW
    if schedule.work == "night" and not schedule.parameters.get("any_day"):
        strategy = ConcurrencyLimitStrategy.ENQUEUE
    deployment = FLOWS[schedule.work].to_deployment(
        f"{schedule.market} {service_tag()}",
        schedule=Cron(schedule.cron, timezone=schedule.timezone),
        parameters=dict(schedule.parameters),
        tags=["dtml", service_tag()],
        entrypoint_type=EntrypointType.MODULE_PATH,
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=strategy),
    )
    assert isinstance(deployment, RunnerDeployment)
    return deployment


def cancel_leftovers(deployments: Iterable[UUID], *, server_is_new: bool) -> int:
    """Delete the service's other deployments; return how many overdue runs were cancelled.

    With `server_is_new`, unfinished runs are marked as crashed, which frees their slots.
    """
    current = list(deployments)
    due = {"before_": datetime.now(UTC)}
    cancelled: State[Any] = Cancelled(message="it was due before the service started")
    crashed: State[Any] = Crashed(message="its service ended")
    count = 0
    with get_client(sync_client=True) as client:
        of_service = filters.DeploymentFilter.model_validate({"tags": {"all_": [service_tag()]}})
        for deployment in client.read_deployments(deployment_filter=of_service):
            if deployment.id not in current:
                client.delete_deployment(deployment.id)
        # The server returns a limited number of runs at once, but none that was cancelled before.
        while late := _runs(client, current, [StateType.SCHEDULED], next_scheduled_start_time=due):
            count += len(late)
            for run in late:
                client.set_flow_run_state(run.id, cancelled, force=True)
        if server_is_new:
            unfinished = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
            for run in _runs(client, current, unfinished):
                client.set_flow_run_state(run.id, crashed, force=True)
            # The server does not know by which runs slots are taken: killed runs would keep them.
            for deployment_id in current:
                free = GlobalConcurrencyLimitUpdate(active_slots=0)
                client.update_global_concurrency_limit(f"deployment:{deployment_id}", free)
    return count


def print_ended(schedules: Mapping[UUID, Schedule], end: Event) -> None:
    """Print a line for every run that ends until `end` is set, and log those that were killed."""
    since = datetime.now(UTC)
    printed: set[UUID] = set()
    with get_client(sync_client=True) as client:
        while not end.wait(LOOK_EVERY_S):
            looked_at = datetime.now(UTC)
            try:
                runs = _runs(client, list(schedules), ENDED, end_time={"after_": since})
            except Exception as error:  # noqa: BLE001 - a busy server is asked again
                log.info("cannot ask Prefect's server which runs have ended: %s", error)
                continue
            for run in runs:
                if run.id not in printed and run.deployment_id is not None:
                    _print_run(run, schedules[run.deployment_id])
            printed = {run.id for run in runs}  # only these can be returned again
            # Look a minute back each time: a state may reach the server late.
            since = max(since, looked_at - timedelta(minutes=1))


def _print_run(run: FlowRun, schedule: Schedule) -> None:
    state = run.state
    assert state is not None
    assert run.end_time is not None
    ending = "done" if state.name == "Completed" else str(state.name).lower()
    message = " ".join((state.message or "").split())
    # Prefect's message about a second run of a deployment is technical.
    if state.is_cancelled() and "concurrency limit" in message:
        ending, message = "skipped", "an earlier run is still in progress"
    moment = f"{run.end_time.astimezone():%Y-%m-%d %H:%M:%S}"
    line = f"{moment} {schedule.market} {schedule.work} {ending}"
    out.print(f"{line}: {message}" if message else line, markup=False, soft_wrap=True)
    if not (state.is_completed() or state.is_failed()):  # such a run has logged its own end
        ended = Run(
            stage=schedule.work,
            market=schedule.market,
            outcome=f"{state.name}: {state.message or ''}",
            level=logging.WARNING if state.is_crashed() else logging.INFO,
        )
        log_ended_run(ended, seconds=run.total_run_time.total_seconds(), run_id=str(run.id))


def _runs(
    client: SyncPrefectClient, deployments: list[UUID], types: list[StateType], **when: Any
) -> list[FlowRun]:
    """Return the newest runs of deployments in these states, oldest first."""
    condition = {"deployment_id": {"any_": deployments}, "state": {"type": {"any_": types}}, **when}
    newest_first = client.read_flow_runs(
        flow_run_filter=filters.FlowRunFilter.model_validate(condition),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
    )
    return newest_first[::-1]
