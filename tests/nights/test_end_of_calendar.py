"""The night of the last session that a calendar knows, and what is told before and after it."""

import re
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from db.engine import reading
from db.read import read, read_row
from db.rows import prices
from db.rows import scores as stored_scores
from dtml.errors import UsageError
from dtml.markets import load_market
from dtml.markets.definition import Calendar
from dtml.prices.sessions import next_session, session_close
from flows.markets.files import read_market
from flows.markets.opened import choose_as_of
from flows.markets.stored_night import missed_nights
from flows.nightly.night import NightRefusedError, catch_up, run_night
from flows.service.alerts import watch_markets
from flows.settings import data_folder
from tests.support.calendars import end_calendar
from tests.support.nights import AS_OF, after_nights

CALENDAR = "XNYS"
LAST = next_session(CALENDAR, AS_OF)


@pytest.mark.soak
def test_the_night_of_the_last_known_session_fetches_and_scores_and_says_what_it_lacks(
    context, monkeypatch
):
    after_nights(context, AS_OF)
    with monkeypatch.context() as ended:
        end_calendar(ended, CALENDAR, LAST)
        said = f"{CALENDAR} .*no session after {LAST}"
        with pytest.raises(NightRefusedError, match=said):
            run_night(context, LAST)
        with reading(context.engine) as conn:
            night = read_row(conn, "night_log", market=context.name, as_of=LAST)
            bars = prices.prices(conn, context.name, LAST, LAST)
            scored = stored_scores.running_scores(conn, context.name)
        assert night is not None
        assert (night["status"], night["target"], night["predictions"]) == ("refused", None, 0)
        assert night["fetched"] > 0
        assert set(bars["symbol"]) == {*context.market.symbols, context.market.index.symbol}
        assert scored["target"].max().date() == LAST
    # the next year's sessions are known: the night is run again, and the one after it
    following = next_session(CALENDAR, LAST)
    assert missed_nights(context, following) == [LAST, following]
    caught_up = catch_up(context, following)
    assert caught_up.refused == {}
    assert [night.row["target"] for night in caught_up.nights] == [
        following,
        next_session(CALENDAR, following),
    ]


def test_a_night_can_be_run_of_a_session_that_a_calendar_knew_last(context, monkeypatch):
    end_calendar(monkeypatch, CALENDAR, LAST)
    at_the_close = session_close(CALENDAR, LAST)
    a_week_later = datetime(LAST.year, LAST.month, LAST.day + 7, tzinfo=UTC)
    assert choose_as_of(context, None, at_the_close.replace(hour=23)) == LAST
    for asked in (AS_OF, LAST):
        assert choose_as_of(context, asked, a_week_later) == asked


def test_an_alert_tells_once_that_a_calendar_ends(context, monkeypatch):
    after_nights(context, AS_OF)
    end = date(2024, 8, 30)
    end_calendar(monkeypatch, CALENDAR, end)
    markets = {context.name: context.market, "kospi200": load_market("kospi200")}
    sixty_one_days_before = datetime(2024, 6, 30, 12, tzinfo=UTC)
    for now, expected in (
        (sixty_one_days_before, []),
        (datetime(2024, 7, 2, 1, tzinfo=UTC), ["calendar"]),
        (datetime(2024, 7, 2, 2, tzinfo=UTC), ["calendar"]),
        (datetime(2024, 9, 15, tzinfo=UTC), ["calendar"]),
    ):
        judged = watch_markets(context.engine, markets, now)
        assert [status.market for status in judged] == list(markets)
        with reading(context.engine) as conn:
            alerts = read(conn, "alert", order="raised_at, market, as_of, kind")
        assert alerts["kind"].tolist() == expected, now
    assert alerts["as_of"].dt.date.tolist() == [end]
    assert re.search("upgrade exchange_calendars.* calendars.toml", alerts["message"].item())


def test_sessions_of_the_market_s_file_go_on_where_the_calendar_ends(context, monkeypatch):
    after_nights(context, AS_OF)
    end_calendar(monkeypatch, CALENDAR, LAST)
    given = Calendar(code=CALENDAR, known_to=date(2024, 7, 31), holidays=(date(2024, 7, 3),))
    market = replace(context.market, calendar=given)
    night = run_night(replace(context, market=market), LAST)
    assert night.row["target"] == date(2024, 7, 4)
    assert night.row["predictions"] == len(market.symbols)


CALENDARS = """
[XSHG]
known_to = 2027-06-30
holidays = [2027-01-01, 2027-02-08]
source = "a test"
"""


def test_a_market_of_the_package_goes_on_by_the_calendars_of_the_data_folder(monkeypatch):
    last = date(2026, 12, 31)
    end_calendar(monkeypatch, "XSHG", last)
    data_folder().mkdir(parents=True, exist_ok=True)
    file = data_folder() / "calendars.toml"
    file.write_text(CALENDARS)
    calendar = read_market("csi300").calendar
    assert next_session(calendar, last) == date(2027, 1, 4)
    assert next_session(calendar, date(2027, 2, 5)) == date(2027, 2, 9)
    assert read_market("kospi200").calendar == "XKRX"
    for text, complaint in (
        (CALENDARS.replace("XSHG", "SHANGHAI"), r"calendars\.toml: SHANGHAI: unknown"),
        (CALENDARS.replace("source", "because"), r"calendars\.toml: XSHG\.because: unknown key"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=complaint):
            read_market("csi300")
