"""Portfolios at their edges: one stock, many equals, no price yet, none at all, too little room."""

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.portfolio import Strategy, equal_weight_track, follow, positions
from dtml.backtest.quotes import Quotes
from dtml.errors import DtmlError
from dtml.markets.definition import FREE
from tests.support.bounds import in_float64

CALENDAR = pd.bdate_range("2021-01-01", periods=7)
NAN = np.nan
LONG = Strategy("long", costs=FREE)


def quotes_of(price: list[list[float]]) -> Quotes:
    """Quotes of a row a session, which opens where it closes."""
    known = np.array(price, dtype=float)
    return Quotes(CALENDAR[: len(known)], known, known, tuple("ABC"[: known.shape[1]]))


def test_a_single_stock_gets_everything_and_in_long_short_nothing() -> None:
    chance = np.array([[0.7, NAN]])
    assert positions(chance, Strategy("long", top=1, max_weight=1.0)).tolist() == [[1, 0]]
    assert positions(chance, Strategy("long_short", top=1, max_weight=1.0)).tolist() == [[0, 0]]


def test_equal_parts_of_few_stocks_are_not_cut_off() -> None:
    track = equal_weight_track(
        np.full((2, 3), 0.5), CALENDAR[:2], quotes_of([[1, 1, 1]] * 4), "close"
    )
    assert track["long"].tolist() == in_float64([1, 1])


def test_a_stock_without_a_price_yet_earns_nothing_and_then_what_it_moves() -> None:
    price = [[NAN, 10], [NAN, 10], [100, 11], [110, 11], [121, 11]]
    track = follow(np.array([[0.5, 0.5]] * 3), CALENDAR[:3], quotes_of(price), LONG)
    assert track["gross"].tolist() == in_float64([0.05, 0.05, 0.05])
    assert track["long"].tolist() == in_float64([0.5, 1, 1])


def test_rows_end_with_the_last_prediction_though_prices_go_on() -> None:
    track = follow(np.full((2, 1), 0.5), CALENDAR[1:3], quotes_of([[1.0]] * 7), LONG)
    assert list(track["session"]) == list(CALENDAR[2:4])


@pytest.mark.parametrize("fill", ["next_open", "close"])
def test_without_any_price_there_is_no_row(fill: str) -> None:
    nothing = quotes_of([[NAN]] * 3)
    assert follow(np.ones((1, 1)), CALENDAR[:1], nothing, Strategy("long", fill)).empty


def test_what_is_held_of_a_halted_stock_leaves_its_room_to_no_other() -> None:
    """A, half of the equity, cannot be sold: of the .8 asked of B there is room for .5."""
    track = follow(
        np.array([[0.5, 0], [0, 0.8]]),
        CALENDAR[:2],
        quotes_of([[1, 1], [1, 1], [NAN, 1], [1, 1]]),
        LONG,
    )
    assert track["long"].tolist() == in_float64([0.5, 1])
    assert track["turnover"].tolist() == in_float64([0.5, 0.5])


def test_what_had_its_last_price_in_the_very_first_session_is_settled_after_twenty_more() -> None:
    days = pd.bdate_range("2021-01-01", periods=25)
    price = np.full((25, 2), 1.0)
    price[1:, 0] = NAN
    quotes = Quotes(days, price, price, ("A", "B"))
    track = follow(
        np.array([[0.5, 0.0]] + [[NAN, NAN]] * 24),
        days,
        quotes,
        Strategy("long", "close", costs=FREE),
    )
    assert np.flatnonzero(track["long"] == 0)[0] == 21
    assert track["turnover"].to_numpy().nonzero()[0].tolist() == [0, 21]


def test_a_loss_of_everything_names_its_own_session() -> None:
    with pytest.raises(DtmlError, match=f"{LONG.name}: .*2021-01-05"):
        follow(np.array([[0.0], [-0.5]]), CALENDAR[:2], quotes_of([[1], [1], [1], [3]]), LONG)
