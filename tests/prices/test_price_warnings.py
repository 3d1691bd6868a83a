"""Prices that are doubtful though every bar passes: an adjusted close that
takes out more than the dividend.
"""

import re
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from db.engine import reading
from db.read import read
from db.rows import prices
from dtml.prices.alignment import over_corrected, twin_stocks
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from tests.support.nights import AS_OF, BARS, FrameSource

NEXT = date(2024, 7, 2)


def paying(taken_out):
    """Bars of which L02 pays 3 % every 40 sessions, and whose adjusted close takes out so much."""
    bars = BARS.sort_values(["symbol", "session"], ignore_index=True)
    mine = bars["symbol"] == "L02"
    paid = (np.arange(mine.sum()) % 40 == 39).cumsum()
    for name in ("open", "high", "low", "close"):
        bars.loc[mine, name] = bars.loc[mine, name] * 0.97**paid
    bars.loc[mine, "adj_close"] = bars.loc[mine, "adj_close"] * (0.97 / (1 - taken_out)) ** paid
    return bars


def warned(context):
    with reading(context.engine) as conn:
        return read(conn, "price_warning", market=context.name, order="symbol, reason")[
            "symbol"
        ].tolist()


def test_a_dividend_that_is_taken_out_whole_is_no_warning_and_one_taken_out_twice_is():
    assert over_corrected(paying(0.03)).empty
    (row,) = over_corrected(paying(0.06)).to_dict("records")
    assert (row["symbol"], row["reason"]) == ("L02", "over_corrected_dividends")
    assert re.search(r"ex-days,.*adj_close / close.* 6\.", row["value"])
    assert over_corrected(paying(0.06)[lambda bars: bars["session"] < "2022-03-01"]).empty


@pytest.mark.soak
def test_a_night_warns_of_a_symbol_in_the_store_and_on_its_page_until_the_source_mends_it(context):
    night = run_night(replace(context, source=FrameSource(paying(0.06))), AS_OF)
    assert warned(context) == ["L02"]
    page = night.report.read_text()
    assert "Doubtful prices" in page
    assert "adj_close rises by" in page
    fetch_bars(context, AS_OF, whole=True)
    assert warned(context) == []


STOCKS = ["L01", "L02", "L03", "F01A", "F01B"]


def without_dividends():
    """Bars of which no dividend of these stocks is recorded or taken out of an adjusted close."""
    bars = BARS[BARS["session"] >= "2023-09-01"].astype({"volume": float})
    mine = bars["symbol"].isin(STOCKS)
    bars.loc[mine, "adj_close"] = bars.loc[mine, "close"]
    bars.loc[mine, "dividend"] = np.nan
    return bars


PLAIN = without_dividends()


def multiply(bars, symbol, factor, volume=1.0):
    """Multiply all prices of a stock by `factor`, and its volumes by `volume`."""
    mine = bars["symbol"] == symbol
    bars.loc[mine, ["open", "high", "low", "close", "adj_close"]] *= factor
    bars.loc[mine, "volume"] *= volume


def closes(context, symbol):
    with reading(context.engine) as conn:
        bars = prices.prices(conn, context.name, date(2024, 1, 2), NEXT, symbols=[symbol])
    return bars.set_index("session")["close"]


def test_stocks_with_the_same_bars_are_named_until_one_of_them_has_its_own(context):
    columns = ["open", "high", "low", "close", "adj_close", "volume"]
    twins = BARS.sort_values(["symbol", "session"], ignore_index=True)
    mine, other = (twins["symbol"] == symbol for symbol in ("L03", "F03A"))
    twins.loc[mine, columns] = twins.loc[other, columns].to_numpy()
    found = fetch_bars(replace(context, source=FrameSource(twins)), AS_OF)
    assert found.doubtful["symbol"].tolist() == warned(context) == ["F03A", "L03"]
    assert found.doubtful["reason"].unique() == ["same_bars"]
    assert "F03A" in found.doubtful.set_index("symbol").loc["L03", "value"]
    fetch_bars(replace(context, source=FrameSource(BARS)), NEXT)
    assert warned(context) == []


def test_a_stock_that_hardly_moves_is_no_twin():
    flat = BARS[BARS["symbol"].isin(["L03", "F03A"])].assign(close=5.0, volume=0.0)
    assert twin_stocks(flat, "^IDX").empty


def test_bars_in_another_unit_are_rejected_and_the_past_stays(context):
    factors = {"L01": 100.0, "L02": 0.001}
    fetch_bars(replace(context, source=FrameSource(PLAIN)), AS_OF)
    before = {symbol: closes(context, symbol) for symbol in factors}
    bars = PLAIN.copy()
    for symbol, factor in factors.items():
        multiply(bars, symbol, factor)
    other = replace(context, source=FrameSource(bars))
    rejected = fetch_bars(other, NEXT).rejected
    assert set(rejected["reason"]) == {"other_unit"}
    assert set(rejected.loc[rejected["session"] == pd.Timestamp(NEXT), "symbol"]) == {*factors}
    assert set(rejected["symbol"]) == {*factors}
    for symbol, expected in before.items():
        pd.testing.assert_series_equal(closes(context, symbol), expected)
    fetch_bars(other, NEXT, whole=True)  # the user says that it is right
    for symbol, factor in factors.items():
        assert closes(context, symbol).iloc[0] == pytest.approx(before[symbol].iloc[0] * factor)
    assert warned(context) == [*factors]


MULTIPLIED = [
    (0.5, 2.0, np.nan, True),
    (0.5, 2.0, 2.0, False),
    (0.1, 10.0, 10.0, False),
    (0.1, 10.0, np.nan, True),  # a split, as the volumes say, without its record
    (0.97, 1.0, np.nan, False),  # closes that are adjusted for a dividend
]


def test_a_past_that_is_multiplied_is_named_unless_a_split_or_a_dividend_explains_it(context):
    fetch_bars(replace(context, source=FrameSource(PLAIN)), AS_OF)
    before = {symbol: closes(context, symbol).iloc[0] for symbol in STOCKS}
    bars = PLAIN.copy()
    for symbol, (factor, volume, split, _) in zip(STOCKS, MULTIPLIED, strict=True):
        multiply(bars, symbol, factor, volume)
        is_next = (bars["symbol"] == symbol) & (bars["session"] == pd.Timestamp(NEXT))
        bars.loc[is_next, "split"] = split
    found = fetch_bars(replace(context, source=FrameSource(bars)), NEXT)
    assert found.rejected.empty
    assert sorted(found.restated) == sorted(STOCKS)
    named = dict(zip(found.doubtful["symbol"], found.doubtful["reason"], strict=True))
    assert named == {
        symbol: "rescaled_past"
        for symbol, (*_, is_named) in zip(STOCKS, MULTIPLIED, strict=True)
        if is_named
    }
    for symbol, (factor, *_) in zip(STOCKS, MULTIPLIED, strict=True):
        assert closes(context, symbol).iloc[0] == pytest.approx(before[symbol] * factor)
