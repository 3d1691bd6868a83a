"""Costs by date, price limits, holdings that are kept, and ways to trade an
order that validation days choose.
"""

from dataclasses import asdict, replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.lots import trades, whole_lots
from dtml.backtest.portfolio import Strategy, equal_weight_track, follow, follow_on
from dtml.backtest.quotes import Quotes
from dtml.backtest.turnover import (
    DAILY,
    EQUAL,
    VERSIONS,
    after_costs,
    targets,
    track_of,
)
from dtml.markets import load_market, market_names
from dtml.markets.definition import FREE, Costs, Trading, rate_on
from dtml.ranking.panel import places
from tests.support.bounds import in_float64

SESSIONS = pd.bdate_range("2023-12-25", periods=400)
NAN = np.nan
DRAWN = np.random.default_rng(7)
PRICE = 100 * np.exp(0.02 * DRAWN.standard_normal((800, 12)).cumsum(axis=0))
QUOTES = Quotes(SESSIONS, PRICE[0::2], PRICE[1::2], tuple("ABCDEFGHIJKL"))
SCORES = DRAWN.standard_normal((399, 12))


def flat(days, stocks):
    return Quotes(
        SESSIONS[:days], np.ones((days, stocks)), np.ones((days, stocks)), tuple("ABC"[:stocks])
    )


def test_a_rate_holds_from_its_date_on_and_the_first_before_it():
    rate = ((date(2024, 1, 2), 20.0), (date(2024, 1, 4), 15.0))
    days = pd.DatetimeIndex(["2023-12-29", "2024-01-02", "2024-01-03", "2024-01-04"])
    assert rate_on(rate, days).tolist() == [20, 20, 20, 15]
    assert rate_on(3, days).tolist() == [3, 3, 3, 3]


def test_a_tax_is_paid_on_one_side_only_and_at_the_rate_of_its_day():
    costs = Costs(
        1.0,
        2.0,
        0.0,
        purchase_tax=50.0,
        sale_tax=((date(2000, 1, 1), 10.0), (SESSIONS[2].date(), 30.0)),
    )
    weights = np.array([[1.0, 0.0], [0.5, 0.5], [0.5, 0.0], [0.0, 0.0]])
    track = follow(weights, SESSIONS[:4], flat(6, 2), Strategy("long", "close", costs=costs))
    assert track["turnover"].tolist() == [1, 1, 0.5, 0.5]
    assert track["cost"].to_numpy() == in_float64(
        [0.0053, 0.5 * 0.0053 + 0.5 * 0.0013, 0.5 * 0.0033, 0.5 * 0.0033]
    )


def bars(closes, opens):
    frame = pd.DataFrame(
        {"symbol": "A", "session": SESSIONS[: len(closes)], "open": opens, "close": closes}
    )
    return frame.assign(adj_close=frame["close"], split=NAN, volume=NAN)


@pytest.mark.parametrize(
    ("opens", "limit"), [(12.99, 1), (12.96, 1), (12.8, 0), (7.02, -1), (7.2, 0)]
)
def test_a_stock_that_opens_at_its_limit_is_known_by_it(opens, limit):
    found = Quotes.of(bars([10, 10], [10, opens]), SESSIONS[:2], ("A",), "close", price_limit=0.3)
    assert found.limits("next_open")[:, 0].tolist() == [0, limit]


def test_what_opens_at_its_limit_is_not_bought_and_at_the_lower_one_not_sold():
    limit = np.array([[0, 0], [1, 0], [0, 0], [-1, 0], [0, 0], [0, 0]], dtype=float)
    quotes = Quotes(SESSIONS[:6], np.ones((6, 2)), np.ones((6, 2)), ("A", "B"), limit=limit)
    weights = np.array([[0.5, 0.5], [0.5, 0.5], [0.0, 0.5], [0.0, 0.5]])
    made = follow_on(weights, SESSIONS[:4], quotes, Strategy("long", costs=FREE))
    # bought a day late, and sold a day late
    assert made.held.tolist() == [
        [0, 0.5],
        [0.5, 0.5],
        [0.5, 0.5],
        [0, 0.5],
    ]
    closing = follow_on(weights, SESSIONS[:4], quotes, Strategy("long", "close", costs=FREE))
    assert closing.held.tolist() == weights.tolist()


def test_what_is_kept_is_not_traded_while_it_is_held():
    price = np.array([[1, 1.0], [1, 1], [2, 1], [2, 1], [2, 1]])
    quotes = Quotes(SESSIONS[:5], price, price, ("A", "B"))
    weights, kept = np.full((3, 2), 0.5), np.array([[True, True], [True, True], [False, False]])
    made = follow_on(weights, SESSIONS[:3], quotes, Strategy("long", costs=FREE), kept=kept)
    assert made.track["turnover"].to_numpy() == in_float64([1, 0, 1 / 3])
    assert made.held == in_float64(np.array([[0.5, 0.5], [2 / 3, 1 / 3], [0.5, 0.5]]))


def test_a_third_of_the_stocks_is_held_at_most_and_a_day_without_an_order_holds_what_was():
    scores = np.array([[3.0, 2, 1, 0, NAN, NAN, 5], [NAN] * 7, [1.0, 2, 3, 4, NAN, 0, 0]])
    made = targets(scores, Trading(top=20, band=2.0))
    assert made[0][0].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert np.isnan(made[0][1]).all()
    # six are ordered now; the one held came last
    assert made[0][2].tolist() == [
        0,
        0,
        0.5,
        0.5,
        0,
        0,
        0,
    ]


def test_of_stocks_with_equal_mean_ranks_the_first_is_held():
    """In the orders of three nights, whose sums are whole numbers and know no rounding."""
    drawn, places_of_nights = np.random.default_rng(3), np.tile(np.arange(13.0), (3, 1))
    for _ in range(60):
        scores = drawn.permuted(places_of_nights, axis=1)
        held = targets(scores, Trading(top=4, smooth=3))[0][-1] > 0
        first = np.argsort(-scores.sum(axis=0), kind="stable")[:4]
        assert set(np.flatnonzero(held)) == set(first)


def test_a_stock_without_a_finite_score_has_no_place():
    found = places(np.array([[NAN, -0.0, 0.0, np.inf, -np.inf, 1e-300], [NAN] * 6]))
    np.testing.assert_array_equal(found, [[NAN, 2, 3, NAN, NAN, 1], [NAN] * 6])


@pytest.mark.soak
def test_ways_to_trade_are_chosen_on_the_days_before_the_test_alone():
    first, days = SESSIONS[200], SESSIONS[:-1]
    found = after_costs(SCORES, days, QUOTES, Trading(top=3), first)
    is_before = found["span"] == "validation"
    assert is_before.sum() == 30
    test = found[~is_before].set_index("version")
    assert list(test.index) == [*VERSIONS, EQUAL]
    assert (test.loc[DAILY, "smooth"], test.loc[DAILY, "band"]) == (1, 1)
    scores = np.where((days >= first)[:, None], -SCORES, SCORES)
    later = replace(QUOTES, open=np.where((first < SESSIONS)[:, None], 50.0, QUOTES.open))
    other = after_costs(scores, days, later, Trading(top=3), first)
    keys = ["span", "version", "smooth", "band"]
    pd.testing.assert_frame_equal(found[keys], other[keys])
    pd.testing.assert_frame_equal(found[is_before], other[is_before])
    assert not np.allclose(found[~is_before]["annual_return"], other[~is_before]["annual_return"])


def test_each_fact_of_a_shipped_market_has_its_source():
    for name in market_names():
        trading = load_market(name).trading
        said = {
            key
            for key in ("purchase_tax", "sale_tax", "borrow", "commission", "half_spread")
            if getattr(trading.costs, key) != getattr(Costs(), key)
        }
        said |= {key for key in ("price_limit",) if trading.price_limit is not None}
        assert said <= set(trading.sources), name
    assert {name for name in market_names() if load_market(name).trading.sources} >= {
        "kospi200",
        "sp500",
        "ndx100",
        "csi300",
        "ni225",
        "ftse100",
    }


@pytest.mark.slow
def test_break_even_is_the_cost_at_which_equal_parts_earn_as_much():
    # from the open after each close to the one after it
    skilled = np.diff(np.log(QUOTES.open), axis=0)[1:]
    span = SESSIONS[: len(skilled)]
    rows = after_costs(skilled, span, QUOTES, Trading(top=3), span[0]).set_index("version")
    cost = Costs(rows.loc[DAILY, "break_even"], 0.0, 0.0)
    assert cost.commission > 100
    paid = track_of(skilled, span, QUOTES, Trading(**asdict(cost), top=3))
    equal = equal_weight_track(skilled, span, QUOTES, "next_open")
    assert paid["net"].mean() == in_float64(equal["gross"].mean())


NAMES = ("held", "weights", "price")


def drawn(seed):
    """Some stocks, held and wanted, of a capital between a fraction of a share and many lots."""
    random = np.random.default_rng(seed)
    stocks = int(random.integers(1, 23))
    lot = int(random.choice([1, 10, 100]))
    capital = float(10 ** random.uniform(0, 7))
    price = 10 ** random.uniform(-1, 4, stocks)
    weights = random.random(stocks) * (random.random(stocks) < 0.6)
    share = random.dirichlet(np.ones(stocks)) * random.random()
    held = share * capital / price
    held = held if seed % 3 else whole_lots(held, lot)
    return {
        "held": held,
        "weights": weights / max(weights.sum(), 1e-9),
        "price": price,
        "capital": capital,
        "lot": lot,
        "kept": (weights > 0) & (random.random(stocks) < 0.4),
        "rates": tuple(random.uniform(0, 0.01, 2)),
    }


@pytest.mark.parametrize("seed", range(200))
def test_the_laws_of_orders(seed):
    case = drawn(seed)
    held, weights, price = (case[name] for name in NAMES)
    change = trades(**case)
    wanted, one = weights * case["capital"] / price, case["lot"]
    bought, sold = np.maximum(change, 0.0), np.maximum(-change, 0.0)
    assert (sold <= held).all()
    assert (change[case["kept"]] == 0).all()
    assert (sold[weights == 0] == held[weights == 0]).all()
    trimmed = (sold > 0) & (weights > 0)
    assert (held - sold >= wanted - 1e-6 * one)[trimmed].all()
    assert (held - sold < wanted + one)[(weights > 0) & ~case["kept"] & (held > wanted)].all()
    assert (held + bought <= wanted + 1e-6 * one)[bought > 0].all()
    whole = np.where(weights > 0, change, 0.0) / one
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-9)
    purchase, sale = case["rates"]
    cash = (
        case["capital"] - (held + change) @ price - bought @ price * purchase - sold @ price * sale
    )
    assert cash >= -1e-6 * case["capital"]


def test_a_capital_that_suffices_buys_every_whole_lot_of_the_weights():
    made = trades(
        np.zeros(3),
        np.array([0.1, 0.3, 0.5]),
        np.array([10.0, 7.0, 0.1]),
        capital=1000.0,
        lot=10,
        kept=np.zeros(3, dtype=bool),
        rates=(0.001, 0.002),
    )
    assert made.tolist() == [10, 40, 5000]
