"""The figures of a backtest, worked out once more from its stored predictions
and bars, in plain loops.
"""

from datetime import date
from itertools import pairwise

import pandas as pd
import pytest
from sqlalchemy import Connection, Engine

from db.admin.checks import check_store
from db.engine import reading
from db.read import query, read
from db.rows import prices
from dtml.backtest.performance import deflated_sharpe, session_sharpe
from dtml.markets.definition import FREE, Costs
from dtml.prices.sessions import previous_session, sessions_between
from flows.markets.opened import RunRequest
from flows.nightly.night import run_night
from flows.studies.backtest import Backtest
from flows.studies.study import run_study
from tests.support.backtest_market import FIRST, LAST, backtest_of, context_of
from tests.support.bounds import as_drawn, in_float64

pytestmark = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)

TOP, MAX_WEIGHT = 3, 0.15  # a third and a sixth are more than is allowed
COSTS = Costs(commission=7.0, half_spread=11.0, borrow=900.0)
PAPERS = "no costs (the paper's)"
LEADER = "instrument_id = (select id from instrument where market = 'past' and symbol = 'L01')"
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


@pytest.mark.soak
def test_what_other_backtests_of_the_market_tried_deflates_the_next_one(
    run_request: RunRequest,
) -> None:
    trials: list[float] = []
    for backtest in (unusual(run_request), backtest_of(run_request, retrain_every=20)):
        result = run_study(backtest)
        net = {name: rows["net"].to_numpy() for name, rows in stored_returns(backtest).items()}
        followed = [name for name in net if name not in ("index", "equal weight")]
        trials += [session_sharpe(net[name]) for name in followed]
        assert result.row["tried"] == len(trials)
        deflated = result.portfolios.set_index("portfolio")["deflated_sharpe"].dropna()
        expected = {name: deflated_sharpe(net[name], trials) for name in followed}
        assert deflated.to_dict() == in_float64(expected)


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
def test_a_move_that_only_a_recorded_split_excuses_is_no_outcome(
    run_request: RunRequest, engine: Engine
) -> None:
    """L01 is worth ten times as much from 2024-03-12 on, whose bar has a split."""
    with engine.begin() as conn:
        multiply(conn, 10, f"session >= '2024-03-12' and {LEADER}")
        conn.exec_driver_sql(
            f"update price set split = 0.1 where session = '2024-03-12' and {LEADER}"
        )
    run_study(unusual(run_request))
    known = "select session from outcome where session between '2024-03-11' and '2024-03-12'"
    found = pd.read_sql(f"{known} and {LEADER}", engine)["session"]
    assert found.astype(str).str[:10].tolist() == ["2024-03-11"]


def test_portfolios_are_what_their_predictions_bars_and_costs_make_them(
    run_request: RunRequest,
) -> None:
    """Filled at the next open, and the paper's at the close of the prediction, which cost nothing;
    yardsticks hold the index and equal parts of the constituents predicted.
    """
    backtest = unusual(run_request)
    run_study(backtest)
    opened, closed = adjusted(backtest, "open"), adjusted(backtest, "close")
    made, returns = predicted(backtest), stored_returns(backtest)
    assert {len(chances) for chances in made.values()} == {8, 9}  # constituents come and go
    for form in ("long", "long-short", "weighted"):
        held = {target: weights_of(form, chances) for target, chances in made.items()}
        largest = max(abs(weight) for weights in held.values() for weight in weights.values())
        assert largest == MAX_WEIGHT
        assert_rows(returns[f"{form}, next open"], walked(held, opened, COSTS))
        before = {previous_day(target): weights for target, weights in held.items()}
        assert_rows(returns[f"{form}, close, {PAPERS}"], walked(before, closed, FREE))
    equal = {day: dict.fromkeys(chances, 1 / len(chances)) for day, chances in made.items()}
    index: dict[pd.Timestamp, Weights] = {day: {"SIMX": 1.0} for day in made}
    for name, held in (("equal weight", equal), ("index", index)):
        assert_rows(returns[name], walked(held, opened, FREE))
    assert list(returns["index"]["session"]) == list(
        sessions_between("XNYS", FIRST, previous_session("XNYS", LAST))
    )


def previous_day(session: pd.Timestamp) -> pd.Timestamp:
    return pd.Timestamp(previous_session("XNYS", session.date()))


@pytest.mark.soak
def test_a_move_that_the_checks_refused_is_no_profit_and_is_counted(
    run_request: RunRequest, engine: Engine
) -> None:
    """L01 is worth ten times as much from 2024-03-12 on, whose bar was rejected."""
    with engine.begin() as conn:
        multiply(conn, 10, f"session >= '2024-03-12' and {LEADER}")
        conn.exec_driver_sql(
            "insert into rejected_bar (instrument_id, session, source, reason, value, "
            "first_known_at) select instrument_id, session, source, 'unexplained_return', "
            f"'adj_close=1000', known_at from price where session = '2024-03-12' and {LEADER}"
        )
        conn.exec_driver_sql(f"delete from price where session = '2024-03-12' and {LEADER}")
    backtest = unusual(run_request)
    result = run_study(backtest)
    for name, returns in stored_returns(backtest).items():
        assert returns["gross"].abs().max() < 0.1, name
    held = result.portfolios.set_index("portfolio")
    assert held.loc["equal weight", "settled"] == 1
    # 900 % of one stock in nine
    assert held.loc["equal weight", "unbooked"] == as_drawn(1, within=0.2)
    assert held.loc["index", ["settled", "unbooked"]].tolist() == [0, 0]


@pytest.mark.soak
def test_a_backtest_that_changes_the_outcomes_of_a_night_scores_it_again(
    run_request: RunRequest, engine: Engine
) -> None:
    """All prices before the session that the first night predicted are restated
    to four fifths: every stock rose by about a quarter.
    """
    for day in (date(2024, 3, 8), date(2024, 3, 11)):
        run_night(context_of(run_request), day)
    stocks = "(select id from instrument where market = 'past' and kind = 'stock')"
    with engine.begin() as conn:
        multiply(conn, 0.8, f"session < '2024-03-11' and instrument_id in {stocks}")
    run_study(unusual(run_request))
    law = "the score of a night matches its outcomes"
    assert {finding.check: finding.state for finding in check_store(engine)}[law] == "ok"
    night = "predictor = 'dtml' and protocol = 'all' and target = '2024-03-11'"
    after = pd.read_sql(f"select n, rises from daily_score where {night}", engine)
    assert after["rises"].tolist() == after["n"].tolist() != []


def multiply(conn: Connection, factor: float, which: str) -> None:
    """Restate prices of the store."""
    names = ("open", "high", "low", "close", "adj_close")
    multiplied = ", ".join(f"{name} = {factor} * {name}" for name in names)
    conn.exec_driver_sql(f"update price set {multiplied} where {which}")
