"""Run the schedules of markets until a signal: `dtml serve`."""

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
from dtml.pages.figures import counted
from dtml.prices.sessions import last_closed_session
from flows.markets.files import read_market
from flows.markets.opened import RunRequest
from flows.service.prefect_server import END_LIMIT_S, Server, own_server, warning_of_open_server
from flows.service.schedules import (
    LOCK,
    TRANSLATING,
    WATCHING,
    Schedule,
    next_cron,
    next_night,
    require_cron,
    schedules_of,
    write_serving,
)
from flows.settings import data_folder, err, keep_needed_variables, out, prefect_folder
from flows.signals import SERVICE
from flows.translating.folder import model_names

if TYPE_CHECKING:
    from prefect.runner import Runner

DEATH = "Prefect's server ended with exit code {}: start the command again"


@dataclass(frozen=True)
class Service:
    """Describe what is served: markets, the requests of their runs, and when nights are due.

    `markets` and `requests` are by the name of the market. `delay` is the time from the usual close
    to the night. `translations` are the parameters of the runs that translate queued texts; None
    where there is no translation model.
    """

    markets: Mapping[str, Market]
    requests: Mapping[str, RunRequest]
    delay: timedelta
    cron: str | None  # of all nights, in place of those of their exchanges
    translations: Mapping[str, Any] | None = None

    def schedules(self, now: datetime) -> list[tuple[Schedule, dict[str, Any]]]:
        """Return every schedule with the parameters of its runs."""
        schedules: list[tuple[Schedule, dict[str, Any]]] = []
        for name, market in self.markets.items():
            for schedule in schedules_of(market, now, delay=self.delay, cron=self.cron):
                parameters: dict[str, Any] = {"request": self.requests[name]}
                if schedule.work == "night" and self.cron is not None:
                    # A night of the exchange's own schedule is skipped on days without a session.
                    # The user's cron decides by itself on which days its nights run.
                    parameters["any_day"] = True
                schedules.append((schedule, parameters))
        if self.translations is not None:
            schedules.append((TRANSLATING, dict(self.translations)))
        if self.markets:
            watching = Schedule(
                market=", ".join(self.markets), work="watch", cron=WATCHING, timezone="UTC"
            )
            market_files = [
                request.market_file
                for request in self.requests.values()
                if request.market_file is not None
            ]
            schedules.append(
                (watching, {"markets": list(self.markets), "market_files": market_files})
            )
        return schedules


def serve_markets(service: Service) -> None:
    """Serve until SIGTERM or Ctrl-C, without the environment variables that no run needs.

    Raises DtmlError where another service uses the data folder, when Prefect's server cannot be
    started, and when it ends by itself; UsageError for a `cron` that is no cron expression.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM then ends it as Ctrl-C does
    keep_needed_variables(
        {name for market in service.markets.values() for name in market.feed.environment}
    )
    end = Event()
    # An interrupt before the runner has started raises here; the runner handles later ones.
    with suppress(KeyboardInterrupt), _server() as server:
        if server is not None:
            # It watches before any request: to a dead server, each waits ten minutes for an answer.
            watcher = Thread(target=_end_with, args=(server, end), daemon=True)
            watcher.start()
        try:
            _serve(service, end, server_is_new=server is not None)
        finally:
            end.set()  # for `_end_with` and the printer of ended runs
            exit_code = None if server is None else server.process.poll()
            if exit_code is not None:
                # The server has ended by itself, and `_end_with` has sent SIGTERM to this process.
                # That ends `_serve` without an error or, before the runner handles signals, with a
                # KeyboardInterrupt, which `suppress` would hide: this error takes its place.
                raise DtmlError(DEATH.format(exit_code))
    out.print("ended")


def service_of(
    names: Sequence[str],
    files: Sequence[Path],
    request: RunRequest,
    delay: timedelta,
    cron: str | None,
) -> Service:
    """Return the service of these markets, or of all that have a night if none is named.

    `names` and `files` name the markets, `request` has the other settings of their runs. `delay`
    and `cron` (None: that of each exchange) are those of `Service`. If there is a translation
    model, the service translates queued texts too. Raises UsageError where there is neither a
    market nor a model, and for a name or a file that is no market.
    """
    translations = {"device": request.device} if model_names() else None
    names_of_files = {file.stem for file in files}  # a market may be named beside its file
    sources: list[tuple[str, Path | None]] = []
    sources.extend((name, None) for name in names if name not in names_of_files)
    sources.extend((str(file), file.absolute()) for file in files)
    if not sources:
        with reading(open_store()) as conn:
            stored_markets = sorted(nights.nights(conn)["market"].unique())
        if not stored_markets and translations is None:
            raise UsageError(
                "the store has no night of any market yet: name a market, as in `dtml serve "
                "simulated`"
            )
        sources.extend((name, None) for name in stored_markets)

    markets: dict[str, Market] = {}
    requests: dict[str, RunRequest] = {}
    for name, file in sources:
        market = read_market(name, file)
        markets[market.name] = market
        requests[market.name] = replace(request, market=market.name, market_file=file)
    return Service(
        markets=markets,
        requests=requests,
        delay=delay,
        cron=cron,
        translations=translations,
    )


@contextmanager
def _server() -> Iterator[Server | None]:
    """Start a Prefect server and yield it, or yield None where PREFECT_API_URL names one.

    Raises DtmlError if another service uses the data folder.
    """
    folder = prefect_folder()
    lock = FileLock(folder / LOCK)
    try:
        # A plain `with lock` would wait until another service ends. This waits one second, because
        # `serving` shares the lock for an instant.
        acquired = lock.acquire(timeout=1)
    except Timeout as error:
        raise DtmlError(
            f"another `dtml serve` uses {data_folder()}: stop it, and name all markets in one "
            "command"
        ) from error
    with acquired:
        if os.environ.get("PREFECT_API_URL"):
            warning = warning_of_open_server()
            if warning:
                err.print(warning, markup=False, soft_wrap=True)
            yield None
        else:
            with own_server(folder) as server:
                yield server


def _serve(service: Service, end: Event, *, server_is_new: bool) -> None:
    """Deploy the schedules of a service on its server, and start runs when due until a signal.

    Deployments that an earlier service left are deleted. Runs that were due while none was running
    are cancelled; in their place, one run of each market catches up its missed nights.
    `server_is_new` says that this process has started the server. Environment variables are set for
    this process and the runs, the folder for temporary files for this process alone. A file says
    what is served (`write_serving`). Raises UsageError where the service's `cron` is not a cron
    expression.
    """
    # Imported after PREFECT_API_URL is set, which Prefect reads once.
    from prefect.runner import Runner

    from flows.service.deployments import (
        Job,
        cancel_leftovers,
        deployment_of,
        fork_runs,
        print_ended,
        start_catching_up,
    )

    now = datetime.now(UTC)
    jobs: dict[UUID, Job] = {}
    os.environ[SERVICE] = str(os.getpid())  # the runs end when this process ends
    os.environ["PREFECT_RUNNER_SERVER_ENABLE"] = "false"  # the runner's own server has no login
    fork_runs()
    # A runner writes into a folder with a fixed name, inside the folder for temporary files. Inside
    # that of the machine, it would belong to the first user who started a runner.
    tempfile.tempdir = str(prefect_folder())
    # By default it would pause the deployments at its end, also for the next service.
    runner = Runner(pause_on_shutdown=False)
    if service.cron is not None:
        require_cron(service.cron)
    for schedule, parameters in service.schedules(now):
        job = Job(schedule=schedule, parameters=parameters)
        deployment = cast(UUID, runner.add_deployment(deployment_of(job)))
        jobs[deployment] = job
    # `dtml status` reads this, to show when the next night of each market runs.
    write_serving(prefect_folder(), service.markets, service.delay, service.cron)
    cancelled_runs = cancel_leftovers(jobs, server_is_new=server_is_new)
    _announce(service, now, server_is_new=server_is_new)
    if cancelled_runs:
        out.print(
            f"{counted(cancelled_runs, 'run')} due before this service started: cancelled, and "
            "missed nights are caught up"
        )
    for deployment, job in jobs.items():
        if job.schedule.work == "night":
            calendar = service.markets[job.schedule.market].calendar
            last_session = last_closed_session(calendar, now, grace=service.delay)
            start_catching_up(deployment, last_session)
    printer = Thread(target=print_ended, args=(jobs, end), daemon=True)
    printer.start()
    asyncio.run(_until_signal(runner))


async def _until_signal(runner: "Runner") -> None:
    serving = asyncio.create_task(runner.start())
    # The runner begins during this sleep, and sets its own handler of SIGTERM, which would leave
    # its runs behind. The handlers set afterwards replace it.
    await asyncio.sleep(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving


def _end_with(server: Server, end: Event) -> None:
    """Wait for the end of the server; end this process too, unless the service has ended before.

    The service sets `end` when it ends.
    """
    exit_code = server.process.wait()
    if end.is_set():
        return
    os.kill(os.getpid(), signal.SIGTERM)  # ends `_serve`; `serve_markets` then raises the error
    # The runner may not end, because it waits for answers of the dead server.
    if not end.wait(2 * END_LIMIT_S):
        err.print(f"error: {DEATH.format(exit_code)}", soft_wrap=True)
        os._exit(1)


def _announce(service: Service, now: datetime, *, server_is_new: bool) -> None:
    """Print a line for each schedule, the addresses of the server, and how to stop.

    With `server_is_new` the line about the page also names the file with the server's login.
    """
    for schedule, _parameters in service.schedules(now):
        zone = ZoneInfo(schedule.timezone)
        due = next_cron(schedule.cron, schedule.timezone, now)
        if schedule.work == "night" and service.cron is None:
            # Days without a session are skipped, up to the end of the calendar.
            with suppress(DtmlError):
                due = next_night(service.markets[schedule.market], now, service.delay)
        local = due.astimezone(zone)
        utc = due.astimezone(UTC)
        out.print(
            f"{schedule.market} {schedule.work}: {schedule.cron} {schedule.timezone}, "
            f"next {local:%a %Y-%m-%d %H:%M} there, {utc:%a %H:%M} UTC",
            markup=False,
            soft_wrap=True,
        )
    api = os.environ["PREFECT_API_URL"]
    login = ""
    if server_is_new:
        login = f", login in {data_folder() / 'prefect' / 'login'}"
    catching_up = "missed nights run first; " if service.markets else ""
    out.print(
        f"page {api.removesuffix('/api')}{login}\n"
        f"for the prefect command: export PREFECT_API_URL={api}\n"
        f"{catching_up}press Ctrl-C to stop",
        markup=False,
        soft_wrap=True,
    )
