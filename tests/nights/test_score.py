"""Scores: what happened, held against what was said, whatever the order and whenever a run dies."""

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from db.engine import reading, transaction
from db.read import read, read_value
from db.rows import predictions, runs
from db.rows.runs import latest_trained
from db.save import save
from dtml.baselines.naive_rules import NAIVE_RULES
from dtml.prices.sessions import sessions_up_to
from flows.nightly import score as score_module
from flows.nightly.context import Tonight
from flows.nightly.night import run_night
from flows.nightly.score import day_counts, score
from tests.support.nights import BARS, FrameSource, after_nights, without

DAYS = [day.date() for day in sessions_up_to("XNYS", date(2024, 7, 9), 5)]


@pytest.mark.soak
def test_a_naive_rule_is_scored_with_what_was_known_the_session_before(context):
    after_nights(context, *DAYS)
    with reading(context.engine) as conn:
        counted = day_counts(conn, Tonight(context, DAYS[-1]), DAYS[-1]).loc["all"]
    index = BARS[BARS["symbol"] == context.market.index.symbol].set_index("session")["close"]
    reversal, model = counted.loc["index_reversal"], counted.loc["dtml"]
    assert [day.date() for day in reversal.index] == DAYS[1:]
    for session, counts in zip(reversal.index, reversal.to_numpy(), strict=True):
        before = index[index.index < session].iloc[-2:]
        rises, falls = counts[[0, 1]].sum(), counts[[2, 3]].sum()
        assert (rises if before.iloc[1] >= before.iloc[0] else falls) == 0
        assert rises + falls == len(context.market.symbols)
    rises = ["true_rises", "false_falls"]
    assert (reversal[rises].sum(axis=1) == model[rises].sum(axis=1)).all()
    assert set(counted.index.get_level_values("predictor")) == {"dtml", *NAIVE_RULES}


@pytest.mark.soak
def test_only_the_model_a_night_was_closed_with_is_scored(context):
    after_nights(context, DAYS[0])
    with reading(context.engine) as conn:
        run = runs.run(conn, latest_trained(conn, "run", context.name)["id"])
        made = read(conn, "prediction", market=context.name, order="target, symbol, made_at")
    contrary = made.assign(run_id="other", probability=1 - made["probability"])
    with transaction(context.engine) as conn:
        save(conn, "run", run | {"id": "other"})
        save(
            conn,
            "prediction",
            contrary,
            market=context.name,
            known_at=run["created_at"],
            made_at=run["created_at"],
        )
    run_night(context, DAYS[1])
    of_model = {"span": "running", "protocol": "all", "predictor": "dtml", "target": DAYS[1]}
    with reading(context.engine) as conn:
        assert read_value(conn, "score", "n", market=context.name, **of_model) == 9


@pytest.mark.soak
def test_a_return_without_a_good_bar_is_counted_as_unresolved_and_never_as_correct(context):
    after_nights(context, DAYS[0])
    jumped = BARS.copy()
    after = (jumped["symbol"] == "L03") & (jumped["session"] >= pd.Timestamp(DAYS[1]))
    jumped.loc[after, ["open", "high", "low", "close", "adj_close"]] *= 1.5
    night = run_night(replace(context, source=FrameSource(jumped)), DAYS[1])
    assert night.scored is not None
    assert (night.scored.outcomes, night.scored.unresolved) == (8, 1)
    assert night.row["gaps"] == [{"symbol": "L03", "reason": "bar rejected: unexplained_return"}]
    assert np.isnan(fetch_history(context, "L03")["realised_return"].iloc[0])


def fetch_history(context, symbol):
    with reading(context.engine) as conn:
        return predictions.prediction_history(conn, market=context.name, symbol=symbol)


@pytest.mark.soak
def test_scores_that_grow_night_by_night_are_those_of_all_nights_counted_at_once(context):
    """A late bar, a corrected close and a night out of order."""
    after_nights(context, DAYS[0])
    run_night(replace(context, source=FrameSource(without(BARS, ["L02"], DAYS[1]))), DAYS[1])
    corrected = BARS.copy()
    row = (corrected["symbol"] == "F02A") & (corrected["session"] == pd.Timestamp(DAYS[1]))
    corrected.loc[row, ["close", "adj_close", "open", "high", "low"]] *= 0.9
    for day in (DAYS[3], DAYS[2], DAYS[4]):
        run_night(replace(context, source=FrameSource(corrected)), day)
    score(Tonight(context, DAYS[4]))
    with reading(context.engine) as conn:
        grown = read(conn, "score", market=context.name).drop(columns="scored_at")
        counted = day_counts(conn, Tonight(context, DAYS[4]), date.max)
    columns = [
        name for name in grown if name not in ("market", "target", "span", "protocol", "predictor")
    ]
    whole = score_module._scores(
        counted.sort_index(), set(counted.index.get_level_values("target"))
    ).reindex(columns=[*grown.columns[1:]])
    key = ["target", "span", "protocol", "predictor"]
    one, other = (
        each.set_index(key).sort_index()[columns].astype(float) for each in (grown, whole)
    )
    pd.testing.assert_frame_equal(one, other, check_exact=True)
