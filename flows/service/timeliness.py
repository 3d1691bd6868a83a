"""Say whether the nights of a market come in time, and when the next one is due."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection

from db.read import read_row, read_value
from db.rows.nights import COMPLETE
from dtml.errors import DtmlError
from dtml.markets import Market
from dtml.pages.figures import count, duration
from dtml.prices.sessions import (
    last_closed_session,
    next_known_session,
    next_session,
    previous_session,
    session_close,
    session_open,
    usual_week,
)
from flows.service.schedules import DELAY, next_cron, next_night, serving_of

NIGHTLY = timedelta(days=31)  # without a night for longer, a market that nobody serves is history
TOLERANCE = timedelta(hours=2)  # until a night is late: one that cannot fetch is retried for 65 min


T = TypeVar("T")


@dataclass(frozen=True)
class Due:
    """Name a session and the moment for which its night is scheduled."""

    as_of: date
    since: datetime


@dataclass(frozen=True, kw_only=True)
class Timeliness:
    """How late the nights of a market are; None where exchange and calendar do not tell.

    `as_of`, `outcome`, `finished_at` and `scheduled_at` are of its last night, whose session opens
    at `opens_at`. `is_nightly`: a running `dtml serve` serves it, or that night is of the last
    month; other markets are never late. `due` is the last night that should be complete,
    `TOLERANCE` after its moment; `missing` the first that is not, `late_seconds` ago. `next_run` is
    the next night's moment.
    """

    market: str
    as_of: date | None = None
    outcome: str | None = None
    is_nightly: bool = False
    finished_at: datetime | None = None
    due: Due | None = None
    missing: Due | None = None
    late_seconds: float | None = None
    scheduled_at: datetime | None = None
    opens_at: datetime | None = None
    next_run: datetime | None = None

    @property
    def is_late(self) -> bool:
        """Return whether a night is missing since at least `TOLERANCE`."""
        return self.late_seconds is not None and self.late_seconds >= TOLERANCE.total_seconds()

    @property
    def late_message(self) -> str | None:
        """Return which night is late and what to do, in one line; None where none is."""
        if self.missing is None or not self.is_late:
            return None
        wait = "when it has ended, " if self.outcome == "running" else ""
        return (
            f"night of {self.missing.as_of} is not complete, due since "
            f"{moment(self.missing.since)}; the last night, of {self.as_of}, is {self.outcome}; "
            f"{wait}run `dtml nightly {self.market} --catch-up`, with --prices FILE if its prices "
            "come from files"
        )

    @property
    def ended_after(self) -> timedelta | None:
        """Return how long after it was due the last night ended."""
        if self.finished_at is None or self.scheduled_at is None:
            return None
        return self.finished_at - self.scheduled_at

    @property
    def is_late_end(self) -> bool:
        """Return whether the last night ended at least `TOLERANCE` after it was due."""
        return self.ended_after is not None and self.ended_after >= TOLERANCE

    @property
    def is_in_time(self) -> bool | None:
        """Return whether the last night ended before the session that it predicts opened."""
        if self.finished_at is None or self.opens_at is None:
            return None
        return self.finished_at < self.opens_at

    @property
    def ended(self) -> str:
        """Say how long after it was due the last night ended, and if late, whether in time."""
        after = self.ended_after
        if after is None:
            return ""
        if after < timedelta(0):
            return "before it was due"
        if not self.is_late_end:
            return f"on time, {duration(after.total_seconds())} after it was due"
        opened = {True: " but before the open", False: ", after the open", None: ""}
        days = f"{count(after.days)} days"
        long = duration(after.total_seconds()) if after < timedelta(days=2) else days
        return f"{long} late{opened[self.is_in_time]}"


def moment(when: datetime) -> str:
    """Return a moment as text for people, in UTC and to the minute."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def timeliness(conn: Connection, name: str, market: Market | None, now: datetime) -> Timeliness:
    """Return how late a market's nights are, from views alone; None: unknown definition."""
    last = read_row(conn, "night_log", market=name, order="-as_of")
    complete = read_value(conn, "night_log", "as_of", market=name, status=COMPLETE, order="-as_of")
    as_of: date | None = None if last is None else last["as_of"]
    served = serving_of(name)
    times = Timeliness(
        market=name,
        as_of=as_of,
        outcome=None if last is None else last["status"],
        finished_at=None if last is None else last["finished_at"],
        is_nightly=served is not None or (as_of is not None and now.date() - as_of <= NIGHTLY),
    )
    if market is None:
        return times
    calendar = market.calendar
    delay = DELAY if served is None else served.delay

    def scheduled(session: date) -> Due:
        """Return the first scheduled moment after the close of a session."""
        return Due(session, next_night(market, session_close(calendar, session), delay))

    def last_due() -> Due:
        due = scheduled(last_closed_session(calendar, now - TOLERANCE, grace=timedelta(0)))
        while due.since + TOLERANCE > now:  # closed long enough ago, but scheduled later
            due = scheduled(previous_session(calendar, due.as_of))
        return due

    def next_run() -> datetime:
        if served is None or served.cron is None:
            return next_night(market, now, delay)
        return next_cron(served.cron, usual_week(calendar, now.date()).timezone.key, now)

    times = replace(times, due=_known(last_due), next_run=_known(next_run))
    if as_of is None:
        return times
    with suppress(DtmlError):
        session = next_known_session(calendar, complete) if complete else as_of
        late_seconds = 0.0
        missing: Due | None = None
        if session is not None and times.is_nightly and times.due is not None:
            missing = scheduled(session)
            late_seconds = max(0.0, (now - missing.since).total_seconds())
        times = replace(times, missing=missing, late_seconds=late_seconds)
    return replace(
        times,
        scheduled_at=_known(lambda: scheduled(as_of).since),
        opens_at=_known(lambda: session_open(calendar, next_session(calendar, as_of))),
    )


def _known(ask: Callable[[], T]) -> T | None:
    """Return what a calendar answers; None where it ends, or begins later."""
    with suppress(DtmlError):
        return ask()
    return None
