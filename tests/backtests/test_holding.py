"""Portfolios that hold a ranking for longer than a session: in parts that are
traded in turn, and by one ranking to buy and another to hold.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.holding import Stagger, staggered_track, two_rank_targets, two_rank_track
from dtml.backtest.portfolio import follow_on
from dtml.backtest.quotes import Quotes
from dtml.backtest.turnover import strategy_of, targets, track_of
from dtml.errors import UsageError
from dtml.markets.definition import FREE, Costs, Trading
from tests.support.bounds import in_float64

SESSIONS = pd.bdate_range("2023-12-25", periods=120)
NAN = np.nan
DRAWN = np.random.default_rng(7)
PRICE = 100 * np.exp(0.02 * DRAWN.standard_normal((240, 12)).cumsum(axis=0))
QUOTES = Quotes(SESSIONS, PRICE[0::2], PRICE[1::2], tuple("ABCDEFGHIJKL"))
SCORES = DRAWN.standard_normal((118, 12))
OTHERS = DRAWN.standard_normal((118, 12))
AS_OF = SESSIONS[:118]
TRADING = Trading(costs=Costs(3.0, 5.0, sale_tax=20.0), top=3)


def test_each_part_is_traded_at_its_own_sessions_and_together_they_cover_all() -> None:
    every = np.stack([Stagger(5, 5).sessions_of(part, 20) for part in range(5)])
    assert every[:, 0].all()  # no part waits in cash
    assert (every[:, 5:].sum(axis=0) == 1).all()
    assert [np.flatnonzero(row)[1:].tolist() for row in every[:, :15]] == [
        [5, 10],
        [1, 6, 11],
        [2, 7, 12],
        [3, 8, 13],
        [4, 9, 14],
    ]
    two = [np.flatnonzero(Stagger(10, 2).sessions_of(part, 30)).tolist() for part in (0, 1)]
    assert two == [[0, 10, 20], [0, 5, 15, 25]]


@pytest.mark.parametrize(("horizon", "parts"), [(5, 0), (5, 6), (0, 1)])
def test_more_parts_than_sessions_or_none_are_refused(horizon: int, parts: int) -> None:
    with pytest.raises(UsageError, match=rf"parts.*1 to horizon \({horizon}\)"):
        Stagger(horizon, parts)


@pytest.mark.parametrize("trading", [TRADING, replace(TRADING, smooth=4, band=2.0)])
def test_one_part_that_is_traded_each_session_is_the_daily_portfolio(trading: Trading) -> None:
    found = staggered_track(SCORES, AS_OF, QUOTES, trading, Stagger(1))
    daily = track_of(SCORES, AS_OF, QUOTES, trading)
    pd.testing.assert_frame_equal(found, daily, rtol=1e-12, check_dtype=False)


def test_parts_are_accounts_of_their_own_whose_equity_adds_up() -> None:
    stagger = Stagger(5, 5)
    whole = staggered_track(SCORES, AS_OF, QUOTES, TRADING, stagger)
    weights, _ = targets(SCORES, TRADING)
    equity, cost = [], []
    for part in range(5):
        is_traded = stagger.sessions_of(part, len(SCORES))
        of_part = np.where(is_traded[:, None], weights, NAN)
        track = follow_on(of_part, AS_OF, QUOTES, strategy_of(TRADING)).track
        before = np.concatenate([[1.0], np.cumprod(1 + track["net"])[:-1]])
        equity.append(before * (1 + track["net"]))
        cost.append(before * track["cost"])
    total = np.mean(equity, axis=0)
    assert np.cumprod(1 + whole["net"]).to_numpy() == in_float64(total)
    paid = whole["cost"] * np.concatenate([[1.0], total[:-1]])
    assert paid.to_numpy() == in_float64(np.mean(cost, axis=0))
    # A fifth of what a portfolio sells and buys each day, about.
    daily = track_of(SCORES, AS_OF, QUOTES, TRADING)
    ratio = whole["turnover"].mean() / daily["turnover"].mean()
    assert 0.15 < ratio < 0.3
    assert whole["long"].to_numpy() == in_float64(np.ones(len(whole)))


def test_all_at_once_trades_every_horizon_and_never_in_between() -> None:
    track = staggered_track(SCORES, AS_OF, QUOTES, TRADING, Stagger(10))
    traded = np.flatnonzero(track["turnover"] > 0)
    assert traded.tolist() == list(range(0, len(track), 10))


def test_one_ranking_says_what_to_buy_and_the_other_how_long_to_hold_it() -> None:
    #              A    B    C    D    E    F
    buy = [
        [6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    ]
    hold = [
        [1.0, 6.0, 5.0, 4.0, 3.0, 2.0],  # A is out of the bound: it would be sold at once
        [6.0, 5.0, 1.0, 4.0, 3.0, 2.0],  # C falls out of it, B stays although nobody would buy it
        [6.0, 5.0, 4.0, 1.0, 2.0, 3.0],  # E falls out, and of A, C and F the best buy is F
    ]
    trading = replace(TRADING, top=2, band=2.0)
    weights, kept = two_rank_targets(np.array(buy), np.array(hold), trading)
    names = [[name for name, on in zip("ABCDEF", day, strict=True) if on] for day in weights > 0]
    assert names == [["B", "C"], ["B", "E"], ["B", "F"]]
    assert [np.flatnonzero(day).tolist() for day in kept] == [[], [1], [1]]


def test_a_stock_that_lacks_either_rank_is_neither_bought_nor_held() -> None:
    buy, hold = np.tile([4.0, 3.0, 2.0, 1.0], (3, 1)), np.tile([4.0, 3.0, 2.0, 1.0], (3, 1))
    hold[1, 0] = NAN
    buy[2] = NAN
    weights, kept = two_rank_targets(buy, hold, replace(TRADING, top=1, band=1.0))
    assert [np.flatnonzero(day > 0).tolist() for day in weights[:2]] == [[0], [1]]
    assert not kept.any()
    assert np.isnan(weights[2]).all()  # a session without a ranking trades nothing


def test_what_is_sold_pays_for_what_is_bought_and_nothing_lies_idle() -> None:
    trading = replace(TRADING, band=2.0, costs=FREE)
    weights, kept = two_rank_targets(SCORES, OTHERS, trading)
    made = follow_on(weights, AS_OF, QUOTES, strategy_of(trading), kept=kept)
    track = two_rank_track(SCORES, OTHERS, AS_OF, QUOTES, trading)
    pd.testing.assert_frame_equal(track, made.track)
    assert kept.any()
    bought = ((weights > 0) & ~kept).any(axis=1)[: len(track)]
    assert track["long"].to_numpy()[bought] == in_float64(np.ones(int(bought.sum())))
    held = [set(np.flatnonzero(row)) for row in made.held]
    wanted = [set(np.flatnonzero(row > 0)) for row in weights[: len(held)]]
    assert held == wanted


def test_no_later_score_changes_what_was_held_before() -> None:
    later = SCORES.copy()
    later[60:] = -later[60:]
    trading = replace(TRADING, smooth=5, band=2.0)
    whole = staggered_track(SCORES, AS_OF, QUOTES, trading, Stagger(20, 4))
    other = staggered_track(later, AS_OF, QUOTES, trading, Stagger(20, 4))
    pd.testing.assert_frame_equal(whole[:60], other[:60])
    one, kept = two_rank_targets(SCORES, OTHERS, trading)
    two, kept_too = two_rank_targets(later, OTHERS, trading)
    np.testing.assert_array_equal(one[:60], two[:60])
    np.testing.assert_array_equal(kept[:60], kept_too[:60])
    assert not np.array_equal(one[60:], two[60:])
