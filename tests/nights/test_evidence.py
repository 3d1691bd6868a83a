"""What is kept beside predictions says what was said and what came of it, for
nights and backtests alike.
"""

from datetime import date

import numpy as np
import pandas as pd
import pytest

from db.connection.user_sql import select
from db.engine import open_engine, reading
from db.read import query, read
from db.rows.calibration import night_counts
from db.rows.runs import latest_trained
from dtml.markets.definition import LEVELS
from dtml.prices.sessions import sessions_up_to
from flows.nightly.night import run_night
from tests.support.bounds import assert_arrays_close_in_float64
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights

DAYS = [day.date() for day in sessions_up_to("XNYS", date(2024, 7, 9), 4)]


def ask(engine, sql):
    reader = open_engine(engine.url.render_as_string(hide_password=False), read_only=True)
    rows = select(reader, sql)
    reader.dispose()
    for day in ("as_of", "target"):
        if day in rows:
            rows[day] = pd.to_datetime(rows[day])
    return rows


def night(context):
    """What a night predicted."""
    after_nights(context, AS_OF)
    with reading(context.engine) as conn:
        return query(conn, "night_directions", market=context.name, as_of=AS_OF)


def test_a_night_keeps_what_its_seeds_said_and_what_calibration_makes_of_it(context):
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


def counted(context):
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
def test_a_restated_outcome_is_counted_anew(context):
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


def risen(context, target):
    """How many stocks rose that session, by the counts of its night."""
    with reading(context.engine) as conn:
        bins = night_counts(conn, "calibration_bin", context.name, target.date())
    return int(bins.loc[bins["target"] == target, "rises"].sum())
