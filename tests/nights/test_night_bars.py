"""The prices of a night: read once, and cut for every stage as a read of that stage alone would."""

from dataclasses import replace
from datetime import date
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import event

from db.engine import reading, transaction
from db.rows import prices
from dtml.prices.sessions import next_session, sessions_up_to
from flows.nightly.context import USUAL_SESSIONS, MarketContext, Tonight
from flows.nightly.fetch import OVERLAP
from flows.nightly.night import run_night
from tests.night_walk import ways_to_the_equations
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights

AFTER = next_session("XNYS", AS_OF)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[date, date]]:
    """The spans of every read of stored prices, in their order."""
    made: list[tuple[date, date]] = []
    known_bars = prices.known_bars

    def counted(conn: Any, market: str, first: date, last: date, **options: Any) -> Any:
        made.append((first, last))
        return known_bars(conn, market, first, last, **options)

    monkeypatch.setattr(prices, "known_bars", counted)
    return made


def test_a_night_opens_the_prices_once_after_its_fetch(
    context: MarketContext, reads: list[tuple[date, date]]
) -> None:
    after_nights(context, AS_OF)
    connections = []
    event.listen(context.engine, "checkout", lambda *_: connections.append(1))
    reads.clear()
    night = run_night(context, AFTER)
    assert night.scored is not None
    assert night.scored.outcomes == len(context.market.symbols)
    of_the_night = sessions_up_to("XNYS", AFTER, USUAL_SESSIONS)[0].date()
    # The fetch compares the new bars with the last ones stored, when it checks and when it stores
    # them. A training reads what the night has read: rankers are trained, for want of any.
    last_stored, last_stored_again, *later = [pd.Timestamp(first).date() for first, _ in reads]
    first_compared = sessions_up_to("XNYS", AS_OF, OVERLAP)[0].date()
    assert last_stored == last_stored_again == first_compared
    assert later == [of_the_night]
    of_the_lock = 1 if context.engine.dialect.name == "postgresql" else 0  # on SQLite it is a file
    assert len(connections) <= 44 + of_the_lock


def test_a_night_that_is_caught_up_opens_the_prices_once_for_each_of_its_two_moments(
    context: MarketContext, reads: list[tuple[date, date]]
) -> None:
    after_nights(context, AS_OF)
    with reading(context.engine) as conn:
        known_at = prices.prices(conn, context.name, AS_OF, AS_OF)["known_at"].max()
    later = replace(context, source=FrameSource(BARS))
    run_night(later, AFTER)
    reads.clear()
    bars = Tonight(context, AS_OF, known_at.to_pydatetime())
    for first in (AS_OF, date(2024, 6, 3), date(2024, 5, 1)):
        bars.known(first)
        bars.newest(first)
    assert len(reads) == 2


def test_a_cut_is_what_a_read_of_the_same_sessions_gives(context: MarketContext) -> None:
    """To the last bit, and dated alike where a bar was withdrawn at the edge of the cut."""
    after_nights(context, AS_OF)
    sessions = sessions_up_to("XNYS", AS_OF, 40)
    symbol = context.market.symbols[0]
    withdrawn = sessions[20]
    later = pd.Timestamp("2030-01-01", tz="UTC")
    with reading(context.engine) as conn:
        stored = prices.prices(conn, context.name, withdrawn.date(), withdrawn.date())
    bad = stored[stored["symbol"] == symbol].assign(reason="unexplained_return")
    with transaction(context.engine) as conn:
        assert prices.withdraw(conn, context.name, bad, known_at=later.to_pydatetime()) == 1
    bars = Tonight(context, AS_OF)
    bars.newest(sessions[0].date())
    for first in sessions[[0, 19, 20, 21, 39]]:
        for last in sessions[[20, 21, 39]]:
            if first > last:
                continue
            span = (first.date(), last.date())
            for symbols in (None, [symbol], list(context.market.symbols[:2])):
                with reading(context.engine) as conn:
                    alone = prices.prices(conn, context.name, *span, symbols=symbols)
                pd.testing.assert_frame_equal(bars.newest(*span, symbols=symbols), alone)


def test_what_is_not_held_is_read(context: MarketContext, reads: list[tuple[date, date]]) -> None:
    """Earlier sessions once and for all, a few symbols or later sessions for one call."""
    after_nights(context, AS_OF, AFTER)
    reads.clear()
    bars = Tonight(context, AS_OF)
    index = context.market.index.symbol
    early = date(2022, 2, 1)
    assert set(bars.newest(early, symbols=[index])["symbol"]) == {index}
    assert bars.newest(AS_OF, AFTER, [index])["session"].max() == pd.Timestamp(AFTER)
    assert len(reads) == 2
    whole = bars.newest(early)
    assert whole["session"].min() < bars.known(AS_OF)[0]["session"].min()
    bars.newest(early, symbols=[index])
    bars.known(date(2023, 1, 3))
    assert reads[2:] == [(early, AS_OF)]


def test_the_equations_are_at_most_five_files_from_a_night(context: MarketContext) -> None:
    with ways_to_the_equations() as ways:
        run_night(context, AS_OF)
    assert set(ways) == {"train", "predict"}
    for way in ways.values():
        assert way[0] == "flows/nightly/night.py"
        assert len(way) - 1 <= 5, way
