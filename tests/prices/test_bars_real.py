"""Real sets of prices lose exactly the bars that are known to be bad."""

from collections import Counter

import pytest

from tests.support.real_sets import (
    REJECTED,
    SETS,
    bars_of,
    checked,
    judge,
    needs_real_sets,
    read,
    rejected,
)

pytestmark = [needs_real_sets, pytest.mark.slow]
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


@pytest.mark.one_case("ftse30")
@pytest.mark.parametrize("name", SETS)
def test_each_real_set_loses_exactly_these_bars(name: str) -> None:
    found = checked(name)
    assert Counter(found.rejected["reason"]) == REJECTED[name]
    assert len(found.accepted) + len(found.rejected) == len(bars_of(name))
    assert not found.rejected["symbol"].str.startswith("^").any()
    for (owner, reason), bars in BARS.items():
        if owner == name:
            assert rejected(name, reason) == bars
    if name in HALTS:
        assert (found.accepted["volume"] == 0).sum() == HALTS[name]


@pytest.mark.soak
def test_days_that_are_stale_for_most_of_a_market_are_these() -> None:
    assert {day for _, day in rejected("kospi200_2015", "stale_day")} == STALE
    # With an adjusted close that is broken, a market is judged by its close.
    samsung = bars_of("kospi200_2015").query("symbol == '005930'")
    verdict = judge(samsung, "XKRX", "adj_close", 0.301, "^KS11").rejected
    assert "unexplained_return" in set(verdict["reason"])


def test_an_index_of_closes_alone_is_rejected_for_its_features_need_all_prices() -> None:
    index = read("index", "KS11_close_2022_2026")
    verdict = judge(index, "XKRX", "close", 0.301, index["symbol"].iloc[0])
    assert Counter(verdict.rejected["reason"]) == {"null_price": 900}
