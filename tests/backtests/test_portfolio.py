"""Portfolios: what is held, when it is filled, what it costs; no row knows what
comes after its exit.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.portfolio import (
    Strategy,
    equal_weight_track,
    follow,
    index_track,
    positions,
)
from dtml.backtest.quotes import Quotes
from dtml.errors import DtmlError
from dtml.markets.definition import FREE, Costs
from tests.support.bounds import assert_arrays_close_in_float64, in_float64

SESSIONS, STOCKS = 43, 13
CALENDAR = pd.bdate_range("2021-01-01", periods=SESSIONS)
FORMS = ("long", "long_short", "weighted")
FILLS = ("next_open", "close")
NAN = np.nan


def quotes_of(
    opened: list[list[float]] | np.ndarray, closed: list[list[float]] | np.ndarray | None = None
) -> Quotes:
    """Quotes of a row a session; without closes, a session closes where it opened."""
    first = np.array(opened, dtype=float)
    last = first if closed is None else np.array(closed, dtype=float)
    return Quotes(CALENDAR[: len(first)], first, last, tuple("ABCDEFGHIJKLM"[: first.shape[1]]))


@pytest.fixture
def quotes() -> Quotes:
    walk = 100 * np.exp(
        0.02 * np.random.default_rng(1).standard_normal((2 * SESSIONS, STOCKS)).cumsum(axis=0)
    )
    return quotes_of(walk[0::2], walk[1::2])


@pytest.fixture
def probability() -> np.ndarray:
    chance = np.random.default_rng(2).random((SESSIONS, STOCKS))
    chance[np.random.default_rng(3).random((SESSIONS, STOCKS)) < 0.1] = NAN
    return chance


def test_the_longs_are_equal_parts_of_the_most_probable() -> None:
    chance = np.array([[0.4, 0.9, NAN, 0.6, 0.7]])
    assert positions(chance, Strategy("long", top=2, max_weight=0.5)).tolist() == [
        [0, 0.5, 0, 0, 0.5]
    ]
    assert positions(chance, Strategy("long", top=2, max_weight=0.3)).tolist() == [
        [0, 0.3, 0, 0, 0.3]
    ]
    assert positions(chance, Strategy("long", top=7, max_weight=1.0)).tolist() == [
        [0.25, 0.25, 0, 0.25, 0.25]
    ]


def test_long_short_holds_half_in_the_highest_and_minus_half_in_the_lowest() -> None:
    chance = np.array([[0.4, 0.9, NAN, 0.6, 0.7, 0.5]])
    assert positions(chance, Strategy("long_short", top=1, max_weight=1.0)).tolist() == [
        [-0.5, 0.5, 0, 0, 0, 0]
    ]
    assert positions(chance, Strategy("long_short", top=7, max_weight=1.0)).tolist() == [
        [-0.25, 0.25, 0, 0, 0.25, -0.25]
    ]
    assert positions(np.array([[0.4, NAN]]), Strategy("long_short")).tolist() == [[0, 0]]


def test_weights_go_with_probability_less_one_half() -> None:
    chance = np.array([[0.8, 0.4, NAN, 0.5, 0.4]])
    assert positions(chance, Strategy("weighted", max_weight=1.0))[0] == in_float64(
        [0.6, -0.2, 0, 0, -0.2]
    )
    assert positions(chance, Strategy("weighted", max_weight=0.3))[0] == in_float64(
        [0.3, -0.2, 0, 0, -0.2]
    )
    assert positions(np.full((1, 3), 0.5), Strategy("weighted")).tolist() == [[0, 0, 0]]


def test_of_equals_the_first_symbol_ranks_higher() -> None:
    chance = np.full((1, 5), 0.7)
    assert positions(chance, Strategy("long", top=2, max_weight=1.0)).tolist() == [
        [0.5, 0.5, 0, 0, 0]
    ]
    assert positions(chance, Strategy("long_short", top=1, max_weight=1.0)).tolist() == [
        [0.5, 0, 0, 0, -0.5]
    ]


@pytest.mark.parametrize("form", FORMS)
def test_gross_exposure_is_one_and_no_weight_passes_its_limit(
    form: str, probability: np.ndarray
) -> None:
    free = positions(probability, Strategy(form, top=3, max_weight=1.0))
    assert np.abs(free).sum(axis=1) == in_float64(np.ones(SESSIONS))
    held = positions(probability, Strategy(form, top=3, max_weight=0.11))
    assert np.abs(held).max() <= 0.11
    assert held == in_float64(np.clip(free, -0.11, 0.11))
    assert (held[np.isnan(probability)] == 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_stocks_are_interchangeable(form: str, probability: np.ndarray, quotes: Quotes) -> None:
    run_request = np.random.default_rng(4).permutation(STOCKS)
    strategy = Strategy(form, top=3, max_weight=0.3)
    shuffled = replace(quotes, open=quotes.open[:, run_request], close=quotes.close[:, run_request])
    pd.testing.assert_frame_equal(
        follow(positions(probability[:, run_request], strategy), CALENDAR, shuffled, strategy),
        follow(positions(probability, strategy), CALENDAR, quotes, strategy),
    )


# Fills are the opens of the sessions 1 to 3, and the last of them is sold at the open of session 4.
OPENS = [[97, 97, 97], [100, 50, 20], [110, 50, 19], [110, 45, 19.95], [110, 47.25, 20.9475]]
WEIGHTS = np.array([[0.5, 0.5, 0], [0.6, 0, 0.2], [0, -0.5, 0.25]])


def by_hand(costs: Costs) -> pd.DataFrame:
    return follow(WEIGHTS, CALENDAR[:3], quotes_of(OPENS), Strategy("long", costs=costs))


def test_three_stocks_and_three_days_by_hand() -> None:
    """Worked out on paper.

    Day 1 buys 0.5 + 0.5; A rises by 10 %: gross 0.05, and A has drifted to 0.55 / 1.05 = 11/21, B
    to 10/21. Day 2 trades |0.6 - 11/21| + 10/21 + 0.2 = 15.8/21; C rises by 5 %: gross 0.01; A is
    0.6/1.01 then, C 0.21/1.01. Day 3 trades 0.6/1.01 + 0.5 + (0.25 - 0.21/1.01) = 0.75 + 0.39/1.01;
    B and C rise by 5 %: gross -0.025 + 0.0125. Trading costs 3 + 2 basis points; 252 a year are 1 a
    session, of the half held short on day 3.
    """
    track = by_hand(Costs(commission=3.0, half_spread=2.0, borrow=252.0))
    earned = ["gross", "turnover", "cost", "borrow", "net"]
    assert list(track.columns) == ["session", *earned, "long", "short", "settled", "unbooked"]
    assert list(track["session"]) == list(CALENDAR[1:4])
    assert track["gross"].tolist() == in_float64([0.05, 0.01, -0.0125])
    assert track["turnover"].tolist() == in_float64([1, 15.8 / 21, 0.75 + 0.39 / 1.01])
    assert track["cost"].tolist() == in_float64(
        [0.0005, 0.0005 * 15.8 / 21, 0.0005 * (0.75 + 0.39 / 1.01)]
    )
    assert track["borrow"].tolist() == in_float64([0, 0, 0.00005])
    assert track["net"].tolist() == in_float64(
        [0.0495, 0.01 - 0.0079 / 21, -0.01255 - 0.000375 - 0.000195 / 1.01]
    )
    assert track["long"].tolist() == in_float64([1, 0.8, 0.25])
    assert track["short"].tolist() == in_float64([0, 0, 0.5])


def test_a_dearer_trade_lowers_each_days_return_by_exactly_turnover_times_the_difference() -> None:
    cheap, dear = by_hand(Costs(3.0, 2.0, 50.0)), by_hand(Costs(10.0, 2.0, 50.0))
    assert (cheap["net"] - dear["net"]).tolist() == in_float64(
        [7e-4, 7e-4 * 15.8 / 21, 7e-4 * (0.75 + 0.39 / 1.01)]
    )
    wider = by_hand(Costs(3.0, 9.0, 50.0))
    pd.testing.assert_series_equal(wider["net"], dear["net"])
    assert (cheap["turnover"] == dear["turnover"]).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_coins_net_is_gross_less_costs(
    form: str, probability: np.ndarray, quotes: Quotes
) -> None:
    strategy = Strategy(form, top=3, max_weight=0.3)
    weights = positions(probability, strategy)
    track = follow(weights, CALENDAR, quotes, strategy)
    free = follow(weights, CALENDAR, quotes, replace(strategy, costs=FREE))
    paid = track["turnover"] * (1 + 2) / 1e4 + track["short"] * 50 / 1e4 / 252
    assert track["net"].to_numpy() == in_float64((track["gross"] - paid).to_numpy())
    pd.testing.assert_series_equal(free["net"], track["gross"], check_names=False)
    assert ((track["long"] + track["short"]) <= 1 + 1e-12).all()


@pytest.mark.parametrize("fill", FILLS)
def test_an_oracle_beats_equal_weights_each_day_and_the_index(fill: str, quotes: Quotes) -> None:
    price = quotes.fills(fill)
    shift = 1 if fill == "next_open" else 0
    oracle = np.full((SESSIONS, STOCKS), 0.5)
    oracle[: SESSIONS - 1 - shift] = price[1 + shift :] / price[shift:-1] - 0.5
    strategy = Strategy("long", fill, top=3, max_weight=1.0, costs=FREE)
    track = follow(positions(oracle, strategy), CALENDAR, quotes, strategy)
    equal = equal_weight_track(oracle, CALENDAR, quotes, fill)
    index = replace(quotes, open=quotes.open[:, :1], close=quotes.close[:, :1], symbols=("I",))
    one = index_track(index, CALENDAR, fill)
    assert list(track["session"]) == list(equal["session"]) == list(one["session"])
    assert (track["net"] > equal["net"]).all()
    assert track["net"].sum() > one["net"].sum()
    short = replace(strategy, form="long_short")
    assert (follow(positions(oracle, short), CALENDAR, quotes, short)["net"] > 0).all()


def test_filled_at_the_close_an_oracle_earns_the_mean_of_the_labels(quotes: Quotes) -> None:
    # the label of as_of is the return to the close of target
    movement = quotes.close[1:] / quotes.close[:-1] - 1
    strategy = Strategy("long", "close", top=3, max_weight=1.0, costs=FREE)
    track = follow(positions(0.5 + movement, strategy), CALENDAR[:-1], quotes, strategy)
    assert list(track["session"]) == list(CALENDAR[:-1])
    assert track["net"].to_numpy() == in_float64(np.sort(movement, axis=1)[:, -3:].mean(axis=1))
    equal = equal_weight_track(movement, CALENDAR[:-1], quotes, "close")
    assert equal["net"].to_numpy() == in_float64(movement.mean(axis=1))


@pytest.mark.parametrize("fill", FILLS)
def test_the_index_is_bought_once_and_held(fill: str, quotes: Quotes) -> None:
    index = replace(quotes, open=quotes.open[:, :1], close=quotes.close[:, :1], symbols=("I",))
    track = index_track(index, CALENDAR, fill)
    price = index.fills(fill)[int(fill == "next_open") :, 0]
    assert (1 + track["net"]).cumprod().to_numpy() == in_float64(price[1:] / price[0])
    assert track["turnover"].tolist() == in_float64([1] + [0] * (len(track) - 1))
    assert (track["net"] == track["gross"]).all()


@pytest.mark.parametrize("fill", FILLS)
def test_prices_after_the_exit_change_no_earlier_row(
    fill: str, probability: np.ndarray, quotes: Quotes
) -> None:
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


def test_the_last_prediction_has_no_row_until_its_exit_is_known(quotes: Quotes) -> None:
    strategy = Strategy("long", top=3, max_weight=1.0)
    weights = positions(np.random.default_rng(6).random((SESSIONS, STOCKS)), strategy)
    track = follow(weights, CALENDAR, quotes, strategy)
    assert track["session"].iloc[-1] == CALENDAR[-2]
    quotes.open[-1], quotes.close[-1] = NAN, NAN  # a session of the calendar that is still to come
    pd.testing.assert_frame_equal(follow(weights, CALENDAR, quotes, strategy), track[:-1])
    assert follow(weights[-2:], CALENDAR[-2:], quotes, strategy).empty


@pytest.mark.parametrize("fill", FILLS)
def test_without_predictions_a_session_keeps_what_is_held(fill: str, quotes: Quotes) -> None:
    strategy = Strategy("long", fill, top=3, max_weight=1.0)
    chance = np.random.default_rng(7).random((SESSIONS, STOCKS))
    chance[[3, 4, 11]] = NAN
    track = follow(positions(chance, strategy), CALENDAR, quotes, strategy)
    assert (track.loc[[3, 4, 11], ["turnover", "cost"]] == 0).all(axis=None)
    assert track.loc[[3, 4, 11], "long"].to_numpy() == in_float64([1, 1, 1])
    assert len(track) == SESSIONS - (2 if fill == "next_open" else 1)
    some = np.delete(np.arange(SESSIONS), [3, 4, 11])
    pd.testing.assert_frame_equal(
        follow(positions(chance[some], strategy), CALENDAR[some], quotes, strategy), track
    )


def test_a_halted_stock_keeps_its_value_and_its_room_until_it_opens_again() -> None:
    """A, half of the equity, is halted at the open of session 2, last known at
    its close of 120, and opens at 90.
    """
    opened = [[100, 10], [100, 10], [NAN, 10], [90, 10], [90, 10]]
    closed = [[100, 10], [120, 10], [NAN, 10], [90, 10], [90, 10]]
    weights = np.array([[0.5, 0.0], [0.0, 1.0], [0.0, 1.0]])
    track = follow(weights, CALENDAR[:3], quotes_of(opened, closed), Strategy("long", costs=FREE))
    # Marked at 120 it is 0.6 of 1.1, which leaves room for 0.5 / 1.1 of B; the fall to 90 is felt
    # where it opens.
    assert track["gross"].tolist() == in_float64([0.1, -0.25 * 0.6 / 1.1, 0])
    assert track["turnover"].tolist() == in_float64([0.5, 0.5 / 1.1, 0.45 / 0.95 + 1 - 0.5 / 0.95])
    assert track["long"].tolist() == in_float64([0.5, 1, 1])


def test_what_cannot_be_bought_stays_in_cash() -> None:
    opened = [[100, 10], [NAN, 10], [100, 11], [100, 11]]
    track = follow(
        np.array([[0.5, 0.5]]), CALENDAR[:1], quotes_of(opened), Strategy("long", costs=FREE)
    )
    assert track[["gross", "turnover", "long"]].iloc[0].tolist() == in_float64([0.05, 0.5, 0.5])


@pytest.mark.parametrize("later", [0.0, NAN])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_delisted_stock_waits_and_is_then_settled_at_its_last_price(
    sign: int, later: float
) -> None:
    """Asked for at the fills 1 to 3, of which the last is at the last price
    there is, and no more after that.
    """
    price = np.full((SESSIONS, 2), 100.0)
    price[3, 0], price[4:, 0] = 80, NAN
    weights = np.full((SESSIONS, 2), later)
    weights[:3] = 0.1 * sign, 0
    track = follow(
        weights, CALENDAR, quotes_of(price), Strategy("long", costs=Costs(5.0, 0.0, 0.0))
    )
    track = track.set_index(np.arange(1, SESSIONS - 1))
    assert track["gross"].to_numpy() == in_float64(np.where(track.index == 2, -0.02 * sign, 0))
    value, out = track["long" if sign > 0 else "short"], 3 + 20 + 1
    assert value[: out - 1].tolist() == in_float64([0.1] * (out - 1))
    assert (track.loc[4 : out - 1, "turnover"] == 0).all()
    assert track.loc[out, ["turnover", "cost"]].tolist() == in_float64([0.1, 0.1 * 5e-4])
    assert (track.loc[out:, ["long", "short"]] == 0).all(axis=None)
    assert (track.loc[out + 1 :, ["turnover", "net"]] == 0).all(axis=None)


def test_quotes_are_adjusted_and_missing_where_there_is_no_bar() -> None:
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


def test_a_name_says_form_fill_and_whether_trading_is_free() -> None:
    assert Strategy("long").name == "long, next open"
    assert Strategy("long_short", costs=FREE).name == "long-short, next open, no costs"
    assert Strategy("long", "close", costs=FREE).name == "long, close, no costs (the paper's)"
    assert Strategy("weighted", "close").name == "weighted, close"


def leaping(
    *,
    refused: pd.DataFrame | None = None,
    split: float = NAN,
    symbols: tuple[str, ...] = ("A", "B"),
) -> Quotes:
    """Quotes of A, which opens and closes at ten times its price from session 3 on, and of B, which
    never moves.

    The bar of the leap itself is there, or was refused.
    """
    rows = pd.DataFrame(
        [(each, day) for each in "AB" for day in CALENDAR[:7]], columns=["symbol", "session"]
    )
    leapt = (rows["symbol"] == "A") & (rows["session"] >= CALENDAR[3])
    price = np.where(leapt, 1000.0, 100.0)
    bars = rows.assign(open=price, close=price, adj_close=NAN, split=NAN, volume=NAN)
    bars.loc[(rows["symbol"] == "A") & (rows["session"] == CALENDAR[3]), "split"] = split
    if refused is not None:
        bars = bars[~((bars["symbol"] == "A") & (bars["session"] == CALENDAR[3]))]
    return Quotes.of(bars, CALENDAR[:7], symbols, "close", max_return=0.3, refused=refused)


REFUSED = pd.DataFrame({"symbol": ["A"], "session": CALENDAR[[3]]})


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("refused", [None, REFUSED])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_move_that_nothing_explains_earns_nothing_and_is_counted(
    sign: int, refused: pd.DataFrame | None, fill: str
) -> None:
    """Of 0.1 in A a tenfold price would have made 0.9 of equity; the sale at
    the old price costs 5 basis points.
    """
    strategy = Strategy("long", fill, costs=Costs(5.0, 0.0, 0.0))
    weights = np.array([[0.1 * sign, 0.5]] * 6)
    track = follow(weights, CALENDAR[:6], leaping(refused=refused), strategy).set_index("session")
    assert (track["gross"] == 0).all()
    assert track["settled"].tolist() == [int(day == CALENDAR[3]) for day in track.index]
    assert track.loc[CALENDAR[3], "unbooked"] == in_float64(0.9 * sign)
    # sold, bought anew
    assert track.loc[CALENDAR[4], ["turnover", "cost"]].tolist() == in_float64([0.2, 0.0001])


@pytest.mark.parametrize("fill", FILLS)
def test_a_position_follows_a_recorded_split_that_the_price_does_not_reflect(fill: str) -> None:
    track = follow(
        np.array([[0.1, 0.5]] * 6),
        CALENDAR[:6],
        leaping(split=0.1),
        Strategy("long", fill, costs=FREE),
    )
    assert track["gross"].to_numpy() == in_float64(np.zeros(len(track)))
    assert (track[["settled", "unbooked"]] == 0).all(axis=None)


def test_a_split_that_the_price_reflects_changes_nothing() -> None:
    bars = pd.DataFrame(
        {"symbol": "A", "session": CALENDAR[:3], "open": 100.0, "close": [100.0, 103, 105]}
    )
    bars = bars.assign(adj_close=bars["close"], split=[NAN, 2.0, NAN], volume=NAN)
    assert Quotes.of(bars, CALENDAR[:3], ("A",), "close").close[:, 0].tolist() == [100, 103, 105]


def test_a_yardstick_meets_such_moves_as_the_portfolios_do() -> None:
    quotes = leaping(refused=REFUSED)
    equal = equal_weight_track(np.full((6, 2), 0.5), CALENDAR[:6], quotes, "next_open")
    index = index_track(leaping(refused=REFUSED, symbols=("A",)), CALENDAR[:6], "next_open")
    for track, share in ((equal, 0.5), (index, 1.0)):
        assert (track["gross"] == 0).all()
        assert (track["settled"].sum(), track["unbooked"].sum()) == (1, in_float64(9 * share))


def test_a_leap_and_its_way_back_leave_what_was_there_before() -> None:
    """Refused on the way up and down, as by an error of a session, or accepted
    between them at the wrong price.
    """
    for wrong in (1, 3):
        price = np.full(9, 100.0)
        price[3 : 3 + wrong] = 1000
        days = CALENDAR[:9]
        bars = pd.DataFrame(
            {"symbol": "A", "session": days, "open": price, "close": price, "adj_close": NAN}
        )
        bars = bars.assign(split=NAN, volume=NAN)
        quotes = Quotes.of(bars, days, ("A",), "close", max_return=0.3)
        track = follow(np.full((8, 1), 0.1), days[:8], quotes, Strategy("long", costs=FREE))
        assert (track["gross"] == 0).all()
        assert track["settled"].sum() == (1 if wrong == 1 else 2)


def test_an_open_far_from_the_closes_around_it_is_no_price_to_trade_at() -> None:
    """Bought at 100 on session 1 and sold at 101 on session 4, the first open
    after the wrong one.
    """
    bars = pd.DataFrame(
        {"symbol": "A", "session": CALENDAR[:7], "close": 100.0, "adj_close": NAN, "split": NAN}
    ).assign(volume=NAN)
    bars["open"] = [100.0, 100, 100, 145, 101, 101, 101]
    quotes = Quotes.of(bars, CALENDAR[:7], ("A",), "close", max_return=0.3)
    weights = np.array([[0.5], [0.5], [0.0], [0.0], [0.0], [0.0]])
    track = follow(
        weights, CALENDAR[:6], quotes, Strategy("long", max_weight=0.5, costs=FREE)
    ).set_index("session")
    assert track["gross"].sum() == in_float64(0.005)
    assert track.loc[CALENDAR[3], ["turnover", "settled", "unbooked"]].tolist() == [0, 0, 0]
    assert track.loc[CALENDAR[4], "turnover"] == in_float64(0.505 / 1.005)


def test_without_a_prediction_a_settled_position_stays_in_cash() -> None:
    weights = np.array([[0.1, 0.5], [0.1, 0.5], [0.1, 0.5], *[[NAN, NAN]] * 3])
    track = follow(
        weights, CALENDAR[:6], leaping(refused=REFUSED), Strategy("long", costs=FREE)
    ).set_index("session")
    assert track.loc[CALENDAR[4] :, "long"].tolist() == in_float64([0.5, 0.5])


def test_a_refused_bar_that_the_source_explained_later_is_no_break() -> None:
    """A restated history has a good bar on that session: the earlier finding says nothing of it."""
    bars = pd.DataFrame(
        {"symbol": "A", "session": CALENDAR[:5], "open": 100.0, "close": 100.0, "adj_close": NAN}
    )
    quotes = Quotes.of(
        bars.assign(split=NAN, volume=NAN),
        CALENDAR[:5],
        ("A",),
        "close",
        max_return=0.3,
        refused=REFUSED,
    )
    assert not quotes.breaks.any()


def test_a_portfolio_that_loses_all_equity_says_when() -> None:
    with pytest.raises(
        DtmlError,
        match=r"long-short, next open: .*2021-01-04.*2021-01-05, ",
    ):
        follow(np.array([[-0.5]]), CALENDAR[:1], quotes_of([[1], [1], [3]]), Strategy("long_short"))
