"""A night through the real stages and a real database: whole, or refused with its reason, and never twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine, text

from db import queries
from db.engine import reading
from dtml.errors import DtmlError
from dtml.experiments import nightly_of, vary
from dtml.markets import load_market
from dtml.sessions import next_session, sessions_up_to
from dtml.sources import Fetched
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows import night as night_module
from flows import predict
from flows.desk import Desk, StoredSource
from flows.fetch import OVERLAP, fetch_bars
from flows.night import NightRefusedError, run_night
from flows.predict import forecast
from flows.train import load_model, train_model, why_due

AS_OF = date(2024, 7, 1)
SMALL = {
    "window": 3, "hidden": 8, "heads": 2, "epochs": 2, "first_kept_epoch": 1, "members": 2,
    "train_sessions": 90, "validation_sessions": 19, "batch_days": 31,
}  # fmt: skip
SIMULATED = SimulatedSource(market=SimulatedMarket(leaders=3, followers=2, start=date(2022, 1, 3)))
BARS = SIMULATED.bars(date(2024, 12, 31))


@dataclass
class FrameSource:
    """Bars of a frame, and what was asked for."""

    bars: pd.DataFrame
    name: str = "simulated"
    asked: list[Mapping[str, date]] = field(default_factory=list)

    def symbols(self) -> list[str]:
        return list(SIMULATED.market.symbols)

    def last_session(self) -> date | None:
        return None

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        self.asked.append(dict(first))
        start = self.bars["symbol"].map({symbol: pd.Timestamp(day) for symbol, day in first.items()})
        chosen = self.bars[(self.bars["session"] >= start) & (self.bars["session"] <= pd.Timestamp(last))]
        rows = [int((chosen["symbol"] == symbol).sum()) for symbol in first]
        status = ["ok" if count else "no_data" for count in rows]
        outcomes = pd.DataFrame({"symbol": list(first), "status": status, "rows": rows, "detail": "nothing there"})
        return Fetched(chosen.reset_index(drop=True), outcomes)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "reports"))


@pytest.fixture
def desk(engine: Engine) -> Desk:
    market = load_market("simulated").with_symbols(sorted(SIMULATED.market.symbols))
    experiment = vary(nightly_of(market.model, z_close="adjusted", returns="adj_close", max_move=0.35), SMALL)
    return Desk(market, FrameSource(BARS), engine, experiment, "cpu", None)


def without(bars: pd.DataFrame, symbols: list[str], day: date = AS_OF) -> pd.DataFrame:
    return bars[~(bars["symbol"].isin(symbols) & (bars["session"] == pd.Timestamp(day)))]


def counts(desk: Desk) -> dict[str, int]:
    with reading(desk.engine) as conn:
        return queries.table_counts(conn)


def stored_predictions(desk: Desk, as_of: date) -> pd.DataFrame:
    with reading(desk.engine) as conn:
        return queries.predictions(conn, desk.name, target=next_session("XNYS", as_of))


def test_a_night_predicts_every_stock_and_a_rerun_adds_no_row(desk: Desk) -> None:
    night = run_night(desk, AS_OF)
    assert night.row["status"] == "complete"
    assert (night.row["predictions"], night.row["gaps"]) == (9, [])
    predicted = stored_predictions(desk, AS_OF)
    assert sorted(predicted["symbol"]) == list(desk.market.symbols)
    assert predicted["probability"].between(0, 1).all()
    assert (predicted["as_of"] == pd.Timestamp(AS_OF)).all()
    before = counts(desk)
    again = run_night(desk, AS_OF)
    assert again.was_done_before
    assert counts(desk) == before
    assert "L01" in night.report.read_text()


def test_the_nights_that_follow_score_the_ones_before_against_what_happened(desk: Desk) -> None:
    days = [day.date() for day in sessions_up_to("XNYS", date(2024, 7, 9), 5)]
    for day in days:
        run_night(desk, day)
    with reading(desk.engine) as conn:
        history = queries.prediction_history(conn, market=desk.name)
        scores = queries.scores(conn, desk.name)
    known = history[history["move"].notna()]
    wide = BARS.pivot(index="session", columns="symbol", values="adj_close").pct_change(fill_method=None)
    expected = [wide.loc[row.target, row.symbol] for row in known.itertuples()]
    np.testing.assert_allclose(known["move"], expected, rtol=1e-9)
    assert sorted(known["target"].dt.date.unique()) == days[1:]
    assert (history["as_of"] < history["target"]).all()
    assert history["run_id"].nunique() == 1
    running = scores[(scores["span"] == "running") & (scores["protocol"] == "all") & (scores["predictor"] == "dtml")]
    assert running["nights"].tolist() == [1, 2, 3, 4]
    assert running["n"].iloc[-1] == len(known)
    assert running["acc"].iloc[-1] == pytest.approx((known["hit"] == 1).mean())
    rules = scores[(scores["target"] == scores["target"].max()) & (scores["span"] == "running")]
    assert set(rules["predictor"]) == {"dtml", "always_up", "index_reversal", "index_below_mean20"}


def test_no_price_after_as_of_moves_a_prediction(desk: Desk) -> None:
    first = run_night(desk, AS_OF)
    scrambled = BARS.copy()
    later = scrambled["session"] > pd.Timestamp(AS_OF)
    prices = ["open", "high", "low", "close", "adj_close"]
    scrambled.loc[later, prices] = scrambled.loc[later, prices].to_numpy() * 1.3
    fetch_bars(replace(desk, source=FrameSource(scrambled)), date(2024, 8, 30))
    made = forecast(desk, load_model(desk, AS_OF), AS_OF)
    stored = stored_predictions(desk, AS_OF)
    assert (made.predictions["probability"].to_numpy() == stored["probability"].to_numpy()).all()
    assert made.known_at == first.row["known_at"]


def test_a_night_reads_only_the_sessions_it_needs_and_predicts_as_from_all(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_bars(desk, AS_OF)
    model = train_model(desk, AS_OF)
    few = forecast(desk, model, AS_OF)
    monkeypatch.setattr(predict, "_first_needed", lambda *_: date(2022, 1, 3))
    pd.testing.assert_frame_equal(few.predictions, forecast(desk, model, AS_OF).predictions, check_exact=True)


def test_only_what_is_missing_is_asked_for_again(desk: Desk) -> None:
    source = desk.source
    assert isinstance(source, FrameSource)
    fetch_bars(desk, AS_OF)
    fetch_bars(desk, AS_OF)
    following = next_session("XNYS", AS_OF)
    fetch_bars(desk, following)
    overlap = sessions_up_to("XNYS", AS_OF, OVERLAP)[0].date()
    assert len(source.asked) == 2
    assert set(source.asked[1].values()) == {overlap}


def test_a_night_without_its_index_is_refused_and_completes_when_the_bar_comes(desk: Desk) -> None:
    index = desk.market.index.symbol
    poor = replace(desk, source=FrameSource(without(BARS, [index])))
    with pytest.raises(NightRefusedError, match=rf"no good bar of the index {index} on {AS_OF}"):
        run_night(poor, AS_OF)
    with reading(desk.engine) as conn:
        row = queries.night(conn, desk.name, AS_OF)
    assert row is not None
    assert row["status"] == "refused"
    assert index in row["reason"]
    assert counts(desk)["prediction"] == 0
    assert run_night(desk, AS_OF).row["status"] == "complete"


def test_too_many_missing_stocks_refuse_the_night_and_a_few_are_listed_as_gaps(desk: Desk) -> None:
    run_night(desk, AS_OF)
    following = next_session("XNYS", AS_OF)
    many = replace(desk, source=FrameSource(without(BARS, ["L01", "L02", "F03A"], following)))
    with pytest.raises(NightRefusedError, match="3 of 9 constituents have no good bar"):
        run_night(many, following)
    one = replace(desk, source=FrameSource(without(BARS, ["L02"], following)))
    row = run_night(one, following).row
    assert row["status"] == "complete_with_gaps"
    assert row["gaps"] == [{"symbol": "L02", "reason": f"no bar on {following}"}]
    assert row["predictions"] == 8


def test_a_refused_bar_is_listed_with_its_reason_and_the_night_goes_on(desk: Desk) -> None:
    broken = BARS.copy()
    broken.loc[(broken["symbol"] == "F01A") & (broken["session"] == pd.Timestamp(AS_OF)), "close"] = -1.0
    row = run_night(replace(desk, source=FrameSource(broken)), AS_OF).row
    assert row["status"] == "complete_with_gaps"
    assert row["gaps"] == [{"symbol": "F01A", "reason": "bar refused: non_positive_price"}]
    assert row["refused"] == 1


@pytest.mark.parametrize("stage", ["fetch_bars", "train_model", "forecast", "_store", "score_market", "publish_night"])
def test_a_night_that_died_anywhere_is_completed_by_the_next_run(
    desk: Desk, stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def die(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(night_module, stage, die)
        with pytest.raises(KeyboardInterrupt):
            run_night(desk, AS_OF)
    night = run_night(desk, AS_OF)
    assert night.row["status"] == "complete"
    assert len(stored_predictions(desk, AS_OF)) == 9
    assert night.report.exists()
    assert counts(desk)["night"] == counts(desk)["run"] == 1


def test_a_restated_history_is_fetched_anew_and_the_past_reads_as_it_was_known(desk: Desk) -> None:
    first = run_night(desk, AS_OF)
    before = stored_predictions(desk, AS_OF)
    restated = BARS.copy()
    past = (restated["symbol"] == "L02") & (restated["session"] <= pd.Timestamp(AS_OF))
    restated.loc[past, "adj_close"] *= 0.99  # a dividend went ex
    following = next_session("XNYS", AS_OF)
    catch = fetch_bars(replace(desk, source=FrameSource(restated)), following)
    assert catch.restated == ["L02"]
    with reading(desk.engine) as conn:
        restatements = conn.execute(text("select count(*) from price_restatement")).scalar_one()
    assert restatements > OVERLAP
    model = load_model(desk, AS_OF)
    as_known = forecast(desk, model, AS_OF, first.row["known_at"])
    assert (as_known.predictions["probability"].to_numpy() == before["probability"].to_numpy()).all()


def test_the_policy_says_when_a_model_is_due(desk: Desk) -> None:
    never = replace(desk, market=replace(desk.market, retrain="never"))
    assert why_due(never, AS_OF) is None
    with pytest.raises(DtmlError, match="has no model trained up to 2024-07-01"):
        load_model(never, AS_OF)
    assert why_due(desk, AS_OF) == "there is no model yet"
    run_id = run_night(desk, AS_OF).row["run_id"]
    later = date(2024, 7, 8)
    assert why_due(desk, later) is None
    every = replace(desk, market=replace(desk.market, retrain=4))
    assert why_due(every, date(2024, 7, 5)) is None
    assert why_due(every, later) == f"{run_id} is 4 sessions old"
    changed = replace(desk, experiment=vary(desk.experiment, {"epochs": 3}))
    assert why_due(changed, later) == f"the configuration is not the one of {run_id}"
    assert why_due(desk, date(2024, 6, 28)) == "there is no model yet"


def test_a_training_from_the_same_store_is_the_same_run(desk: Desk) -> None:
    fetch_bars(desk, AS_OF)
    first = train_model(desk, AS_OF)
    again = train_model(desk, AS_OF)
    assert again.run_id == first.run_id
    assert counts(desk)["run"] == 1
    with reading(desk.engine) as conn:
        run = queries.run(conn, first.run_id)
    assert run["seeds"] == [0, 1]
    assert run["train_last"] == AS_OF
    assert run["config"]["model"]["hidden"] == 8
    assert [len(member["epochs"]) for member in run["losses"]] == [2, 2]


def test_too_little_history_to_train_refuses_the_night_with_what_it_takes(desk: Desk) -> None:
    short = replace(desk, source=FrameSource(BARS[BARS["session"] > pd.Timestamp("2024-03-01")]))
    with pytest.raises(NightRefusedError, match="training needs at least 64"):
        run_night(short, AS_OF)


def test_predicting_from_the_store_gives_the_night_that_fetching_gives(desk: Desk) -> None:
    run_night(desk, AS_OF)
    following = next_session("XNYS", AS_OF)
    fetch_bars(desk, following)
    stored = replace(desk, source=StoredSource(desk.engine, desk.market))
    row = run_night(stored, following, only_stored=True).row
    assert (row["status"], row["source"], row["predictions"], row["fetched"]) == ("complete", "store", 9, 0)
