"""Yahoo as it answers: what a store holds and says after fetches through the real client, and what
the next fetch makes of it. Each stock has a trouble of its own.
"""

import multiprocessing
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date

import numpy as np
import pandas as pd
import pytest

from db.engine import open_engine, reading, upgrade
from db.read import read
from db.rows import prices
from dtml.markets import read_market
from dtml.prices.sessions import sessions_between
from dtml.sources.yahoo import YahooSource
from flows.nightly.context import MarketContext, experiment_for
from flows.nightly.fetch import OVERLAP, FetchResult, fetch_bars
from tests.support.fake_yahoo import FakeYahoo
from tests.support.price_history import INDEX, PRICES, adjusted, made_history, market_text

pytestmark = pytest.mark.soak

SESSIONS = sessions_between("XNYS", date(2023, 9, 1), date(2024, 5, 3))
EX = SESSIONS.get_loc(pd.Timestamp("2024-04-01"))  # of the troubles, and of the dividend
FIRST, SECOND, THIRD = (SESSIONS[EX + step].date() for step in (-1, 0, 1))
UNADJUSTED, ADJUSTED = (SESSIONS[EX + OVERLAP + step].date() for step in (2, 3))
HOLE, OLD_HOLE = SESSIONS[EX - 6].date(), SESSIONS[80].date()
FALL = 0.03  # of LATE on the ex-day, as a share of the close before
STOCKS = ("GONE", "BARE", "NEVER", "HOLES", "LOST", "END", "LIVE", "AGAIN", "LATE")
ON_THE_SECOND = {
    "GONE": "delisted",
    "BARE": "no_adjclose",
    "END": "nan_last",
    "LIVE": "open_row",
    "AGAIN": "twice_today",
}


def made_market():
    """Bars as they were traded, in whole units."""
    walks = made_history(SESSIONS, SESSIONS[-1].date(), seed=5).traded
    traded = {}
    for symbol, walk in zip((INDEX, *STOCKS), walks.values(), strict=False):
        bars = walk.assign(symbol=symbol, dividend=np.nan, split=np.nan)
        if symbol == "LATE":
            bars.loc[EX, "dividend"] = FALL * bars.loc[EX - 1, "close"]
            bars.loc[EX:, list(PRICES)] *= 1 - FALL
        traded[symbol] = bars
    return traded


TRADED = made_market()


def told(day):
    """What Yahoo holds after the close of a day."""
    held = {symbol: adjusted(bars, day) for symbol, bars in TRADED.items()}
    if day < ADJUSTED:  # Yahoo has the dividend and has not adjusted what was before
        held["LATE"]["adj_close"] = held["LATE"]["close"]
        _empty(held["HOLES"], OLD_HOLE)
    if day == FIRST:
        _empty(held["HOLES"], HOLE)
    if day == SECOND:
        _empty(held["LOST"], FIRST)
    return held


def _empty(bars, day):
    is_day = bars["session"] == pd.Timestamp(day)
    bars.loc[is_day, [*PRICES, "adj_close", "volume"]] = np.nan


def fetch(folder, day, whole):
    """Bring the store up to a day, in a process that alone sees the stand-in."""
    market = read_market(folder / "made.toml")
    engine = open_engine(f"sqlite:///{folder / 'store.sqlite'}")
    context = MarketContext(market, YahooSource(market), engine, experiment_for(market), "cpu")
    try:
        return fetch_bars(context, day, whole=whole)
    finally:
        engine.dispose()


@dataclass
class AfterFetch:
    """What a fetch returned, how often it asked for each symbol, and the store after it."""

    result: FetchResult
    asked: Counter[str]
    stored: pd.DataFrame
    warnings: pd.DataFrame

    def bars(self, symbol):
        """The bars in force of a symbol, by session."""
        return self.stored[self.stored["symbol"] == symbol].set_index("session")

    def bar(self, symbol, day):
        return self.bars(symbol).loc[pd.Timestamp(day)]

    def has(self, symbol, day):
        return pd.Timestamp(day) in self.bars(symbol).index

    def outcome(self, symbol):
        """Status and detail of a symbol."""
        row = self.result.outcomes.set_index("symbol").loc[symbol]
        return f"{row['status']}: {row['detail']}"

    def rejected(self, symbol):
        """The sessions of a symbol's bars without prices."""
        rows = self.result.rejected
        is_mine = (rows["symbol"] == symbol) & (rows["reason"] == "null_price")
        return list(rows.loc[is_mine, "session"].dt.date)


@dataclass
class Fetches:
    """The fetches of this file, one after the other into one store."""

    first: AfterFetch
    second: AfterFetch
    third: AfterFetch
    unadjusted: AfterFetch  # a fetch of the last sessions alone would begin after the ex-day
    adjusted: AfterFetch
    whole: AfterFetch


@pytest.fixture(scope="module")
def fetches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fetches")
    (folder / "made.toml").write_text(market_text({stock: stock for stock in STOCKS}))
    engine = open_engine(f"sqlite:///{folder / 'store.sqlite'}")
    upgrade(engine)

    def fetched(day, faults, whole=False):
        yahoo.faults = {"NEVER": "no_adjclose", **faults}
        yahoo.prices = told(day)
        if "LIVE" in faults:  # the session under way
            yahoo.prices["LIVE"] = told(THIRD)["LIVE"]
        before = Counter(yahoo.requests)
        result = pool.submit(fetch, folder, day, whole).result()
        with reading(engine) as conn:
            stored = prices.prices(conn, "made", SESSIONS[0].date(), SESSIONS[-1].date())
            warned = read(conn, "price_warning", market="made")
        return AfterFetch(result, Counter(yahoo.requests) - before, stored, warned)

    with FakeYahoo({}) as yahoo, pytest.MonkeyPatch.context() as patch:
        for name, value in yahoo.environment().items():
            patch.setenv(name, value)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return Fetches(
                first=fetched(FIRST, {}),
                second=fetched(SECOND, ON_THE_SECOND),
                third=fetched(THIRD, {}),
                unadjusted=fetched(UNADJUSTED, {}),
                adjusted=fetched(ADJUSTED, {}),
                whole=fetched(ADJUSTED, {}, whole=True),
            )


def test_a_delisted_stock_keeps_its_past_and_is_asked_for_again(fetches):
    assert re.match("no_data: GONE: .*delisted", fetches.second.outcome("GONE"))
    assert len(fetches.second.bars("GONE")) == len(fetches.first.bars("GONE")) > 60
    assert fetches.third.asked["GONE"] == 1
    assert fetches.third.has("GONE", SECOND)


def test_adjusted_closes_that_do_not_come_do_not_replace_those_stored(fetches):
    assert fetches.second.outcome("BARE").startswith("malformed: BARE: no adjusted closes")
    pd.testing.assert_frame_equal(fetches.second.bars("BARE"), fetches.first.bars("BARE"))
    assert fetches.third.has("BARE", SECOND)
    assert fetches.third.bars("BARE")["adj_close"].notna().all()


def test_a_stock_that_never_had_adjusted_closes_is_stored_without_and_said(fetches):
    for fetched in (fetches.first, fetches.second, fetches.third):
        assert fetched.result.unadjusted == ["NEVER"]
    bars = fetches.third.bars("NEVER")
    assert len(bars) == len(fetches.third.bars("LOST"))
    assert bars["adj_close"].isna().all()
    assert bars["close"].notna().all()


def test_a_row_without_prices_is_rejected_and_stored_once_it_has_some(fetches):
    assert fetches.first.rejected("HOLES") == [OLD_HOLE, HOLE]
    assert not fetches.first.has("HOLES", HOLE)
    assert fetches.second.has("HOLES", HOLE)
    assert fetches.second.rejected("END") == [SECOND]
    assert fetches.third.has("END", SECOND)
    # An old one comes with the whole history alone.
    assert not fetches.adjusted.has("HOLES", OLD_HOLE)
    assert fetches.whole.has("HOLES", OLD_HOLE)


def test_a_stored_bar_stays_where_its_row_has_lost_its_prices(fetches):
    assert fetches.second.rejected("LOST") == [FIRST]
    assert fetches.second.bar("LOST", FIRST).equals(fetches.first.bar("LOST", FIRST))
    # It is no restatement: the whole history is not asked for.
    assert fetches.second.asked["LOST"] == 1


def test_the_bar_of_a_session_under_way_is_not_stored(fetches):
    assert fetches.second.bars("LIVE").index.max() == pd.Timestamp(SECOND)


def test_of_two_rows_of_a_session_the_later_is_stored_until_the_final_one_comes(fetches):
    final = TRADED["AGAIN"].loc[EX, "close"]
    assert fetches.second.bar("AGAIN", SECOND)["close"] == pytest.approx(1.01 * final)
    assert fetches.third.bar("AGAIN", SECOND)["close"] == pytest.approx(final)


def test_a_dividend_that_is_adjusted_for_weeks_later_is_warned_of_until_then(fetches):
    for fetched in (fetches.second, fetches.third, fetches.unadjusted):
        warned = fetched.warnings[["symbol", "reason"]].to_numpy().tolist()
        assert warned == [["LATE", "contradicted_dividend"]]
        assert fetched.bar("LATE", FIRST)["adj_close"] == fetched.bar("LATE", FIRST)["close"]
    assert fetches.adjusted.result.restated == ["LATE"]
    assert fetches.adjusted.warnings.empty
    for day in (OLD_HOLE, FIRST):
        bar = fetches.adjusted.bar("LATE", day)
        assert bar["adj_close"] / bar["close"] == pytest.approx(1 - FALL)
