"""What is kept beside predictions says what was said and what came of it, for
nights and backtests alike.
"""

from datetime import date

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine

from db.connection.user_sql import select
from db.engine import open_engine, reading
from db.read import query, read
from db.rows.calibration import night_counts
from db.rows.runs import latest_trained
from dtml.baselines.naive_rules import NAIVE_RULES, naive_directions
from dtml.markets.definition import LEVELS
from dtml.pages.figures import percent
from dtml.prices.sessions import sessions_up_to
from flows.markets.opened import RunRequest
from flows.nightly.context import MarketContext, stored_bars
from flows.nightly.night import LOOKS, run_night
from flows.nightly.predict import first_needed, look
from flows.nightly.train import load_model
from flows.settings import page_of
from flows.studies.study import run_study
from tests.support.backtest_market import backtest_of, context_of
from tests.support.bounds import assert_arrays_close_in_float32, assert_arrays_close_in_float64
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights

DAYS = [day.date() for day in sessions_up_to("XNYS", date(2024, 7, 9), 4)]


def ask(engine: Engine, sql: str) -> pd.DataFrame:
    reader = open_engine(engine.url.render_as_string(hide_password=False), read_only=True)
    rows = select(reader, sql)
    reader.dispose()
    for day in ("as_of", "target"):
        if day in rows:
            rows[day] = pd.to_datetime(rows[day])
    return rows


def night(context: MarketContext) -> pd.DataFrame:
    """What a night predicted."""
    after_nights(context, AS_OF)
    with reading(context.engine) as conn:
        return query(conn, "night_directions", market=context.name, as_of=AS_OF)


def test_a_night_keeps_what_its_seeds_said_and_what_calibration_makes_of_it(
    context: MarketContext,
) -> None:
    said = night(context)
    with reading(context.engine) as conn:
        run = latest_trained(conn, "run", context.name) or {}
        bands = read(conn, "abstention_band", run_id=run["id"])
    logit = (
        run["slope"] * np.log(said["probability"] / (1 - said["probability"])) + run["intercept"]
    )
    assert_arrays_close_in_float64(said["calibrated"], 1 / (1 + np.exp(-logit)))
    assert (said["lowest"] <= said["probability"]).all()
    assert (said["probability"] <= said["highest"]).all()
    # of two seeds
    assert_arrays_close_in_float64(said["probability_std"], (said["highest"] - said["lowest"]) / 2)
    rising = (said["lowest"] > 0.5).astype(int) + (said["highest"] > 0.5)
    np.testing.assert_array_equal(said["rising_share"], rising / 2)
    assert bands["level"].tolist() == list(LEVELS)
    assert bands["threshold"].is_monotonic_increasing


def test_a_loaded_model_is_calibrated_as_it_was_trained(context: MarketContext) -> None:
    said = night(context)
    model = load_model(context, AS_OF)
    assert model.calibration is not None
    np.testing.assert_array_equal(
        model.calibration.apply(said["probability"].to_numpy()), said["calibrated"]
    )
    with reading(context.engine) as conn:
        pd.testing.assert_frame_equal(
            read(conn, "abstention_band", columns="level, threshold, days, n", run_id=model.run_id),
            model.calibration.bands,
            check_dtype=False,
        )


def test_a_night_keeps_what_each_rule_predicts_from_what_it_had_seen(
    context: MarketContext,
) -> None:
    night(context)
    index = BARS[BARS["symbol"] == context.market.index.symbol].set_index("session")["close"]
    direction = naive_directions(index[index.index <= pd.Timestamp(AS_OF)]).iloc[-1]
    told = ask(context.engine, "select * from prediction_history")
    assert len(told) == len(context.market.symbols)
    for rule in NAIVE_RULES:
        assert set(told[rule]) == {"rise" if direction[rule] == 1 else "fall"}


@pytest.mark.soak
def test_a_night_keeps_whom_each_stock_looked_at_most(context: MarketContext) -> None:
    night(context)
    model = load_model(context, AS_OF)
    bars, _ = stored_bars(context, first_needed(context, model.ensemble.windows, AS_OF), AS_OF)
    whole = (
        look(context, model, AS_OF, bars)
        .rows()
        .pivot(index="symbol", columns="source", values="weight")
    )
    kept = ask(
        context.engine,
        "select symbol, source, weight from attention order by symbol, weight desc, source",
    )
    assert set(kept["symbol"]) == set(context.market.symbols)
    for symbol, rows in kept.groupby("symbol"):
        most = whole.loc[symbol].drop(symbol).nlargest(LOOKS)
        assert set(rows["source"]) == set(most.index)
        assert_arrays_close_in_float32(rows["weight"], most)


def counted(context: MarketContext) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the nightly counts say, and what the directions themselves add up
    to, by night and level.
    """
    kept = ask(
        context.engine,
        "select target, level, n, covered, decided, decided_correct from coverage order by 1, 2",
    )
    sums = """
        select target, level, count(*) as n, sum(covered) as covered,
            sum(case when direction <> 'none' then 1 else 0 end) as decided,
            sum(case when direction <> 'none' then covered else 0 end) as decided_correct
        from band_direction
        where covered is not null
        group by target, level
        order by 1, 2
    """
    return kept, ask(context.engine, sums)


@pytest.mark.soak
def test_what_came_of_each_nights_directions_is_counted_at_every_level(
    context: MarketContext,
) -> None:
    after_nights(context, *DAYS)
    kept, summed = counted(context)
    assert len(kept) == (len(DAYS) - 1) * len(LEVELS)
    pd.testing.assert_frame_equal(kept, summed, check_dtype=False)
    bins = ask(
        context.engine,
        "select target, n, mean_probability, share_risen, bin_low, bin_high from calibration",
    )
    history = ask(
        context.engine,
        "select target, probability, realised_return from prediction_history where realised_return "
        "is not null",
    )
    assert bins["n"].sum() == len(history)
    assert (bins["bin_low"] <= bins["mean_probability"]).all()
    assert (bins["mean_probability"] <= bins["bin_high"]).all()
    for target, rows in history.groupby("target"):
        mine = bins[bins["target"] == target]
        assert_arrays_close_in_float64(
            (mine["n"] * mine["mean_probability"]).sum(), rows["probability"].sum()
        )
        assert_arrays_close_in_float64(
            (mine["n"] * mine["share_risen"]).sum(), (rows["realised_return"] > 0).sum()
        )


@pytest.mark.soak
def test_a_restated_outcome_is_counted_anew(context: MarketContext) -> None:
    for day in DAYS[:2]:
        run_night(context, day)
    target = pd.Timestamp(DAYS[1])
    stock = context.market.symbols[0]
    closes = BARS[BARS["symbol"] == stock].set_index("session")["adj_close"]
    last, then = closes[closes.index < target].iloc[-1], closes[target]
    rises_then = then > last
    turned = (BARS["symbol"] == stock) & (BARS["session"] == target)
    values = BARS.loc[turned, ["open", "high", "low", "close", "adj_close"]]
    restated = BARS.copy()
    restated.loc[turned, values.columns] = values * (0.98 if rises_then else 1.02) * last / then
    source = context.source
    assert isinstance(source, FrameSource)
    source.bars = restated
    before = risen(context, target)
    run_night(context, DAYS[2])
    kept, summed = counted(context)
    pd.testing.assert_frame_equal(kept, summed, check_dtype=False)
    assert risen(context, target) == before + (-1 if rises_then else 1)


def risen(context: MarketContext, target: pd.Timestamp) -> int:
    """How many stocks rose that session, by the counts of its night."""
    with reading(context.engine) as conn:
        bins = night_counts(conn, "calibration_bin", context.name, target.date())
    return int(bins.loc[bins["target"] == target, "rises"].sum())


@pytest.mark.soak
def test_a_backtest_keeps_what_its_nights_would_have_kept(run_request: RunRequest) -> None:
    backtest = backtest_of(run_request)
    done = run_study(backtest)
    context = context_of(run_request)
    kept, summed = counted(context)
    share = (
        kept.loc[kept["level"] == 0.5, "covered"].sum() / kept.loc[kept["level"] == 0.5, "n"].sum()
    )
    page = page_of("backtest", done.row).read_text()
    assert f'<th scope="row">50 %</th><td class="number">{percent(share)}' in page
    pd.testing.assert_frame_equal(kept, summed, check_dtype=False)
    assert kept["target"].nunique() > 0
    runs = ask(context.engine, "select slope, intercept from run_log where kind = 'backtest'")
    assert runs.notna().all(axis=None)
    told = ask(
        context.engine, "select distinct target, always_up, index_reversal from prediction_history"
    )
    assert set(told["always_up"]) == {"rise"}
    assert told["index_reversal"].notna().all()


@pytest.mark.soak
def test_a_stocks_score_is_that_of_its_history(context: MarketContext) -> None:
    after_nights(context, *DAYS)
    history = ask(
        context.engine,
        "select symbol, correct, realised_return from prediction_history where correct is not null",
    )
    scores = ask(context.engine, "select * from symbol_score").set_index("symbol")
    assert set(scores.index) == set(context.market.symbols)
    for symbol, rows in history.groupby("symbol"):
        assert scores.loc[symbol, "n"] == len(rows)
        assert_arrays_close_in_float64(scores.loc[symbol, "acc"], rows["correct"].mean())
        assert_arrays_close_in_float64(
            scores.loc[symbol, "up_acc"], (rows["realised_return"] > 0).mean()
        )
