"""Dates that are not the exchange's: an index a session early is look-ahead,
and no bar of it is bad.
"""

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from db.engine import reading
from db.read import read
from db.rows import prices
from dtml.errors import DtmlError
from dtml.markets import load_market
from dtml.prices.alignment import index_fault, shifted_stocks
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import NightRefusedError, run_night
from tests.support.nights import AS_OF, BARS, SIMULATED, FrameSource
from tests.support.price_files import redated
from tests.support.stores import counts

INDEX = "SIMX"


@pytest.mark.slow
def test_a_simulated_market_whose_followers_lag_is_in_step():
    for source in (SIMULATED, SimulatedSource()):
        bars = source.bars(AS_OF)
        assert index_fault(bars, INDEX, "adj_close") is None
        for sessions in (-5, -2, -1, 1, 3):
            assert f"dated {abs(sessions)} session" in (
                index_fault(redated(bars, sessions, INDEX), INDEX, "adj_close") or ""
            )


@pytest.mark.parametrize("days", [-1, 1])
@pytest.mark.parametrize("sessions", [3, 40])
def test_dates_a_day_beside_the_sessions_are_refused_in_a_file_of_any_length(
    context, sessions, days
):
    """The shortest of them spans one weekend."""
    known = np.sort(BARS["session"].unique())
    known = known[known <= np.datetime64("2024-06-25")]
    shifted = BARS[BARS["session"].isin(known[-sessions:])]
    shifted = shifted.assign(session=shifted["session"] + pd.Timedelta(days=days))
    side = "later" if days < 0 else "earlier"
    with pytest.raises(DtmlError, match=rf"no session of XNYS.* day {side}"):
        fetch_bars(replace(context, source=FrameSource(shifted)), AS_OF)
    assert counts(context.engine)["price"] == 0


def test_a_holiday_that_a_source_fills_in_is_rejected_and_the_rest_of_a_short_file_is_stored(
    context,
):
    known = BARS[BARS["session"].between("2024-05-20", "2024-06-05")]
    friday = known[known["session"] == "2024-05-24"]
    filled = pd.concat([known, friday.assign(session=pd.Timestamp("2024-05-27"))])
    found = fetch_bars(replace(context, source=FrameSource(filled)), AS_OF)
    assert set(found.rejected["reason"]) == {"not_a_session"}
    assert found.stored == len(known)


@pytest.mark.parametrize(("sessions", "side"), [(-1, "next"), (1, "previous")])
def test_a_nights_bars_that_are_stored_beside_another_session_are_refused(context, sessions, side):
    """Every bar lies on a session: only what is stored shows that it is the wrong one."""
    fetch_bars(context, AS_OF)
    moved = replace(context, source=FrameSource(redated(BARS, sessions, "L02")))
    with pytest.raises(DtmlError, match=rf"L02 .*1 session.*the {side} session"):
        fetch_bars(moved, date(2024, 7, 8))
    with reading(context.engine) as conn:
        stored = prices.prices(conn, "simulated", AS_OF, date(2024, 7, 8))
    assert set(stored["session"]) == {pd.Timestamp(AS_OF)}


def test_stored_bars_that_were_a_session_early_are_replaced_when_all_are_fetched_again(context):
    early = redated(BARS, -1, "L02")
    fetch_bars(replace(context, source=FrameSource(early)), AS_OF)
    with pytest.raises(DtmlError, match="`dtml fetch simulated --again`"):
        fetch_bars(context, date(2024, 7, 8))
    fetch_bars(context, date(2024, 7, 8), whole=True)
    with reading(context.engine) as conn:
        stored = prices.prices(conn, "simulated", date(2024, 6, 3), AS_OF, symbols=["L02"])
    true = BARS[(BARS["symbol"] == "L02") & BARS["session"].between("2024-06-03", "2024-07-01")]
    assert stored["close"].tolist() == true["close"].tolist()


def test_a_night_whose_index_is_a_session_early_is_refused_and_stores_no_bar(context):
    early = replace(context, source=FrameSource(redated(BARS, -1, INDEX)))
    with pytest.raises(NightRefusedError, match=rf"index {INDEX} .*1 session early") as caught:
        run_night(early, AS_OF)
    assert "--index" in str(caught.value)
    assert counts(context.engine)["price"] == 0


def test_one_stock_with_dates_of_another_time_zone_is_refused_by_its_name(context):
    mine = BARS["symbol"] == "L02"
    shifted = BARS.assign(
        session=BARS["session"].mask(mine, BARS["session"] - pd.Timedelta(days=1))
    )
    with pytest.raises(DtmlError, match=r"[\d,]+ bars of L02 .*XNYS,.*Sunday 20"):
        fetch_bars(replace(context, source=FrameSource(shifted)), AS_OF)
    assert counts(context.engine)["price"] == 0


def test_a_fetch_names_a_stock_with_dates_of_another_session_and_stores_the_warning(context):
    """The stocks of the simulated market have no market in common, so that one
    is laid over them here.
    """
    source = SimulatedSource(market=SimulatedMarket(start=date(2022, 1, 3)))
    bars = source.bars(AS_OF)
    assert shifted_stocks(bars, INDEX, "adj_close").empty
    sessions = pd.DatetimeIndex(sorted(bars["session"].unique()))
    common = pd.Series(
        np.exp(np.random.default_rng(7).normal(0, 0.02, len(sessions)).cumsum()), sessions
    )
    for name in ("open", "high", "low", "close", "adj_close", "dividend"):
        bars[name] *= common.reindex(bars["session"]).to_numpy()
    market = replace(
        context, market=load_market("simulated").with_symbols(sorted(source.market.symbols))
    )
    found = fetch_bars(
        replace(market, source=FrameSource(redated(bars, -1, "F03A"))), AS_OF
    ).doubtful
    assert found["symbol"].tolist() == ["F03A"]
    assert "dated 1 session early" in found["value"].item()
    with reading(context.engine) as conn:
        assert read(conn, "price_warning", market="simulated", order="symbol, reason")[
            ["symbol", "reason"]
        ].values.tolist() == [["F03A", "shifted_dates"]]
