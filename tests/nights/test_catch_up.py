"""Missed nights: which they are, that each is run once and sees what was known
then; the whole history asked again.
"""

import logging
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from db.connection import locks
from db.connection.locks import market_lock
from db.engine import reading
from db.errors import StoreBusyError
from db.read import read, read_row
from db.rows import runs
from dtml.errors import UsageError
from dtml.markets.definition import Calendar
from dtml.prices.sessions import session_close, sessions_between, sessions_up_to
from flows.markets.stored_night import LIMIT, missed_nights
from flows.nightly.context import Tonight
from flows.nightly.fetch import OVERLAP, fetch_bars
from flows.nightly.night import catch_up, run_night
from flows.nightly.predict import forecast
from flows.nightly.train import load_model, train_model
from flows.settings import reports_folder
from tests.support.nights import (
    AS_OF,
    BARS,
    FrameSource,
    LimitedSource,
    after_nights,
    without,
)
from tests.support.stores import counts

FOLLOWING = [day.date() for day in sessions_between("XNYS", AS_OF, date(2024, 7, 8))[1:]]


def source_of(context):
    assert isinstance(context.source, FrameSource)
    return context.source


def statuses(context):
    with reading(context.engine) as conn:
        nights = read(conn, "night", market=context.name)
    return dict(zip(nights["as_of"].dt.date, nights["status"], strict=True))


def restated(since, before):
    """The bars with the adjusted closes of L01 lowered from one day to before another."""
    bars = BARS.copy()
    session = bars["session"].dt.date
    bars.loc[(bars["symbol"] == "L01") & (session >= since) & (session < before), "adj_close"] *= (
        0.9
    )
    return bars


def test_missed_nights_are_run_in_order_with_one_fetch_and_never_twice(context):
    after_nights(context, AS_OF)
    asked = len(source_of(context).asked)
    done = catch_up(context, FOLLOWING[-1])
    assert [night.row["as_of"] for night in done.nights] == FOLLOWING
    assert done.refused == {}
    assert len(source_of(context).asked) == asked + 1
    assert statuses(context) == dict.fromkeys([AS_OF, *FOLLOWING], "complete")
    rows = counts(context.engine)
    with reading(context.engine) as conn:
        nights = read(conn, "night", market=context.name)
    assert nights["fetched"].iloc[1:-1].eq(0).all()
    assert nights["fetched"].iloc[-1] == 10 * (OVERLAP + len(FOLLOWING))
    assert catch_up(context, FOLLOWING[-1]).nights == []
    assert counts(context.engine) == rows


@pytest.mark.soak
def test_a_refused_night_does_not_keep_the_next_from_running_and_is_named(context):
    after_nights(context, AS_OF)
    lacking = FOLLOWING[1]
    poor = replace(
        context, source=FrameSource(without(BARS, [context.market.index.symbol], lacking))
    )
    done = catch_up(poor, FOLLOWING[-1])
    assert list(done.refused) == [lacking]
    assert re.search(f"{lacking} .*refused: no good bar", done.reason)
    assert [night.row["as_of"] for night in done.nights] == [
        day for day in FOLLOWING if day != lacking
    ]
    assert statuses(context)[lacking] == "refused"


@pytest.mark.soak
def test_a_source_that_fails_refuses_every_missed_night_and_is_asked_once(context):
    after_nights(context, AS_OF)
    limited = LimitedSource(BARS, limited=lambda _: True)
    done = catch_up(replace(context, source=limited), FOLLOWING[2])
    assert list(done.refused) == FOLLOWING[:3]
    assert all("rate_limited" in str(error) for error in done.refused.values())
    assert all(error.may_pass for error in done.refused.values())
    assert len(limited.asked) == 1
    assert catch_up(context, FOLLOWING[2]).refused == {}


def test_a_page_that_cannot_be_written_does_not_keep_the_next_night_from_running(context):
    after_nights(context, AS_OF)
    folder = reports_folder() / context.name
    kept = folder.rename(folder.with_name("kept")) if folder.exists() else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")
    done = catch_up(context, FOLLOWING[1])
    assert list(done.refused) == FOLLOWING[:2]
    assert "next run" in done.reason
    assert statuses(context) == dict.fromkeys([AS_OF, *FOLLOWING[:2]], "complete")
    folder.unlink()
    if kept:
        kept.rename(folder)
    assert [night.row["as_of"] for night in catch_up(context, FOLLOWING[1]).nights] == FOLLOWING[:2]


@pytest.mark.soak
def test_a_night_sees_what_was_known_before_its_session_opened_where_the_store_has_it(context):
    """Its bars were fetched in the evening; the night was not run; a restatement came later."""
    evenings = [session_close("XNYS", day) + timedelta(hours=2) for day in (AS_OF, *FOLLOWING)]
    fetch_bars(context, AS_OF, known_at=evenings[0])
    run_night(context, AS_OF)
    fetch_bars(context, FOLLOWING[0], known_at=evenings[1])
    then = forecast(Tonight(context, FOLLOWING[0]), load_model(context, AS_OF))
    later = replace(context, source=FrameSource(restated(date(2024, 6, 26), FOLLOWING[0])))
    catch_up(later, FOLLOWING[1])
    with reading(context.engine) as conn:
        nights = read(conn, "night", market=context.name)
        made = read(
            conn,
            "prediction",
            market=context.name,
            target=FOLLOWING[1],
            order="target, symbol, made_at",
        )
    assert nights["known_at"].iloc[1] == evenings[1]
    assert (made["probability"].to_numpy() == then.predictions["probability"].to_numpy()).all()
    # its bars came with the catching up
    assert nights["known_at"].iloc[2] > datetime(2026, 1, 1, tzinfo=UTC)


def trained_on_later_revisions(context):
    """Two nights fetched in their evenings, then restated, and a model trained
    as of the first of what is known now.
    """
    evenings = [session_close("XNYS", day) + timedelta(hours=2) for day in (AS_OF, FOLLOWING[0])]
    for day, evening in zip((AS_OF, FOLLOWING[0]), evenings, strict=True):
        fetch_bars(context, day, known_at=evening)
    fetch_bars(
        replace(context, source=FrameSource(restated(date(2024, 1, 2), AS_OF))), FOLLOWING[1]
    )
    return evenings[1], train_model(Tonight(context, AS_OF)).run_id


@pytest.mark.soak
def test_a_night_caught_up_takes_no_model_that_saw_later_revisions(context):
    evening, late = trained_on_later_revisions(context)
    catch_up(context, FOLLOWING[0])
    with reading(context.engine) as conn:
        night = read_row(conn, "night_log", market=context.name, as_of=FOLLOWING[0])
        assert night is not None
        assert night["run_id"] != late
        assert runs.run(conn, night["run_id"])["data_watermark"] == night["known_at"] == evening


def test_a_night_beside_another_process_at_the_market_ends_at_once(context, monkeypatch):
    monkeypatch.setattr(locks, "WAIT_S", 0.1)
    after_nights(context, AS_OF)
    for begin in (catch_up, run_night):
        with (
            market_lock(context.engine, context.name),
            pytest.raises(StoreBusyError, match="another process"),
        ):
            begin(context, FOLLOWING[0])
    assert statuses(context) == {AS_OF: "complete"}


def test_a_fetch_of_the_whole_history_finds_what_was_restated_beyond_the_overlap(context):
    fetch_bars(context, AS_OF)
    old = replace(context, source=FrameSource(restated(date(2024, 2, 1), date(2024, 3, 1))))
    assert fetch_bars(old, FOLLOWING[0]).restated == []
    source_of(old).asked.clear()
    again = fetch_bars(old, FOLLOWING[0], whole=True)
    assert again.restated == ["L01"]
    assert again.stored == 20  # the sessions of February
    (asked,) = source_of(old).asked
    with reading(context.engine) as conn:
        since = read(conn, "instrument", market=context.name, order="symbol").set_index("symbol")[
            "asked_from"
        ]
    assert asked == {symbol: day.date() for symbol, day in since.items()}
    assert fetch_bars(old, FOLLOWING[0], whole=True).stored == 0


def test_no_more_than_the_last_30_sessions_are_caught_up(context):
    after_nights(context, AS_OF)
    last = date(2024, 10, 1)
    expected = [day.date() for day in sessions_up_to("XNYS", last, LIMIT)]
    assert missed_nights(context, last) == expected


def test_a_session_added_after_a_night_predicted_past_it_has_no_night(context, caplog):
    friday, saturday = date(2024, 6, 28), date(2024, 6, 29)
    after_nights(context, friday, AS_OF)
    calendar = Calendar(code="XNYS", extra=(saturday,))
    later = replace(context, market=replace(context.market, calendar=calendar))
    with caplog.at_level(logging.INFO):
        assert missed_nights(later, AS_OF) == []
    assert str(saturday) in caplog.text
    caught_up = catch_up(later, AS_OF)
    assert (caught_up.nights, caught_up.refused) == ([], {})
    with pytest.raises(UsageError, match=str(saturday)):
        run_night(later, saturday)
    assert set(statuses(context)) == {friday, AS_OF}


@pytest.mark.soak
def test_the_missed_nights_are_those_since_the_first_complete_one_that_are_not_complete(context):
    last = FOLLOWING[-1]
    # a market without a night has missed none before it
    assert missed_nights(context, last) == [last]
    run_night(context, AS_OF)
    run_night(context, FOLLOWING[1])
    assert missed_nights(context, last) == [FOLLOWING[0], *FOLLOWING[2:]]
    assert missed_nights(context, AS_OF) == []
    assert missed_nights(context, date(2024, 6, 28)) == [date(2024, 6, 28)]


@pytest.mark.soak
def test_a_training_due_in_a_night_caught_up_sees_no_more_than_the_night(context):
    evening = session_close("XNYS", AS_OF) + timedelta(hours=2)
    fetch_bars(context, AS_OF, known_at=evening)
    fetch_bars(
        replace(context, source=FrameSource(restated(date(2024, 1, 2), AS_OF))), FOLLOWING[0]
    )
    catch_up(context, AS_OF)
    with reading(context.engine) as conn:
        (watermark,) = read(conn, "run", market=context.name, order="created_at, id")[
            "data_watermark"
        ]
    assert watermark == evening
