"""Recorded splits and dividends that the prices contradict are warnings; those
that fit are none.
"""

from dataclasses import replace

import pandas as pd
import pytest

from db.engine import reading
from db.read import read
from dtml.prices.actions import CONTRADICTED, UNDIVIDED, doubtful_actions
from flows.nightly.fetch import fetch_bars
from tests.support.nights import AS_OF, BARS, SIMULATED, FrameSource

PRICES = ["open", "high", "low", "close", "adj_close"]
SYMBOL = "L02"
HISTORY = BARS[BARS["session"] <= pd.Timestamp(AS_OF)].sort_values(
    ["symbol", "session"], ignore_index=True
)
DAYS = HISTORY.loc[HISTORY["symbol"] == SYMBOL, "session"].tolist()


def found(bars, returns="adj_close"):
    rows = doubtful_actions(bars, SIMULATED.index_symbol, returns)
    return list(zip(rows["symbol"], rows["reason"], strict=True))


def found_of_one(bars, returns):
    """The reasons of the stock that a test changes: three others record splits
    that their raw closes show.
    """
    return [reason for symbol, reason in found(bars, returns) if symbol == SYMBOL]


def with_split(ratio, *, is_divided, day=-23):
    bars = HISTORY.copy()
    mine = bars["symbol"] == SYMBOL
    bars.loc[mine & (bars["session"] == DAYS[day]), "split"] = ratio
    if not is_divided:
        bars.loc[mine & (bars["session"] >= DAYS[day]), PRICES] /= ratio
    return bars


def with_dividend(falls, recorded, taken_out, day=-31):
    """Bars of which the close falls by a share, as another is recorded and a
    third taken out of the adjusted close.
    """
    bars = HISTORY.copy()
    mine = bars["symbol"] == SYMBOL
    before = bars.loc[mine & (bars["session"] == DAYS[day - 1]), "close"].item()
    # of this one day, for its news
    flat = bars.loc[mine & (bars["session"] == DAYS[day]), "close"].item() / before
    bars.loc[mine & (bars["session"] >= DAYS[day]), PRICES] *= (1 - falls) / flat
    bars.loc[mine & (bars["session"] == DAYS[day]), "dividend"] = recorded * before
    bars.loc[mine & (bars["session"] < DAYS[day]), "adj_close"] *= 1 - taken_out
    return bars


@pytest.mark.slow
@pytest.mark.parametrize("returns", ["adj_close", "close"])
@pytest.mark.parametrize("ratio", [1.1, 1.25, 0.8, 4.0])
def test_a_recorded_split_whose_past_is_not_divided_is_named(ratio, returns):
    assert found_of_one(with_split(ratio, is_divided=False), returns) == [UNDIVIDED]
    assert found_of_one(with_split(ratio, is_divided=True), returns) == []


def test_a_dividend_that_all_prices_agree_on_is_no_warning():
    assert found(with_dividend(falls=0.04, recorded=0.04, taken_out=0.04)) == []
    assert found(with_dividend(falls=0.22, recorded=0.22, taken_out=0.22)) == []
    assert found(with_dividend(falls=0.0, recorded=0.001, taken_out=0.001)) == []
    assert found(with_dividend(falls=0.15, recorded=0.0, taken_out=0.15)) == []  # a rights issue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("falls", "recorded", "taken_out"),
    [
        (0.04, 0.04, 0.0),
        (0.04, 0.04, 0.0004),
        (0.06, 0.02, 0.06),
        (0.0, 0.15, 0.15),
        (0.0, 0.0, 0.15),
        (0.06, 0.0006, 0.0006),
    ],
    ids=[
        "left in",
        "a hundredth taken out",
        "recorded too small",
        "not paid",
        "without one",
        "pence for pounds",
    ],
)
def test_an_adjusted_close_that_contradicts_the_dividend_is_named(falls, recorded, taken_out):
    assert found(with_dividend(falls, recorded, taken_out)) == [(SYMBOL, CONTRADICTED)]
    assert found_of_one(with_dividend(falls, recorded, taken_out), "close") == []


def test_a_night_names_a_split_of_its_newest_bar(context):
    """It fetches a few sessions alone, and knows an ordinary one from the store."""
    bars = with_split(1.25, is_divided=False, day=-1)
    fetch_bars(replace(context, source=FrameSource(bars)), DAYS[-2].date())
    fetch_bars(replace(context, source=FrameSource(bars)), AS_OF)
    with reading(context.engine) as conn:
        rows = read(conn, "price_warning", market=context.name, order="symbol, reason")
    assert list(zip(rows["symbol"], rows["reason"], strict=True)) == [(SYMBOL, UNDIVIDED)]
    fetch_bars(
        replace(context, source=FrameSource(with_split(1.25, is_divided=True, day=-1))),
        AS_OF,
        whole=True,
    )
    with reading(context.engine) as conn:
        assert read(conn, "price_warning", market=context.name, order="symbol, reason").empty
