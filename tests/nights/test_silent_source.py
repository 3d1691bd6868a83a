"""A source that knows nothing of a stock for a moment is asked for all of it the next time."""

from dataclasses import dataclass, replace
from datetime import date

import pytest

from db.engine import reading
from db.rows import prices
from dtml.sources import Fetched
from flows.nightly.context import MarketContext
from flows.nightly.fetch import fetch_bars, history_start
from tests.support.nights import AS_OF, BARS, FrameSource

NEXT = date(2024, 7, 2)
SILENT = "F01A"


@dataclass
class ForgetfulSource(FrameSource):
    """A source that has no bar of one stock."""

    status: str = "no_data"

    def fetch(self, first, last):  # type: ignore[no-untyped-def]
        bars = self.bars[self.bars["symbol"] != SILENT]
        whole = FrameSource(bars, asked=self.asked).fetch(first, last)
        silent = whole.outcomes["symbol"] == SILENT
        return Fetched(
            whole.bars,
            whole.outcomes.assign(status=whole.outcomes["status"].where(~silent, self.status)),
        )


def sessions_stored(context: MarketContext, symbol: str) -> list[date]:
    with reading(context.engine) as conn:
        stored = prices.prices(conn, context.name, date(2000, 1, 1), NEXT, symbols=[symbol])
    return sorted(day.date() for day in stored["session"])


@pytest.mark.soak
@pytest.mark.parametrize("status", ["no_data", "unreachable", "malformed"])
def test_a_stock_of_which_the_first_night_heard_nothing_has_its_whole_history_after_the_next(
    context: MarketContext, status: str
) -> None:
    fetch_bars(replace(context, source=ForgetfulSource(BARS, status=status)), AS_OF)
    assert sessions_stored(context, SILENT) == []
    fetch_bars(replace(context, source=FrameSource(BARS)), NEXT)
    assert len(sessions_stored(context, "F01B")) > 90
    assert sessions_stored(context, SILENT) == sessions_stored(context, "F01B")


def test_a_longer_history_of_which_a_source_heard_nothing_is_asked_for_again(
    context: MarketContext,
) -> None:
    longer = replace(context, experiment=replace(context.experiment, train_sessions=131))
    fetch_bars(context, AS_OF)
    fetch_bars(replace(longer, source=ForgetfulSource(BARS)), AS_OF)
    assert history_start(longer, AS_OF) not in sessions_stored(context, SILENT)
    fetch_bars(replace(longer, source=FrameSource(BARS)), AS_OF)
    assert sessions_stored(context, SILENT)[0] == history_start(longer, AS_OF)


def test_a_stock_whose_bars_were_all_rejected_is_asked_for_as_a_whole(
    context: MarketContext,
) -> None:
    wrong = BARS.assign(high=BARS["high"].where(BARS["symbol"] != SILENT, BARS["low"] / 2))
    fetch_bars(replace(context, source=FrameSource(wrong)), AS_OF)
    assert sessions_stored(context, SILENT) == []
    fetch_bars(replace(context, source=FrameSource(BARS)), NEXT)
    assert sessions_stored(context, SILENT) == sessions_stored(context, "F01B")
