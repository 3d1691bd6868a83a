"""What a night fetches: a market in parts, a stock that was silent, and bars withdrawn later."""

from dataclasses import replace
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import text

from db.engine import reading
from db.rows import prices
from dtml.prices.sessions import next_session
from flows.nightly import fetch
from flows.nightly.context import read_bars
from flows.nightly.fetch import fetch_bars
from tests.support.bounds import assert_arrays_close_in_float64
from tests.support.nights import AS_OF, BARS, FrameSource, LimitedSource, without

ASKED = (
    (
        "prices",
        "select symbol, session, close, adj_close, source, known_at from price join instrument on "
        "id = instrument_id "
        "where market = :market order by symbol, session, known_at",
    ),
    (
        "rejected",
        "select symbol, session, reason, value from rejected where market = :market order by "
        "symbol, session",
    ),
    ("asked", "select symbol, asked_from from instrument where market = :market order by symbol"),
)
FIRST, THEN = (datetime(2024, 7, day, tzinfo=UTC) for day in (1, 3))
NEXT = date(2024, 7, 2)


def faulty():
    """Bars with a fault that is rejected in two stocks, and a restatement of a
    third after the first fetch.
    """
    bars = without(BARS, ["L02"])
    bars.loc[
        (bars["symbol"] == bars["symbol"].iloc[0])
        & (bars["session"] == pd.Timestamp("2024-05-06")),
        "high",
    ] = 0.01
    bars.loc[
        (bars["symbol"] == "F03A") & (bars["session"] == pd.Timestamp("2024-05-07")), "close"
    ] = np.nan
    return bars


@pytest.mark.soak
def test_a_fetch_in_parts_stores_what_a_fetch_at_once_does(context, monkeypatch):
    """Rejected bars, a restatement with its whole history, and bars that come later."""
    restated = faulty()
    restated.loc[restated["symbol"] == "L03", ["adj_close"]] /= 2
    found = []
    for size in (1_000, 4):
        monkeypatch.setattr(fetch, "SYMBOLS_AT_ONCE", size)
        mine = replace(context, market=replace(context.market, name=f"of{size}"))
        fetch_bars(replace(mine, source=FrameSource(faulty())), AS_OF, FIRST)
        last = fetch_bars(replace(mine, source=FrameSource(restated)), NEXT, THEN)
        assert last.restated == ["L03"]
        with reading(context.engine) as conn:
            rows = {
                what: conn.execute(text(sql), {"market": mine.name}).all() for what, sql in ASKED
            }
        found.append((last.counts, last.asked, rows))
    at_once, in_parts = found
    assert in_parts == at_once
    assert len(at_once[-1]["rejected"]) == 2


def test_a_source_that_stops_answering_is_asked_for_no_further_part(context, monkeypatch):
    monkeypatch.setattr(fetch, "SYMBOLS_AT_ONCE", 4)
    source = LimitedSource(BARS)
    found = fetch_bars(replace(context, source=source), AS_OF)
    assert len(source.asked) == 2
    told = found.outcomes.set_index("symbol")["status"]
    asked = [list(some) for some in source.asked]
    assert set(told[asked[0]]) == {"ok"}
    assert set(told[asked[1]]) == {"rate_limited"}
    assert set(told.drop([*asked[0], *asked[1]])) == {"not_asked"}
    assert found.stored == found.fetched > 0


def test_a_fetch_of_the_whole_history_reaches_to_the_newest_stored_session(context):
    """A restatement changes all that lies on one side of it: half of a history
    would be of two scales.
    """
    fetch_bars(context, NEXT)
    halved = BARS.assign(adj_close=BARS["adj_close"] / 2)
    fetch_bars(replace(context, source=FrameSource(halved)), AS_OF, whole=True)
    stored = read_bars(context, AS_OF, NEXT)[["symbol", "session", "adj_close"]]
    expected = halved.merge(stored[["symbol", "session"]]).sort_values(["symbol", "session"])
    assert set(stored["session"].dt.date) == {AS_OF, NEXT}
    assert_arrays_close_in_float64(stored["adj_close"], expected["adj_close"])


SILENT = "F01A"


WITHOUT = BARS[BARS["symbol"] != SILENT]


def sessions_stored(context, symbol):
    with reading(context.engine) as conn:
        stored = prices.prices(conn, context.name, date(2000, 1, 1), NEXT, symbols=[symbol])
    return sorted(day.date() for day in stored["session"])


def test_a_stock_of_which_the_first_night_heard_nothing_has_its_whole_history_after_the_next(
    context,
):
    fetch_bars(replace(context, source=FrameSource(WITHOUT)), AS_OF)
    assert sessions_stored(context, SILENT) == []
    fetch_bars(replace(context, source=FrameSource(BARS)), NEXT)
    assert len(sessions_stored(context, "F01B")) > 90
    assert sessions_stored(context, SILENT) == sessions_stored(context, "F01B")


SYMBOL = "F01A"
PRICES = ["open", "high", "low", "close", "adj_close"]


def sessions(count):
    days = [AS_OF]
    while len(days) < count:
        days.append(next_session("XNYS", days[-1]))
    return days


def in_pence(days):
    bars = BARS.copy()
    there = (bars["symbol"] == SYMBOL) & bars["session"].isin(pd.DatetimeIndex(days))
    bars.loc[there, PRICES] /= 100
    return bars


def asked(context, sql):
    with reading(context.engine) as conn:
        return [(str(row[0])[:10], *row[1:]) for row in conn.execute(text(sql))]


STORED = (
    f"select session from price_latest where symbol = '{SYMBOL}' and session > '{AS_OF}' "
    "order by session"
)
RESTATED = f"select session, reason from price_restatement where symbol = '{SYMBOL}'"


def test_the_second_of_two_bad_bars_is_withdrawn_when_a_good_one_comes_after_them(context):
    days = sessions(4)
    _, first, second, good = days
    mine = replace(context, source=FrameSource(in_pence([first, second])))
    for day in (AS_OF, first, second):
        fetch_bars(mine, day)
    assert asked(mine, STORED) == [(str(second),)]  # it agrees with the bad bar before it
    before = read_bars(mine, AS_OF, second)
    fetch_bars(mine, good)
    assert asked(mine, STORED) == [(str(good),)]
    assert asked(mine, RESTATED) == [(str(second), "brief_jump")]
    pd.testing.assert_frame_equal(
        read_bars(mine, AS_OF, second, before["known_at"].max().to_pydatetime()), before
    )


def test_a_bad_bar_is_rejected_again_by_the_fetch_that_begins_with_it(context):
    """That fetch has no bar before it to compare it with."""
    days = sessions(fetch.OVERLAP + 3)
    _, bad, *good = days
    mine = replace(context, source=FrameSource(in_pence([bad])))
    for day in days:
        fetch_bars(mine, day)
    begun = [first[SYMBOL] for first in mine.source.asked]
    assert bad in begun
    assert asked(mine, STORED) == [(str(day),) for day in good]


def test_a_stock_whose_bars_were_all_rejected_is_asked_for_as_a_whole(context):
    wrong = BARS.assign(high=BARS["high"].where(BARS["symbol"] != SILENT, BARS["low"] / 2))
    fetch_bars(replace(context, source=FrameSource(wrong)), AS_OF)
    assert sessions_stored(context, SILENT) == []
    fetch_bars(replace(context, source=FrameSource(BARS)), NEXT)
    assert sessions_stored(context, SILENT) == sessions_stored(context, "F01B")
