"""The portfolio of Qlib's tables: it exchanges the worst of its stocks for better ones."""

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.dropout import INVESTED, Dropout, follow_dropout

STOCKS, SESSIONS = 23, 61
FREE = Dropout(top=5, exchanged=2, purchase=0.0, sale=0.0)
DAYS = pd.bdate_range("2024-01-02", periods=SESSIONS)


def prices(seed: int = 3) -> np.ndarray:
    random = np.random.default_rng(seed)
    changes = np.clip(random.normal(0, 0.01, (SESSIONS, STOCKS)), -0.05, 0.05)
    return np.cumprod(1 + changes, axis=0)


def test_a_first_purchase_of_the_best_earns_their_mean_return_on_what_is_invested() -> None:
    close = prices()
    scores = np.tile(np.arange(STOCKS, dtype=float), (SESSIONS, 1))  # the last five, every day
    track = follow_dropout(scores, close, DAYS, FREE)
    # Bought at the close of the second session, so that the first return is that of the third.
    assert track["session"].iloc[0] == DAYS[2]
    best = close[2, -5:] / close[1, -5:] - 1
    assert track["net"].iloc[0] == pytest.approx(INVESTED * best.mean())
    assert (track["turnover"] == 0).all()


def test_no_more_stocks_are_exchanged_than_the_settings_say_and_costs_are_paid() -> None:
    close = np.ones((SESSIONS, STOCKS))
    scores = np.random.default_rng(5).normal(size=(SESSIONS, STOCKS))
    costly = Dropout(top=5, exchanged=2, purchase=0.001, sale=0.003)
    track = follow_dropout(scores, close, DAYS, costly)
    # Two of five stocks are sold and two bought at most, at prices that never move.
    assert track["turnover"].max() <= 2 * 2 / 5 + 0.01
    assert (track["net"] <= 0).all()
    # The shares of the stocks drift a little apart, as cash is divided among those bought.
    assert track["net"].min() >= -0.004 * 2 / 5 * 1.05
    assert track["net"].sum() < 0
    free = follow_dropout(scores, close, DAYS, FREE)
    assert free["net"].to_numpy() == pytest.approx(np.zeros(len(free)))


def test_a_stock_that_is_no_longer_ranked_is_sold_and_one_that_does_not_trade_is_kept() -> None:
    close = prices()
    scores = np.tile(np.arange(STOCKS, dtype=float), (SESSIONS, 1))
    scores[10:, -1] = np.nan
    sold = follow_dropout(scores, close, DAYS, FREE).set_index("session")["turnover"]
    # Decided on the scores of the eleventh session, traded at the close of the next one.
    assert sold[DAYS[11]] == pytest.approx(2 / 5, abs=0.05)
    assert sold.drop(DAYS[11]).max() == 0
    close[11:, -1] = np.nan
    kept = follow_dropout(scores, close, DAYS, FREE).set_index("session")["turnover"]
    assert kept[DAYS[11]] < sold[DAYS[11]]


def test_nothing_is_bought_at_its_upper_limit_or_sold_at_its_lower_one() -> None:
    close = np.ones((SESSIONS, STOCKS))
    close[1:, -1] = 1.1  # up by a tenth on the session of the first purchase
    scores = np.tile(np.arange(STOCKS, dtype=float), (SESSIONS, 1))
    track = follow_dropout(scores, close, DAYS, FREE)
    # It is bought a session later, when it no longer moves.
    assert track["turnover"].iloc[0] > 0


def test_of_fewer_stocks_than_are_exchanged_all_that_are_held_are_sold() -> None:
    close = prices()[:, :3]
    scores = np.tile(np.arange(3.0), (SESSIONS, 1))
    eager = Dropout(top=5, exchanged=5, purchase=0.0, sale=0.0)
    track = follow_dropout(scores, close, DAYS, eager).set_index("session")["turnover"]
    # Bought at the second session's close, all are sold at the next, as no stock is new.
    assert track[DAYS[2]] == pytest.approx(INVESTED, abs=0.01)


def test_a_portfolio_that_never_buys_has_no_returns() -> None:
    unranked = np.full((SESSIONS, STOCKS), np.nan)
    assert follow_dropout(unranked, prices(), DAYS, FREE).empty
    assert follow_dropout(unranked[:1], prices()[:1], DAYS[:1], FREE).empty
