"""A market too large for memory is fetched in parts, and ends as one that was fetched at once."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import text

from db.engine import reading
from db.rows import prices
from dtml.sources import Fetched
from flows.nightly import fetch
from flows.nightly.context import MarketContext
from flows.nightly.fetch import FetchResult, fetch_bars
from flows.nightly.night import _cause
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


def faulty() -> pd.DataFrame:
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
def test_a_fetch_in_parts_stores_what_a_fetch_at_once_does(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected bars, a restatement with its whole history, and bars that come later."""
    restated = faulty()
    restated.loc[restated["symbol"] == "L03", ["adj_close"]] /= 2
    found: list[tuple[list[FetchResult], dict[str, list[Any]]]] = []
    for size in (1_000, 4):
        monkeypatch.setattr(fetch, "SYMBOLS_AT_ONCE", size)
        mine = replace(context, market=replace(context.market, name=f"of{size}"))
        results = [
            fetch_bars(replace(mine, source=FrameSource(bars)), day, known_at)
            for bars, day, known_at in ((faulty(), AS_OF, FIRST), (restated, NEXT, THEN))
        ]
        with reading(context.engine) as conn:
            found.append(
                (
                    results,
                    {
                        what: list(conn.execute(text(sql), {"market": mine.name}))
                        for what, sql in ASKED
                    },
                )
            )
    (whole, at_once), (parts, in_parts) = found
    assert in_parts == at_once
    assert len(at_once["rejected"]) == 2
    for one, other in zip(whole, parts, strict=True):
        assert (one.counts, one.asked, sorted(one.restated)) == (
            other.counts,
            other.asked,
            other.restated,
        )
        for name in ("rejected", "outcomes"):
            ordered = [
                getattr(each, name).sort_values("symbol", ignore_index=True)
                for each in (one, other)
            ]
            pd.testing.assert_frame_equal(*ordered, check_dtype=False)
    assert parts[1].restated == ["L03"]


def test_a_source_that_stops_answering_is_asked_for_no_further_part(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SYMBOLS_AT_ONCE", 4)
    source = LimitedSource(BARS, answers=1)
    found = fetch_bars(replace(context, source=source), AS_OF)
    assert len(source.asked) == 2
    told = found.outcomes.set_index("symbol")["status"]
    asked = [list(some) for some in source.asked]
    assert set(told[asked[0]]) == {"ok"}
    assert set(told[asked[1]]) == {"rate_limited"}
    assert set(told.drop([*asked[0], *asked[1]])) == {"not_asked"}
    assert found.stored == found.fetched > 0


def test_a_source_that_stops_answering_is_not_asked_for_restated_histories(
    context: MarketContext,
) -> None:
    fetch_bars(context, AS_OF, FIRST)
    restated = BARS.copy()
    restated.loc[restated["symbol"] == "L02", "adj_close"] /= 2
    source = LastOneRefused(restated)
    found = fetch_bars(replace(context, source=source), NEXT, THEN)
    assert len(source.asked) == 1
    told = found.outcomes.set_index("symbol")["status"]
    assert told["L02"] == "not_asked"
    with reading(context.engine) as conn:
        stored = prices.prices(conn, context.name, date(2024, 1, 1), NEXT)
    mine = stored[stored["symbol"] == "L02"]
    assert mine["session"].max() == pd.Timestamp(AS_OF)  # no part of the restated history


class LastOneRefused(FrameSource):
    """A source that says to wait when it is asked for the last symbol of a request."""

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        whole = super().fetch(first, last)
        refused = list(first)[-1]
        is_refused = whole.outcomes["symbol"] == refused
        return Fetched(
            whole.bars[whole.bars["symbol"] != refused],
            whole.outcomes.assign(status=whole.outcomes["status"].mask(is_refused, "rate_limited")),
        )


def test_an_index_of_other_dates_is_found_whichever_part_its_stocks_come_in(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first part's stocks there are no bars: only a later one can show it."""
    monkeypatch.setattr(fetch, "SYMBOLS_AT_ONCE", 4)
    index = context.market.index.symbol
    alone = [index, *context.market.symbols[:3]]
    bars = BARS[~BARS["symbol"].isin(alone[1:])].copy()
    sessions = np.sort(bars["session"].unique())
    mine = bars["symbol"] == index
    bars.loc[mine, "session"] = (
        pd.Series(sessions).shift(-1).to_numpy()[sessions.searchsorted(bars.loc[mine, "session"])]
    )
    with pytest.raises(Exception, match=f"index {index} is dated"):
        fetch_bars(replace(context, source=FrameSource(bars.dropna(subset="session"))), AS_OF)


def test_the_reason_of_missing_bars_counts_only_those_that_it_names() -> None:
    failures = [("A", "rate_limited", 0, "A: wait"), ("B", "not_asked", 0, "B: the limit")]
    failures.append(("C", "not_asked", 0, "C: the limit"))
    outcomes = pd.DataFrame(failures, columns=["symbol", "status", "rows", "detail"])
    cause = _cause(FetchResult(outcomes=outcomes), {"A", "B", "C"}, AS_OF)
    assert re.search(r"2 symbols.*not_asked \(B: .*limit\); ", cause)


def test_the_reason_of_missing_bars_counts_only_rejected_ones_of_the_session() -> None:
    bars = [
        ("A", pd.Timestamp(AS_OF), "high below low", 1.0),
        ("A", pd.Timestamp("2020-01-02"), "negative", 1.0),
        ("A", pd.Timestamp("2020-01-03"), "negative", 1.0),
    ]
    rejected = pd.DataFrame(bars, columns=["symbol", "session", "reason", "value"])
    cause = _cause(FetchResult(rejected=rejected), {"A"}, AS_OF)
    assert re.match("1 bar.*high below low", cause)
