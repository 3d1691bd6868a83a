"""A night through the real stages and a real database: whole, or refused with
its reason, and never twice.
"""

import re
from dataclasses import replace
from datetime import date

import pandas as pd
import pytest
from sqlalchemy import select

from db.engine import reading
from db.read import read, read_row, read_value
from db.tables import UtcTimestamp, metadata
from dtml.prices.sessions import next_session, sessions_up_to
from flows.freezing import begin, link_of_night
from flows.nightly import predict
from flows.nightly.context import Tonight, stored_bars
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import (
    AFTERWARDS,
    PREDICTING,
    NightRefusedError,
    run_night,
)
from flows.nightly.predict import forecast
from flows.nightly.train import load_model
from tests.support.log_lines import objects, standard_error
from tests.support.nights import (
    AS_OF,
    BARS,
    FrameSource,
    LimitedSource,
    after_nights,
    apart,
    without,
)
from tests.support.stores import counts


def stored_predictions(context, as_of):
    with reading(context.engine) as conn:
        return read(
            conn,
            "prediction",
            market=context.name,
            target=next_session("XNYS", as_of),
            order="target, symbol, made_at",
        )


@pytest.mark.on_postgresql
def test_a_night_predicts_every_stock_and_a_rerun_adds_no_row(context):
    night = run_night(context, AS_OF)
    assert night.row["status"] == "complete"
    assert (night.row["predictions"], night.row["gaps"]) == (9, [])
    predicted = stored_predictions(context, AS_OF)
    assert sorted(predicted["symbol"]) == list(context.market.symbols)
    assert predicted["probability"].between(0, 1).all()
    assert (predicted["as_of"] == pd.Timestamp(AS_OF)).all()
    before = counts(context.engine)
    again = run_night(context, AS_OF)
    assert again.was_done_before
    assert counts(context.engine) == before
    assert "L01" in night.report.read_text()


def known_at(context):
    """Up to when the night knew prices."""
    with reading(context.engine) as conn:
        return read_value(conn, "night_log", "known_at", market=context.name, as_of=AS_OF)


def test_no_price_after_as_of_moves_a_prediction(context):
    after_nights(context, AS_OF)
    of_the_night = known_at(context)
    scrambled = BARS.copy()
    later = scrambled["session"] > pd.Timestamp(AS_OF)
    prices = ["open", "high", "low", "close", "adj_close"]
    scrambled.loc[later, prices] = scrambled.loc[later, prices].to_numpy() * 1.3
    fetch_bars(replace(context, source=FrameSource(scrambled)), date(2024, 8, 30))
    made = forecast(Tonight(context, AS_OF), load_model(context, AS_OF))
    stored = stored_predictions(context, AS_OF)
    assert (made.predictions["probability"].to_numpy() == stored["probability"].to_numpy()).all()
    assert made.known_at == of_the_night


def test_too_many_missing_stocks_refuse_the_night_and_a_few_are_listed_as_gaps(context):
    after_nights(context, AS_OF)
    following = next_session("XNYS", AS_OF)
    many = replace(context, source=FrameSource(without(BARS, ["L01", "L02", "F03A"], following)))
    with pytest.raises(NightRefusedError, match=r"3 of 9.*good bar"):
        run_night(many, following)
    one = replace(context, source=FrameSource(without(BARS, ["L02"], following)))
    row = run_night(one, following).row
    assert row["status"] == "complete_with_gaps"
    assert row["gaps"] == [{"symbol": "L02", "reason": f"no bar on {following}"}]
    assert row["predictions"] == 8


def test_a_restated_history_that_does_not_come_whole_is_not_stored_at_all(context):
    after_nights(context, AS_OF)
    restated = BARS.copy()
    restated.loc[restated["symbol"] == "L02", "adj_close"] *= 0.8
    following = next_session("XNYS", AS_OF)
    limited = LimitedSource(restated)
    fetch_result = fetch_bars(replace(context, source=limited), following)
    assert fetch_result.restated == ["L02"]
    assert fetch_result.failures["symbol"].tolist() == ["L02"]
    bars, _ = stored_bars(context, date(2024, 1, 3), following)
    assert bars.loc[bars["symbol"] == "L02", "session"].max() == pd.Timestamp(AS_OF)
    assert fetch_bars(replace(context, source=FrameSource(restated)), following).restated == ["L02"]
    bars, _ = stored_bars(context, date(2023, 1, 3), following)
    returns = (
        bars[bars["symbol"] == "L02"].set_index("session")["adj_close"].pct_change(fill_method=None)
    )
    assert returns.abs().max() < 0.15


def test_an_earlier_night_after_a_later_one_fetches_what_was_never_asked_for(context):
    after_nights(context, AS_OF)
    earlier = run_night(context, date(2023, 6, 1))
    assert earlier.row["status"] == "complete"
    bars, _ = stored_bars(context, date(2022, 1, 3), AS_OF)
    held = bars.loc[bars["symbol"] == context.market.index.symbol, "session"]
    assert list(held) == list(sessions_up_to("XNYS", AS_OF, len(held)))
    assert fetch_bars(context, date(2023, 6, 1)).asked == 0


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("out of memory")]
)
def test_an_error_of_the_machine_ends_the_night_refused_with_its_reason(
    context, error, monkeypatch
):
    def fail(*_args):
        raise error

    monkeypatch.setattr(predict, "forecast", fail)
    with pytest.raises((NightRefusedError, RuntimeError)):
        run_night(context, AS_OF)
    with reading(context.engine) as conn:
        row = read_row(conn, "night_log", market=context.name, as_of=AS_OF)
    assert row is not None
    assert row["status"] == "refused"
    assert str(error.args[-1]) in row["reason"]


NEXT = date(2024, 7, 2)
# The id of a run tells of its moment; what the try that was killed fetched is not fetched again.
UNLIKE = {"run_id", "seconds", "train_seconds", "asked", "fetched", "stored"}
STAGES = ["fetch", "model", "predict", "store", "score", "paper account", "drift", "report"]


def stages(context):
    with reading(context.engine) as conn:
        stored = read(
            conn, "stage_log", market=context.name, as_of=AS_OF, order="started_at, stage"
        )
    pairs = zip(stored["status"], stored["seconds"], strict=True)
    return dict(zip(stored["stage"], pairs, strict=True))


def test_a_night_stores_its_stages_in_order_and_the_seconds_of_each(context, monkeypatch):
    said = standard_error(monkeypatch, form="json")
    run_night(context, AS_OF)
    stored = stages(context)
    assert [stage for stage in stored if stage != "rank"] == STAGES
    assert {status for status, _ in stored.values()} == {"done"}
    assert stored["model"][1] > 0
    *stage_lines, ended = objects(said)
    timed = [line for line in stage_lines if line["message"].startswith("stage ")]
    assert [line["stage"] for line in timed] == list(stored)
    assert (ended["stage"], ended["night"], ended["level"]) == ("report", "2024-07-01", "info")
    assert re.fullmatch("complete: 9 .*2024-07-02", ended["message"])
    assert ended["seconds"] >= max(seconds for _, seconds in stored.values())


def test_a_night_without_its_index_is_refused_in_its_fetch_and_completes_when_the_bar_comes(
    context, monkeypatch
):
    said = standard_error(monkeypatch, form="json")
    index = context.market.index.symbol
    poor = replace(context, source=FrameSource(without(BARS, [index])))
    with pytest.raises(NightRefusedError, match=f"no good bar.* {index} on {AS_OF}"):
        run_night(poor, AS_OF)
    assert list(stages(context)) == ["fetch"]
    ended = objects(said)[-1]
    assert (ended["level"], ended["stage"], ended["market"]) == ("warning", "fetch", "simulated")
    with reading(context.engine) as conn:
        row = read_row(conn, "night_log", market=context.name, as_of=AS_OF) or {}
    assert (row["status"], index in row["reason"]) == ("refused", True)
    assert run_night(context, AS_OF).row["status"] == "complete"


def rows_of_all_tables(context):
    """Return each table without its moments and what else is not the same in two equal nights."""
    rows = {}
    with reading(context.engine) as conn:
        for table in metadata.sorted_tables:
            alike = [
                column
                for column in table.columns
                if not isinstance(column.type, UtcTimestamp) and column.name not in UNLIKE
            ]
            frame = pd.DataFrame(conn.execute(select(*alike)).all()).astype(str)
            rows[table.name] = frame.sort_values(list(frame)).reset_index(drop=True)
    return rows


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # stores are copied
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("killed", [step.stage for step in PREDICTING + AFTERWARDS if step.stage])
@pytest.mark.one_case("store-after")
def test_a_night_killed_in_any_of_its_stages_ends_as_one_that_was_not(
    context, killed, when, tmp_path
):
    def kill(stage, work):
        if stage != killed or when == "after":
            work()
        if stage == killed:
            raise KeyboardInterrupt

    after_nights(context, AS_OF)
    begin(context.engine, context.name, since=None)
    with pytest.raises(KeyboardInterrupt):
        run_night(context, NEXT, stage=kill)
    page = run_night(context, NEXT).report
    assert page.exists()
    assert link_of_night(context.name, NEXT)
    with apart(tmp_path / "whole", context) as whole:
        after_nights(whole, AS_OF)
        begin(whole.engine, whole.name, since=None)
        run_night(whole, NEXT)
        expected = rows_of_all_tables(whole)
    found = rows_of_all_tables(context)
    for table in expected:
        pd.testing.assert_frame_equal(found[table], expected[table], obj=table)
