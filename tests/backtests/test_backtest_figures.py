"""The figures of a backtest, worked out once more from its stored predictions
and bars, in plain loops.
"""

from datetime import date
from html import unescape
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from db.admin.checks import check_store
from db.engine import reading
from db.read import query, read
from db.rows import prices
from dtml.backtest.performance import deflated_sharpe, session_sharpe
from dtml.markets.definition import Costs
from dtml.pages.backtest import ordered
from dtml.pages.rendering import said
from dtml.prices.sessions import previous_session, sessions_between
from flows.markets.opened import RunRequest
from flows.nightly.night import run_night
from flows.settings import page_of
from flows.studies.backtest import Backtest
from flows.studies.study import run_study
from tests.support.backtest_market import FIRST, LAST, backtest_of, context_of
from tests.support.bounds import as_drawn, in_float64

pytestmark = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)

TOP, MAX_WEIGHT = 3, 0.15  # a third and a sixth are more than is allowed
COSTS = Costs(commission=7.0, half_spread=11.0, borrow=900.0)
PAPERS = "no costs (the paper's)"
Weights = dict[str, float]


def unusual(run_request: RunRequest) -> Backtest:
    return backtest_of(run_request, retrain_every=20, top=TOP, max_weight=MAX_WEIGHT, costs=COSTS)


def predicted(backtest: Backtest) -> dict[pd.Timestamp, dict[str, float]]:
    """The probabilities of each session predicted, by symbol, as they are stored."""
    with reading(backtest.context.engine) as conn:
        made = query(conn, "backtest_predictions", backtest=backtest.id)
    chances: dict[pd.Timestamp, dict[str, float]] = {target: {} for target in made["target"]}
    for target, symbol, probability in zip(
        made["target"], made["symbol"], made["probability"], strict=True
    ):
        chances[target][symbol] = probability
    return chances


def adjusted(backtest: Backtest, price: str) -> pd.DataFrame:
    """Opens or closes up to the last session predicted, times that day's
    adjusted close over its close.
    """
    with reading(backtest.context.engine) as conn:
        bars = prices.prices(conn, backtest.context.name, date(2024, 1, 2), LAST)
    bars["adjusted"] = bars[price] * bars["adj_close"] / bars["close"]
    return bars.pivot(index="session", columns="symbol", values="adjusted")


def weights_of(form: str, chances: dict[str, float]) -> Weights:
    falling = sorted(chances, key=lambda symbol: -chances[symbol])
    if form == "long":
        wanted = dict.fromkeys(falling[:TOP], 1 / TOP)
    elif form == "long-short":
        wanted = dict.fromkeys(falling[:TOP], 0.5 / TOP) | dict.fromkeys(falling[-TOP:], -0.5 / TOP)
    else:
        size = sum(abs(chance - 0.5) for chance in chances.values())
        wanted = {symbol: (chance - 0.5) / size for symbol, chance in chances.items()}
    return {symbol: max(-MAX_WEIGHT, min(MAX_WEIGHT, weight)) for symbol, weight in wanted.items()}


def walked(held: dict[pd.Timestamp, Weights], price: pd.DataFrame, costs: Costs) -> pd.DataFrame:
    """What weights earned from each of their sessions to the next, while there is a next one."""
    rows, drifted = [], dict[str, float]()
    days = [day for day in price.index if min(held) <= day]
    for day, following in pairwise(days):
        weights, gross, turnover, short = held[day], 0.0, 0.0, 0.0
        for symbol in {*weights, *drifted}:
            weight = weights.get(symbol, 0.0)
            turnover += abs(weight - drifted.get(symbol, 0.0))
            gross += weight * (price.loc[following, symbol] / price.loc[day, symbol] - 1)
            short += max(0.0, -weight)
        drifted = {
            symbol: weight * price.loc[following, symbol] / price.loc[day, symbol] / (1 + gross)
            for symbol, weight in weights.items()
        }
        cost = turnover * (costs.commission + costs.half_spread) / 10_000
        borrow = short * costs.borrow / 10_000 / 252
        rows.append((day, gross, turnover, cost, borrow, gross - cost - borrow))
    return pd.DataFrame(rows, columns=["session", "gross", "turnover", "cost", "borrow", "net"])


def stored_returns(backtest: Backtest) -> dict[str, pd.DataFrame]:
    with reading(backtest.context.engine) as conn:
        returns = read(conn, "backtest_return", backtest_id=backtest.id)
    return {
        str(name): rows.drop(columns="portfolio").reset_index(drop=True)
        for name, rows in returns.groupby("portfolio")
    }


def assert_rows(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(
        found[list(expected)], expected, rtol=1e-9, atol=1e-12, check_dtype=False
    )


@pytest.mark.one_case
@pytest.mark.parametrize("form", ["long", "long-short", "weighted"])
def test_a_portfolio_filled_at_the_next_open_is_what_its_predictions_bars_and_costs_make_it(
    run_request: RunRequest, form: str
) -> None:
    backtest = unusual(run_request)
    run_study(backtest)
    held = {target: weights_of(form, chances) for target, chances in predicted(backtest).items()}
    assert (
        max(abs(weight) for weights in held.values() for weight in weights.values()) == MAX_WEIGHT
    )
    found = stored_returns(backtest)[f"{form}, next open"]
    assert_rows(found, walked(held, adjusted(backtest, "open"), COSTS))
    assert list(found["session"]) == list(
        sessions_between("XNYS", FIRST, previous_session("XNYS", LAST))
    )
    assert (found["cost"] > 0).all()
    assert (found["borrow"] > 0).any() == (form != "long")


@pytest.mark.soak
def test_the_papers_portfolios_are_filled_at_the_close_of_the_prediction_and_cost_nothing(
    run_request: RunRequest,
) -> None:
    backtest = unusual(run_request)
    run_study(backtest)
    close, returns = adjusted(backtest, "close"), stored_returns(backtest)
    chances = {
        pd.Timestamp(previous_session("XNYS", day.date())): made
        for day, made in predicted(backtest).items()
    }
    for form in ("long", "long-short", "weighted"):
        held = {as_of: weights_of(form, made) for as_of, made in chances.items()}
        found = returns[f"{form}, close, {PAPERS}"]
        assert_rows(found, walked(held, close, Costs(0.0, 0.0, 0.0)))
        assert list(found["session"]) == sorted(chances)


@pytest.mark.soak
def test_the_yardsticks_hold_the_index_and_equal_parts_of_the_constituents_predicted(
    run_request: RunRequest,
) -> None:
    backtest = unusual(run_request)
    run_study(backtest)
    opened, returns, made = (
        adjusted(backtest, "open"),
        stored_returns(backtest),
        predicted(backtest),
    )
    assert {len(chances) for chances in made.values()} == {8, 9}  # constituents come and go
    equal = {day: dict.fromkeys(chances, 1 / len(chances)) for day, chances in made.items()}
    index: dict[pd.Timestamp, Weights] = {day: {"SIMX": 1.0} for day in made}
    for name, held in (("equal weight", equal), ("index", index)):
        assert_rows(returns[name], walked(held, opened, Costs(0.0, 0.0, 0.0)))
    with reading(backtest.context.engine) as conn:
        portfolios = read(conn, "backtest_portfolio", backtest_id=backtest.id).set_index(
            "portfolio"
        )
    followed = portfolios["strategy"].notna()
    assert portfolios["deflated_sharpe"].notna().equals(followed)
    assert list(portfolios.index[~followed]) == ["equal weight", "index"]


@pytest.mark.soak
def test_what_other_backtests_of_the_market_tried_deflates_the_next_one(
    run_request: RunRequest,
) -> None:
    first, second = unusual(run_request), backtest_of(run_request, retrain_every=20)
    tried, trials = [], list[float]()
    for backtest in (first, second):
        tried.append(run_study(backtest).row["tried"])
        returns = stored_returns(backtest)
        followed = [name for name in returns if name not in ("index", "equal weight")]
        trials += [session_sharpe(returns[name]["net"].to_numpy()) for name in followed]
        with reading(backtest.context.engine) as conn:
            portfolios = read(conn, "backtest_portfolio", backtest_id=backtest.id).set_index(
                "portfolio"
            )
        for name in followed:
            expected = deflated_sharpe(returns[name]["net"].to_numpy(), trials)
            assert portfolios.loc[name, "deflated_sharpe"] == in_float64(expected)
    assert tried == [6, 12]
    assert len(trials) == 12
    assert not np.isnan(trials).any()


@pytest.mark.soak
def test_constituent_days_without_a_bar_are_counted_and_days_of_others_are_not(
    run_request: RunRequest, engine: Engine
) -> None:
    """Of these, F02B is away on the 14th and F03A joins on the 11th; the 26th
    is no session predicted.
    """
    lost = (
        *(("L01", "2024-03-06"), ("L01", "2024-03-25"), ("F02B", "2024-03-12")),
        *(("F02B", "2024-03-14"), ("F03A", "2024-03-08"), ("L02", "2024-03-26")),
    )
    with engine.begin() as conn:
        for symbol, session in lost:
            conn.exec_driver_sql(
                f"delete from price where session = '{session}' and instrument_id in "
                f"(select id from instrument where symbol = '{symbol}')"
            )
    row = run_study(backtest_of(run_request, retrain_every=20)).row
    assert row["without_price"] == 3
    # F02B is away for five sessions, F03A not there for five
    assert row["constituent_days"] == 9 * 16 - 5 - 5


@pytest.mark.soak
def test_a_move_that_the_checks_refused_is_no_profit_and_is_said(
    run_request: RunRequest, engine: Engine
) -> None:
    """L01 is worth ten times as much from 2024-03-12 on, whose bar was rejected."""
    stock = "instrument_id = (select id from instrument where market = 'past' and symbol = 'L01')"
    tenfold = ", ".join(
        f"{price} = 10 * {price}" for price in ("open", "high", "low", "close", "adj_close")
    )
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"update price set {tenfold} where session >= '2024-03-12' and {stock}"
        )
        conn.exec_driver_sql(
            "insert into rejected_bar (instrument_id, session, source, reason, value, "
            "first_known_at) select "
            "instrument_id, session, source, 'unexplained_return', 'adj_close=1000 after 100 "
            "(+900.0%)', known_at "
            f"from price where session = '2024-03-12' and {stock}"
        )
        conn.exec_driver_sql(f"delete from price where session = '2024-03-12' and {stock}")
    backtest = unusual(run_request)
    result = run_study(backtest)
    for name, returns in stored_returns(backtest).items():
        assert returns["gross"].abs().max() < 0.1, name
    held = result.portfolios.set_index("portfolio")
    assert held.loc["equal weight", "settled"] == 1
    # 900 % of one stock in nine
    assert held.loc["equal weight", "unbooked"] == as_drawn(1, within=0.2)
    assert held.loc["index", ["settled", "unbooked"]].tolist() == [0, 0]
    words = said("settlements", ordered(result.portfolios))
    assert "equal weight 1 (" in words
    assert " +" in words
    assert words in unescape(page_of("backtest", result.row).read_text())


@pytest.mark.soak
def test_a_move_that_only_a_recorded_split_excuses_is_no_outcome(
    run_request: RunRequest, engine: Engine
) -> None:
    """L01 is worth ten times as much from 2024-03-12 on, whose bar has a split."""
    stock = "(select id from instrument where market = 'past' and symbol = 'L01')"
    tenfold = ", ".join(
        f"{price} = 10 * {price}" for price in ("open", "high", "low", "close", "adj_close")
    )
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"update price set {tenfold} where session >= '2024-03-12' and instrument_id = {stock}"
        )
        conn.exec_driver_sql(
            f"update price set split = 0.1 where session = '2024-03-12' and instrument_id = {stock}"
        )
    run_study(unusual(run_request))
    span = f"instrument_id = {stock} and target between '2024-03-11' and '2024-03-12'"
    assert len(pd.read_sql(f"select target from prediction where {span}", engine)) == 2
    known = pd.read_sql(
        f"select session from outcome where {span.replace('target', 'session')}", engine
    )
    assert known["session"].astype(str).str[:10].tolist() == ["2024-03-11"]


@pytest.mark.soak
def test_a_backtest_that_changes_the_outcomes_of_a_night_scores_it_again(
    run_request: RunRequest, engine: Engine
) -> None:
    """All prices before the session that the first night predicted are restated
    to four fifths: every stock rose by about a quarter.
    """
    context = context_of(run_request)
    for day in (date(2024, 3, 8), date(2024, 3, 11)):
        run_night(context, day)
    night = (
        "from daily_score where predictor = 'dtml' and protocol = 'all' and target = '2024-03-11'"
    )
    before = pd.read_sql(f"select rises, running_acc {night}", engine)
    lower = ", ".join(
        f"{price} = 0.8 * {price}" for price in ("open", "high", "low", "close", "adj_close")
    )
    with engine.begin() as conn:
        stocks = (
            "instrument_id in (select id from instrument where market = 'past' and kind = 'stock')"
        )
        conn.exec_driver_sql(f"update price set {lower} where session < '2024-03-11' and {stocks}")
    run_study(unusual(run_request))
    law = "the score of a night matches its outcomes"
    assert {finding.check: finding.state for finding in check_store(engine)}[law] == "ok"
    after = pd.read_sql(f"select n, rises, running_acc {night}", engine)
    assert (after["rises"] == after["n"]).all()
    assert before["rises"].lt(after["rises"]).all()
    assert after["running_acc"].ne(before["running_acc"]).any()
