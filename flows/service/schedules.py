"""Say when nights, trainings, refetches and translations are due: crons in the
time zone of the exchange.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

from dtml.markets import Market
from dtml.prices.sessions import (
    is_session,
    last_closed_session,
    next_session,
    session_close,
    usual_week,
)

DELAY_MINUTES = 150  # from the usual close to the night: by then the source has the day's bars
DELAY = timedelta(minutes=DELAY_MINUTES)
TRAINING = "0 6 * * 6"  # Saturday morning, after a whole week of sessions
REFETCH = "0 4 1 * *"  # once a month, to find restatements older than a night looks for

Work = Literal["night", "training", "refetch", "watch", "translations"]


@dataclass(frozen=True)
class Schedule:
    """Say what of a market, or of all of them, runs by itself, and when: a cron in a time zone."""

    market: str
    work: Work
    cron: str
    timezone: str


WATCHING = Schedule("all", "watch", "20 * * * *", "UTC")  # the hourly look for nights that are late
# the worker that translates what is queued
TRANSLATING = Schedule("all", "translations", "*/5 * * * *", "UTC")


def schedules_of(
    market: Market, now: datetime, *, delay: timedelta = DELAY, cron: str | None = None
) -> list[Schedule]:
    """Return every schedule of a market, no training for a fixed model; `cron`
    replaces that of its nights.
    """
    zone = usual_week(market.calendar, now.date()).timezone.key
    crons: dict[Work, str] = {"night": cron or night_cron(market, now, delay), "refetch": REFETCH}
    if market.retrain != "never":
        crons["training"] = TRAINING
    return [Schedule(market.name, work, crons[work], zone) for work in crons]


def night_cron(market: Market, now: datetime, delay: timedelta = DELAY) -> str:
    """Return the cron of a market's nights in its exchange's time zone: so long
    after its usual close.
    """
    week = usual_week(market.calendar, now.date())
    due = week.close + delay
    moment = datetime.combine(date.min, time()) + timedelta(seconds=due.seconds)
    # a cron's Sunday is 0
    weekdays = sorted((weekday + 1 + due.days) % 7 for weekday in week.weekdays)
    return f"{moment.minute} {moment.hour} * * {_field(weekdays)}"


def _field(weekdays: list[int]) -> str:
    if len(weekdays) == 7:
        return "*"
    if len(weekdays) > 1 and weekdays == list(range(weekdays[0], weekdays[-1] + 1)):
        return f"{weekdays[0]}-{weekdays[-1]}"
    return ",".join(map(str, weekdays))


def skip_reason(market: Market, scheduled: datetime) -> str | None:
    """Say why a night due at a moment is skipped: no session closed in the day
    before; None when one did.
    """
    closed = last_closed_session(market.calendar, scheduled)
    if scheduled - session_close(market.calendar, closed) < timedelta(days=1):
        return None
    day = scheduled.astimezone(usual_week(market.calendar, scheduled.date()).timezone).date()
    if is_session(
        market.calendar, day
    ):  # it closes later, so the run was due after midnight for the day before
        day -= timedelta(days=1)
    return f"{day} ({day:%A}) is no session of {market.calendar}"


def next_night(market: Market, now: datetime, delay: timedelta = DELAY) -> datetime:
    """Return when, in UTC, the market's next night runs that is not skipped;
    raises DtmlError after the calendar.
    """
    week = usual_week(market.calendar, now.date())
    session = last_closed_session(market.calendar, now - delay)
    while True:
        session = next_session(market.calendar, session)
        if session.weekday() not in week.weekdays:
            continue
        local = datetime.combine(session, time()) + week.close + delay
        moment = local.replace(tzinfo=week.timezone).astimezone(UTC)
        if moment > now:
            return moment
