"""A night through the real stages and a real database: whole, or refused with
its reason, and never twice.
"""

from dataclasses import replace
from datetime import date, datetime

import pandas as pd
import pytest
from sqlalchemy import text

from db.admin.copying import table_counts
from db.engine import reading
from db.read import read, read_row, read_value
from dtml.errors import DtmlError
from dtml.prices.sessions import next_session, sessions_up_to
from flows.markets.opened import StoredSource
from flows.nightly import predict
from flows.nightly.context import MarketContext, Tonight, stored_bars
from flows.nightly.fetch import OVERLAP, fetch_bars
from flows.nightly.night import PREDICTING_FROM_STORE, NightRefusedError, run_night
from flows.nightly.predict import forecast
from flows.nightly.train import load_model, train_model
from tests.support.nights import AS_OF, BARS, FrameSource, LimitedSource, after_nights, without


def counts(context: MarketContext) -> dict[str, int]:
    with reading(context.engine) as conn:
        return table_counts(conn)


def stored_predictions(context: MarketContext, as_of: date) -> pd.DataFrame:
    with reading(context.engine) as conn:
        return read(
            conn,
            "prediction",
            market=context.name,
            target=next_session("XNYS", as_of),
            order="target, symbol, made_at",
        )


@pytest.mark.on_postgresql
def test_a_night_predicts_every_stock_and_a_rerun_adds_no_row(context: MarketContext) -> None:
    night = run_night(context, AS_OF)
    assert night.row["status"] == "complete"
    assert (night.row["predictions"], night.row["gaps"]) == (9, [])
    predicted = stored_predictions(context, AS_OF)
    assert sorted(predicted["symbol"]) == list(context.market.symbols)
    assert predicted["probability"].between(0, 1).all()
    assert (predicted["as_of"] == pd.Timestamp(AS_OF)).all()
    before = counts(context)
    again = run_night(context, AS_OF)
    assert again.was_done_before
    assert counts(context) == before
    assert "L01" in night.report.read_text()


@pytest.mark.soak
def test_a_complete_night_is_ended_again_only_where_its_page_is_gone_or_bars_came(
    context: MarketContext,
) -> None:
    after_nights(context, AS_OF)
    page = run_night(context, AS_OF).report
    written = page.stat().st_mtime_ns
    assert run_night(context, AS_OF).report == page
    assert page.stat().st_mtime_ns == written

    page.unlink()
    run_night(context, AS_OF)
    written = page.stat().st_mtime_ns
    fetch_bars(context, AS_OF, whole=True)
    run_night(context, AS_OF)
    assert page.stat().st_mtime_ns > written


def known_at(context: MarketContext) -> datetime:
    """Up to when the night knew prices."""
    with reading(context.engine) as conn:
        moment: datetime = read_value(
            conn, "night_log", "known_at", market=context.name, as_of=AS_OF
        )
    return moment


def test_no_price_after_as_of_moves_a_prediction(context: MarketContext) -> None:
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


def test_a_night_reads_only_the_sessions_it_needs_and_predicts_as_from_all(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_bars(context, AS_OF)
    model = train_model(Tonight(context, AS_OF))
    few = forecast(Tonight(context, AS_OF), model)
    monkeypatch.setattr(predict, "first_needed", lambda *_: date(2022, 1, 3))
    pd.testing.assert_frame_equal(
        few.predictions,
        forecast(Tonight(context, AS_OF), model).predictions,
        check_exact=True,
    )


def test_only_what_is_missing_is_asked_for_again(context: MarketContext) -> None:
    source = context.source
    assert isinstance(source, FrameSource)
    fetch_bars(context, AS_OF)
    fetch_bars(context, AS_OF)
    following = next_session("XNYS", AS_OF)
    fetch_bars(context, following)
    overlap = sessions_up_to("XNYS", AS_OF, OVERLAP)[0].date()
    assert len(source.asked) == 2
    assert set(source.asked[1].values()) == {overlap}


def test_too_many_missing_stocks_refuse_the_night_and_a_few_are_listed_as_gaps(
    context: MarketContext,
) -> None:
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


@pytest.mark.parametrize(
    ("first", "lacking", "reason"),
    [("2022-01-03", "2024-06-28", "no bar on 2024-06-28"), ("2024-06-20", "2022-01-04", "too few")],
)
def test_a_stock_that_lacks_a_session_to_read_is_told_from_one_that_is_new(
    context: MarketContext, first: str, lacking: str, reason: str
) -> None:
    is_earlier = (BARS["symbol"] == "L03") & (BARS["session"] < pd.Timestamp(first))
    bars = without(BARS[~is_earlier], ["L03"], date.fromisoformat(lacking))
    (gap,) = run_night(replace(context, source=FrameSource(bars)), AS_OF).row["gaps"]
    assert (gap["symbol"], gap["reason"].startswith(reason)) == ("L03", True)


def test_a_refused_bar_is_listed_with_its_reason_and_the_night_goes_on(
    context: MarketContext,
) -> None:
    broken = BARS.copy()
    broken.loc[
        (broken["symbol"] == "F01A") & (broken["session"] == pd.Timestamp(AS_OF)), "close"
    ] = -1.0
    row = run_night(replace(context, source=FrameSource(broken)), AS_OF).row
    assert row["status"] == "complete_with_gaps"
    assert row["gaps"] == [{"symbol": "F01A", "reason": "bar rejected: non_positive_price"}]
    assert row["rejected"] == 1


def test_a_restated_history_is_fetched_anew_and_the_past_reads_as_it_was_known(
    context: MarketContext,
) -> None:
    after_nights(context, AS_OF)
    before = stored_predictions(context, AS_OF)
    restated = BARS.copy()
    past = (restated["symbol"] == "L02") & (restated["session"] <= pd.Timestamp(AS_OF))
    restated.loc[past, "adj_close"] *= 0.99  # a dividend went ex
    following = next_session("XNYS", AS_OF)
    fetch_result = fetch_bars(replace(context, source=FrameSource(restated)), following)
    assert fetch_result.restated == ["L02"]
    with reading(context.engine) as conn:
        restatements = conn.execute(text("select count(*) from price_restatement")).scalar_one()
    assert restatements > OVERLAP
    model = load_model(context, AS_OF)
    as_known = forecast(Tonight(context, AS_OF, known_at(context)), model)
    assert (
        as_known.predictions["probability"].to_numpy() == before["probability"].to_numpy()
    ).all()


def test_a_restated_history_that_does_not_come_whole_is_not_stored_at_all(
    context: MarketContext,
) -> None:
    after_nights(context, AS_OF)
    restated = BARS.copy()
    restated.loc[restated["symbol"] == "L02", "adj_close"] *= 0.8
    following = next_session("XNYS", AS_OF)
    limited = LimitedSource(restated, answers=1)
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


def test_an_earlier_night_after_a_later_one_fetches_what_was_never_asked_for(
    context: MarketContext,
) -> None:
    after_nights(context, AS_OF)
    earlier = run_night(context, date(2023, 6, 1))
    assert earlier.row["status"] == "complete"
    bars, _ = stored_bars(context, date(2022, 1, 3), AS_OF)
    held = bars.loc[bars["symbol"] == context.market.index.symbol, "session"]
    assert list(held) == list(sessions_up_to("XNYS", AS_OF, len(held)))
    assert fetch_bars(context, date(2023, 6, 1)).asked == 0


def test_former_constituents_are_neither_predicted_nor_missed(context: MarketContext) -> None:
    gone = [
        replace(c, until=date(2024, 1, 2)) if c.symbol == "L02" else c
        for c in context.market.constituents
    ]
    left = replace(
        context,
        market=replace(context.market, constituents=tuple(gone)),
        source=FrameSource(without(BARS, ["L02"])),
    )
    row = run_night(left, AS_OF).row
    assert (row["status"], row["predictions"], row["gaps"]) == ("complete", 8, [])


def test_a_complete_night_stays_complete_when_what_follows_fails(
    context: MarketContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise DtmlError("scores are out")

    with monkeypatch.context() as patched:
        patched.setattr("flows.nightly.score.outcome_rows", fail)
        with pytest.raises(DtmlError, match="scores are out"):
            run_night(context, AS_OF)
    with reading(context.engine) as conn:
        row = read_row(conn, "night_log", market=context.name, as_of=AS_OF)
    assert row is not None
    assert (row["status"], row["predictions"]) == ("complete", 9)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("out of memory")]
)
def test_an_error_of_the_machine_ends_the_night_refused_with_its_reason(
    context: MarketContext, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise error

    monkeypatch.setattr(predict, "forecast", fail)
    with pytest.raises((NightRefusedError, RuntimeError)):
        run_night(context, AS_OF)
    with reading(context.engine) as conn:
        row = read_row(conn, "night_log", market=context.name, as_of=AS_OF)
    assert row is not None
    assert row["status"] == "refused"
    assert str(error.args[-1]) in row["reason"]


def test_predicting_from_the_store_gives_the_night_that_fetching_gives(
    context: MarketContext,
) -> None:
    after_nights(context, AS_OF)
    following = next_session("XNYS", AS_OF)
    fetch_bars(context, following)
    stored = replace(context, source=StoredSource(context.engine, context.market))
    row = run_night(stored, following, PREDICTING_FROM_STORE).row
    assert (row["status"], row["source"], row["predictions"], row["fetched"]) == (
        "complete",
        "store",
        9,
        0,
    )


@pytest.mark.soak
def test_a_bar_that_was_rejected_stays_out_when_a_later_fetch_begins_with_it(
    context: MarketContext,
) -> None:
    jumped = BARS.copy()
    after = (jumped["symbol"] == "F01A") & (jumped["session"] >= pd.Timestamp(AS_OF))
    jumped.loc[after, ["open", "high", "low", "close", "adj_close"]] *= 10.0
    mine = replace(context, source=FrameSource(jumped))
    days = [AS_OF]
    while len(days) < OVERLAP + 3:  # one of these fetches asks from AS_OF on
        days.append(next_session("XNYS", days[-1]))
    for day in days:
        fetch_bars(mine, day)
    with reading(context.engine) as conn:
        held = conn.execute(
            text("select session, close from price_latest where symbol = 'F01A'")
        ).all()
        told = conn.execute(text("select distinct symbol, session, reason from rejected")).all()
    sessions = {str(session)[:10] for session, _ in held}
    assert str(AS_OF) not in sessions
    assert {str(day) for day in days[1:]} <= sessions
    assert [(symbol, str(session)[:10], reason) for symbol, session, reason in told] == [
        ("F01A", str(AS_OF), "unexplained_return")
    ]
