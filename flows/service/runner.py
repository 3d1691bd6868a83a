"""Run the schedules of markets until told to end: `dtml serve`."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from filelock import FileLock, Timeout

from db.engine import open_store, reading
from db.rows import nights
from dtml.errors import DtmlError, UsageError
from dtml.markets import Market
from dtml.prices.sessions import last_closed_session
from flows.market_files import read_market
from flows.nightly.context import RunRequest
from flows.service.prefect_server import END_LIMIT_S, Server, own_server, warning_of_open_server
from flows.service.schedules import TRANSLATING, WATCHING, Schedule, next_night, schedules_of
from flows.settings import data_folder, err, keep_needed_variables, out, prefect_folder
from flows.signals import SERVICE
from flows.translating.folder import model_names

if TYPE_CHECKING:
    from prefect.runner import Runner

DEATH = "Prefect's server ended with {}: start the command again"


@dataclass(frozen=True)
class Service:
    """Describe what is served: markets by name, what each one's runs are told, and when their
    nights are due.

    `translations` are the parameters of the runs that translate what is queued; None where there is
    no model.
    """

    markets: Mapping[str, Market]
    requests: Mapping[str, RunRequest]
    delay: timedelta
    cron: str | None  # in place of the nights' own
    translations: Mapping[str, Any] | None = None

    def schedules(self, now: datetime) -> list[tuple[Schedule, dict[str, Any]]]:
        """Return every schedule, and the parameters of its runs."""
        found: list[tuple[Schedule, dict[str, Any]]] = []
        for name, market in self.markets.items():
            for schedule in schedules_of(market, now, delay=self.delay, cron=self.cron):
                anyhow = (
                    {"any_day": True} if schedule.work == "night" and self.cron is not None else {}
                )
                found.append((schedule, {"request": self.requests[name]} | anyhow))
        if self.translations is not None:
            found.append((TRANSLATING, dict(self.translations)))
        if not self.markets:
            return found
        files = [
            request.market_file
            for request in self.requests.values()
            if request.market_file is not None
        ]
        minutes = self.delay // timedelta(minutes=1)
        watched = {"markets": list(self.markets), "market_files": files, "delay_minutes": minutes}
        return [*found, (WATCHING, watched)]


def serve_markets(service: Service) -> None:
    """Serve until SIGTERM or Ctrl-C; raise DtmlError when the server cannot be
    started, and when it ends.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    keep_needed_variables()
    end = Event()
    with (
        suppress(KeyboardInterrupt),
        _server() as server,
    ):  # an interrupt before the runner has started
        if (
            server is not None
        ):  # from now on: a request to a dead server waits ten minutes for its answer
            Thread(target=_end_with, args=(server, end), daemon=True).start()
        try:
            _serve(service, end, server_is_new=server is not None)
        finally:
            end.set()
            if server is not None and (code := server.process.poll()) is not None:
                raise DtmlError(DEATH.format(code))
    out.print("ended")


def service_of(
    names: Sequence[str],
    files: Sequence[Path],
    request: RunRequest,
    delay: timedelta,
    cron: str | None,
) -> Service:
    """Return the service of these markets, else of all with a night in the store, and of a queue
    with a model.

    `request` holds the other settings of their runs. Raises UsageError where there is neither a
    market nor a model.
    """
    translations = {"device": request.device} if model_names() else None
    own = {file.stem for file in files}  # a file may be named beside its market
    asked = [(name, None) for name in names if name not in own] + [
        (str(file), file.absolute()) for file in files
    ]
    markets, requests = {}, {}
    for name, file in asked or [
        (name, None) for name in _stored_markets(anyhow=translations is not None)
    ]:
        market = read_market(name, file)
        markets[market.name] = market
        requests[market.name] = replace(request, market=market.name, market_file=file)
    return Service(markets, requests, delay, cron, translations)


def _stored_markets(*, anyhow: bool) -> list[str]:
    with reading(open_store()) as conn:
        stored = sorted(nights.nights(conn)["market"].unique())
    if not stored and not anyhow:
        raise UsageError(
            "the store has no night of any market yet: name one, as in `dtml serve simulated`"
        )
    return stored


@contextmanager
def _server() -> Iterator[Server | None]:
    """Start a Prefect server, or yield None where PREFECT_API_URL names one.

    A folder has one service at a time.
    """
    folder = prefect_folder()
    lock = FileLock(folder / "serve.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DtmlError(
            f"another `dtml serve` is at {data_folder()}: end it, and name all markets in one"
        ) from error
    with lock:
        if os.environ.get("PREFECT_API_URL"):
            if warning := warning_of_open_server():
                err.print(warning, markup=False, soft_wrap=True)
            yield None
        else:
            with own_server(folder) as server:
                yield server


def _serve(service: Service, end: Event, *, server_is_new: bool) -> None:
    from prefect.runner import Runner  # after PREFECT_API_URL is set, which it reads once

    from flows.service.deployments import (
        Job,
        clear,
        deployment_of,
        print_ended,
        require_cron,
        start_catching_up,
    )
    from flows.service.forked_runs import fork_runs

    now = datetime.now(UTC)
    jobs: dict[UUID, Job] = {}
    os.environ[SERVICE] = str(os.getpid())
    os.environ["PREFECT_RUNNER_SERVER_ENABLE"] = "false"  # the runner's own server has no login
    fork_runs()
    tempfile.tempdir = str(prefect_folder())  # the default belongs to the first user of a runner
    runner = Runner(pause_on_shutdown=False)  # it would pause its successor
    if service.cron is not None:
        require_cron(service.cron)
    for job in (Job(*each) for each in service.schedules(now)):
        jobs[cast(UUID, runner.add_deployment(deployment_of(job)))] = job
    past = clear(jobs, server_is_new=server_is_new)
    _announce(service, now, server_is_new=server_is_new)
    if past:
        out.print(f"{past} runs whose time was past are not started")
    for deployment, job in jobs.items():
        if job.schedule.work == "night":
            calendar = service.markets[job.schedule.market].calendar
            start_catching_up(deployment, last_closed_session(calendar, now, grace=service.delay))
    Thread(target=print_ended, args=(jobs, end), daemon=True).start()
    asyncio.run(_until_signal(runner))


async def _until_signal(runner: "Runner") -> None:
    """Start what is due until SIGTERM or SIGINT, which end the runs that are on."""
    serving = asyncio.create_task(runner.start())
    await asyncio.sleep(0)  # first the runner sets its own handler, which leaves its runs behind
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving


def _end_with(server: Server, end: Event) -> None:
    """End this process when its server ends first."""
    code = server.process.wait()
    if end.is_set():
        return
    os.kill(os.getpid(), signal.SIGTERM)
    if not end.wait(2 * END_LIMIT_S):  # the runner may wait for the dead server
        err.print(f"error: {DEATH.format(code)}", soft_wrap=True)
        os._exit(1)


def _announce(service: Service, now: datetime, *, server_is_new: bool) -> None:
    """Print one line a schedule, the page of the server, and how to end."""
    from flows.service.deployments import next_run

    for schedule, _ in service.schedules(now):
        local = next_run(schedule, now).astimezone(ZoneInfo(schedule.timezone))
        if schedule.work == "night" and service.cron is None:  # days without a session are skipped
            # Where the calendar ends, it is the next day of the cron.
            with suppress(DtmlError):
                night = next_night(service.markets[schedule.market], now, service.delay)
                local = night.astimezone(local.tzinfo)
        due = f"next {local:%a %Y-%m-%d %H:%M} there, {local.astimezone(UTC):%a %H:%M} UTC"
        said = f"{schedule.market} {schedule.work}: {schedule.cron} {schedule.timezone}, {due}"
        out.print(said, markup=False, soft_wrap=True)
    page = os.environ["PREFECT_API_URL"].removesuffix("/api")
    first = "missed nights are caught up first; " if service.markets else ""
    login = f", its login is in {data_folder() / 'prefect' / 'login'}" if server_is_new else ""
    out.print(f"page {page}{login}; {first}Ctrl-C ends it", markup=False, soft_wrap=True)
