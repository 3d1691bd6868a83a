"""Costs by date, price limits, holdings that are kept, and ways to trade an
order that validation days choose.
"""

from dataclasses import asdict, replace
from datetime import date
from fractions import Fraction
from itertools import chain, repeat

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.portfolio import Strategy, equal_weight_track, follow, follow_on
from dtml.backtest.quotes import Quotes
from dtml.backtest.turnover import (
    BANDED,
    BANDS,
    DAILY,
    EQUAL,
    VERSIONS,
    after_costs,
    strategy_of,
    target_of_night,
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


def flat(days: int, stocks: int) -> Quotes:
    return Quotes(
        SESSIONS[:days], np.ones((days, stocks)), np.ones((days, stocks)), tuple("ABC"[:stocks])
    )


def test_a_rate_holds_from_its_date_on_and_the_first_before_it() -> None:
    rate = ((date(2024, 1, 2), 20.0), (date(2024, 1, 4), 15.0))
    days = pd.DatetimeIndex(["2023-12-29", "2024-01-02", "2024-01-03", "2024-01-04"])
    assert rate_on(rate, days).tolist() == [20, 20, 20, 15]
    assert rate_on(3, days).tolist() == [3, 3, 3, 3]


def test_a_tax_is_paid_on_one_side_only_and_at_the_rate_of_its_day() -> None:
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


def bars(closes: list[float], opens: list[float]) -> pd.DataFrame:
    frame = pd.DataFrame(
        {"symbol": "A", "session": SESSIONS[: len(closes)], "open": opens, "close": closes}
    )
    return frame.assign(adj_close=frame["close"], split=NAN, volume=NAN)


@pytest.mark.parametrize(
    ("opens", "limit"), [(12.99, 1), (12.96, 1), (12.8, 0), (7.02, -1), (7.2, 0)]
)
def test_a_stock_that_opens_at_its_limit_is_known_by_it(opens: float, limit: int) -> None:
    found = Quotes.of(bars([10, 10], [10, opens]), SESSIONS[:2], ("A",), "close", price_limit=0.3)
    assert found.limits("next_open")[:, 0].tolist() == [0, limit]


def test_what_opens_at_its_limit_is_not_bought_and_at_the_lower_one_not_sold() -> None:
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


def test_what_is_kept_is_not_traded_while_it_is_held() -> None:
    price = np.array([[1, 1.0], [1, 1], [2, 1], [2, 1], [2, 1]])
    quotes = Quotes(SESSIONS[:5], price, price, ("A", "B"))
    weights, kept = np.full((3, 2), 0.5), np.array([[True, True], [True, True], [False, False]])
    made = follow_on(weights, SESSIONS[:3], quotes, Strategy("long", costs=FREE), kept=kept)
    assert made.track["turnover"].to_numpy() == in_float64([1, 0, 1 / 3])
    assert made.held == in_float64(np.array([[0.5, 0.5], [2 / 3, 1 / 3], [0.5, 0.5]]))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    "trading", [Trading(top=3), Trading(top=3, smooth=5), Trading(top=3, smooth=3, band=2.0)]
)
def test_nights_that_follow_one_by_one_earn_what_the_whole_earns_to_the_last_bit(
    trading: Trading,
) -> None:
    whole = track_of(SCORES, SESSIONS[:-1], QUOTES, trading)
    aimed, aims, held, rows = np.zeros(12, dtype=bool), [], None, []
    for night in range(len(SCORES)):
        aims.append(
            target_of_night(SCORES[max(0, night + 1 - trading.smooth) : night + 1], trading, aimed)
        )
        aimed = aims[-1][0] > 0
        if night:
            weights, kept = (np.array(each) for each in zip(*aims[-2:], strict=True))
            made = follow_on(
                weights,
                SESSIONS[night - 1 : night + 1],
                QUOTES,
                strategy_of(trading),
                kept=kept,
                held_before=held,
            )
            rows.append(made.track[:1])
            held = made.held[0]
    pd.testing.assert_frame_equal(pd.concat(rows, ignore_index=True), whole, check_exact=True)


def test_a_third_of_the_stocks_is_held_at_most_and_a_day_without_an_order_holds_what_was() -> None:
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


def exact_ranks(scores: np.ndarray) -> list[Fraction | None]:
    """The scaled ranks of a day without rounding; None for a stock without a score."""
    known = scores[np.isfinite(scores)].tolist()
    below = [sum(other < score for other in known) for score in scores]
    equal = [known.count(score) - 1 for score in scores]
    others = max(len(known) - 1, 1)
    return [
        Fraction(2 * less + same, 2 * others) - Fraction(1, 2) if np.isfinite(score) else None
        for score, less, same in zip(scores, below, equal, strict=True)
    ]


def exact_holdings(scores: np.ndarray, trading: Trading) -> list[list[int]]:
    """The stocks to hold after each day, by their mean ranks in fractions; of equals the first."""
    ranks, held, days = [exact_ranks(day) for day in scores], [], []
    for day, today in enumerate(ranks):
        means = {}
        for stock in [stock for stock, rank in enumerate(today) if rank is not None]:
            nights = [night[stock] for night in ranks[max(0, day + 1 - trading.smooth) : day + 1]]
            known = [rank for rank in nights if rank is not None]
            means[stock] = sum(known, Fraction(0)) / len(known)
        order = sorted(means, key=lambda stock: (-means[stock], stock))
        most = min(trading.top, max(1, len(order) // 3))
        kept = [stock for stock in order[: int(trading.band * most)] if stock in held]
        kept = kept if trading.band > 1 else []
        new = [stock for stock in order if stock not in kept]
        held = sorted(kept + new[: max(0, most - len(kept))])
        days.append(held)
    return days


@pytest.mark.slow
@pytest.mark.parametrize("band", [1.0, 2.0])
@pytest.mark.parametrize("smooth", [1, 3, 5, 7])
@pytest.mark.parametrize("values", [1, 4, 1000])
def test_of_stocks_with_equal_mean_ranks_the_first_is_held(
    smooth: int, band: float, values: int
) -> None:
    drawn = np.random.default_rng([smooth, values])
    scores = drawn.integers(values, size=(61, 37)).astype(float)
    scores[drawn.random(scores.shape) < 0.02] = NAN
    trading = Trading(top=5, smooth=smooth, band=band)
    held = [np.flatnonzero(day).tolist() for day in targets(scores, trading)[0]]
    assert held == exact_holdings(scores, trading)


def test_a_stock_without_a_finite_score_has_no_place() -> None:
    found = places(np.array([[NAN, -0.0, 0.0, np.inf, -np.inf, 1e-300], [NAN] * 6]))
    np.testing.assert_array_equal(found, [[NAN, 2, 3, NAN, NAN, 1], [NAN] * 6])


@pytest.mark.soak
def test_ways_to_trade_are_chosen_on_the_days_before_the_test_alone() -> None:
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


@pytest.mark.soak
def test_a_way_to_trade_whose_gain_does_not_vary_is_chosen_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its Sharpe ratio is NaN, with which every comparison is false: it must not be kept first."""
    sharpes = chain([NAN, 1.0, 2.0], repeat(0.0))
    monkeypatch.setattr("dtml.backtest.turnover.session_sharpe", lambda _gain: next(sharpes))
    found = after_costs(SCORES, SESSIONS[:-1], QUOTES, Trading(top=3), SESSIONS[200])
    test = found[found["span"] == "test"].set_index("version")
    assert test.loc[BANDED, "band"] == BANDS[2]


def test_figures_a_year_use_the_sessions_of_the_calendar() -> None:
    usual, daily = (
        after_costs(
            SCORES, SESSIONS[:-1], replace(QUOTES, year=year), Trading(top=3), SESSIONS[200]
        )
        for year in (252, 365)
    )
    more = 365 / 252
    growth = np.log1p(daily["annual_return"]) / np.log1p(usual["annual_return"])
    assert growth.to_numpy() == in_float64(np.full(len(usual), more))
    for figure in ("annual_volatility", "sharpe", "sharpe_low", "index_gain", "index_gain_high"):
        known = usual[figure].notna() & (usual[figure] != 0)
        ratio = daily.loc[known, figure] / usual.loc[known, figure]
        assert ratio.to_numpy() == in_float64(np.full(known.sum(), more**0.5))
    sold = -np.full((2, 12), 1 / 12)
    usual_fee, daily_fee = (
        follow(sold, SESSIONS[:2], replace(QUOTES, year=year), Strategy("long_short"))["borrow"]
        for year in (252, 365)
    )
    assert usual_fee.to_numpy() == in_float64(daily_fee.to_numpy() * more)


def test_where_nothing_could_be_bought_there_is_no_break_even() -> None:
    quotes = replace(QUOTES, limit=np.ones_like(QUOTES.open))  # all open at their upper limit
    scores = SCORES[:40]
    rows = after_costs(scores, SESSIONS[:40], quotes, Trading(top=3), SESSIONS[0])
    daily = rows[rows["version"] == DAILY].iloc[0]
    assert daily["turnover"] == 0
    assert np.isnan(daily["break_even"])


def test_each_fact_of_a_shipped_market_has_its_source() -> None:
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
def test_break_even_is_the_cost_at_which_equal_parts_earn_as_much() -> None:
    # from the open after each close to the one after it
    skilled = np.diff(np.log(QUOTES.open), axis=0)[1:]
    span = SESSIONS[: len(skilled)]
    rows = after_costs(skilled, span, QUOTES, Trading(top=3), span[0]).set_index("version")
    cost = Costs(rows.loc[DAILY, "break_even"], 0.0, 0.0)
    assert cost.commission > 100
    paid = track_of(skilled, span, QUOTES, Trading(**asdict(cost), top=3))
    equal = equal_weight_track(skilled, span, QUOTES, "next_open")
    assert paid["net"].mean() == in_float64(equal["gross"].mean())
