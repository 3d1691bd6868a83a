"""Yahoo through the real yfinance client, in a process of its own that a stand-in answers."""

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from datetime import date

import numpy as np
import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.markets import Constituent, Index, Market
from dtml.prices.alignment import restated_symbols
from dtml.prices.bars import BAR_COLUMNS, bars_frame
from dtml.sources.yahoo import YahooSource
from tests.support.fake_yahoo import FakeYahoo

pytestmark = pytest.mark.slow

SESSIONS = pd.bdate_range("2024-03-04", periods=13)  # the clocks change in between
FIRST, LAST = date(2024, 3, 4), SESSIONS[-1].date()
SYMBOLS = ("AAA", "BBB", "CCC", "DDD", "EEE", "FFF", "GGG", "HHH")


def history(level, sessions=SESSIONS):
    close = level + np.arange(len(sessions)) / 4
    table = pd.DataFrame(
        {"symbol": "as asked", "session": sessions, "open": close - 0.5, "close": close}
    )
    return bars_frame(
        table.assign(high=close + 1, low=close - 1, adj_close=close * 0.9, volume=1000.0)
    )


def prices(*symbols):
    return {symbol: history(50 + 10 * place) for place, symbol in enumerate(symbols)}


def market(*symbols):
    constituents = tuple(Constituent(symbol.lower(), symbol) for symbol in symbols)
    return Market(
        name="small",
        title="Small",
        calendar="XNYS",
        timezone="America/New_York",
        currency="USD",
        index=Index("index", "^IDX", "The index"),
        constituents=constituents,
    )


def fetch(where, first, last, timeout, threads, times):
    source = YahooSource(where, threads=threads, timeout=timeout)
    return [source.fetch(first, last) for _ in range(times)]


def ask_in(environment, where, *, first=None, last=LAST, timeout=5.0, threads=4, times=1):
    """Fetch in a process of its own, which alone sees this environment."""
    asked = first or dict.fromkeys([*where.symbols, where.index.symbol], FIRST)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(fetch, where, asked, last, timeout, threads, times).result()


def ask(yahoo, where, **how):
    return ask_in(yahoo.environment(), where, **how)


def statuses(fetched):
    return dict(zip(fetched.outcomes["symbol"], fetched.outcomes["status"], strict=True))


def status_and_detail(fetched):
    outcomes = fetched.outcomes.set_index("symbol")
    return dict(
        zip(outcomes.index, zip(outcomes["status"], outcomes["detail"], strict=True), strict=True)
    )


@pytest.fixture(scope="module")
def good():
    """Two fetches of one process, with a dividend, a split and bars without
    values among what they bring.
    """
    with FakeYahoo(prices("AAA", "BBB", "CCC", "^IDX")) as yahoo:
        bars = yahoo.prices["AAA"]
        bars.loc[3, "dividend"], bars.loc[7, "split"] = 0.25, 3.0
        bars.loc[5, ["open", "high", "low", "close", "adj_close", "volume"]] = np.nan
        bars.loc[6, "open"] = np.nan
        bars.loc[9, "volume"] = np.nan
        yahoo.prices["BBB"] = history(70, SESSIONS[4:9])
        first = {"aaa": FIRST, "bbb": FIRST, "ccc": SESSIONS[11].date(), "index": FIRST}
        yield (
            yahoo,
            ask(yahoo, market("AAA", "BBB", "CCC"), first=first, last=SESSIONS[11].date(), times=2),
        )


def test_bars_arrive_under_the_markets_symbols_on_sessions_of_the_exchange(good):
    yahoo, (fetched, _) = good
    index = fetched.bars[fetched.bars["symbol"] == "index"].reset_index(drop=True)
    expected = (
        yahoo.prices["^IDX"]
        .iloc[:12]
        .assign(symbol="index")
        .astype({"symbol": index["symbol"].dtype})
    )
    pd.testing.assert_frame_equal(index, expected, rtol=1e-9)
    assert statuses(fetched) == dict.fromkeys(["aaa", "bbb", "ccc", "index"], "ok")
    assert fetched.bars["symbol"].value_counts().to_dict() == {
        "aaa": 12,
        "bbb": 5,
        "ccc": 1,
        "index": 12,
    }
    assert fetched.outcomes["rows"].tolist() == [12, 5, 1, 12]
    bars = fetched.bars[fetched.bars["symbol"] == "aaa"].reset_index(drop=True)
    assert bars.loc[5, ["open", "high", "low", "close", "adj_close", "volume"]].isna().all()
    assert bars["open"].isna().sum() == 2
    # yfinance knows no missing volume; a bar with prices keeps what it says
    assert bars.loc[9, "volume"] == 0
    assert bars["dividend"].dropna().to_dict() == {3: 0.25}
    assert bars["split"].dropna().to_dict() == {7: 3.0}


@pytest.mark.soak
def test_every_fetch_asks_once_for_each_symbol_from_its_own_first_session(good):
    yahoo, fetches = good
    assert yahoo.requests == dict.fromkeys(["AAA", "BBB", "CCC", "^IDX"], len(fetches))
    last = str(SESSIONS[11].date())
    asked = {(symbol, str(FIRST), last) for symbol in ("AAA", "BBB", "^IDX")}
    assert set(yahoo.spans) == asked | {("CCC", last, last)}


@pytest.mark.soak
def test_every_way_to_fail_has_its_own_outcome_and_costs_no_other_symbol_its_bars():
    faults = {
        "AAA": "500",
        "BBB": "html",
        "CCC": "slow",
        "DDD": "empty",
        "EEE": "delisted",
        "FFF": "nan_last",
        "GGG": "internal_error",
    }
    # no five failures in a row
    where = market("AAA", "HHH", "BBB", "DDD", "CCC", "EEE", "FFF", "GGG", "GONE")
    with FakeYahoo(prices(*SYMBOLS, "^IDX"), faults=faults) as yahoo:
        (fetched,) = ask(yahoo, where, timeout=1.5, threads=1)
    found = status_and_detail(fetched)
    assert found["hhh"] == found["fff"] == found["index"] == ("ok", "")
    assert found["aaa"][0] == found["bbb"][0] == "malformed"
    page = r"web page from query2\.finance\.yahoo\.com"
    assert re.match(f"AAA:.*HTTP 500,.*{page}", found["aaa"][1])
    assert re.match(f"BBB:.*HTTP 200,.*{page}", found["bbb"][1])
    assert found["ccc"][0] == "unreachable"
    assert found["ccc"][1].startswith("CCC: Timeout")
    assert found["ddd"][0] == found["eee"][0] == found["gone"][0] == "no_data"
    assert found["ddd"][1].startswith("DDD: no price data")
    assert re.match("EEE: No data.*delisted", found["eee"][1])
    assert re.match("GONE: No data.*delisted", found["gone"][1])
    assert found["ggg"] == ("malformed", "GGG: Something went wrong")
    bars = fetched.bars.groupby("symbol")
    assert bars.size().to_dict() == {"hhh": 13, "fff": 13, "index": 13}
    last = fetched.bars[fetched.bars["symbol"] == "fff"].iloc[-1]
    assert last[["open", "high", "low", "close", "volume"]].isna().all()


@pytest.mark.soak
def test_at_the_first_rate_limit_the_rest_is_not_asked_for_and_what_came_is_kept():
    with FakeYahoo(prices(*SYMBOLS, "^IDX"), rate_limit_after=3) as yahoo:
        (fetched,) = ask(yahoo, market(*SYMBOLS), threads=2)
    counts = fetched.outcomes["status"].value_counts().to_dict()
    assert counts["ok"] == 3
    assert counts["rate_limited"] in (1, 2)  # those under way in both threads
    assert counts["not_asked"] == 9 - counts["ok"] - counts["rate_limited"]
    assert sorted(fetched.bars["symbol"].unique()) == sorted(
        fetched.outcomes.query("status == 'ok'")["symbol"]
    )
    assert len(yahoo.refused) == counts["rate_limited"]
    (reason,) = set(fetched.outcomes.query("status == 'not_asked'")["detail"])
    assert re.match("Yahoo.*rate limit", reason)


@pytest.mark.soak
def test_when_nothing_answers_the_fetch_gives_up_after_five_symbols():
    with FakeYahoo({}) as yahoo:
        unreachable = yahoo.environment()
    (fetched,) = ask_in(unreachable, market(*SYMBOLS, "III", "JJJ"), threads=4)
    counts = fetched.outcomes["status"].value_counts().to_dict()
    assert set(counts) == {"unreachable", "not_asked"}
    assert 5 <= counts["unreachable"] <= 8  # those under way in the other threads end first
    reason = fetched.outcomes["detail"].iloc[-1]
    assert re.match("5 symbols in a row .*no usable answer", reason)
    assert fetched.bars.empty
    assert tuple(fetched.bars.columns) == BAR_COLUMNS


def test_a_symbol_that_the_market_does_not_list_is_a_mistake():
    with pytest.raises(UsageError, match=r"small .*not list bbb: "):
        YahooSource(market("AAA")).fetch({"aaa": FIRST, "bbb": FIRST}, LAST)


# restatements


RESTATED = {
    "nothing": ([], SESSIONS[12], 1.0, False),
    "a dividend": (["adj_close"], SESSIONS[0], 0.9995, True),
    "a split": (["close", "adj_close"], SESSIONS[4], 0.5, True),
    "a last close that is settled": (["close", "adj_close"], SESSIONS[12], 1.01, False),
}


@pytest.mark.parametrize("name", RESTATED)
def test_a_dividend_and_a_split_restate_the_bars_before_them_and_nothing_else_does(name):
    columns, last, factor, expected = RESTATED[name]
    first = SESSIONS[12] if last == SESSIONS[12] else SESSIONS[0]
    stored = pd.concat([history(50).assign(symbol="AAA"), history(90).assign(symbol="BBB")])
    fresh = stored.reset_index(drop=True)
    is_changed = (fresh["symbol"] == "BBB") & fresh["session"].between(first, last)
    fresh.loc[is_changed, columns] *= factor
    assert restated_symbols(stored, fresh) == (["BBB"] if expected else [])
    assert restated_symbols(stored.iloc[:0], fresh) == []
