"""Decide when nights, trainings, refetches and translations are due.

Schedules are crons in the exchange's time zone. A running `dtml serve` writes which markets it
serves, and holds a lock.
"""

import fcntl
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dtml.errors import UsageError
from dtml.markets import Market
from dtml.prices.sessions import (
    is_session,
    last_closed_session,
    next_session,
    session_close,
    usual_week,
)
from flows.settings import data_folder

DELAY_MINUTES = 150  # from the usual close to the night: by then the source has the day's bars
DELAY = timedelta(minutes=DELAY_MINUTES)
TRAINING = "0 6 * * 6"  # Saturday morning, after a whole week of sessions
REFETCH = "0 4 1 * *"  # once a month, to find restatements older than those a night looks for

Work = Literal["night", "training", "refetch", "watch", "translations"]


@dataclass(frozen=True)
class Schedule:
    """When a kind of work is due, as a cron in a time zone, with the parameters of its runs.

    `market` is its name, all names for "watch", "all" for "translations".
    """

    market: str
    work: Work
    cron: str
    timezone: str
    parameters: dict[str, Any] = field(default_factory=dict)


WATCHING = "20 * * * *"  # the hourly check for nights that are late, in UTC
# The worker that translates queued texts.
TRANSLATING = Schedule(
    market="all",
    work="translations",
    cron="*/5 * * * *",
    timezone="UTC",
)


def schedules_of(
    market: Market, now: datetime, *, delay: timedelta = DELAY, cron: str | None = None
) -> list[Schedule]:
    """Return every schedule of a market; `cron` replaces that of its nights.

    Close and time zone are those of its exchange around `now`.
    """
    zone = usual_week(market.calendar, now.date()).timezone.key
    crons: dict[Work, str] = {
        "night": cron or night_cron(market, now, delay),
        "refetch": REFETCH,
    }
    if market.retrain != "never":
        crons["training"] = TRAINING
    return [
        Schedule(market=market.name, work=work, cron=work_cron, timezone=zone)
        for work, work_cron in crons.items()
    ]


def night_cron(market: Market, now: datetime, delay: timedelta = DELAY) -> str:
    """Return the cron of a market's nights, `delay` after its usual close, in local time."""
    week = usual_week(market.calendar, now.date())
    due = week.close + delay  # since midnight of the session; from 24 hours on, it is a day later
    minutes = due.seconds // 60  # of the day: `due.seconds` leaves out the whole days
    hour, minute = divmod(minutes, 60)
    # Sunday is 0 in a cron, not 6 as in Python.
    weekdays = sorted((weekday + due.days + 1) % 7 for weekday in week.weekdays)
    days = ",".join(str(weekday) for weekday in weekdays)
    if len(weekdays) == 7:
        days = "*"
    elif weekdays[1:] and weekdays[-1] - weekdays[0] == len(weekdays) - 1:
        days = f"{weekdays[0]}-{weekdays[-1]}"
    return f"{minute} {hour} * * {days}"


def require_cron(cron: str) -> None:
    """Raise UsageError for a text that is not a cron expression."""
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError as error:
        raise UsageError(
            f"--cron {cron!r} is not a cron expression: write minute, hour, day, month and "
            "weekday, as in '30 18 * * 1-5'"
        ) from error


def next_cron(cron: str, timezone: str, now: datetime) -> datetime:
    """Return a cron's next run; as in the server, in local time without changes to summer time."""
    zone = ZoneInfo(timezone)
    local_now = now.astimezone(zone).replace(tzinfo=None)
    return next(CronSim(cron, local_now)).replace(tzinfo=zone)


def skip_reason(market: Market, scheduled: datetime) -> str | None:
    """Return why a night is skipped: no session closed in the 24 hours before; else None."""
    calendar = market.calendar
    last_closed = last_closed_session(calendar, scheduled, grace=timedelta(0))
    if scheduled - session_close(calendar, last_closed) < timedelta(days=1):
        return None
    timezone = usual_week(calendar, scheduled.date()).timezone
    day = scheduled.astimezone(timezone).date()
    if is_session(calendar, day):
        # Today's session has not closed yet, so the run was due after midnight, for the day before.
        # That day was no session: its close would lie within the 24 hours.
        day -= timedelta(days=1)
    return f"{day} ({day:%A}) is not a session of {calendar}"


def next_night(market: Market, now: datetime, delay: timedelta = DELAY) -> datetime:
    """Return when the market's next night that is not skipped is due, in UTC.

    Raises DtmlError after the end of the calendar.
    """
    week = usual_week(market.calendar, now.date())
    # The night of this session is due already, unless it closed earlier than usual: then the cron
    # still starts it at the usual time.
    session = last_closed_session(market.calendar, now - delay)
    while True:
        midnight = datetime.combine(session, time())
        local = midnight + week.close + delay
        moment = local.replace(tzinfo=week.timezone).astimezone(UTC)
        has_run = session.weekday() in week.weekdays  # on other days the cron starts none
        if has_run and moment > now:
            return moment
        session = next_session(market.calendar, session)


LOCK = "serve.lock"
SERVED = "served.json"


@dataclass(frozen=True)
class Serving:
    """The markets that are served, the time from usual close to nights, or their one `cron`."""

    markets: tuple[str, ...]
    delay: timedelta
    cron: str | None


def write_serving(folder: Path, markets: Iterable[str], delay: timedelta, cron: str | None) -> None:
    """Write what the service of a folder serves, while it holds the folder's lock."""
    document = {
        "markets": list(markets),
        "delay_minutes": delay // timedelta(minutes=1),
        "cron": cron,
    }
    (folder / SERVED).write_text(json.dumps(document), encoding="utf-8")


def serving() -> Serving | None:
    """Return what this data folder's running service serves; None without one."""
    folder = data_folder() / "prefect"
    with suppress(OSError, ValueError):
        try:
            # A free lock is shared for an instant, for which `dtml serve` waits when it starts.
            with (folder / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            document = json.loads((folder / SERVED).read_text(encoding="utf-8"))
            return Serving(
                markets=tuple(document["markets"]),
                delay=timedelta(minutes=document["delay_minutes"]),
                cron=document["cron"],
            )
    return None


def serving_of(market: str) -> Serving | None:
    """Return what the running service serves; None where it does not serve this market."""
    served = serving()
    return served if served is not None and market in served.markets else None
