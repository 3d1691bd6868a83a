"""Real sets of prices lose exactly the bars that are known to be bad, and warn of exactly the
stocks that are known to be doubtful.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

import pandas as pd
import pytest

from dtml.markets import Checks
from dtml.prices.actions import CONTRADICTED, doubtful_actions
from dtml.prices.alignment import index_fault, over_corrected, shifted_stocks
from dtml.prices.bars import Returns, bars_frame, check
from dtml.prices.sessions import sessions_between
from tests.support.places import SHARED
from tests.support.price_files import redated

pytestmark = [
    pytest.mark.skipif(
        not (SHARED / "prices").is_dir(), reason="shared data is not beside this clone"
    ),
    pytest.mark.slow,
]


@dataclass(frozen=True)
class RealSet:
    calendar: str
    index: str
    returns: Returns
    max_return: float


SETS = {
    "kdd17": RealSet("XNYS", "GSPC", "adj_close", 0.35),
    "acl18": RealSet("XNYS", "GSPC", "adj_close", 0.35),
    "ndx100": RealSet("XNYS", "NDX", "adj_close", 0.35),
    "sp500": RealSet("XNYS", "GSPC", "adj_close", 0.35),
    "ftse30": RealSet("XLON", "FTSE", "adj_close", 0.35),
    "kospi200_2015": RealSet(
        "XKRX", "KS11", "close", 0.301
    ),  # Seoul's daily limit is 30 %, rounded to the tick
    "kospi200_2020": RealSet("XKRX", "KS11", "close", 0.301),
}
REJECTED = {  # how many bars of each set are rejected, by reason, its index included
    "kdd17": {"unexplained_return": 1},
    "acl18": {"null_price": 3, "unexplained_return": 1},
    "ndx100": {
        "outside_range": 13,
        "unexplained_return": 7,
        "non_positive_price": 1,
        "high_below_low": 1,
    },
    "sp500": {"unexplained_return": 36},
    "ftse30": {"unexplained_return": 2, "outside_range": 1},
    "kospi200_2015": {"stale_day": 633, "brief_jump": 3, "unexplained_return": 13},
    "kospi200_2020": {"non_positive_price": 495, "unexplained_return": 1},
}


def read(folder, name):
    return bars_frame(
        pd.read_parquet(SHARED / folder / f"{name}.parquet").rename(columns={"date": "session"})
    )


@cache
def bars_of(name):
    return pd.concat([read("prices", name), read("index", SETS[name].index)], ignore_index=True)


def judge(bars, calendar, returns, max_return, index_symbol):
    first, last = bars["session"].min().date(), bars["session"].max().date()
    return check(
        bars,
        sessions=sessions_between(calendar, first, last),
        closed_until=last,
        checks=Checks(max_return=max_return, max_missing=0.2, stale_share=0.3),
        index_symbol=index_symbol,
        returns=returns,
    )


@cache
def checked(name):
    real = SETS[name]
    return judge(
        bars_of(name), real.calendar, real.returns, real.max_return, index_symbol=f"^{real.index}"
    )


def rejected(name, reason):
    """Symbol and date of every bar of a set that was rejected for a reason."""
    rows = checked(name).rejected
    rows = rows[rows["reason"] == reason]
    return set(zip(rows["symbol"], rows["session"].dt.strftime("%Y-%m-%d"), strict=True))


# Days on which two downloads of Seoul's prices were joined, or none was new.
STALE = {"2017-09-04", "2017-09-26", "2020-03-09", "2020-03-12"}
BARS = {
    ("kdd17", "unexplained_return"): {("BAC", "2009-04-09")},
    ("acl18", "null_price"): {(symbol, "2016-06-29") for symbol in ("PTR", "REX", "SNP")},
    ("acl18", "unexplained_return"): {("AGFS", "2016-11-09")},
    ("ndx100", "unexplained_return"): {
        ("EBAY", "2015-07-20"),  # this and the next three: spin-offs and splits
        ("DISCA", "2014-08-07"),
        ("CTRP", "2015-12-01"),
        ("CTXS", "2017-02-01"),
        ("NFLX", "2013-01-24"),
        ("VRTX", "2013-04-19"),
        ("VRTX", "2014-06-24"),
    },
    ("ndx100", "non_positive_price"): {("NFLX", "2013-04-23")},
    ("ndx100", "high_below_low"): {("FOXA", "2013-06-25")},
    ("ftse30", "unexplained_return"): {("BLT.L", "2015-04-07"), ("BLT.L", "2015-05-18")},
    ("ftse30", "outside_range"): {("OML.L", "2016-02-22")},
    ("kospi200_2015", "brief_jump"): {
        ("003410", day) for day in ("2020-12-01", "2020-12-02", "2020-12-03")
    },
    ("kospi200_2020", "unexplained_return"): {("001230", "2026-05-29")},
}
# Accepted bars of volume 0, which are halts of single stocks.
HALTS = {"acl18": 111, "sp500": 13, "kospi200_2015": 972, "kospi200_2020": 219}
# Stocks that rise on their ex-days.
OVER_CORRECTED = {"kdd17": ["NVS"], "acl18": ["BCH"]}
OVER_CORRECTED["kospi200_2015"] = [
    "003410",
    "003850",
    "004990",
    "005300",
    "015760",
    "018880",
    "078930",
    "204320",
]


@pytest.mark.one_case("ftse30")
@pytest.mark.parametrize("name", SETS)
def test_each_real_set_loses_exactly_these_bars_and_warns_of_these_stocks(name):
    found, real = checked(name), SETS[name]
    assert Counter(found.rejected["reason"]) == REJECTED[name]
    assert len(found.accepted) + len(found.rejected) == len(bars_of(name))
    for (owner, reason), bars in BARS.items():
        if owner == name:
            assert rejected(name, reason) == bars
    if name in HALTS:
        assert (found.accepted["volume"] == 0).sum() == HALTS[name]
    assert over_corrected(found.accepted)["symbol"].tolist() == OVER_CORRECTED.get(name, [])
    # None records a dividend or split. The adjusted close of BLT.L is known to double.
    stocks = found.accepted[~found.accepted["symbol"].str.startswith("^")]
    named = doubtful_actions(stocks, f"^{real.index}", real.returns)[["symbol", "reason"]]
    known = [["BLT.L", CONTRADICTED]] if name == "ftse30" else []
    assert named.to_numpy().tolist() == known


@pytest.mark.one_case("ftse30")
@pytest.mark.parametrize("name", SETS)
def test_no_real_set_is_out_of_step_and_each_is_when_its_index_or_stocks_are_shifted(name):
    """Each seventh stock is moved at a time; of 1,137 stocks five follow no
    market closely enough to show it.
    """
    bars, index, returns = checked(name).accepted, f"^{SETS[name].index}", SETS[name].returns
    assert index_fault(bars, index, returns) is None
    assert shifted_stocks(bars, index, returns).empty
    moved = sorted(set(bars["symbol"]) - {index})[::7]
    for sessions, side in ((-1, "early"), (1, "late")):
        fault = index_fault(redated(bars, sessions, index), index, returns)
        assert re.search(rf"index {re.escape(index)} .*1 session {side}", fault or "")
        found = shifted_stocks(redated(bars, sessions, *moved), index, returns)
        assert set(found["symbol"]) <= set(moved)
        assert len(found) >= len(moved) - 2
        assert found["value"].str.contains(side).all()
    stock = bars.loc[bars["symbol"] != index, "symbol"].iloc[0]
    twin = bars[bars["symbol"] == stock].assign(symbol=index)
    fault = index_fault(pd.concat([bars[bars["symbol"] != index], twin]), index, returns)
    assert re.search(rf"index {re.escape(index)} .*closes of.* {stock}: ", fault or "")


@pytest.mark.soak
def test_days_that_are_stale_for_most_of_a_market_are_these():
    assert {day for _, day in rejected("kospi200_2015", "stale_day")} == STALE
    # With an adjusted close that is broken, a market is judged by its close.
    samsung = bars_of("kospi200_2015").query("symbol == '005930'")
    verdict = judge(samsung, "XKRX", "adj_close", 0.301, "^KS11").rejected
    assert "unexplained_return" in set(verdict["reason"])
