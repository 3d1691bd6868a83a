"""Scores: what happened, held against what was said, whatever the order and whenever a run dies."""

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Connection, text

from db.admin.checks import check_store
from db.engine import reading, transaction
from db.read import query, read
from db.rows import predictions, runs
from db.rows.runs import latest_trained
from db.save import save
from dtml.baselines.naive_rules import NAIVE_RULES
from dtml.prices.sessions import next_session, sessions_up_to
from flows.nightly import score as score_module
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from flows.nightly.score import day_counts, score
from tests.support.bounds import in_float64
from tests.support.directions import confusion_by_day
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights, without

DAYS = [day.date() for day in sessions_up_to("XNYS", date(2024, 7, 9), 5)]


def running(context: MarketContext, predictor: str = "dtml") -> dict[date, int]:
    with reading(context.engine) as conn:
        scores = read(conn, "score", market=context.name, span="running")
    mine = scores[(scores["protocol"] == "all") & (scores["predictor"] == predictor)]
    return {row.target.date(): int(row.n) for row in mine.itertuples()}


@pytest.mark.soak
def test_a_naive_rule_is_scored_with_what_was_known_the_session_before(
    context: MarketContext,
) -> None:
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


def test_the_models_directions_are_counted_as_its_history_shows_them(
    context: MarketContext,
) -> None:
    after_nights(context, *DAYS)
    with reading(context.engine) as conn:
        all_counts = day_counts(conn, Tonight(context, DAYS[-1]), DAYS[-1])
        counted = all_counts.xs("dtml", level="predictor")
        history = predictions.prediction_history(conn, market=context.name, last=DAYS[-1]).dropna(
            subset=["realised_return"]
        )
    for protocol, counts in counted.groupby("protocol"):
        mine = history if protocol == "all" else history[history["label"] != 0]
        directions = pd.DataFrame(
            {
                "session": mine["target"],
                "predicted": mine["probability"] > 0.5,
                "rose": mine["realised_return"] > 0,
            }
        )
        found = counts[counts.any(axis=1)].to_numpy()
        assert found.tolist() == confusion_by_day(directions).tolist()
    of_protocol = counted.sum(axis=1).groupby("protocol").sum()
    assert of_protocol["published"] < of_protocol["all"]


@pytest.mark.soak
def test_the_papers_label_of_an_outcome_follows_its_thresholds(context: MarketContext) -> None:
    after_nights(context, *DAYS[:2])
    with reading(context.engine) as conn:
        known = predictions.prediction_history(conn, market=context.name).dropna(
            subset=["realised_return"]
        )
    assert known["label"].tolist() == [
        1 if change >= 0.0055 else -1 if change <= -0.005 else 0
        for change in known["realised_return"]
    ]
    assert known["label"].nunique() == 3


@pytest.mark.soak
def test_a_corrected_close_corrects_the_outcome_and_every_score_after_it(
    context: MarketContext,
) -> None:
    after_nights(context, *DAYS[:3])
    corrected = BARS.copy()
    row = (corrected["symbol"] == "F02A") & (corrected["session"] == pd.Timestamp(DAYS[1]))
    before = corrected.loc[row, "close"].iloc[0]
    corrected.loc[row, ["close", "adj_close", "open", "high", "low"]] *= 0.9
    run_night(replace(context, source=FrameSource(corrected)), DAYS[3])
    with reading(context.engine) as conn:
        history = predictions.prediction_history(
            conn, market=context.name, symbol="F02A"
        ).set_index("target")
    wide = (
        corrected[corrected["symbol"] == "F02A"]
        .set_index("session")["adj_close"]
        .pct_change(fill_method=None)
    )
    assert before > 0
    for target in pd.to_datetime(DAYS[1:4]):
        assert history.loc[target, "realised_return"] == in_float64(wide[target])


@pytest.mark.soak
def test_running_scores_after_a_night_that_is_run_later_count_it_too(
    context: MarketContext,
) -> None:
    for day in (
        DAYS[2],
        DAYS[3],
        DAYS[4],
        DAYS[0],
        DAYS[1],
        DAYS[2],
    ):  # the last is complete and only scored
        run_night(context, day)
    score(Tonight(context, DAYS[4]))
    assert running(context) == {day: 9 * (i + 1) for i, day in enumerate(DAYS[1:])}
    assert [finding.check for finding in check_store(context.engine) if finding.found] == []


@pytest.mark.soak
def test_only_the_model_a_night_was_closed_with_is_scored(context: MarketContext) -> None:
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
    assert running(context)[DAYS[1]] == 9


@pytest.mark.soak
def test_a_return_without_a_good_bar_is_counted_as_unresolved_and_never_as_correct(
    context: MarketContext,
) -> None:
    after_nights(context, DAYS[0])
    jumped = BARS.copy()
    after = (jumped["symbol"] == "L03") & (jumped["session"] >= pd.Timestamp(DAYS[1]))
    jumped.loc[after, ["open", "high", "low", "close", "adj_close"]] *= 1.5
    night = run_night(replace(context, source=FrameSource(jumped)), DAYS[1])
    assert night.scored is not None
    assert (night.scored.outcomes, night.scored.unresolved) == (8, 1)
    assert night.row["gaps"] == [{"symbol": "L03", "reason": "bar rejected: unexplained_return"}]
    assert np.isnan(fetch_history(context, "L03")["realised_return"].iloc[0])


def fetch_history(context: MarketContext, symbol: str) -> pd.DataFrame:
    with reading(context.engine) as conn:
        return predictions.prediction_history(conn, market=context.name, symbol=symbol)


def test_scoring_with_nothing_predicted_does_nothing(context: MarketContext) -> None:
    fetch_bars(context, AS_OF)
    found = score(Tonight(context, next_session("XNYS", AS_OF)))
    assert (found.outcomes, found.nights, found.unresolved) == (0, [], 0)


@pytest.mark.soak
def test_scores_that_grow_night_by_night_are_those_of_all_nights_counted_at_once(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late bar, a corrected close and a night out of order; only days that
    may have changed are counted again.
    """
    spans: list[int] = []
    honest = score_module.day_counts

    def watched(
        conn: Connection,
        tonight: Tonight,
        last: date,
        first: date | None = None,
    ) -> pd.DataFrame:
        found = honest(conn, tonight, last, first)
        spans.append(found.index.get_level_values("target").nunique())
        return found

    monkeypatch.setattr(score_module, "day_counts", watched)
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
        counted = honest(conn, Tonight(context, DAYS[4]), date.max)
    assert max(spans[1:]) < len(DAYS)
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


@pytest.mark.soak
def test_a_night_that_will_never_have_an_outcome_is_not_counted_again_each_night(
    context: MarketContext,
) -> None:
    after_nights(context, DAYS[0])
    with transaction(context.engine) as conn:
        assert query(conn, "unfinished", market=context.name).empty
    run_night(context, DAYS[1])
    with transaction(context.engine) as conn:
        assert query(conn, "unfinished", market=context.name).empty
        conn.execute(text("delete from score"))
        (night,) = query(conn, "unfinished", market=context.name).to_dict("records")
        assert (night["target"].date(), night["scored"], night["counted"]) == (DAYS[1], 0, 1)
