"""Keep the schedules of markets as deployments on a Prefect server: make, clear and watch them."""

import hashlib
import logging
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from threading import Event
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.objects import (
    ConcurrencyLimitConfig,
    ConcurrencyLimitStrategy,
    FlowRun,
    StateType,
)
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments.runner import RunnerDeployment
from prefect.schedules import Cron
from prefect.states import Cancelled, Crashed
from prefect.types.entrypoint import EntrypointType

from db.engine import location, open_engine
from dtml.errors import UsageError
from flows.service.flows import scheduled_night, scheduled_refetch, scheduled_training
from flows.service.flows import watch as watch_all
from flows.service.schedules import Schedule, Work
from flows.settings import data_folder, out
from flows.translating.flow import translate_queue

FLOWS: dict[Work, Flow[Any, Any]] = {"night": scheduled_night, "training": scheduled_training}
FLOWS |= {"refetch": scheduled_refetch, "watch": watch_all, "translations": translate_queue}
ENDED = [StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED]
WORDS = {"Completed": "done"}  # other states keep their names
LOOK_EVERY_S = 3.0
CRONITER: Any = import_module("prefect._vendor.croniter").croniter  # as the server reads crons

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """Hold a schedule and the parameters of its runs."""

    schedule: Schedule
    parameters: Mapping[str, Any]


def service_tag() -> str:
    """Return what marks the deployments of a service on a shared server: its
    machine, folder and store, digested.
    """
    whose = f"{platform.node()} {data_folder()} {location(open_engine())}"  # without connecting
    return f"dtml-{hashlib.sha256(whose.encode()).hexdigest()[:8]}"


def deployment_of(job: Job) -> RunnerDeployment:
    """Return the deployment of a job, one run of it at a time; a second one is cancelled, or waits
    if a night.

    Its name says whose it is, as a server identifies deployments by name. A night that is due while
    missed ones are caught up must not be lost; nights that are due every minute must not queue up.
    """
    schedule = job.schedule
    waits = schedule.work == "night" and not job.parameters.get("any_day")
    strategy = ConcurrencyLimitStrategy.ENQUEUE if waits else ConcurrencyLimitStrategy.CANCEL_NEW
    deployment = FLOWS[schedule.work].to_deployment(
        f"{schedule.market} {service_tag()}",
        schedule=Cron(schedule.cron, timezone=schedule.timezone),
        parameters=dict(job.parameters),
        tags=["dtml", service_tag()],
        entrypoint_type=EntrypointType.MODULE_PATH,
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=strategy),
    )
    assert isinstance(deployment, RunnerDeployment)
    return deployment


def require_cron(cron: str) -> None:
    """Raise UsageError for what the server cannot read as a cron."""
    if not CRONITER.is_valid(cron):
        raise UsageError(
            f"{cron!r} is no cron: write minute, hour, day, month and weekday, as in '30 18 "
            "* * 1-5'"
        )


def next_run(schedule: Schedule, now: datetime) -> datetime:
    """Return when the server starts the next run of a schedule, in the schedule's time zone."""
    zone = ZoneInfo(schedule.timezone)
    local: datetime = CRONITER(schedule.cron, now.astimezone(zone).replace(tzinfo=None)).get_next(
        datetime
    )
    return local.replace(tzinfo=zone)


def clear(deployments: Iterable[UUID], *, server_is_new: bool) -> int:
    """Delete earlier deployments of this folder that are not among these, and cancel runs whose
    time is past.

    On a new server no run of an earlier one can be alive: those are marked as crashed and their
    places freed. Returns how many runs were past.
    """
    kept, past = list(deployments), 0
    with get_client(sync_client=True) as client:
        mine = filters.DeploymentFilter(tags=filters.DeploymentFilterTags(all_=[service_tag()]))
        for found in client.read_deployments(deployment_filter=mine):
            if found.id not in kept:
                client.delete_deployment(found.id)
        due = filters.FlowRunFilterNextScheduledStartTime.model_validate(
            {"before_": datetime.now(UTC)}
        )
        while late := _runs(client, kept, [StateType.SCHEDULED], next_scheduled_start_time=due):
            past += len(late)
            for run in late:
                client.set_flow_run_state(
                    run.id, Cancelled(message="its time was past at the start"), force=True
                )
        if server_is_new:
            for run in _runs(
                client, kept, [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
            ):
                client.set_flow_run_state(
                    run.id, Crashed(message="it ended with its service"), force=True
                )
            for (
                deployment
            ) in kept:  # a server forgets who held a place, but stores how many are held
                free = GlobalConcurrencyLimitUpdate(active_slots=0)
                client.update_global_concurrency_limit(f"deployment:{deployment}", free)
    return past


def start_catching_up(deployment: UUID, as_of: date) -> None:
    """Start running the nights that were missed up to a session, as a run of
    the nights' deployment.
    """
    with get_client(sync_client=True) as client:
        client.create_flow_run_from_deployment(
            deployment, name="catch-up", parameters={"as_of": str(as_of)}
        )


def print_ended(jobs: Mapping[UUID, Job], end: Event) -> None:
    """Print a line for every run that ends from now on, until the event."""
    since, printed = datetime.now(UTC), set[UUID]()
    with get_client(sync_client=True) as client:
        while not end.wait(LOOK_EVERY_S):
            looked = datetime.now(UTC)
            try:
                ended = filters.FlowRunFilterEndTime.model_validate({"after_": since})
                runs = _runs(client, list(jobs), ENDED, end_time=ended)
            except Exception as error:  # noqa: BLE001 - a server that is busy is asked again; its end is seen elsewhere
                log.info("the server was not reached: %s", error)
                continue
            for run in runs:
                if run.id not in printed and run.deployment_id is not None:
                    out.print(_line(run, jobs[run.deployment_id]), markup=False, soft_wrap=True)
            printed = {run.id for run in runs}
            since = max(since, looked - timedelta(minutes=1))  # a state may reach the server late


def _line(run: FlowRun, job: Job) -> str:
    assert run.state is not None
    assert run.end_time is not None
    name = WORDS.get(str(run.state.name), str(run.state.name).lower())
    said = " ".join((run.state.message or "").split())
    if run.state.is_cancelled() and "concurrency limit" in said:
        name, said = "skipped", "another run of it is on"
    ended = (
        f"{run.end_time.astimezone():%Y-%m-%d %H:%M:%S} {job.schedule.market} "
        f"{job.schedule.work} {name}"
    )
    return f"{ended}: {said}" if said else ended


def _runs(
    client: SyncPrefectClient, deployments: list[UUID], types: list[StateType], **when: Any
) -> list[FlowRun]:
    """Return the newest runs of deployments in these states, oldest first;
    `when` filters them by a time.
    """
    mine = filters.FlowRunFilterDeploymentId(any_=deployments)
    state = filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=types))
    wanted = filters.FlowRunFilter(deployment_id=mine, state=state, **when)
    return client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.EXPECTED_START_TIME_DESC)[
        ::-1
    ]
