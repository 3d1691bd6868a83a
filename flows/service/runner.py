"""Run the schedules of markets until a signal: `dtml serve`."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from filelock import FileLock, Timeout

from db.engine import open_store, reading
from db.read import read
from dtml.errors import DtmlError, UsageError
from dtml.markets import Market
from dtml.pages.figures import counted
from dtml.prices.sessions import last_closed_session
from flows.log_lines import JOURNAL, is_journal
from flows.markets.files import read_market
from flows.markets.opened import RunRequest
from flows.service.prefect_server import own_server, warning_of_open_server
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
from flows.settings import (
    data_folder,
    err,
    import_prefect,
    keep_needed_variables,
    out,
    prefect_folder,
)
from flows.signals import FOLDER, SERVICE, handled_by
from flows.translating.folder import model_names

END_LIMIT_S = 120  # for runs to end by themselves, after a signal


@dataclass(frozen=True)
class Service:
    """What is served: markets, the requests of their runs, and when nights are due.

    `delay` is the time from the usual close to the night; `translations` the parameters of the runs
    that translate queued texts, None without a model.
    """

    markets: dict[str, Market]
    requests: dict[str, RunRequest]
    delay: timedelta
    cron: str | None  # of all nights, in place of those of their exchanges
    translations: dict[str, Any] | None = None

    def schedules(self, now: datetime) -> list[Schedule]:
        """Return every schedule."""
        schedules: list[Schedule] = []
        for name, market in self.markets.items():
            for schedule in schedules_of(market, now, delay=self.delay, cron=self.cron):
                schedule.parameters["request"] = self.requests[name]
                if schedule.work == "night" and self.cron is not None:
                    # A night of the exchange's own schedule is skipped on days without a session.
                    # The user's cron decides by itself on which days its nights run.
                    schedule.parameters["any_day"] = True
                schedules.append(schedule)
        if self.translations is not None:
            schedules.append(replace(TRANSLATING, parameters=self.translations))
        if self.markets:
            files = [each.market_file for each in self.requests.values() if each.market_file]
            schedules.append(
                Schedule(
                    market=", ".join(self.markets),
                    work="watch",
                    cron=WATCHING,
                    timezone="UTC",
                    parameters={"markets": list(self.markets), "market_files": files},
                )
            )
        return schedules


def service_of(
    names: Sequence[str],
    files: Sequence[Path],
    request: RunRequest,
    delay: timedelta,
    cron: str | None,
) -> Service:
    """Return the service of these markets, or of all that have a night.

    Raises UsageError where there is neither a market nor a translation model, for a name or file
    that is no market, and for a bad `cron`.
    """
    if cron is not None:
        require_cron(cron)
    translations = {"device": request.device} if model_names() else None
    names_of_files = {file.stem for file in files}  # a market may be named beside its file
    sources: list[tuple[str, Path | None]] = [
        *((name, None) for name in names if name not in names_of_files),
        *((str(file), file.absolute()) for file in files),
    ]
    if not sources:
        with reading(open_store()) as conn:
            stored_markets = sorted(read(conn, "night")["market"].unique())
        if not stored_markets and translations is None:
            raise UsageError(
                "the store has no night of any market yet: name a market, as in `dtml serve "
                "simulated`"
            )
        sources.extend((name, None) for name in stored_markets)

    service = Service({}, {}, delay=delay, cron=cron, translations=translations)
    for name, file in sources:
        market = read_market(name, file)
        service.markets[market.name] = market
        service.requests[market.name] = replace(request, market=market.name, market_file=file)
    return service


def serve_markets(service: Service) -> None:
    """Serve until SIGTERM or Ctrl-C, on the server of PREFECT_API_URL or one of our own.

    Raises DtmlError where another service uses the data folder, or the server cannot start.
    """
    stopped = Event()

    def stop(*_: object) -> None:
        stopped.set()  # an interrupt that comes while an object is finalized is lost
        raise KeyboardInterrupt

    keep_needed_variables(
        {name for market in service.markets.values() for name in market.feed.environment}
    )
    folder = prefect_folder()
    server_is_new = not os.environ.get("PREFECT_API_URL")
    if not server_is_new:
        warning = warning_of_open_server()
        if warning:
            err.print(warning, markup=False, soft_wrap=True)
        import_prefect()
    server = own_server(folder) if server_is_new else nullcontext()
    # `serving` shares the lock for an instant.
    lock = FileLock(folder / LOCK, timeout=1)
    try:
        with suppress(KeyboardInterrupt), handled_by(stop), lock, server:
            _serve(service, stopped, server_is_new=server_is_new)
    except Timeout as error:
        raise DtmlError(
            f"another `dtml serve` uses {data_folder()}: stop it, and name all markets in one "
            "command"
        ) from error
    out.print("ended")


def _serve(service: Service, stopped: Event, *, server_is_new: bool) -> None:
    """Deploy the schedules of a service, and start runs when due until a signal.

    An earlier service's deployments are deleted and overdue runs cancelled; one run of each market
    catches up its missed nights.
    """
    # Imported after PREFECT_API_URL is set, which Prefect reads once.
    from prefect.deployments import run_deployment
    from prefect.runner import Runner

    from flows.service.deployments import cancel_leftovers, deployment_of, print_ended

    now = datetime.now(UTC)
    # What Prefect and the runs of this process read: see `flows.signals.begin_run`.
    os.environ[SERVICE] = str(os.getpid())
    os.environ[FOLDER] = str(Path.cwd())
    os.environ[JOURNAL] = "1" if is_journal() else ""
    os.environ["PREFECT_RUNNER_SERVER_ENABLE"] = "false"  # the runner's own server has no login
    # A runner writes into a folder with a fixed name, inside the folder for temporary files. Inside
    # that of the machine, it would belong to the first user who started a runner.
    tempfile.tempdir = str(prefect_folder())
    # By default it would pause the deployments at its end, also for the next service.
    runner = Runner(pause_on_shutdown=False)
    schedules: dict[UUID, Schedule] = {}
    for schedule in service.schedules(now):
        deployment = cast(UUID, runner.add_deployment(deployment_of(schedule)))
        schedules[deployment] = schedule
    # `dtml status` reads this, to show when the next night of each market runs.
    write_serving(prefect_folder(), service.markets, service.delay, service.cron)
    cancelled_runs = cancel_leftovers(schedules, server_is_new=server_is_new)
    _announce(service, now, server_is_new=server_is_new)
    if cancelled_runs:
        out.print(
            f"{counted(cancelled_runs, 'run')} due before this service started: cancelled, and "
            "missed nights are caught up"
        )
    for deployment, schedule in schedules.items():
        if schedule.work == "night":
            calendar = service.markets[schedule.market].calendar
            last_session = last_closed_session(calendar, now, grace=service.delay)
            run_deployment(
                deployment,
                parameters={"as_of": str(last_session)},
                timeout=0,  # it is not waited for
                flow_run_name="catch-up",
            )
    end = Event()
    Thread(target=print_ended, args=(schedules, end), daemon=True).start()
    os.chdir("/")  # where each run begins
    # In a thread of its own, where Prefect sets no handlers of signals.
    running = ThreadPoolExecutor(1).submit(asyncio.run, runner.start())
    try:
        while not (stopped.is_set() or running.done()):
            wait([running], timeout=1)
    finally:
        end.set()
        if runner.started:
            runner.handle_sigterm()  # ends its runs
            wait([running], END_LIMIT_S)
    if running.done():
        running.result()


def _announce(service: Service, now: datetime, *, server_is_new: bool) -> None:
    """Print each schedule, the server's addresses, its file with the login, how to stop."""
    for schedule in service.schedules(now):
        due = next_cron(schedule.cron, schedule.timezone, now)
        if schedule.work == "night" and service.cron is None:
            # Days without a session are skipped, up to the end of the calendar.
            with suppress(DtmlError):
                due = next_night(service.markets[schedule.market], now, service.delay)
        local = due.astimezone(ZoneInfo(schedule.timezone))
        out.print(
            f"{schedule.market} {schedule.work}: {schedule.cron} {schedule.timezone}, "
            f"next {local:%a %Y-%m-%d %H:%M} there, {due.astimezone(UTC):%a %H:%M} UTC",
            markup=False,
            soft_wrap=True,
        )
    api = os.environ["PREFECT_API_URL"]
    login = f", login in {data_folder() / 'prefect' / 'login'}" if server_is_new else ""
    catching_up = "missed nights run first; " if service.markets else ""
    out.print(
        f"page {api.removesuffix('/api')}{login}\n"
        f"for the prefect command: export PREFECT_API_URL={api}\n"
        f"{catching_up}press Ctrl-C to stop",
        markup=False,
        soft_wrap=True,
    )
