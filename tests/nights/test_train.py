"""When a model is trained, on what, and which one a night may use."""

import re
from dataclasses import replace
from datetime import date

import pandas as pd
import pytest

from db.admin.copying import table_counts
from db.engine import reading
from db.rows import runs
from db.rows.runs import latest_trained
from dtml.errors import DtmlError
from dtml.experiments import vary
from dtml.sources.simulated import SimulatedSource
from flows.nightly.context import MarketContext, Tonight, stored_bars
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import NightRefusedError, run_night
from flows.nightly.train import config_of, fit_model, load_model, train_model, why_due, windows_of
from flows.settings import data_folder
from tests.support.nights import AS_OF, BARS, SIMULATED, FrameSource


def counts(context: MarketContext) -> dict[str, int]:
    with reading(context.engine) as conn:
        return table_counts(conn)


def due(context: MarketContext, as_of: date) -> str | None:
    """Why another model is due."""
    with reading(context.engine) as conn:
        latest = latest_trained(conn, "run", context.name, on_or_before=as_of)
    return why_due(context, latest, as_of, config_of(context))


def test_the_policy_says_when_a_model_is_due(context: MarketContext) -> None:
    never = replace(context, market=replace(context.market, retrain="never"))
    with pytest.raises(DtmlError, match=r"no model.* 2024-07-01"):
        load_model(never, AS_OF)
    assert "none yet" in str(due(context, AS_OF))
    run_id = run_night(context, AS_OF).row["run_id"]
    later = date(2024, 7, 8)
    assert due(context, later) is None
    every = replace(context, market=replace(context.market, retrain=4))
    assert due(every, date(2024, 7, 5)) is None
    assert due(every, later) == f"{run_id} is 4 sessions old"
    changed = replace(context, experiment=vary(context.experiment, {"epochs": 3}))
    assert re.fullmatch(f"the configuration .*{run_id}", str(due(changed, later)))
    assert "none yet" in str(due(context, date(2024, 6, 28)))


def test_a_training_from_the_same_store_is_the_same_run(context: MarketContext) -> None:
    fetch_bars(context, AS_OF)
    first = train_model(Tonight(context, AS_OF))
    again = train_model(Tonight(context, AS_OF))
    assert again.run_id == first.run_id
    assert counts(context)["run"] == 1
    with reading(context.engine) as conn:
        run = runs.run(conn, first.run_id)
    assert run["seeds"] == [0, 1]
    assert run["train_last"] == AS_OF
    assert run["config"]["model"]["hidden"] == 8
    assert [len(member["epochs"]) for member in run["losses"]] == [2, 2]


def test_too_little_history_to_train_refuses_the_night_with_what_it_takes(
    context: MarketContext,
) -> None:
    short = replace(context, source=FrameSource(BARS[BARS["session"] > pd.Timestamp("2024-03-01")]))
    with pytest.raises(NightRefusedError, match="64 to train on"):
        run_night(short, AS_OF)


PRICES = ("open", "high", "low", "close", "adj_close")
UNMOVED = "no known return is"
NOTHING_TO_LEARN = {
    "weekly prices": (
        lambda bars: bars[bars["session"].dt.day_of_week == 0],
        "published",
        "no return is known",
    ),
    "flat prices": (lambda bars: bars.assign(**dict.fromkeys(PRICES, 100.0)), "published", UNMOVED),
    "flat prices, every return counted": (
        lambda bars: bars.assign(**dict.fromkeys(PRICES, 100.0)),
        "all",
        UNMOVED,
    ),
    "a constant adjusted close": (lambda bars: bars.assign(adj_close=100.0), "published", UNMOVED),
}


@pytest.mark.soak
@pytest.mark.parametrize("prices", NOTHING_TO_LEARN)
def test_prices_without_a_labelled_day_refuse_the_night_with_what_is_wrong(
    context: MarketContext, prices: str
) -> None:
    changed, protocol, said = NOTHING_TO_LEARN[prices]
    years = SimulatedSource(market=replace(SIMULATED.market, start=date(2020, 1, 2))).bars(AS_OF)
    long = vary(context.experiment, {"protocol": protocol, "train_sessions": 800})
    with pytest.raises(NightRefusedError, match=re.escape(said)) as caught:
        run_night(replace(context, source=FrameSource(changed(years)), experiment=long), AS_OF)
    assert "training span, 20" in str(caught.value)


def test_training_and_validation_days_are_a_gap_apart_and_end_a_gap_before_as_of(
    context: MarketContext,
) -> None:
    fetch_bars(context, AS_OF)
    fetch_bars(context, date(2024, 7, 9))
    bars, _ = stored_bars(context, date(2022, 1, 3), date(2024, 7, 9))
    windows = windows_of(context, bars, context.experiment.windows, context.market.symbols)
    fitted, chosen = context.experiment.spans(windows, AS_OF)
    sessions = windows.target
    assert sessions.get_loc(chosen.target[0]) - sessions.get_loc(fitted.target[-1]) == 2
    assert sessions.get_loc(pd.Timestamp(AS_OF)) - sessions.get_loc(chosen.target[-1]) == 1
    assert (len(fitted), len(chosen)) == (90, 19)


def test_a_past_night_never_uses_a_later_model(context: MarketContext) -> None:
    fetch_bars(context, date(2024, 7, 9))
    early = train_model(Tonight(context, AS_OF))
    late = train_model(Tonight(context, date(2024, 7, 9)))
    assert early.run_id != late.run_id
    assert load_model(context, date(2024, 7, 8)).run_id == early.run_id
    assert load_model(context, date(2024, 7, 9)).run_id == late.run_id


def test_no_price_after_as_of_moves_a_weight(context: MarketContext) -> None:
    fetch_bars(context, AS_OF)
    first = train_model(Tonight(context, AS_OF))
    scrambled = BARS.copy()
    later = scrambled["session"] > pd.Timestamp(AS_OF)
    scrambled.loc[later, ["open", "high", "low", "close", "adj_close"]] *= 1.3
    fetch_bars(replace(context, source=FrameSource(scrambled)), date(2024, 8, 30))
    again = train_model(Tonight(context, AS_OF))
    assert again.run_id == first.run_id
    assert all(
        (again.ensemble.weights[name] == value).all()
        for name, value in first.ensemble.weights.items()
    )


def test_a_model_tied_to_its_stocks_is_due_when_they_change(context: MarketContext) -> None:
    fewer = replace(context, market=context.market.with_symbols(context.market.symbols[:6]))
    run_id = run_night(fewer, AS_OF).row["run_id"]
    assert re.fullmatch(f"the configuration .*{run_id}", str(due(context, date(2024, 7, 8))))


class TrainingInterruptedError(Exception):
    """What ends a training after an epoch."""


def test_what_an_interrupted_training_left_goes_with_the_next_one_of_its_market(
    context: MarketContext,
) -> None:
    def interrupt(*_: object) -> None:
        raise TrainingInterruptedError

    folder = data_folder() / "training"
    fetch_bars(context, date(2024, 7, 9))
    for day in (AS_OF, date(2024, 7, 9)):
        with pytest.raises(TrainingInterruptedError):
            train_model(Tonight(context, day), interrupt)
    with pytest.raises(TrainingInterruptedError):
        fit_model(Tonight(context, AS_OF), interrupt, kind="backtest")
    other = folder / f"simulated-2-{AS_OF}-0123abcd"
    other.mkdir()
    assert len(list(folder.iterdir())) == 4
    train_model(Tonight(context, date(2024, 7, 2)))
    (later,) = (each for each in folder.iterdir() if each.name.startswith("simulated-2024"))
    assert sorted(each.name for each in folder.iterdir()) == sorted(
        ["backtests", other.name, later.name]
    )
    assert later.name.startswith("simulated-2024-07-09")
    fit_model(Tonight(context, AS_OF), kind="backtest")
    assert list((folder / "backtests").iterdir()) == []
