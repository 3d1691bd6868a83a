"""The test of an explanation on a stored market: what it trains, what it finds,
and the one row that it writes.
"""

import json
import re
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest
import typer
from sqlalchemy import Engine

from db.admin.copying import table_counts
from db.engine import reading
from db.read import read_row
from dtml.attention.findings import words
from dtml.attention.significance import importance_by_day, over_days, share_found
from dtml.errors import DtmlError, UsageError
from dtml.experiments import Experiment, nightly_of, vary
from dtml.lookahead.pipeline import CPU, History, Pipeline
from dtml.markets import load_market
from dtml.prices.sessions import next_session, sessions_between
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from dtml.training.fit import fit_members
from flows import explain as flow_module
from flows.commands.studies import commands
from flows.explain import (
    Trial,
    days_looked_at,
    explain,
    explain_run,
    history_of,
    known_drivers,
    latest_run,
    networks_of,
    shortened,
    train_networks,
)
from flows.markets.opened import RunRequest
from flows.nightly.context import Tonight
from flows.nightly.train import train_model
from tests.support.backtest_market import context_of
from tests.support.commands import Command
from tests.support.nights import SMALL

AS_OF, EARLIER = date(2024, 5, 31), date(2024, 1, 31)
QUICK = ("--seeds", "2", "--shuffles", "6", "--epochs", "1")


@pytest.fixture
def dtml(run_request: RunRequest, command: Command) -> Command:
    """Run `explain` on the market of `run_request`: exit code, standard output,
    standard error, each as one line.
    """
    # with one command alone, typer would want no name of it
    app = typer.Typer(callback=lambda: None)
    app.add_typer(commands)

    def run(*arguments: str) -> tuple[int, str, str]:
        code, said, complaint = command(
            "explain", "--market-file", str(run_request.market_file), *arguments, of=app
        )
        return code, " ".join(said.split()), " ".join(complaint.split())

    return run


def of_market(correlation: float, sessions: int) -> tuple[Experiment, History]:
    """The simulated market with 3 leaders and 6 followers, and its own
    experiment with a small network.
    """
    source = SimulatedSource(
        market=SimulatedMarket(
            leaders=3, followers=2, correlation=correlation, start=date(2022, 1, 3)
        )
    )
    market, bars = load_market("simulated"), source.bars(AS_OF)
    own = nightly_of(market.model, z_close="adjusted", returns="adj_close", max_return=0.35)
    days = sessions_between("XNYS", bars["session"].min().date(), next_session("XNYS", AS_OF))
    history = History(bars, days, market.with_symbols(sorted(source.market.symbols)))
    return vary(own, {"hidden": 16, "heads": 2}), history.cut(stocks=50, sessions=sessions, seed=0)


@pytest.mark.soak
def test_importance_finds_the_true_leaders_after_a_short_training() -> None:
    experiment, history = of_market(correlation=0.9, sessions=600)
    pipeline = Pipeline(shortened(vary(experiment, {"hidden": 32}), 8))
    train, validation = pipeline.spans(pipeline.windows(history), pd.Timestamp(AS_OF))
    fits = fit_members(train, validation, pipeline.experiment.members_of(0, 1), device=CPU)
    networks = networks_of(fits, pipeline.experiment.model, len(train.symbols))
    days = days_looked_at(validation)
    there = validation.observed[days].numpy()
    important = np.mean(
        [importance_by_day(network, validation, days) for network in networks], axis=0
    )
    matrix = over_days(important, there[:, :, None] & there[:, None, :])
    drivers = known_drivers(history.market, validation.symbols)
    assert len(drivers) == 6
    assert {
        (validation.symbols[one], validation.symbols[other]) for one, other in drivers.items()
    } == {(f"F0{i}{j}", f"L0{i}") for i in (1, 2, 3) for j in "AB"}
    assert share_found(matrix, drivers, 1) == 1


@pytest.mark.soak
@pytest.mark.slow
def test_the_same_seeds_find_the_same_and_others_something_else() -> None:
    experiment, history = of_market(correlation=0.6, sessions=200)
    experiment = vary(experiment, {"validation_sessions": 30})
    trial = Trial(seeds=2, shuffles=6, epochs=1)
    found = [
        explain(experiment, history, pd.Timestamp(AS_OF), trial, seed=seed) for seed in (0, 0, 1)
    ]
    assert found[0] == found[1] != found[2]
    assert (found[0].stocks, found[0].days, found[0].drivers_chance) == (9, 30, 3 / 8)


@pytest.mark.slow
def test_each_network_is_that_of_its_seed_and_each_shuffle_has_labels_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment, history = of_market(correlation=0.6, sessions=200)
    pipeline = Pipeline(shortened(vary(experiment, {"validation_sessions": 30}), 1))
    train, validation = pipeline.spans(pipeline.windows(history), pd.Timestamp(AS_OF))
    honest, seen = flow_module.fit_members, {}

    def watched(mine, other, members, **others):  # type: ignore[no-untyped-def]
        seen[tuple(member.seed for member in members)] = (mine.movement, other.movement)
        return honest(mine, other, members, **others)

    monkeypatch.setattr(flow_module, "fit_members", watched)
    said: list[str] = []
    networks = train_networks(train, validation, pipeline.experiment, Trial(2, 5, 1), said.append)
    assert sorted(seen) == [(0, 1), (2,), (3,), (4,), (5,), (6,)]
    assert len(networks) == 7
    assert "7 of 7" in said[-1]
    labels = [part.nan_to_num(9).numpy().tobytes() for parts in seen.values() for part in parts]
    assert len(set(labels)) == len(labels)
    true = train.movement.nan_to_num(9).numpy().tobytes()
    assert [
        seeds for seeds, parts in seen.items() if parts[0].nan_to_num(9).numpy().tobytes() == true
    ] == [(0, 1)]


def test_a_training_that_fails_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, history = of_market(correlation=0.6, sessions=200)
    pipeline = Pipeline(shortened(vary(experiment, {"validation_sessions": 30}), 500))
    train, validation = pipeline.spans(pipeline.windows(history), pd.Timestamp(AS_OF))
    honest = flow_module.fit_members

    def failing(mine, other, members, **others):  # type: ignore[no-untyped-def]
        if members[0].seed == 0:
            return []
        if members[0].seed == 2:
            raise DtmlError("the loss is nan")
        return honest(mine, other, members, **others)

    monkeypatch.setattr(flow_module, "fit_members", failing)
    with pytest.raises(DtmlError, match="the loss is nan"):
        # minutes, if they went on
        train_networks(train, validation, pipeline.experiment, Trial(2, 8, 500))


def test_a_trial_that_cannot_tell_anything_apart_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1 seeds.*8 shuffles.*only 9"):
        Trial(seeds=1, shuffles=8)
    with pytest.raises(UsageError, match=r"3 seeds.*3 shuffles.*only 10"):
        Trial(seeds=3, shuffles=3)
    with pytest.raises(UsageError, match=r"epochs.* 1 or more"):
        Trial(epochs=0)
    assert Trial(seeds=1, shuffles=19).shuffles == 19


def test_days_looked_at_are_evenly_spaced_and_have_a_stock() -> None:
    _, history = of_market(correlation=0.6, sessions=300)
    windows = Pipeline(
        vary(nightly_of({}, z_close="adjusted", returns="adj_close", max_return=None), SMALL)
    ).windows(history)
    windows.observed[7] = False
    days = days_looked_at(windows)
    assert len(days) == flow_module.DAYS
    assert set(np.diff(days)) <= {6, 7, 8}
    assert 7 not in days
    assert list(days_looked_at(windows.days(slice(5, 10)))) == [0, 1, 3, 4]


def test_drivers_are_known_of_the_simulated_market_alone() -> None:
    market = load_market("simulated")
    assert known_drivers(market, ["F01A", "F02B", "L01", "L03"]) == {0: 2}
    assert known_drivers(replace(market, source="files"), ["F01A", "L01"]) == {}


def test_a_short_training_keeps_the_days_and_the_network_of_the_run() -> None:
    own = nightly_of({}, z_close="adjusted", returns="adj_close", max_return=None)
    mine = shortened(own, 5)
    assert (mine.model, mine.windows, mine.train_sessions) == (own.model, own.windows, None)
    assert mine.training == replace(own.training, epochs=5, patience=None)
    assert shortened(replace(own, validation_sessions=19), 5).validation_sessions == 19
    assert (
        shortened(replace(own, validation_sessions=400), 5).validation_sessions
        == flow_module.VALIDATION_DAYS
    )


@pytest.mark.soak
def test_what_is_found_is_one_row_that_is_printed_and_found_again(
    run_request: RunRequest, engine: Engine, dtml: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(run_request)
    run_id = train_model(Tonight(context, AS_OF)).run_id
    before = counted(engine)
    code, said, _ = dtml(*QUICK, "--json")
    assert code == 0
    row = json.loads(said)
    assert (row["run_id"], row["as_of"], row["market"]) == (run_id, "2024-05-31", "past")
    assert (row["stocks"], row["days"], row["seeds"], row["shuffles"], row["epochs"]) == (
        9,
        19,
        2,
        6,
        1,
    )
    assert row["agreement_low"] is None  # of 19 days
    assert 1 / 28 - 1e-9 <= row["distance_p"] <= 1
    assert row["told_apart"] == (row["distance_p"] <= 0.05)
    assert counted(engine) == before | {"explanation": 1}
    with reading(engine) as conn:
        stored = read_row(conn, "explanation", run_id=run_id)
    assert stored is not None
    assert {name: value for name, value in stored.items() if name not in ("as_of", "made_at")} == {
        name: value for name, value in row.items() if name not in ("as_of", "made_at")
    }
    monkeypatch.setattr(flow_module, "fit_members", None)  # nothing is trained from here on
    code, said, noted = dtml()
    assert (code, said.startswith(f"{run_id}, ")) == (0, True)
    assert said.endswith(f" 2024-05-31 {words(stored)}")
    assert "nothing is trained" in noted
    code, _, noted = dtml("--shuffles", "9")
    assert code == 2
    assert re.search(f"{run_id} .*6 shuffles: add --again", noted)


@pytest.mark.soak
def test_again_renews_the_row_of_the_run(
    run_request: RunRequest, engine: Engine, dtml: Command
) -> None:
    context = context_of(run_request)
    run_id = train_model(Tonight(context, AS_OF)).run_id
    assert dtml(*QUICK)[0] == 0
    code, _, noted = dtml("--seeds", "2", "--shuffles", "7", "--epochs", "1", "--again")
    assert (code, "nothing is trained" in noted) == (0, False)
    assert counted(engine)["explanation"] == 1
    with reading(engine) as conn:
        stored = read_row(conn, "explanation", run_id=run_id)
    assert stored is not None
    assert stored["shuffles"] == 7


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_latest_model_up_to_a_day_is_tested_and_none_is_an_error(
    run_request: RunRequest, dtml: Command
) -> None:
    context = context_of(run_request)
    code, _, noted = dtml(*QUICK)
    assert (code, "past has no model: " in noted, "`dtml train past`" in noted) == (2, True, True)
    first, second = (train_model(Tonight(context, day)).run_id for day in (EARLIER, AS_OF))
    assert latest_run(context, None)["id"] == second
    assert latest_run(context, date(2024, 3, 1))["id"] == first
    code, said, _ = dtml("--as-of", "2024-03-01", *QUICK, "--json")
    assert (code, json.loads(said)["run_id"], json.loads(said)["as_of"]) == (0, first, "2024-01-31")
    assert dtml("--as-of", "2024-01-30", *QUICK)[0] == 2


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("run_request", ["per_stock"], indirect=True)
def test_a_model_that_knows_its_stocks_is_tested_on_these_from_the_bars_that_it_knew(
    run_request: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(run_request)
    train_model(Tonight(context, AS_OF))
    later = replace(context, market=context.market.with_symbols(["L01", "F01A"]))
    run = latest_run(later, None)
    history = history_of(later, run)
    assert (
        set(history.market.symbols) == set(run["config"]["stocks"]) == set(context.market.symbols)
    )
    assert history.bars["session"].max() == pd.Timestamp(AS_OF)
    monkeypatch.setattr(flow_module, "FEWEST_STOCKS", 10)
    with pytest.raises(
        DtmlError,
        match=r"only 9 stocks.* 2024-05-31",
    ):
        explain_run(later, run, Trial(2, 6, 1))


def counted(engine: Engine) -> dict[str, int]:
    with reading(engine) as conn:
        return table_counts(conn)
