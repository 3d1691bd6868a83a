"""A backtest reads prices as they are known now, or as they were known before each session."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine, update

from db import tables
from db.engine import reading, transaction
from db.read import query
from db.rows import prices, runs
from dtml.errors import UsageError
from dtml.pages.rendering import said
from dtml.prices.sessions import previous_session, session_close, session_open
from flows.markets.opened import RunRequest
from flows.studies.study import run_study
from tests.support.backtest_market import FIRST, backtest_of
from tests.support.nights import BARS

pytestmark = pytest.mark.slow


def know_each_evening(engine: Engine) -> None:
    """Date each stored bar as if it had been fetched two hours after its session."""
    with transaction(engine) as conn:
        for day in BARS["session"].dt.date.unique():
            evening = session_close("XNYS", day) + timedelta(hours=2)
            conn.execute(
                update(tables.price).where(tables.price.c.session == day).values(known_at=evening)
            )


def restate(engine: Engine) -> None:
    """Correct every price by up to 2 %, today."""
    ratio = 1 + 0.02 * np.random.default_rng(0).random(len(BARS))
    named = ["open", "high", "low", "close", "adj_close"]
    bars = BARS.assign(**{name: BARS[name] * ratio for name in named})
    with transaction(engine) as conn:
        stored = prices.prices(conn, "past", FIRST, FIRST)["symbol"]
        bars = bars[bars["symbol"].isin(stored) & (bars["session"] <= pd.Timestamp("2024-05-31"))]
        prices.append_prices(conn, "past", bars, source="simulated", known_at=datetime.now(UTC))


def made(run_request: RunRequest, prices_known: str) -> pd.DataFrame:
    """The predictions of a backtest of one fold."""
    backtest = backtest_of(run_request, retrain_every=21, prices_known=prices_known)
    result = run_study(backtest)
    assert ("before the session" in said("vintage", result.row)) == (prices_known == "then")
    with reading(backtest.context.engine) as conn:
        found = query(conn, "backtest_predictions", backtest=backtest.id)
        watermark = runs.run(conn, result.folds["run_id"].iloc[0])["data_watermark"]
    assert (watermark < session_open("XNYS", FIRST)) == (prices_known == "then")
    return found[["as_of", "symbol", "probability"]].sort_values(
        ["as_of", "symbol"], ignore_index=True
    )


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_restatement_changes_a_backtest_on_prices_known_now_and_none_on_those_known_then(
    run_request: RunRequest, engine: Engine
) -> None:
    know_each_evening(engine)
    before = made(run_request, "then")
    restate(engine)
    pd.testing.assert_frame_equal(made(run_request, "then"), before, check_exact=True)
    assert not made(run_request, "now")["probability"].equals(before["probability"])


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_store_that_was_filled_later_knew_nothing_then(run_request: RunRequest) -> None:
    day = previous_session("XNYS", FIRST)
    with pytest.raises(UsageError, match=f"bars of past:.*{day}"):
        backtest_of(run_request, prices_known="then")
