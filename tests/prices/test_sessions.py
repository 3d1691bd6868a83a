"""Sessions of real exchanges on known days; the minute at which a session counts as closed."""

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import exchange_calendars
import pandas as pd
import pytest

from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import CALENDARS, Calendar
from dtml.prices.sessions import (
    is_session,
    last_closed_session,
    last_known_day,
    next_known_session,
    next_session,
    previous_session,
    require_session,
    session_close,
    session_open,
    sessions_a_year,
    sessions_between,
    sessions_up_to,
    usual_week,
)
from tests.support.calendars import end_calendar

NEW_YORK = ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("calendar", "day"),
    [
        ("XNYS", date(2012, 10, 29)),  # hurricane Sandy
        ("XNYS", date(2025, 1, 9)),  # mourning for Jimmy Carter
        ("XKRX", date(2026, 6, 3)),  # elections
        ("XKRX", date(2026, 7, 17)),  # Constitution Day
        ("XNYS", date(2024, 3, 2)),  # a Saturday
    ],
)
def test_an_exchange_that_was_shut_had_no_session(calendar, day):
    assert not is_session(calendar, day)
    assert previous_session(calendar, day) < day < next_session(calendar, day)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calendar", "day", "close"),
    [
        ("XNYS", date(2024, 3, 8), "2024-03-08 21:00"),
        ("XNYS", date(2024, 3, 11), "2024-03-11 20:00"),  # summer time from Sunday on
        ("XNYS", date(2024, 11, 29), "2024-11-29 18:00"),  # 13:00, the day after Thanksgiving
        ("XLON", date(2024, 3, 28), "2024-03-28 16:30"),
        ("XLON", date(2024, 4, 2), "2024-04-02 15:30"),  # summer time, three weeks after New York's
        ("XTKS", date(2024, 11, 1), "2024-11-01 06:00"),
        ("XTKS", date(2024, 11, 5), "2024-11-05 06:30"),  # half an hour longer from that day on
    ],
)
def test_a_session_closes_at_its_own_minute(calendar, day, close):
    assert session_close(calendar, day) == datetime.fromisoformat(close).replace(tzinfo=UTC)
    assert session_close(calendar, day).utcoffset() == timedelta(0)


def test_a_session_opens_at_its_own_minute():
    assert session_open("XNYS", date(2024, 3, 8)) == datetime(2024, 3, 8, 14, 30, tzinfo=UTC)
    assert session_open("XNYS", date(2024, 3, 11)) == datetime(2024, 3, 11, 13, 30, tzinfo=UTC)
    assert session_open("XKRX", date(2024, 4, 11)) == datetime(2024, 4, 11, 0, 0, tzinfo=UTC)
    with pytest.raises(UsageError, match="not a session of XNYS"):
        session_open("XNYS", date(2016, 7, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calendar", "day", "hours", "weekdays"),
    [
        ("XNYS", date(2024, 1, 1), 16.0, range(5)),
        ("XTKS", date(2023, 1, 4), 15.0, range(5)),
        ("XTKS", date(2025, 1, 4), 15.5, range(5)),  # half an hour longer since November 2024
        ("XSAU", date(2024, 1, 1), 15.0, (6, 0, 1, 2, 3)),
        ("24/7", date(2024, 1, 1), 24.0, range(7)),
    ],
)
def test_the_usual_week_is_that_of_the_year_to_come(calendar, day, hours, weekdays):
    usual = usual_week(calendar, day)
    assert usual.close == timedelta(hours=hours)
    assert usual.weekdays == frozenset(weekdays)


@pytest.mark.parametrize(
    ("calendar", "closed_at", "session", "before"),
    [
        ("XNYS", datetime(2024, 3, 8, 16, 30, tzinfo=NEW_YORK), date(2024, 3, 8), date(2024, 3, 7)),
        ("XKRX", datetime(2024, 4, 11, 3, 0, tzinfo=NEW_YORK), date(2024, 4, 11), date(2024, 4, 9)),
        ("XLON", datetime(2024, 12, 24, 13, 0, tzinfo=UTC), date(2024, 12, 24), date(2024, 12, 23)),
        ("XTKS", datetime(2024, 11, 5, 7, 0, tzinfo=UTC), date(2024, 11, 5), date(2024, 11, 1)),
    ],
)
def test_a_session_counts_as_closed_half_an_hour_after_its_close_to_the_minute(
    calendar, closed_at, session, before
):
    assert last_closed_session(calendar, closed_at) == session
    assert last_closed_session(calendar, closed_at.astimezone(UTC) - timedelta(minutes=1)) == before
    assert last_closed_session(calendar, closed_at - timedelta(microseconds=1)) == before


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(UsageError, match="has no time zone"):
        last_closed_session("XNYS", datetime(2024, 3, 8, 17, 0))  # noqa: DTZ001 - the mistake in question


def test_a_day_that_is_no_session_is_the_users_mistake_and_its_neighbours_are_named():
    assert require_session("XNYS", date(2016, 6, 30)) == date(2016, 6, 30)
    expected = r"2016-07-04 \(Monday\).*XNYS:.*2016-07-01 or 2016-07-05"
    with pytest.raises(UsageError, match=expected):
        require_session("XNYS", date(2016, 7, 4))
    with pytest.raises(UsageError, match=expected):
        session_close("XNYS", date(2016, 7, 4))


@pytest.mark.filterwarnings("ignore:Series.values returning")  # of exchange_calendars
def test_where_a_calendar_ends_is_said_and_never_guessed():
    # Lunar holidays are decreed a year at a time; each release of the library knows one more.
    end = exchange_calendars.get_calendar("XSHG").last_session.date()
    after = end + timedelta(days=4)
    assert is_session("XSHG", end)
    assert last_closed_session("XSHG", session_close("XSHG", end) + timedelta(hours=1)) == end
    for question in (
        lambda: next_session("XSHG", end),
        lambda: is_session("XSHG", after),
        lambda: sessions_between("XSHG", end, after),
        lambda: last_closed_session(
            "XSHG", datetime(after.year, after.month, after.day, 8, tzinfo=UTC)
        ),
    ):
        with pytest.raises(DtmlError, match=rf"XSHG ends on {end},.*upgrade") as caught:
            question()
        assert not isinstance(caught.value, UsageError)


@pytest.mark.parametrize("day", [date(2026, 12, 1), date(2026, 12, 30), date(2027, 1, 5)])
def test_the_usual_week_is_the_last_one_known_where_the_calendar_ends(day, monkeypatch):
    long_before = usual_week("XSHG", date(2025, 1, 2))
    end_calendar(monkeypatch, "XSHG", date(2026, 12, 31))
    assert usual_week("XSHG", day) == long_before
    assert usual_week("XSHG", day).weekdays == frozenset(range(5))


def test_a_calendar_that_cannot_begin_in_1990_begins_where_it_can():
    assert sessions_between("XTKS", date(1997, 1, 6), date(1997, 1, 6)).size == 1
    with pytest.raises(UsageError, match=r"XTKS begins .*1997-01-06, after 1990-01-04"):
        is_session("XTKS", date(1990, 1, 4))
    with pytest.raises(UsageError, match="begins on"):
        previous_session("XTKS", date(1997, 1, 6))
    with pytest.raises(UsageError, match="begins on"):
        last_closed_session("XNYS", datetime(1980, 1, 4, tzinfo=UTC))


def test_an_unknown_calendar_is_the_users_mistake():
    with pytest.raises(UsageError, match="unknown exchange calendar 'XXXX'"):
        is_session("XXXX", date(2024, 3, 8))


def test_a_market_s_file_adds_the_sessions_that_a_calendar_does_not_know_yet(monkeypatch):
    end_calendar(monkeypatch, "XSHG", date(2025, 12, 31))
    given = Calendar(
        code="XSHG",
        known_to=date(2026, 3, 31),
        holidays=(date(2025, 12, 30), date(2026, 1, 1), date(2026, 1, 2)),
        extra=(date(2026, 1, 4),),
    )
    assert str(given) == "XSHG"
    assert last_known_day(given) == date(2026, 3, 31)
    assert next_known_session("XSHG", date(2025, 12, 31)) is None
    assert next_session(given, date(2025, 12, 31)) == date(2026, 1, 4)  # a Sunday that is worked
    assert next_session(given, date(2026, 1, 4)) == date(2026, 1, 5)
    assert next_session(given, date(2025, 12, 29)) == date(2025, 12, 31)
    assert next_session(given, date(2026, 1, 9)) == date(2026, 1, 12)
    assert session_open(given, date(2026, 1, 5)) == datetime(2026, 1, 5, 1, 30, tzinfo=UTC)
    assert session_close(given, date(2026, 1, 5)) == datetime(2026, 1, 5, 7, 0, tzinfo=UTC)
    assert session_close(given, date(2025, 12, 31)) == session_close("XSHG", date(2025, 12, 31))
    with pytest.raises(DtmlError, match="XSHG ends on 2026-03-31"):
        next_session(given, date(2026, 3, 31))


def test_sessions_of_a_market_s_file_keep_to_the_clock_of_summer():
    known = last_known_day("XNYS")
    given = Calendar(code="XNYS", known_to=date(known.year + 2, 12, 31))
    for month, hour in ((1, 21), (7, 20)):
        day = next_session(given, date(known.year + 2, month, 10))
        assert session_close(given, day).hour == hour


def test_a_year_has_the_sessions_of_its_calendar():
    assert [sessions_a_year(code) for code in ("XNYS", "XTKS", "24/7")] == [252, 244, 365]
    weekends = tuple(pd.date_range("2015-01-01", "2024-12-31", freq="W-SAT").date)
    assert sessions_a_year(Calendar(code="XNYS", extra=weekends)) == 304


def test_a_year_has_sessions_where_the_calendar_begins_after_the_years_that_are_counted():
    assert [sessions_a_year(code) for code in ("AIXK", "XSAU", "XTAE")] == [245, 249, 259]
    assert sessions_a_year(Calendar(code="XTAE")) == 259


@pytest.mark.slow
@pytest.mark.soak
def test_the_codes_that_are_offered_are_those_that_can_be_built():
    """Each from the first day that can be: the month before it cannot, or is before 1990."""
    names = exchange_calendars.get_calendar_names(include_aliases=False)
    for code in sorted({*names, *CALENDARS} - {"us_futures"}):  # a code of the user cannot be that
        try:
            first = sessions_up_to(code, date(2026, 11, 24))[0]
        except (NotImplementedError, ValueError):
            assert code not in CALENDARS
        else:
            assert code in CALENDARS
            if first > pd.Timestamp("1990-01-31"):
                with pytest.raises(ValueError, match=code if code != "XTAE" else "not sessions"):
                    exchange_calendars.get_calendar(code, start=first - pd.Timedelta(days=30))


@pytest.mark.parametrize("page", ["README.md", "dtml/README.md", "flows/README.md", "db/README.md"])
def test_the_codes_on_the_pages_are_offered(page):
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    assert set(re.findall(r"\bX[A-Z]{3}\b", text)) <= CALENDARS
