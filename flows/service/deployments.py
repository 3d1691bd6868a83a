"""Turn the schedules of markets into deployments on a Prefect server; fork and follow their runs.

Prefect's runner starts `python -m prefect.engine` for each run, and its imports take longer than
the work of most runs. Here the engine runs in a fork of a process that has imported the modules and
has neither threads nor connections.
"""

import atexit
import gc
import hashlib
import logging
import os
import platform
import runpy
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.forkserver import ensure_running
from threading import Event
from typing import Any
from uuid import UUID

import anyio
from anyio import CancelScope, to_thread
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
from flows.log_lines import Run, log_ended_run, set_up_logging
from flows.service.flows import scheduled_night, scheduled_refetch, scheduled_training
from flows.service.flows import watch as watch_all
from flows.service.schedules import Schedule, Work
from flows.settings import data_folder, out
from flows.signals import SERVICE, end_with_parent
from flows.translating.flow import translate_queue

ENGINE = "prefect.engine"
PRELOADED = (
    "flows",  # first: it keeps Prefect from reading files in the working folder
    "__main__",
    "prefect.flow_engine",
    "prefect.task_engine",
    "flows.service.deployments",  # its flows, and what a fork calls
)
END_S = 30.0  # for a run to end after SIGTERM

log = logging.getLogger(__name__)


def fork_runs() -> None:
    """Make Prefect's runner fork its runs from now on.

    Where it cannot fork, it starts `flows.service.engine`. Call this after the environment
    variables have the values that the runs need: some modules read them when they are imported.
    """
    forks = get_context("forkserver")
    # The last two are imported by some functions only, when these are called.
    forks.set_forkserver_preload([*PRELOADED, "pyarrow.dataset", "vl_convert"])
    starter: Any = import_module("prefect.runner._starter_engine")
    run_ordinary_process = starter.run_process
    can_fork = True
    try:
        ensure_running()
    except OSError as error:  # such as a path too long for a socket
        log.info("each run starts a new process instead of a fork: %s", error)
        can_fork = False

    async def run_process(command: list[str], **options: Any) -> Any:
        """Take the place of Prefect's function of this name: start a run, and wait for its end.

        `options` has the keywords of Prefect's function, of which a fork needs three: `env`, the
        environment variables of the run, and `task_status` with `task_status_handler`, by which the
        runner gets the process once it has started. The process that is returned after its end is
        one of `multiprocessing`, of which the runner reads `exitcode`.
        """
        python, *arguments = command
        if arguments != ["-m", ENGINE]:  # not the command of a run as it is known here
            return await run_ordinary_process(command, **options)
        if not can_fork:
            engine_command = [python, "-P", "-m", "flows.service.engine"]
            return await run_ordinary_process(engine_command, **options)
        process = forks.Process(target=_run_engine, args=(options["env"],))
        await to_thread.run_sync(process.start)  # in a thread: it waits for the imports
        try:
            status_of = options["task_status_handler"]
            options["task_status"].started(status_of(process))
            await anyio.wait_readable(process.sentinel)  # until the process ends
        finally:
            with CancelScope(shield=True):  # also where the runner is cancelled
                await to_thread.run_sync(_end, process)
        return process

    starter.run_process = run_process


def _end(process: Any) -> None:
    """End a run; kill it if it does not end by itself within END_S."""
    if process.is_alive():
        process.terminate()
        process.join(END_S)
        process.kill()  # does nothing if it has ended
    process.join()


def _run_engine(environment: Mapping[str, str]) -> None:
    """Run Prefect's engine in this fork, with the environment variables of its run."""
    end_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    # Without this variable, `end_with_service` does nothing. It expects the service to be the
    # parent of the process, but the parent of a fork is the fork server; and `end_with_parent`
    # watches the service already.
    del os.environ[SERVICE]
    set_up_logging(debug=bool(os.environ.get("DTML_DEBUG")), attended=False)
    gc.freeze()  # the imported modules are no garbage
    gc.set_threshold(20_000, 20, 20)  # as in `flows.cli.main`
    sys.argv = [ENGINE]  # the engine would read an argument as the number of a run
    engine_file = str(import_module(ENGINE).__file__)
    try:
        runpy.run_path(engine_file, run_name="__main__")
    finally:
        # A fork skips the exit functions, in which Prefect sends its last events.
        atexit._run_exitfuncs()


FLOWS: dict[Work, Flow[Any, Any]] = {
    "night": scheduled_night,
    "training": scheduled_training,
    "refetch": scheduled_refetch,
    "watch": watch_all,
    "translations": translate_queue,
}
ENDED = [StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED]
WORDS = {"Completed": "done"}  # for names of states; the others are printed in small letters
LOOK_EVERY_S = 3.0


@dataclass(frozen=True)
class Job:
    """Hold a schedule and the parameters of its runs."""

    schedule: Schedule
    parameters: Mapping[str, Any]


def service_tag() -> str:
    """Return the tag of a service's deployments, by which it finds them on a shared server.

    It is a digest of the service's machine, folder and store, the same at each start.
    """
    store = location(open_engine())
    owner = f"{platform.node()} {data_folder()} {store}"
    digest = hashlib.sha256(owner.encode()).hexdigest()
    return f"dtml-{digest[:8]}"


def deployment_of(job: Job) -> RunnerDeployment:
    """Return the deployment of a job, of which only one run at a time is allowed.

    A second run is cancelled, but a night waits: if it is due while missed nights are caught up, it
    must not be lost. With `any_day`, from the option --cron, nights may be due every minute, and
    must not queue up. The deployment's name has the tag of the service, because a server identifies
    deployments by name.
    """
    schedule = job.schedule
    strategy = ConcurrencyLimitStrategy.CANCEL_NEW
    if schedule.work == "night" and not job.parameters.get("any_day"):
        strategy = ConcurrencyLimitStrategy.ENQUEUE
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


def cancel_leftovers(deployments: Iterable[UUID], *, server_is_new: bool) -> int:
    """Delete the other deployments of this service, and cancel the overdue runs of `deployments`.

    Returns how many overdue runs were cancelled. With `server_is_new`, this service has just
    started the server, so that no earlier run can be alive: unfinished runs are marked as crashed,
    and their concurrency slots are freed.
    """
    current = list(deployments)
    with get_client(sync_client=True) as client:
        has_tag = filters.DeploymentFilterTags(all_=[service_tag()])
        of_service = filters.DeploymentFilter(tags=has_tag)
        for deployment in client.read_deployments(deployment_filter=of_service):
            if deployment.id not in current:
                client.delete_deployment(deployment.id)
        past_runs = _cancel_past_runs(client, current)
        if server_is_new:
            unfinished = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
            for run in _runs(client, current, unfinished):
                crashed: State[Any] = Crashed(message="its service ended")
                client.set_flow_run_state(run.id, crashed, force=True)
            # The server does not know by which runs slots are taken: killed runs would keep them.
            for deployment_id in current:
                free = GlobalConcurrencyLimitUpdate(active_slots=0)
                client.update_global_concurrency_limit(f"deployment:{deployment_id}", free)
    return past_runs


def _cancel_past_runs(client: SyncPrefectClient, deployments: list[UUID]) -> int:
    count = 0
    due = filters.FlowRunFilterNextScheduledStartTime.model_validate({"before_": datetime.now(UTC)})
    # The server returns a limited number of runs at once. Those that were cancelled are no longer
    # scheduled, so each request returns others, and in the end none.
    while True:
        late_runs = _runs(client, deployments, [StateType.SCHEDULED], next_scheduled_start_time=due)
        if not late_runs:
            return count
        count += len(late_runs)
        for run in late_runs:
            cancelled: State[Any] = Cancelled(message="it was due before the service started")
            client.set_flow_run_state(run.id, cancelled, force=True)


def start_catching_up(deployment: UUID, as_of: date) -> None:
    """Start a run of the nights' deployment that catches up missed nights up to a session."""
    with get_client(sync_client=True) as client:
        client.create_flow_run_from_deployment(
            deployment, name="catch-up", parameters={"as_of": str(as_of)}
        )


def print_ended(jobs: Mapping[UUID, Job], end: Event) -> None:
    """Print a line for every run that ends from now on, until the event `end` is set.

    Runs that could not log their own line, such as those whose process was killed, are logged too.
    """
    since = datetime.now(UTC)
    printed: set[UUID] = set()
    with get_client(sync_client=True) as client:
        while not end.wait(LOOK_EVERY_S):
            looked_at = datetime.now(UTC)
            try:
                ended_since = filters.FlowRunFilterEndTime.model_validate({"after_": since})
                runs = _runs(client, list(jobs), ENDED, end_time=ended_since)
            except Exception as error:  # noqa: BLE001 - a busy server is asked again
                log.info(
                    "cannot ask Prefect's server which runs have ended, asking again in %g s: %s",
                    LOOK_EVERY_S,
                    error,
                )
                continue
            for run in runs:
                if run.id not in printed and run.deployment_id is not None:
                    # The key exists: only runs of the deployments in `jobs` were requested.
                    job = jobs[run.deployment_id]
                    out.print(_line(run, job), markup=False, soft_wrap=True)
                    assert run.state is not None
                    # A run that completed or failed has logged its own end.
                    if not (run.state.is_completed() or run.state.is_failed()):
                        ended = Run(
                            stage=job.schedule.work,
                            market=job.schedule.market,
                            outcome=f"{run.state.name}: {run.state.message or ''}",
                            level=logging.WARNING if run.state.is_crashed() else logging.INFO,
                        )
                        seconds = run.total_run_time.total_seconds()
                        log_ended_run(ended, seconds=seconds, run_id=str(run.id))
            printed = {run.id for run in runs}  # only these can be returned again
            # Look a minute back each time: a state may reach the server late.
            since = max(since, looked_at - timedelta(minutes=1))


def _line(run: FlowRun, job: Job) -> str:
    assert run.state is not None
    assert run.end_time is not None
    state = str(run.state.name)
    ending = WORDS.get(state, state.lower())
    message = " ".join((run.state.message or "").split())
    # The deployment allows one run at a time; Prefect's message about a second one is technical.
    if run.state.is_cancelled() and "concurrency limit" in message:
        ending = "skipped"
        message = "an earlier run is still in progress"
    moment = f"{run.end_time.astimezone():%Y-%m-%d %H:%M:%S}"
    line = f"{moment} {job.schedule.market} {job.schedule.work} {ending}"
    if not message:
        return line
    return f"{line}: {message}"


def _runs(
    client: SyncPrefectClient, deployments: list[UUID], types: list[StateType], **when: Any
) -> list[FlowRun]:
    """Return the newest runs of deployments in these states, oldest first.

    `when` are filters by a time. The server limits how many runs it returns.
    """
    run_filter = filters.FlowRunFilter(
        deployment_id=filters.FlowRunFilterDeploymentId(any_=deployments),
        state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=types)),
        **when,
    )
    newest_first = client.read_flow_runs(
        flow_run_filter=run_filter, sort=FlowRunSort.EXPECTED_START_TIME_DESC
    )
    return newest_first[::-1]
