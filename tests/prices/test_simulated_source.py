"""The simulated market: what is known of it by construction holds in its bars."""

import re
from datetime import date

import numpy as np
import pandas as pd
import pytest

from dtml.markets import load_market
from dtml.prices.bars import check
from dtml.prices.sessions import sessions_between
from dtml.sources.simulated import LISTED_LATE, LISTING, SimulatedSource
from tests.support.bounds import as_drawn, assert_arrays_close_in_float64

LAST = date(2024, 6, 28)
SOURCE = SimulatedSource()


@pytest.fixture(scope="module")
def bars():
    return SOURCE.bars(LAST)


def test_a_longer_history_restates_only_the_adjusted_closes_before_a_split_or_dividend(bars):
    key = ["symbol", "session"]
    until = pd.Timestamp(2021, 3, 11)
    earlier = SOURCE.bars(until.date()).set_index(key).sort_index()
    same = bars[bars["session"] <= until].set_index(key).sort_index()
    prices = earlier.columns.drop("adj_close")
    pd.testing.assert_frame_equal(earlier[prices], same[prices], check_exact=True)
    restated = (same["adj_close"] / earlier["adj_close"]).groupby("symbol").agg(["min", "max"])
    assert_arrays_close_in_float64(restated["min"], restated["max"])
    later = bars[bars["session"] > until]
    acted = later.groupby("symbol")[["split", "dividend"]].count().any(axis=1)
    assert 0 < acted.sum() < len(acted)
    assert ((restated["max"] == 1) & (restated["min"] == 1)).eq(~acted).all()


def test_the_sign_of_the_leaders_last_move_reaches_the_best_possible_accuracy(bars):
    market = SOURCE.market
    change = bars.pivot(index="session", columns="symbol", values="adj_close").pct_change(
        fill_method=None
    )
    followers = list(market.follower_symbols)
    leading = change[[market.leader_of(symbol) for symbol in followers]].shift(1).to_numpy()
    known = np.isfinite(leading) & change[followers].notna().to_numpy()
    hits = ((leading > 0) == (change[followers].to_numpy() > 0))[known]
    assert hits.mean() == as_drawn(market.best_accuracy, within=3 * 0.5 / np.sqrt(known.sum()))
    own, before = change.to_numpy(), change.shift(1).to_numpy()
    both = np.isfinite(own) & np.isfinite(before)
    assert ((own > 0) == (before > 0))[both].mean() == as_drawn(0.5, within=0.005)
    index = change[SOURCE.index_symbol].to_numpy()
    # what the leaders' weight in the index gives away
    assert np.corrcoef(index[2:], index[1:-1])[0, 1] < 0.1


def test_what_can_be_reached_is_said():
    figures = r"0\.705 .*20 followers, 0\.500 .*10 leaders, 0\.637 .*all"
    assert re.search(figures, SOURCE.remark())
    assert SOURCE.remark().endswith("rank IC of 0.48")


def test_it_carries_splits_dividends_halts_and_a_listing_and_every_bar_is_good(bars):
    market = load_market("simulated")
    sessions = sessions_between(SOURCE.calendar, SOURCE.market.start, LAST)
    checked = check(
        bars,
        sessions=sessions,
        closed_until=LAST,
        checks=market.checks,
        index_symbol=SOURCE.index_symbol,
        returns=market.returns,
    )
    assert checked.rejected.empty
    stocks = bars[bars["symbol"] != SOURCE.index_symbol]
    assert set(stocks["split"].dropna()) == {2.0, 3.0}
    assert stocks["dividend"].dropna().gt(0).all()
    assert bars.loc[bars["symbol"] == LISTED_LATE, "session"].min() >= pd.Timestamp(LISTING)
    halted = len(sessions) - stocks[stocks["symbol"] != LISTED_LATE].groupby("symbol").size()
    assert 0 < halted.mean() < 0.002 * len(sessions)
