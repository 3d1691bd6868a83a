"""Bars that a later one shows to be bad are withdrawn, with their reason, and
past nights stay as they were.
"""

from dataclasses import replace
from datetime import date

import pandas as pd
import pytest
from sqlalchemy import text

from db.engine import reading
from dtml.prices.sessions import next_session
from flows.nightly.context import MarketContext, quotes_of, read_bars
from flows.nightly.fetch import OVERLAP, fetch_bars
from flows.nightly.night import run_night
from flows.replay import Archive, replay_of
from tests.support.nights import AS_OF, BARS, FrameSource

SYMBOL = "F01A"
BAD = 2  # sessions after AS_OF at a hundredth of their prices
PRICES = ["open", "high", "low", "close", "adj_close"]


def sessions(count: int) -> list[date]:
    days = [AS_OF]
    while len(days) < count:
        days.append(next_session("XNYS", days[-1]))
    return days


def in_pence(days: list[date]) -> pd.DataFrame:
    bars = BARS.copy()
    there = (bars["symbol"] == SYMBOL) & bars["session"].isin(pd.DatetimeIndex(days))
    bars.loc[there, PRICES] /= 100
    return bars


def asked(context: MarketContext, sql: str) -> list[tuple[object, ...]]:
    with reading(context.engine) as conn:
        return [(str(row[0])[:10], *row[1:]) for row in conn.execute(text(sql))]


STORED = (
    f"select session from price_latest where symbol = '{SYMBOL}' and session > '{AS_OF}' "
    "order by session"
)
RESTATED = f"select session, reason from price_restatement where symbol = '{SYMBOL}'"


def test_the_second_of_two_bad_bars_is_withdrawn_when_a_good_one_comes_after_them(
    context: MarketContext,
) -> None:
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


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_fetches_that_begin_among_the_bad_bars_find_what_the_one_before_found(
    context: MarketContext,
) -> None:
    days = sessions(OVERLAP + 6)  # each bad bar is the oldest that one of these fetches asks for
    mine = replace(context, source=FrameSource(in_pence(days[1:3])))
    for day in days:
        fetch_bars(mine, day)
    assert asked(mine, STORED) == [(str(day),) for day in days[3:]]
    assert asked(mine, RESTATED) == [(str(days[2]), "brief_jump")]
    told = asked(
        mine,
        f"select session, reason from rejected where symbol = '{SYMBOL}' order by session, reason",
    )
    assert told == [
        (str(days[1]), "brief_jump"),
        (str(days[1]), "unexplained_return"),
        (str(days[2]), "brief_jump"),
    ]
    fetch_bars(mine, days[-1], whole=True)
    assert asked(mine, RESTATED) == [(str(days[2]), "brief_jump")]


@pytest.mark.soak
def test_a_price_that_came_back_has_not_moved_for_those_who_held_it(context: MarketContext) -> None:
    days = sessions(5)
    mine = replace(context, source=FrameSource(in_pence(days[1:3])))
    for day in days:
        fetch_bars(mine, day)
    quotes = quotes_of(mine, read_bars(mine, AS_OF, days[-1]), (SYMBOL,))
    assert not quotes.moved.any()


@pytest.mark.soak
@pytest.mark.slow
def test_nights_before_and_after_a_withdrawal_replay_to_the_last_bit(
    context: MarketContext, archive: Archive
) -> None:
    days = sessions(4)
    mine = replace(context, source=FrameSource(in_pence(days[1:3])))
    for day in days:
        run_night(mine, day)
    assert asked(mine, RESTATED) == [(str(days[2]), "brief_jump")]
    for day in days:
        replay = replay_of(archive, archive.night(day))
        assert (replay.reasons, replay.inputs_equal, len(replay.differing)) == ([], True, 0)
