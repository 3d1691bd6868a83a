"""Trading sessions of an exchange: their days, when they open and close, which closed last."""

import warnings
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

import pandas as pd

from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import AnyCalendar, Calendar

if TYPE_CHECKING:
    from exchange_calendars import ExchangeCalendar

_EARLIEST = "1990-01-01"
# The first day of a calendar that does not say itself when it begins.
_BEGINS = {"XTAE": "2026-01-05"}
# What to do where a calendar ends.
REMEDY = (
    "upgrade exchange_calendars, or add its sessions to calendars.toml in the data folder (to "
    "[sessions] in the market's file, if that file has this table), and restart the service"
)
# The days whose sessions are counted: fixed, so that a figure a year never changes with the day.
_COUNTED = (date(2015, 1, 1), date(2024, 12, 31))
_YEAR = timedelta(days=365)
_RARE = 0.05  # a weekday with a smaller share of the sessions does not count as usual

# Closures that exchange_calendars 4.13.2 still shows as sessions; its issue threads 574 and 583.
_CLOSED = {
    "XKRX": (
        "2026-06-03",  # local elections, a public holiday: the exchange is shut
        "2026-07-17",  # Constitution Day, a public holiday again from 2026
    )
}


@dataclass(frozen=True)
class _Exchange:
    """An exchange: its sessions [n] (naive midnights, ns), their opens and closes [n] (UTC, ns)."""

    code: str
    sessions: pd.DatetimeIndex
    opens: pd.DatetimeIndex
    closes: pd.DatetimeIndex
    timezone: ZoneInfo

    @property
    def first(self) -> date:
        """Return the first session that the calendar knows."""
        return self.sessions[0].date()

    @property
    def last(self) -> date:
        """Return the last session that the calendar knows."""
        return self.sessions[-1].date()


def sessions_between(calendar: AnyCalendar, first: date, last: date) -> pd.DatetimeIndex:
    """Return the sessions of an exchange from first to last, both included: naive midnights.

    Raises UsageError before the calendar begins, DtmlError after it ends.
    """
    if last < first:
        return _exchange(calendar).sessions[:0]
    exchange = _exchange_that_knows(calendar, first, last)
    start = _position(exchange, first)
    stop = _position(exchange, last + timedelta(days=1))
    return exchange.sessions[start:stop]


def sessions_up_to(calendar: AnyCalendar, last: date, count: int | None = None) -> pd.DatetimeIndex:
    """Return the last `count` sessions up to and including a day, or all of the calendar."""
    sessions = sessions_between(calendar, _exchange(calendar).first, last)
    return sessions if count is None else sessions[-count:]


def is_session(calendar: AnyCalendar, day: date) -> bool:
    """Say whether the exchange traded on a day; raises where the calendar does not know the day."""
    return pd.Timestamp(day) in _exchange_that_knows(calendar, day).sessions


def next_session(calendar: AnyCalendar, day: date) -> date:
    """Return the first session strictly after a day; raises DtmlError where the calendar ends."""
    following = day + timedelta(days=1)
    exchange = _exchange_that_knows(calendar, day, following)
    return exchange.sessions[_position(exchange, following)].date()


def next_known_session(calendar: AnyCalendar, day: date) -> date | None:
    """Return the first session strictly after a day; None where the calendar ends before it."""
    if day >= _exchange(calendar).last:
        return None
    return next_session(calendar, day)


def last_known_day(calendar: AnyCalendar) -> date:
    """Return the last session that the calendar of an exchange knows."""
    return _exchange(calendar).last


def previous_session(calendar: AnyCalendar, day: date) -> date:
    """Return the last session strictly before a day; UsageError where the calendar begins."""
    exchange = _exchange_that_knows(calendar, day, day - timedelta(days=1))
    return exchange.sessions[_position(exchange, day) - 1].date()


def session_open(calendar: AnyCalendar, day: date) -> datetime:
    """Return when a session opened, in UTC; UsageError when the day is no session."""
    return _moment(calendar, day, "opens")


def session_close(calendar: AnyCalendar, day: date) -> datetime:
    """Return when a session closed, in UTC, half days included; UsageError as `session_open`."""
    return _moment(calendar, day, "closes")


def _moment(calendar: AnyCalendar, day: date, name: str) -> datetime:
    exchange = _exchange(calendar)
    session = require_session(calendar, day)
    moment: pd.Timestamp = getattr(exchange, name)[_position(exchange, session)]
    return moment.to_pydatetime().astimezone(UTC)


class UsualWeek(NamedTuple):
    """When an exchange usually closes, after local midnight, and its `weekdays` (Monday 0)."""

    close: timedelta
    weekdays: frozenset[int]
    timezone: ZoneInfo


def usual_week(calendar: AnyCalendar, day: date) -> UsualWeek:
    """Return the most common close and weekdays of the year from a day on, or the last that is
    known.

    Raises UsageError for a day before the calendar begins.
    """
    exchange = _exchange(calendar)
    if day < exchange.first:
        raise _error_before_calendar(exchange, day)
    # The day after the year, or after the last session that is known.
    end = min(day + _YEAR, exchange.last + timedelta(days=1))
    start = _position(exchange, end - _YEAR)
    stop = _position(exchange, end)
    shares = exchange.sessions[start:stop].day_of_week.value_counts(normalize=True)
    # A make-up session on a weekday that usually has none does not make that weekday usual: the
    # night of such a session is caught up later.
    usual = frozenset(int(weekday) for weekday in shares.index[shares > _RARE])
    return UsualWeek(
        close=_usual_time(exchange, exchange.closes, slice(start, stop)),
        weekdays=usual,
        timezone=exchange.timezone,
    )


def sessions_a_year(calendar: AnyCalendar) -> int:
    """Return the mean sessions of a year, over ten years or the first: 252 on XNYS, 365 on 24/7."""
    exchange = _exchange(calendar)
    first = max(_COUNTED[0], exchange.first)
    last = min(max(_COUNTED[1], first + _YEAR), exchange.last)
    days = (last - first).days + 1
    return round(len(sessions_between(calendar, first, last)) * 365.25 / days)


def last_closed_session(
    calendar: AnyCalendar, now: datetime, grace: timedelta = timedelta(minutes=30)
) -> date:
    """Return the last session whose close lies at least `grace`, for auction and source, before
    now.

    Raises UsageError for a naive now or before the first close, DtmlError after the calendar.
    """
    if now.tzinfo is None:
        raise UsageError(f"the time {now} has no time zone; add one, such as {now}+00:00")
    exchange = _exchange(calendar)
    local_day = now.astimezone(exchange.timezone).date()
    # Called for the errors that it raises: where the calendar ends before now, sessions that it
    # does not know may have closed.
    _exchange_that_knows(calendar, local_day)
    latest_close = pd.Timestamp(now.astimezone(UTC) - grace)
    closed_sessions = int(exchange.closes.searchsorted(latest_close, side="right"))
    if closed_sessions == 0:
        raise _error_before_calendar(exchange, now.date())
    return exchange.sessions[closed_sessions - 1].date()


def require_session(calendar: AnyCalendar, day: date) -> date:
    """Return the day if the exchange traded on it; else raise UsageError with the nearest ones."""
    if is_session(calendar, day):
        return day
    exchange = _exchange(calendar)
    position = _position(exchange, day)
    neighbours = exchange.sessions[max(position - 1, 0) : position + 1]
    near = " or ".join(str(session.date()) for session in neighbours)
    raise UsageError(f"{day} ({day:%A}) is not a session of {calendar}: choose the nearest, {near}")


@cache
def _exchange(calendar: AnyCalendar) -> _Exchange:
    """Build an exchange's sessions, once a process: XKRX alone takes a second or two.

    As exchange_calendars knows them, without those of `_CLOSED`, and with a user's.
    """
    if isinstance(calendar, Calendar):
        return _with_given_sessions(_exchange(calendar.code), calendar)
    with warnings.catch_warnings():
        # pandas 3 warns once for every calendar
        warnings.simplefilter("ignore", DeprecationWarning)
        known = _calendar(calendar)
    sessions = pd.DatetimeIndex(known.sessions).as_unit("ns")
    opens = pd.DatetimeIndex(known.opens).as_unit("ns")
    closes = pd.DatetimeIndex(known.closes).as_unit("ns")
    traded = ~sessions.isin(pd.DatetimeIndex(_CLOSED.get(calendar, ())))
    return _Exchange(
        code=calendar,
        sessions=sessions[traded],
        opens=opens[traded],
        closes=closes[traded],
        timezone=ZoneInfo(str(known.tz)),
    )


def _with_given_sessions(library: _Exchange, calendar: Calendar) -> _Exchange:
    """Return the library's exchange with the sessions that a user's calendar adds and removes.

    After the library's last session, each usual weekday up to `known_to` is added. Then `holidays`
    are removed and `extra` days added. New sessions open and close at the usual local times.
    """
    week = usual_week(calendar.code, library.last)  # of the last year that the library knows
    # None where the user's calendar knows no later day.
    following = pd.date_range(library.last + timedelta(days=1), calendar.known_to or library.last)
    usual = following[following.day_of_week.isin(list(week.weekdays))]
    holidays = pd.DatetimeIndex(calendar.holidays)
    sessions = library.sessions.union(usual).difference(holidays)
    sessions = sessions.union(pd.DatetimeIndex(calendar.extra)).as_unit("ns")
    last_year = slice(-250, None)
    return replace(
        library,
        sessions=sessions,
        opens=_moments(
            library, library.opens, sessions, _usual_time(library, library.opens, last_year)
        ),
        closes=_moments(library, library.closes, sessions, week.close),
    )


def _usual_time(exchange: _Exchange, moments: pd.DatetimeIndex, part: slice) -> timedelta:
    """Return the most common time from midnight to the opens, or closes, of a part of sessions."""
    local = moments[part].tz_convert(exchange.timezone).tz_localize(None)
    usual: pd.Timedelta = (local - exchange.sessions[part]).value_counts().index[0]
    return usual.to_pytimedelta()


def _moments(
    library: _Exchange, moments: pd.DatetimeIndex, sessions: pd.DatetimeIndex, usual: timedelta
) -> pd.DatetimeIndex:
    """Return when sessions open or close, in UTC: the library's `moments`, else as `usual`."""
    library_moments = pd.Series(moments, index=library.sessions).reindex(sessions)
    local = (sessions + usual).tz_localize(library.timezone).tz_convert("UTC")
    filled = library_moments.fillna(pd.Series(local, index=sessions))
    return pd.DatetimeIndex(filled).as_unit("ns")


def _calendar(code: str) -> "ExchangeCalendar":
    import exchange_calendars

    try:
        return exchange_calendars.get_calendar(code, start=_BEGINS.get(code, _EARLIEST))
    except exchange_calendars.errors.InvalidCalendarName as problem:
        raise UsageError(f"unknown exchange calendar {code!r}; give one such as XNYS") from problem
    except ValueError:  # the calendar begins later: Tokyo's in 1997
        # A month is quickly built, and knows the first day from which a calendar can be.
        month = exchange_calendars.get_calendar(code, start="2025-01-02", end="2025-01-31")
        return exchange_calendars.get_calendar(code, start=month.bound_min())


def _position(exchange: _Exchange, day: date) -> int:
    return int(exchange.sessions.searchsorted(pd.Timestamp(day), side="left"))


def _exchange_that_knows(calendar: AnyCalendar, *days: date) -> _Exchange:
    """Return an exchange; raises UsageError before its calendar begins, DtmlError after it ends."""
    exchange = _exchange(calendar)
    for day in days:
        if day < exchange.first:
            raise _error_before_calendar(exchange, day)
        if day > exchange.last:
            # "Before", as `next_session` asks about the day after the one that was chosen.
            raise DtmlError(
                f"the calendar {exchange.code} ends on {exchange.last}, before {day}: "
                f"{REMEDY}; or choose a day before {exchange.last}"
            )
    return exchange


def _error_before_calendar(exchange: _Exchange, day: date) -> UsageError:
    return UsageError(
        f"the calendar {exchange.code} begins on {exchange.first}, after {day}: choose a later day"
    )
