"""The figures of a backtest, worked out once more from its stored predictions
and bars, in plain loops.
"""

from datetime import date

import pandas as pd
import pytest

from db.admin.checks import check_store
from db.engine import reading
from db.read import query, read
from dtml.backtest.performance import deflated_sharpe, session_sharpe
from dtml.markets.definition import Costs
from flows.nightly.night import run_night
from flows.studies.study import run_study
from tests.support.backtest_market import backtest_of, context_of
from tests.support.bounds import as_drawn, in_float64
from tests.support.kinds import sqlite_alone

pytestmark = sqlite_alone

TOP, MAX_WEIGHT = 3, 0.15  # a third and a sixth are more than is allowed
COSTS = Costs(commission=7.0, half_spread=11.0, borrow=900.0)
LEADER = "instrument_id = (select id from instrument where market = 'past' and symbol = 'L01')"


def unusual(run_request):
    return backtest_of(run_request, retrain_every=20, top=TOP, max_weight=MAX_WEIGHT, costs=COSTS)


def predicted(backtest):
    """The probabilities of each session predicted, by symbol, as they are stored."""
    with reading(backtest.context.engine) as conn:
        made = query(conn, "backtest_predictions", backtest=backtest.id)
    chances = {target: {} for target in made["target"]}
    for target, symbol, probability in zip(
        made["target"], made["symbol"], made["probability"], strict=True
    ):
        chances[target][symbol] = probability
    return chances


def stored_returns(backtest):
    with reading(backtest.context.engine) as conn:
        returns = read(conn, "backtest_return", backtest_id=backtest.id)
    return {
        str(name): rows.drop(columns="portfolio").reset_index(drop=True)
        for name, rows in returns.groupby("portfolio")
    }


@pytest.mark.soak
def test_what_other_backtests_of_the_market_tried_deflates_the_next_one(run_request):
    trials = []
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
def test_a_move_that_only_a_recorded_split_excuses_is_no_outcome(run_request, engine):
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


@pytest.mark.soak
def test_a_move_that_the_checks_refused_is_no_profit_and_is_counted(run_request, engine):
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
def test_a_backtest_that_changes_the_outcomes_of_a_night_scores_it_again(run_request, engine):
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


def multiply(conn, factor, which):
    """Restate prices of the store."""
    names = ("open", "high", "low", "close", "adj_close")
    multiplied = ", ".join(f"{name} = {factor} * {name}" for name in names)
    conn.exec_driver_sql(f"update price set {multiplied} where {which}")
