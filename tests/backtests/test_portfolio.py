"""Portfolios: what is held, when it is filled, what it costs; no row knows what
comes after its exit.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.portfolio import Strategy, follow, positions
from dtml.backtest.quotes import Quotes
from dtml.errors import DtmlError
from dtml.markets.definition import FREE, Costs
from tests.support.bounds import assert_arrays_close_in_float64, in_float64

SESSIONS, STOCKS = 43, 13
CALENDAR = pd.bdate_range("2021-01-01", periods=SESSIONS)
FORMS = ("long", "long_short", "weighted")
FILLS = ("next_open", "close")
NAN = np.nan


def quotes_of(opened, closed=None):
    """Quotes of a row a session; without closes, a session closes where it opened."""
    first = np.array(opened, dtype=float)
    last = first if closed is None else np.array(closed, dtype=float)
    return Quotes(CALENDAR[: len(first)], first, last, tuple("ABCDEFGHIJKLM"[: first.shape[1]]))


@pytest.fixture
def quotes():
    walk = 100 * np.exp(
        0.02 * np.random.default_rng(1).standard_normal((2 * SESSIONS, STOCKS)).cumsum(axis=0)
    )
    return quotes_of(walk[0::2], walk[1::2])


@pytest.fixture
def probability():
    chance = np.random.default_rng(2).random((SESSIONS, STOCKS))
    chance[np.random.default_rng(3).random((SESSIONS, STOCKS)) < 0.1] = NAN
    return chance


MOSTLY = [0.4, 0.9, NAN, 0.6, 0.7]


@pytest.mark.parametrize(
    ("form", "top", "max_weight", "chance", "held"),
    [
        ("long", 2, 0.5, MOSTLY, [0, 0.5, 0, 0, 0.5]),
        ("long", 2, 0.3, MOSTLY, [0, 0.3, 0, 0, 0.3]),
        ("long", 7, 1.0, MOSTLY, [0.25, 0.25, 0, 0.25, 0.25]),
        ("long", 2, 1.0, [0.7] * 5, [0.5, 0.5, 0, 0, 0]),  # of equals the first symbol
        ("long_short", 1, 1.0, MOSTLY, [-0.5, 0.5, 0, 0, 0]),
        ("long_short", 7, 1.0, MOSTLY, [-0.25, 0.25, 0, -0.25, 0.25]),
        ("long_short", 1, 1.0, [0.7] * 5, [0.5, 0, 0, 0, -0.5]),
        ("long_short", 1, 1.0, [0.7, NAN], [0, 0]),
        ("weighted", 1, 1.0, [0.8, 0.4, NAN, 0.5, 0.4], [0.6, -0.2, 0, 0, -0.2]),
        ("weighted", 1, 0.3, [0.8, 0.4, NAN, 0.5, 0.4], [0.3, -0.2, 0, 0, -0.2]),
        ("weighted", 1, 1.0, [0.5, 0.5], [0, 0]),
    ],
)
def test_weights_by_hand(form, top, max_weight, chance, held):
    found = positions(np.array([chance]), Strategy(form, top=top, max_weight=max_weight))
    assert found[0] == in_float64(held)


@pytest.mark.parametrize("form", FORMS)
def test_stocks_are_interchangeable(form, probability, quotes):
    order = np.random.default_rng(4).permutation(STOCKS)
    strategy = Strategy(form, top=3, max_weight=0.3)
    shuffled = replace(quotes, open=quotes.open[:, order], close=quotes.close[:, order])
    pd.testing.assert_frame_equal(
        follow(positions(probability[:, order], strategy), CALENDAR, shuffled, strategy),
        follow(positions(probability, strategy), CALENDAR, quotes, strategy),
    )


def test_three_stocks_and_three_days_by_hand():
    """Worked out on paper.

    Fills are the opens of the sessions 1 to 3, and the last of them is sold at the open of session
    4. Day 1 buys 0.5 + 0.5; A rises by 10 %: gross 0.05, and A has drifted to 0.55 / 1.05 = 11/21,
    B to 10/21. Day 2 trades |0.6 - 11/21| + 10/21 + 0.2 = 15.8/21; C rises by 5 %: gross 0.01; A is
    0.6/1.01 then, C 0.21/1.01. Day 3 trades 0.6/1.01 + 0.5 + (0.25 - 0.21/1.01) = 0.75 + 0.39/1.01;
    B and C rise by 5 %: gross -0.025 + 0.0125. Trading costs 3 + 2 basis points; 252 a year are 1 a
    session, of the half held short on day 3.
    """
    opens = [[97, 97, 97], [100, 50, 20], [110, 50, 19], [110, 45, 19.95], [110, 47.25, 20.9475]]
    weights = np.array([[0.5, 0.5, 0], [0.6, 0, 0.2], [0, -0.5, 0.25]])
    costs = Costs(commission=3.0, half_spread=2.0, borrow=252.0)
    track = follow(weights, CALENDAR[:3], quotes_of(opens), Strategy("long", costs=costs))
    assert list(track["session"]) == list(CALENDAR[1:4])
    expected = {
        "gross": [0.05, 0.01, -0.0125],
        "turnover": [1, 15.8 / 21, 0.75 + 0.39 / 1.01],
        "cost": [0.0005, 0.0005 * 15.8 / 21, 0.0005 * (0.75 + 0.39 / 1.01)],
        "borrow": [0, 0, 0.00005],
        "net": [0.0495, 0.01 - 0.0079 / 21, -0.01255 - 0.000375 - 0.000195 / 1.01],
        "long": [1, 0.8, 0.25],
        "short": [0, 0, 0.5],
    }
    for name, column in expected.items():
        assert track[name].tolist() == in_float64(column), name


@pytest.mark.parametrize("fill", FILLS)
def test_prices_after_the_exit_change_no_earlier_row(fill, probability, quotes):
    generator = np.random.default_rng(5)
    for prices in (quotes.open, quotes.close):
        prices[generator.random((SESSIONS, STOCKS)) < 0.2] = NAN
    strategy = Strategy("weighted", fill, max_weight=0.3)
    weights = positions(probability, strategy)
    before = follow(weights, CALENDAR, quotes, strategy)
    for exit_session in (7, 19, 31):
        opened, closed = quotes.open.copy(), quotes.close.copy()
        opened[exit_session + 1 :] *= generator.uniform(0.5, 2, STOCKS)
        opened[exit_session + 3 :, ::2] = NAN
        # an open comes before the close of its session
        closed[exit_session + (fill == "close") :] = NAN
        after = follow(weights, CALENDAR, replace(quotes, open=opened, close=closed), strategy)
        count = int((before["session"] < CALENDAR[exit_session]).sum())
        pd.testing.assert_frame_equal(after[:count], before[:count])


def test_the_last_prediction_has_no_row_until_its_exit_is_known(quotes):
    strategy = Strategy("long", top=3, max_weight=1.0)
    weights = positions(np.random.default_rng(6).random((SESSIONS, STOCKS)), strategy)
    track = follow(weights, CALENDAR, quotes, strategy)
    assert track["session"].iloc[-1] == CALENDAR[-2]
    quotes.open[-1], quotes.close[-1] = NAN, NAN  # a session of the calendar that is still to come
    pd.testing.assert_frame_equal(follow(weights, CALENDAR, quotes, strategy), track[:-1])


@pytest.mark.parametrize("fill", FILLS)
def test_without_predictions_a_session_keeps_what_is_held(fill, quotes):
    strategy = Strategy("long", fill, top=3, max_weight=1.0)
    chance = np.random.default_rng(7).random((SESSIONS, STOCKS))
    chance[[3, 4, 11]] = NAN
    track = follow(positions(chance, strategy), CALENDAR, quotes, strategy)
    assert (track.loc[[3, 4, 11], ["turnover", "cost"]] == 0).all(axis=None)
    assert track.loc[[3, 4, 11], "long"].to_numpy() == in_float64([1, 1, 1])


@pytest.mark.parametrize(("later", "sign"), [(0.0, 1), (NAN, 1), (NAN, -1)])
def test_a_delisted_stock_waits_and_is_then_settled_at_its_last_price(sign, later):
    """Asked for at the fills 1 to 3, of which the last is at the last price
    there is, and no more after that.
    """
    price = np.full((SESSIONS, 2), 100.0)
    price[3, 0], price[4:, 0] = 80, NAN
    weights = np.full((SESSIONS, 2), later)
    weights[:3] = 0.1 * sign, 0
    strategy = Strategy("long", costs=Costs(5.0, 0.0, 0.0))
    track = follow(weights, CALENDAR, quotes_of(price), strategy)
    track = track.set_index(np.arange(1, SESSIONS - 1))
    held = track["long"] + track["short"]
    out = 3 + 20 + 1
    assert track["gross"].to_numpy() == in_float64(np.where(track.index == 2, -0.02 * sign, 0))
    assert held.to_numpy() == in_float64(np.where(track.index < out, 0.1, 0))
    traded = track.loc[4:, "turnover"]
    assert traded.to_numpy() == in_float64(np.where(traded.index == out, 0.1, 0))


def test_quotes_are_adjusted_and_missing_where_there_is_no_bar():
    """A pays 10 of 100 between its two sessions; B has no adjusted close at
    all; D is asked for and has no bar.
    """
    bars = pd.DataFrame({"symbol": list("AABC"), "session": CALENDAR[[0, 2, 1, 1]]})
    prices = {
        "open": [98.0, 89, NAN, 7],
        "close": [100.0, 90, 50, 7],
        "adj_close": [90.0, 90, NAN, 7],
    }
    bars = bars.assign(**prices, split=NAN, volume=NAN)
    found = Quotes.of(bars, CALENDAR[:3], ("D", "B", "A"), "adj_close")
    assert_arrays_close_in_float64(found.close, [[NAN, NAN, 90], [NAN, 50, NAN], [NAN, NAN, 90]])
    assert_arrays_close_in_float64(found.open, [[NAN, NAN, 88.2], [NAN, NAN, NAN], [NAN, NAN, 89]])
    assert found.symbols == ("D", "B", "A")
    raw = Quotes.of(bars, CALENDAR[:3], ("A",), "close")
    assert_arrays_close_in_float64(raw.open, [[98], [NAN], [89]])


REFUSED = pd.DataFrame({"symbol": ["A"], "session": CALENDAR[[3]]})
TENFOLD = [100.0] * 3 + [1000.0] * 4


def of_one_stock(
    opened,
    closed,
    *,
    split=(0, NAN),
    missing=(),
    refused=None,
):
    """Quotes of bars of A, whose moves are no larger than 30 %."""
    days = CALENDAR[: len(opened)]
    bars = pd.DataFrame({"symbol": "A", "session": days, "open": opened, "close": closed})
    bars = bars.assign(adj_close=NAN, split=NAN, volume=NAN)
    bars.loc[split[0], "split"] = split[1]
    bars = bars.drop(index=list(missing))
    return Quotes.of(bars, days, ("A",), "close", max_return=0.3, refused=refused)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(("refused", "missing"), [(None, ()), (REFUSED, (3,))])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_move_that_nothing_explains_earns_nothing_and_is_counted(sign, refused, missing, fill):
    """Of 0.1 in A a tenfold price would have made 0.9 of equity; the sale at
    the old price costs 5 basis points.
    """
    strategy = Strategy("long", fill, costs=Costs(5.0, 0.0, 0.0))
    quotes = of_one_stock(TENFOLD, TENFOLD, missing=missing, refused=refused)
    track = follow(np.full((6, 1), 0.1 * sign), CALENDAR[:6], quotes, strategy)
    track = track.set_index("session")
    assert (track["gross"] == 0).all()
    assert track["settled"].tolist() == [int(day == CALENDAR[3]) for day in track.index]
    assert track.loc[CALENDAR[3], "unbooked"] == in_float64(0.9 * sign)
    # sold, bought anew
    assert track.loc[CALENDAR[4], ["turnover", "cost"]].tolist() == in_float64([0.2, 0.0001])


@pytest.mark.parametrize("fill", FILLS)
def test_a_position_follows_a_recorded_split_that_the_price_does_not_reflect(fill):
    quotes = of_one_stock(TENFOLD, TENFOLD, split=(3, 0.1))
    strategy = Strategy("long", fill, costs=FREE)
    track = follow(np.full((6, 1), 0.1), CALENDAR[:6], quotes, strategy)
    assert track["gross"].to_numpy() == in_float64(np.zeros(len(track)))
    assert (track[["settled", "unbooked"]] == 0).all(axis=None)


def test_an_open_far_from_the_closes_around_it_is_no_price_to_trade_at():
    """Bought at 100 on session 1 and sold at 101 on session 4, the first open
    after the wrong one.
    """
    quotes = of_one_stock([100.0, 100, 100, 145, 101, 101, 101], 100.0)
    weights = np.array([[0.5], [0.5], [0.0], [0.0], [0.0], [0.0]])
    strategy = Strategy("long", max_weight=0.5, costs=FREE)
    track = follow(weights, CALENDAR[:6], quotes, strategy).set_index("session")
    assert track["gross"].sum() == in_float64(0.005)
    assert track.loc[CALENDAR[3], ["turnover", "settled", "unbooked"]].tolist() == [0, 0, 0]
    assert track.loc[CALENDAR[4], "turnover"] == in_float64(0.505 / 1.005)


def test_a_portfolio_that_loses_all_equity_says_when():
    with pytest.raises(DtmlError, match=r"long-short, next open: .*2021-01-04.*2021-01-05, "):
        follow(np.array([[-0.5]]), CALENDAR[:1], quotes_of([[1], [1], [3]]), Strategy("long_short"))


def test_a_stock_without_a_price_is_not_traded():
    """A has none at first; it is halted, half of the equity, at the open of session 4, last known
    at its close of 120, and opens at 90.
    """
    opened = [[NAN, 10], [NAN, 10], [100, 11], [100, 11], [NAN, 11], [90, 11], [90, 11]]
    closed = [[NAN, 10], [NAN, 10], [100, 11], [120, 11], [NAN, 11], [90, 11], [90, 11]]
    weights = np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.0], [0.0, 1.0], [0.0, 1.0]])
    quotes = quotes_of(opened, closed)
    track = follow(weights, CALENDAR[:5], quotes, Strategy("long", costs=FREE))
    # What cannot be bought stays in cash. Marked at 120, A is 0.6 of 1.1, which leaves room for 0.5
    # / 1.1 of B; the fall to 90 is felt where it opens.
    assert track["long"].tolist() == in_float64([0.5, 1, 0.5, 1, 1])
    assert track["gross"].tolist() == in_float64([0.05, 0, 0.1, -0.25 * 0.6 / 1.1, 0])
    traded = [0.5 / 1.1, 0.45 / 0.95 + 1 - 0.5 / 0.95]
    assert track["turnover"].tolist()[3:] == in_float64(traded)


def test_a_split_that_the_price_reflects_changes_nothing():
    quotes = of_one_stock([100.0] * 3, [100.0, 103, 105], split=(1, 2.0))
    assert quotes.close[:, 0].tolist() == [100, 103, 105]


def test_a_refused_bar_that_the_source_explained_later_is_no_break():
    """A restated history has a good bar on that session: the earlier finding says nothing of it."""
    assert not of_one_stock([100.0] * 5, 100.0, refused=REFUSED).breaks.any()
