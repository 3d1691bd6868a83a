"""Two sources of the same bars: what counts as a difference, what does not, and how it is said."""

import re

import numpy as np
import pandas as pd
import pytest

from dtml.markets.definition import COMPARED_FIELDS
from dtml.pages.second_source import difference_words, differences
from dtml.prices.bars import PRICES, bars_frame
from dtml.prices.disagreement import compare

DAYS = pd.bdate_range("2024-07-08", periods=12)
INDEX = "IDX"
SYMBOLS = ("AAA", "BBB", "CCC", INDEX)
LAST = DAYS[-1]


def bars(symbols=SYMBOLS):
    tables = []
    for place, symbol in enumerate(symbols):
        close = 50 + 20.0 * place + np.arange(len(DAYS)) / 4
        table = pd.DataFrame({"symbol": symbol, "session": DAYS, "close": close})
        table = table.assign(open=close - 0.5, high=close + 1, low=close - 1)
        tables.append(table.assign(adj_close=close * 0.9, volume=50_000.0 + place))
    return bars_frame(pd.concat(tables, ignore_index=True))


def changed(field, change, symbol="BBB", day=LAST):
    """Multiply a field of one bar."""

    def of(table):
        is_bar = (table["symbol"] == symbol) & (table["session"] == day)
        return table.assign(**{field: table[field].where(~is_bar, table[field] * change)})

    return of


def given(field, value, symbol="BBB", day=LAST):
    """Set a field of one bar."""

    def of(table):
        is_bar = (table["symbol"] == symbol) & (table["session"] == day)
        return table.assign(**{field: table[field].where(~is_bar, value)})

    return of


def compared(stored, second, fields=COMPARED_FIELDS):
    return compare(stored, second, sessions=DAYS, fields=fields, index_symbol=INDEX)


def found(stored, second, fields=COMPARED_FIELDS):
    rows = compared(stored, second, fields).differing
    return list(zip(rows["symbol"], rows["field"], strict=True))


def said(stored, second):
    return difference_words(differences(compared(stored, second).differing, len(SYMBOLS)))


def grave(stored, second):
    rows = compared(stored, second).differing
    return [row["grave"] for row in differences(rows, len(SYMBOLS))]


def in_unit(table, unit):
    names = [*PRICES, "adj_close"]
    return table.assign(**{name: table[name] * unit for name in names})


def lost_for(symbols, day):
    table = bars()
    return table[~(table["symbol"].isin(symbols) & (table["session"] == day))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        changed("close", 1.0008),
        changed("open", 1.004),
        changed("high", 0.996),
        changed("volume", 5),
        changed("adj_close", 1.0008),
        changed("volume", 30, symbol=INDEX),
        given("volume", np.nan),
        given("adj_close", np.nan),
        given("open", np.nan),
    ],
)
def test_rounding_other_exchanges_and_missing_values_are_no_difference(change):
    assert found(bars(), change(bars())) == []
    assert found(change(bars()), bars()) == []


def test_prices_rounded_to_cents_agree_however_low_they_are():
    penny = in_unit(bars(), 0.001)
    rounded = penny.round(dict.fromkeys([*PRICES, "adj_close"], 2))
    rounded = rounded[rounded["close"] > 0]
    assert found(penny, rounded) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (changed("close", 1.002), "close"),
        (changed("open", 1.02), "open"),
        (changed("high", 1.02), "high"),
        (changed("low", 0.98), "low"),
        (changed("volume", 100), "volume"),
        (given("volume", 0), "volume"),
        (changed("adj_close", 1.01), "adj_close"),
        (given("dividend", 0.4), "dividend"),
        (given("split", 4), "split"),
    ],
)
def test_what_exceeds_a_field_s_tolerance_is_one_difference_on_either_side(change, field):
    for stored, second in ((bars(), change(bars())), (change(bars()), bars())):
        assert found(stored, second) == [("BBB", field)]
        others = tuple(name for name in COMPARED_FIELDS if name != field)
        assert found(stored, second, others) == []


def test_a_difference_has_both_values_and_their_distance():
    (row,) = compared(bars(), changed("close", 1.02)(bars())).differing.to_dict("records")
    assert row["session"] == LAST
    assert row["second_value"] == pytest.approx(row["first_value"] * 1.02)
    assert row["difference"] == pytest.approx(0.02)
    (event,) = compared(bars(), given("split", 4.0)(bars())).differing.to_dict("records")
    assert np.isnan(event["first_value"])
    assert event["second_value"] == 4
    assert np.isnan(event["difference"])


def test_a_dividend_taken_out_of_one_past_alone_is_a_difference_on_its_day_only():
    """The level of an adjusted close says nothing, its change does."""
    day = DAYS[7]
    late = bars()
    is_past = (late["symbol"] == "AAA") & (late["session"] < day)
    late["adj_close"] = late["adj_close"].where(~is_past, late["adj_close"] * 0.98)
    (row,) = compared(bars(), late).differing.to_dict("records")
    assert (row["symbol"], row["field"], row["session"]) == ("AAA", "adj_close", day)
    assert row["first_value"] == pytest.approx(1)
    assert row["second_value"] == pytest.approx(1 / 0.98)


def test_prices_in_another_unit_are_one_difference_a_bar_and_one_grave_sentence():
    pence = in_unit(bars(), 100)
    assert {field for _, field in found(bars(), pence)} == {"close"}
    assert len(found(bars(), pence)) == len(bars())
    (sentence,) = said(bars(), pence)
    assert re.match(r"close .* 48 bars of 4 symbols.*\(\+9,?900\.0 %\)$", sentence)
    assert grave(bars(), pence) == [True]


def test_a_day_that_one_source_lost_for_all_is_one_sentence():
    lost = bars()[bars()["session"] != DAYS[5]]
    for stored, second, sides in (
        (lost, bars(), ("the store", "the second source")),
        (bars(), lost, ("the second source", "the store")),
    ):
        assert set(found(stored, second)) == {(symbol, "bar") for symbol in SYMBOLS}
        (sentence,) = said(stored, second)
        assert re.match(f"{sides[0]} has no bar.*2024-07-15.* any of 4 .*{sides[1]} has", sentence)
        assert grave(stored, second) == [True]
    (sentence,) = said(lost_for(["AAA", "BBB"], DAYS[5]), bars())
    assert re.match("the store has no.*2024-07-15.* 2 of 4 .*second source has", sentence)


def test_a_stock_that_one_source_lists_later_or_not_at_all_is_compared_where_both_have_it():
    later = bars()
    later = later[(later["symbol"] != "AAA") | (later["session"] >= DAYS[4])]
    later = later[later["symbol"] != "CCC"]
    for stored, second in ((bars(), later), (later, bars())):
        result = compared(stored, second)
        assert result.differing.empty
        assert result.symbols == ("AAA", "BBB", INDEX)


def test_bars_on_no_session_and_without_a_price_are_not_compared():
    holiday = bars()
    holiday.loc[0, "session"] = pd.Timestamp("2024-07-13")
    without = given("close", np.nan, day=DAYS[0])(holiday)
    assert found(bars()[1:], without) == []
