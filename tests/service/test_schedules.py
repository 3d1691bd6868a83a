"""When nights are due, in the exchange's own time; what a scheduled run does,
and why it does nothing.
"""

import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from db.connection.locks import market_lock
from db.engine import reading
from db.read import read_row
from dtml.markets import load_market, market_names
from dtml.prices.sessions import last_closed_session, session_close, sessions_between
from flows.markets.opened import RunRequest
from flows.nightly.night import directly, run_night
from flows.service import flows as scheduled
from flows.service.schedules import DELAY, next_night, night_cron, schedules_of, skip_reason
from tests.support.nights import AS_OF, BARS, FrameSource, LimitedSource, after_nights, without

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(text, zone):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


@pytest.mark.parametrize(
    ("market", "cron", "zone"),
    [
        ("sp500", "30 18 * * 1-5", "America/New_York"),
        ("ftse100", "0 19 * * 1-5", "Europe/London"),
        ("kospi200", "0 18 * * 1-5", "Asia/Seoul"),
        ("ni225", "0 18 * * 1-5", "Asia/Tokyo"),
        ("csi300", "30 17 * * 1-5", "Asia/Shanghai"),
    ],
)
def test_a_night_is_due_150_minutes_after_the_usual_close_of_its_exchange(market, cron, zone):
    night = schedules_of(load_market(market), NOW)[0]
    assert (night.work, night.cron, night.timezone) == ("night", cron, zone)


def test_a_night_after_midnight_moves_to_the_next_weekday():
    late = night_cron(load_market("sp500"), NOW, timedelta(hours=9, minutes=15))
    assert late == "15 1 * * 2-6"
    always_open = replace(load_market("sp500"), calendar="24/7")
    assert night_cron(always_open, NOW) == "30 2 * * *"
    # Sunday to Thursday
    assert night_cron(replace(always_open, calendar="XSAU"), NOW) == "30 17 * * 0-4"


def test_a_model_that_never_changes_is_not_trained_by_schedule():
    frozen, renewed = load_market("kdd17"), load_market("kospi200")
    assert [each.work for each in schedules_of(replace(frozen, retrain="never"), NOW)] == [
        "night",
        "refetch",
    ]
    assert {each.work for each in schedules_of(renewed, NOW)} == {"night", "training", "refetch"}


@pytest.mark.parametrize("market", ["kospi200", "sp500"])
def test_every_session_of_two_years_has_closed_when_its_night_is_due(market):
    known = load_market(market)
    now = datetime(2023, 11, 1, tzinfo=UTC)
    for session in sessions_between(known.calendar, date(2023, 11, 1), date(2025, 11, 1)):
        due = next_night(
            known, max(now, session_close(known.calendar, session.date()) - timedelta(hours=4))
        )
        assert last_closed_session(known.calendar, due) == session.date()
        assert skip_reason(known, due) is None


def test_a_korean_night_is_due_well_after_the_close_of_a_session_that_ends_late():
    # On the day of the entrance exam all begins an hour later; exchange_calendars does not know it.
    exam = date(2026, 11, 19)
    late_close = at("2026-11-19 16:30", "Asia/Seoul")
    due = next_night(load_market("kospi200"), session_close("XKRX", exam))
    assert due >= late_close + timedelta(minutes=90)


@pytest.mark.parametrize(
    ("market", "after", "due"),
    [
        (
            "sp500",
            "2026-03-06 22:00 America/New_York",
            "2026-03-09 22:30",
        ),  # summer time begins on the 8th
        (
            "sp500",
            "2026-10-30 22:00 America/New_York",
            "2026-11-02 23:30",
        ),  # and ends on 1 November
        ("ftse100", "2026-03-27 22:00 Europe/London", "2026-03-30 18:00"),
        ("ftse100", "2026-10-23 22:00 Europe/London", "2026-10-26 19:00"),
        (
            "sp500",
            "2026-11-25 22:00 America/New_York",
            "2026-11-27 23:30",
        ),  # Thanksgiving; a half day after it
        (
            "sp500",
            "2026-12-24 12:00 America/New_York",
            "2026-12-24 23:30",
        ),  # a half day keeps its hour
        (
            "sp500",
            "2026-12-24 17:00 America/New_York",
            "2026-12-24 23:30",
        ),  # also when it has long closed
        ("sp500", "2026-12-24 22:00 America/New_York", "2026-12-28 23:30"),
        ("kospi200", "2026-06-02 20:00 Asia/Seoul", "2026-06-04 09:00"),  # elections
        ("ni225", "2026-11-20 20:00 Asia/Tokyo", "2026-11-24 09:00"),  # Labour Thanksgiving
        ("sp500", "2026-11-23 18:29 America/New_York", "2026-11-23 23:30"),
        ("sp500", "2026-11-23 18:30 America/New_York", "2026-11-24 23:30"),
    ],
)
def test_the_next_night_is_that_of_the_next_session_at_its_local_hour(market, after, due):
    moment, zone = after.rsplit(" ", 1)
    assert next_night(load_market(market), at(moment, zone)) == at(due, "UTC")


@pytest.mark.parametrize(
    ("market", "due", "day"),
    [
        ("sp500", "2026-11-26 18:30 America/New_York", "2026-11-26 (Thursday)"),
        ("sp500", "2026-12-25 18:30 America/New_York", "2026-12-25 (Friday)"),
        (
            "sp500",
            "2026-11-27 03:00 America/New_York",
            "2026-11-26 (Thursday)",
        ),  # due after midnight
        ("kospi200", "2026-06-03 18:00 Asia/Seoul", "2026-06-03 (Wednesday)"),
        ("ni225", "2026-11-23 18:00 Asia/Tokyo", "2026-11-23 (Monday)"),
        ("sp500", "2026-11-21 18:30 America/New_York", "2026-11-21 (Saturday)"),
    ],
)
def test_a_night_due_on_a_day_without_a_session_is_skipped_by_name(market, due, day):
    moment, zone = due.rsplit(" ", 1)
    known = load_market(market)
    reason = skip_reason(known, at(moment, zone))
    assert re.match(f"{re.escape(day)} .*not a session .*{known.calendar}$", str(reason))


DUE = session_close("XNYS", AS_OF) + DELAY


@pytest.fixture
def due(monkeypatch):
    """The moment for which a run of this process was scheduled; its stages are
    plain calls and leave no pages.
    """
    monkeypatch.setattr(scheduled, "_due", lambda: DUE)
    monkeypatch.setattr(scheduled, "as_task", directly)
    monkeypatch.setattr(scheduled, "leave_artifact", lambda _context, _night: None)
    return DUE


def ended(context, monkeypatch, *waits, any_day=False):
    monkeypatch.setattr(scheduled, "open_context", lambda _request: context)
    return scheduled.scheduled_night.fn(RunRequest(context.name), None, waits, any_day=any_day)


def status(engine, as_of):
    with reading(engine) as conn:
        row = read_row(conn, "night_log", market="simulated", as_of=as_of)
    return None if row is None else str(row["status"])


def test_a_scheduled_night_is_that_of_its_hour_and_a_second_run_says_that_it_is_complete(
    context, due, monkeypatch
):
    first = ended(context, monkeypatch)
    assert (first.name, str(first.message)[:10]) == ("Completed", str(AS_OF))
    assert status(context.engine, AS_OF) == "complete"
    again = ended(context, monkeypatch)
    assert again.name == "Skipped"
    assert re.search(f"{AS_OF} .*complete already$", str(again.message))
    assert again.is_completed()


def test_a_night_scheduled_on_a_holiday_is_skipped_and_touches_nothing(context, monkeypatch):
    monkeypatch.setattr(scheduled, "_due", lambda: at("2024-07-04 18:30", "America/New_York"))
    state = ended(context, monkeypatch)
    assert state.name == "Skipped"
    assert re.match(r"2024-07-04 \(Thursday\).*not a session .*XNYS$", str(state.message))
    assert status(context.engine, date(2024, 7, 3)) is None


def test_a_night_whose_source_limits_the_rate_is_tried_again_after_each_wait(
    context, due, monkeypatch
):
    waited = []
    monkeypatch.setattr(scheduled.time, "sleep", waited.append)
    state = ended(
        replace(context, source=LimitedSource(BARS, limited=lambda asked: asked <= 2)),
        monkeypatch,
        300,
        900,
        2700,
    )
    assert state.name == "Completed"
    assert waited == [300, 900]
    assert status(context.engine, AS_OF) == "complete"


def test_a_night_whose_bars_do_not_exist_is_not_tried_again(context, due, monkeypatch):
    source = FrameSource(without(BARS, [context.market.index.symbol]))
    state = ended(replace(context, source=source), monkeypatch, 10_000)
    assert state.is_failed()
    assert "no good bar of" in str(state.message)


@pytest.mark.soak
def test_a_refused_night_of_the_past_does_not_fail_the_night_of_today(context, due, monkeypatch):
    run_night(context, date(2024, 6, 26))
    lacking = date(2024, 6, 27)
    source = FrameSource(without(BARS, [context.market.index.symbol], lacking))
    state = ended(replace(context, source=source), monkeypatch)
    assert state.name == "Completed"
    assert re.search(f"night {lacking} .*simulated refused", str(state.message))
    assert [status(context.engine, day) for day in (lacking, AS_OF)] == ["refused", "complete"]
    # nothing of today's to do, or to wait for
    again = ended(replace(context, source=source), monkeypatch, 10_000)
    assert again.name == "Skipped"
    assert re.search(f"{AS_OF} .*complete already; refused:.*{lacking}", str(again.message))


@pytest.mark.soak
def test_no_scheduled_work_begins_beside_another_process_at_the_market(context, due, monkeypatch):
    with market_lock(context.engine, context.name):
        night = ended(context, monkeypatch)
    assert night.name == "Skipped"
    assert re.search("another process .*simulated", str(night.message))
    after_nights(context, AS_OF)
    monkeypatch.setattr(scheduled, "open_stored_context", lambda _request: context)
    request = RunRequest(context.name)
    for work in (scheduled.scheduled_refetch, scheduled.scheduled_training):
        with market_lock(context.engine, context.name):
            assert work.fn(request).name == "Skipped"
        assert work.fn(request).name == "Completed"


def test_a_source_that_ends_early_has_no_night_after_its_end(context, due, monkeypatch):
    monkeypatch.setattr(FrameSource, "last_session", lambda _source: date(2024, 6, 27))
    state = ended(context, monkeypatch)
    assert (state.name, str(state.message)[:10]) == ("Completed", "2024-06-27")
    assert status(context.engine, AS_OF) is None


def test_every_market_of_the_package_has_a_next_night():
    for name in market_names():
        assert NOW < next_night(load_market(name), NOW) < NOW + timedelta(days=5)
