"""What a good bar is: each fault is rejected with its reason, and everything
else is accepted as it came.
"""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtml.markets import Checks
from dtml.prices.bars import BAR_COLUMNS, REASONS, bars_frame, check

SESSIONS = pd.bdate_range("2024-01-01", periods=17)
CLOSED = SESSIONS[12]
STOCKS = ("AAA", "BBB", "CCC", "DDD", "EEE", "FFF", "GGG")
INDEX = "IDX"


def market(symbols=(*STOCKS, INDEX), sessions=13):
    """Good bars, session by session as real files have them: every close
    differs from the one before.
    """
    tables = []
    for place, symbol in enumerate(symbols):
        close = 20 + 10 * place + np.arange(sessions) / 8
        prices = {"open": close - 0.25, "high": close + 1, "low": close - 1, "close": close}
        table = pd.DataFrame({"symbol": symbol, "session": SESSIONS[:sessions], **prices})
        tables.append(table.assign(adj_close=close / 2, volume=100.0 + place))
    return bars_frame(pd.concat(tables).sort_values(["session", "symbol"]))


def judge(bars, **changed):
    settings = {
        "sessions": SESSIONS,
        "closed_until": CLOSED.date(),
        "checks": Checks(max_return=0.35, max_missing=0.2, stale_share=0.5),
        "index_symbol": INDEX,
        "returns": "adj_close",
    }
    return check(bars, **(settings | changed))


def row_of(bars, symbol, session):
    return (bars["symbol"] == symbol) & (bars["session"] == SESSIONS[session])


def spoilt(symbol, session, **values):
    bars = market()
    for column, value in values.items():
        bars.loc[row_of(bars, symbol, session), column] = value
    return bars


def scaled(bars, symbol, first, end, factor):
    """Multiply the prices of sessions first..end, the last excluded."""
    there = (bars["symbol"] == symbol) & bars["session"].isin(SESSIONS[first:end])
    bars.loc[there, ["open", "high", "low", "close", "adj_close"]] *= factor


def reasons(checked):
    columns = (checked.rejected[name] for name in ("symbol", "session", "reason"))
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(
    ("values", "reason", "value"),
    [
        ({"open": np.nan}, "null_price", "open=nan"),
        ({"close": np.inf}, "null_price", "close=inf"),
        ({"adj_close": np.nan}, "null_price", "adj_close=nan"),
        ({"open": 0.0}, "non_positive_price", "open=0"),
        ({"low": -1.5}, "non_positive_price", "low=-1.5"),
        ({"adj_close": 0.0}, "non_positive_price", "adj_close=0"),
        ({"high": 25.0, "low": 27.0}, "high_below_low", "high=25 low=27"),
        ({"close": 35.0}, "outside_range", "open=30.375 high=31.625 low=29.625 close=35"),
        ({"high": 3162.5}, "unexplained_range", "open=30.375 high=3162.5 low=29.625 close=30.625"),
        (
            {"open": 3037.5, "high": 3162.5},
            "unexplained_range",
            "open=3037.5 high=3162.5 low=29.625 close=30.625",
        ),
        ({"low": 0.29625}, "unexplained_range", "open=30.375 high=31.625 low=0.29625 close=30.625"),
        ({"open": 29.5}, "outside_range", "open=29.5 high=31.625 low=29.625 close=30.625"),
        ({"adj_close": 30.625}, "unexplained_return", "adj_close=30.625 after 15.25 (+100.8%)"),
        ({"volume": -1.0}, "impossible_amount", "volume=-1 dividend=nan split=nan"),
        ({"volume": np.inf}, "impossible_amount", "volume=inf dividend=nan split=nan"),
        ({"dividend": -0.5}, "impossible_amount", "volume=101 dividend=-0.5 split=nan"),
        ({"split": -2.0}, "impossible_amount", "volume=101 dividend=nan split=-2"),
    ],
)
def test_a_bad_price_is_rejected_with_its_reason_and_value(values, reason, value):
    checked = judge(spoilt("BBB", 5, **values))
    # the way back
    later = [("BBB", SESSIONS[6], "unexplained_return")] if reason == "unexplained_return" else []
    assert reasons(checked) == [("BBB", SESSIONS[5], reason), *later]
    assert checked.rejected["value"].iloc[0] == value
    assert len(checked.accepted) == 8 * 13 - 1 - len(later)


def test_a_price_outside_the_range_by_rounding_is_accepted():
    assert judge(spoilt("BBB", 5, close=31.625 * 1.0006)).rejected.empty
    assert reasons(judge(spoilt("BBB", 5, close=31.625 * 1.0011))) == [
        ("BBB", SESSIONS[5], "outside_range")
    ]


def test_a_bar_after_the_last_closed_session_is_open_and_one_later_is_future():
    bars = market(sessions=15)
    assert set(reasons(judge(bars))) == {
        *((symbol, SESSIONS[13], "open_session") for symbol in (*STOCKS, INDEX)),
        *((symbol, SESSIONS[14], "future_session") for symbol in (*STOCKS, INDEX)),
    }


def test_a_bar_of_a_day_that_is_no_session_is_rejected_and_compared_with_nothing():
    bars = spoilt("BBB", 5, adj_close=90.0)
    checked = judge(bars, sessions=SESSIONS.delete(5))
    assert set(reasons(checked)) == {
        (symbol, SESSIONS[5], "not_a_session") for symbol in (*STOCKS, INDEX)
    }


def test_differing_bars_of_one_session_are_all_rejected_and_equal_ones_but_for_one():
    bars = market()
    equal = bars[row_of(bars, "AAA", 3)]
    differing = bars[row_of(bars, "BBB", 4)].assign(close=30.375)
    checked = judge(pd.concat([bars, equal, equal, differing], ignore_index=True))
    rejected = reasons(checked)
    assert rejected.count(("AAA", SESSIONS[3], "duplicate_session")) == 2
    assert rejected.count(("BBB", SESSIONS[4], "duplicate_session")) == 2
    assert len(rejected) == 4
    assert row_of(checked.accepted, "AAA", 3).sum() == 1
    assert row_of(checked.accepted, "BBB", 4).sum() == 0


def test_a_session_on_which_half_the_stocks_repeat_without_volume_is_stale_for_them():
    bars = market()
    for symbol in (*STOCKS[:4], INDEX):
        bars.loc[row_of(bars, symbol, 5), ["open", "close", "volume"]] = [
            *bars.loc[row_of(bars, symbol, 4), ["open", "close"]].iloc[0],
            0,
        ]
    checked = judge(bars)
    assert set(reasons(checked)) == {(symbol, SESSIONS[5], "stale_day") for symbol in STOCKS[:4]}
    assert re.match(r"close=20\.5 volume=0,.*57\.1%", checked.rejected["value"].iloc[0])


@pytest.mark.parametrize("volume", [0.0, np.nan, 3.0])
def test_a_halted_stock_is_no_stale_day(volume):
    assert judge(spoilt("BBB", 5, close=30.5, volume=volume)).rejected.empty


def test_a_stock_fetched_alone_is_held_against_the_size_of_its_market():
    alone = spoilt("BBB", 5, close=30.5, volume=0)
    alone = alone[alone["symbol"] == "BBB"].reset_index(drop=True)
    assert reasons(judge(alone)) == [("BBB", SESSIONS[5], "stale_day")]
    assert judge(alone, market_size=7).rejected.empty


def repeated(symbols, **changed):
    """Bars whose session 5 is that of session 4 again, but for what is `changed`."""
    bars = market()
    for symbol in symbols:
        for name in ("open", "high", "low", "close", "volume"):
            earlier = bars.loc[row_of(bars, symbol, 4), name].iloc[0]
            bars.loc[row_of(bars, symbol, 5), name] = changed.get(name, earlier)
    return bars


def test_a_bar_that_is_delivered_again_is_rejected_alone_or_with_the_index():
    checked = judge(repeated(("CCC", INDEX)))
    assert reasons(checked) == [
        ("CCC", SESSIONS[5], "repeated_bar"),
        (INDEX, SESSIONS[5], "repeated_bar"),
    ]
    assert judge(repeated(("CCC",), volume=103.0)).rejected.empty
    assert judge(repeated(("CCC",), volume=np.nan)).rejected.empty


@pytest.mark.parametrize("volume", [np.nan, 100.0])
def test_bars_of_one_price_are_delivered_again_if_all_stocks_repeat_them(volume):
    def repeated_closes(symbols):
        bars = repeated(symbols)
        for name in ("open", "high", "low"):
            bars[name] = bars["close"]
        return bars.assign(volume=volume)

    stale = {(symbol, SESSIONS[5], "stale_day") for symbol in STOCKS}
    assert set(reasons(judge(repeated_closes(STOCKS)))) == stale
    assert judge(repeated_closes(STOCKS[1:])).rejected.empty
    assert judge(repeated_closes(STOCKS), market_size=8).rejected.empty


# Sessions of another level, its factor, the recorded splits, and the reason of each session lost.
LEVELS = {
    "a bar": (4, 5, 100, {}, {4: "brief_jump"}),
    "five bars": (4, 9, 3.5, {}, dict.fromkeys(range(4, 9), "brief_jump")),
    "below": (4, 6, 0.01, {}, {4: "brief_jump", 5: "brief_jump"}),
    "the newest": (11, 13, 100, {}, {11: "unexplained_return"}),
    "it lasts": (3, 9, 10, {}, {3: "unexplained_return", 9: "unexplained_return"}),
    "a crash": (4, 7, 0.4, {}, {4: "unexplained_return", 7: "unexplained_return"}),
    "splits": (4, 6, 0.1, {4: 10.0, 6: 0.1}, {}),
    "a split": (5, 13, 0.5, {5: 2.0}, {}),
    "no split": (5, 13, 0.5, {}, {5: "unexplained_return"}),
    "a split upside down": (5, 13, 10, {5: 10.0}, {5: "unexplained_return"}),
}


@pytest.mark.parametrize("name", LEVELS)
def test_bars_at_another_level_are_rejected_unless_recorded_splits_explain_it(name):
    first, end, factor, splits, expected = LEVELS[name]
    bars = market()
    scaled(bars, "BBB", first, end, factor)
    for day, split in splits.items():
        bars.loc[row_of(bars, "BBB", day), "split"] = split
    found = sorted(reasons(judge(bars[::-1])))  # in whatever order they come
    assert found == [("BBB", SESSIONS[day], reason) for day, reason in expected.items()]


def test_moves_come_from_the_price_that_the_market_names():
    bars = market()
    later = (bars["symbol"] == "BBB") & (bars["session"] >= SESSIONS[5])
    # a split, which the adjusted close does not show
    bars.loc[later, ["open", "high", "low", "close"]] *= 0.5
    assert judge(bars).rejected.empty
    assert reasons(judge(bars, returns="close")) == [("BBB", SESSIONS[5], "unexplained_return")]


def test_a_symbol_without_adjusted_close_is_judged_by_its_close():
    bars = market()
    bars.loc[bars["symbol"] == "BBB", "adj_close"] = np.nan
    later = (bars["symbol"] == "BBB") & (bars["session"] >= SESSIONS[5])
    bars.loc[later, ["open", "high", "low", "close"]] *= 0.5
    assert reasons(judge(bars)) == [("BBB", SESSIONS[5], "unexplained_return")]


def test_a_bar_rejected_for_its_open_is_still_what_the_next_one_is_compared_with():
    # +31 % on this session, and -23 % on the next
    bars = spoilt("BBB", 5, open=0.0, adj_close=20.0)
    bars.loc[row_of(bars, "BBB", 6), "adj_close"] = 12.5
    assert reasons(judge(bars)) == [
        ("BBB", SESSIONS[5], "non_positive_price"),
        ("BBB", SESSIONS[6], "unexplained_return"),
    ]


def test_a_price_that_the_close_before_explains_is_no_wide_range():
    """A stock opens where it closed and loses 95 % by the close, with the split
    that the source records.
    """
    bars = market()
    scaled(bars, "BBB", 5, 13, 0.05)
    bars.loc[row_of(bars, "BBB", 5), ["open", "high"]] = 30.5
    bars.loc[row_of(bars, "BBB", 5), "split"] = 20.0
    assert judge(bars).rejected.empty


def test_a_ratio_of_one_is_no_split_and_nothing_paid_is_no_dividend():
    table = market().assign(split=[0.0, 1.0, 2.0, 0.5] * 26, dividend=[0.0, 0.25] * 52)
    bars = bars_frame(table)
    assert bars["split"].iloc[:4].tolist()[2:] == [2.0, 0.5]
    assert bars["split"].isna().sum() == 52
    assert bars["dividend"].isna().sum() == 52


BROKEN = st.sampled_from([np.nan, 0.0, -3.0, 1e6, 30.0])


@pytest.mark.soak
@given(
    cells=st.lists(
        st.tuples(st.integers(0, 103), st.sampled_from(BAR_COLUMNS[2:]), BROKEN),
        min_size=1,
        max_size=11,
    ),
    copies=st.lists(st.integers(0, 103), max_size=3),
    closed=st.integers(0, 16),
)
def test_every_bar_is_either_accepted_unchanged_or_rejected_once(cells, copies, closed):
    bars = market()
    for row, column, value in cells:
        bars.loc[row, column] = value
    bars = pd.concat([bars, bars.loc[copies]], ignore_index=True)
    checked = judge(bars, closed_until=SESSIONS[closed].date())
    assert len(checked.accepted) + len(checked.rejected) == len(bars)
    assert set(checked.rejected["reason"]) <= set(REASONS)
    accepted = checked.accepted.merge(
        bars.drop_duplicates(), how="left", on=list(BAR_COLUMNS), indicator=True
    )
    assert (accepted["_merge"] == "both").all()
    assert not checked.accepted.duplicated(["symbol", "session"]).any()
