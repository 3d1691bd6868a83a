"""A backtest is the nights it stands for; whatever interrupts it, the rows are the same."""

import os
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import torch
from sqlalchemy import update

from db import tables
from db.engine import reading, transaction
from db.read import query, read
from db.rows import prices, runs
from db.rows import runs as stored_runs
from db.save import save
from dtml import devices
from dtml.errors import DtmlError, UsageError
from dtml.pages.rendering import said
from dtml.prices.sessions import previous_session, session_close, session_open, sessions_between
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from flows.settings import page_of
from flows.studies import backtest as backtest_module
from flows.studies.backtest import (
    Fold,
    one_by_one,
    open_backtest,
    run_fold,
)
from flows.studies.study import run_study, study_id
from tests.support.backtest_market import FIRST, LAST, backtest_of, context_of
from tests.support.kinds import sqlite_alone
from tests.support.nights import BARS
from tests.support.stores import counts

pytestmark = pytest.mark.slow


def predictions(backtest):
    with reading(backtest.context.engine) as conn:
        return query(conn, "backtest_predictions", backtest=backtest.id)


def everything(backtest):
    """All rows that a backtest leaves, but for when they were written and how long it took."""
    names = ("backtest_fold", "backtest_score", "backtest_return", "backtest_portfolio")
    with reading(backtest.context.engine) as conn:
        rows = {name: read(conn, name, backtest_id=backtest.id) for name in names}
    rows["backtest_fold"] = rows["backtest_fold"].drop(columns="seconds")
    return rows | {"prediction": predictions(backtest)}


@pytest.mark.soak
def test_one_process_at_a_time_makes_a_backtest_and_a_rerun_trains_nothing_and_adds_no_row(
    run_request, monkeypatch
):
    backtest = backtest_of(run_request)

    def meanwhile(jobs):
        with pytest.raises(DtmlError, match="another process"):
            run_study(backtest_of(run_request))
        yield from one_by_one(jobs)

    first = run_study(replace(backtest, runner=meanwhile))
    before = counts(backtest.context.engine)
    file = page_of("backtest", first.row)
    page = file.read_text()
    file.unlink()
    monkeypatch.setattr(backtest_module, "fit_model", None)
    again = run_study(backtest_of(run_request))
    assert counts(backtest.context.engine) == before
    assert again.row == first.row
    assert file.read_text() == page


@pytest.mark.soak
@pytest.mark.parametrize(
    ("run_request", "store_url"), [("shared", "sqlite"), ("per_stock", "postgresql")], indirect=True
)
def test_a_prediction_of_a_backtest_is_the_one_that_its_night_makes(run_request):
    last = date(2024, 3, 14)  # in the second fold
    backtest = backtest_of(run_request, last=last)
    run_study(backtest)
    context = context_of(run_request)
    before = (previous_session("XNYS", day) for day in (FIRST, last))
    for day in sessions_between("XNYS", *before):
        run_night(context, day.date())
    with reading(context.engine) as conn:
        nightly = read(conn, "prediction_history", market=context.name, kind="nightly")
        runs = read(conn, "run", market=context.name)
    assert runs["kind"].value_counts().to_dict() == {"nightly": 2, "backtest": 2}
    found = predictions(backtest).drop(columns="run_id")
    nights = nightly.sort_values(["target", "symbol"], ignore_index=True)[list(found)]
    pd.testing.assert_frame_equal(found, nights, check_exact=True)
    assert found["target"].nunique() == 9


@pytest.mark.soak
def test_a_stock_is_in_the_backtest_only_while_it_was_a_member(run_request):
    backtest = backtest_of(run_request, retrain_every=20)
    result = run_study(backtest)
    made = predictions(backtest)
    gone, come = made[made["symbol"] == "F02B"], made[made["symbol"] == "F03A"]
    assert come["as_of"].min() == pd.Timestamp("2024-03-11")
    asked = sessions_between("XNYS", date(2024, 3, 1), previous_session("XNYS", LAST))
    assert list(gone["as_of"]) == [
        day for day in asked if not date(2024, 3, 13) <= day.date() < date(2024, 3, 20)
    ]
    # F02B is away for five sessions, F03A not there for five
    assert result.row["constituent_days"] == 9 * 16 - 5 - 5
    assert result.row["without_price"] == 0


@pytest.mark.soak
def test_an_interrupted_backtest_goes_on_at_the_fold_it_was_in(run_request):
    backtest = backtest_of(run_request)
    trained = []

    def cut_short(jobs):
        yield run_fold(jobs[2])  # on several machines the last one may be done first
        yield run_fold(jobs[0])
        raise KeyboardInterrupt

    def counted(jobs):
        for job in jobs:
            trained.append(job.fold.number)
            yield run_fold(job)

    with pytest.raises(KeyboardInterrupt):
        run_study(replace(backtest, runner=cut_short))
    run_study(replace(backtest, runner=counted))
    assert trained == [2]
    interrupted = everything(backtest)
    of_runs = ("abstention", "attention", "backtest", "calibration", "prediction", "rule", "run")
    with backtest.context.engine.begin() as conn:
        for table in reversed(tables.metadata.sorted_tables):
            if table.name.startswith(of_runs):
                conn.execute(table.delete())
    run_study(backtest)
    for name, frame in everything(backtest).items():
        pd.testing.assert_frame_equal(interrupted[name], frame, check_exact=True, obj=name)


@pytest.mark.soak
def test_a_night_that_would_be_refused_has_no_prediction_and_its_reason_is_kept(run_request):
    backtest = backtest_of(run_request)
    with backtest.context.engine.begin() as conn:
        conn.exec_driver_sql(
            "delete from price where session = '2024-03-06' and instrument_id in "
            "(select id from instrument where symbol in ('L01', 'L02', 'F01A'))"
        )
    result = run_study(backtest)
    made = set(predictions(backtest)["as_of"].dt.date)
    assert {date(2024, 3, 5), date(2024, 3, 6)} & made == {date(2024, 3, 5)}
    refused = result.folds["refused"].iloc[0]
    # a window holds three sessions
    assert list(refused) == ["2024-03-06", "2024-03-07", "2024-03-08"]
    assert re.search("3 of 8", refused["2024-03-06"])


@pytest.mark.soak
def test_a_warm_start_goes_on_from_the_fold_before(run_request):
    warm = replace(run_request, overrides={"warm_start": True})
    found = []
    for request in (run_request, warm):
        folds = run_study(backtest_of(request)).folds
        with reading(backtest_of(request).context.engine) as conn:
            found.append(
                [stored_runs.run(conn, each)["checkpoint_hash"] for each in folds["run_id"]]
            )
    cold, warmed = found
    assert cold[0] == warmed[0]
    assert cold[1] != warmed[1]
    with pytest.raises(UsageError, match="warm_start"):  # folds are trained in one place
        open_backtest(warm, backtest_of(warm).plan, workers=2)


def test_spans_that_cannot_be_walked_are_the_users_mistake(run_request):
    for changes, complaint in (
        ({"last": date(2024, 6, 20)}, r"2024-05-31.*2024-06-20"),
        ({"first": date(2024, 4, 1)}, "is after"),
        ({"first": date(2024, 3, 30), "last": date(2024, 3, 31)}, "no session"),
        ({"max_weight": 2.0}, "--max-weight"),
    ):
        with pytest.raises(UsageError, match=complaint):
            backtest_of(run_request, **changes)
    between_sessions = backtest_of(run_request, first=date(2024, 3, 2), last=date(2024, 3, 10))
    friday, monday = date(2024, 3, 1), date(2024, 3, 4)
    assert between_sessions.folds == (Fold(1, friday, monday, date(2024, 3, 8)),)
    # From before the history: the first day that can be predicted is named.
    with pytest.raises(UsageError, match=r"from 2023-03-01: .*choose --from") as early:
        backtest_of(run_request, first=date(2023, 3, 1))
    named = re.search(r"choose --from (\S+) or later", str(early.value))
    assert named is not None
    possible = date.fromisoformat(named[1])
    assert backtest_of(run_request, first=possible).folds
    with pytest.raises(UsageError, match=f"choose --from {possible} or later"):
        backtest_of(run_request, first=previous_session("XNYS", possible))


@pytest.mark.soak
def test_what_a_backtest_reads_decides_which_it_is_and_nothing_else_does(run_request):
    """A portfolio compares no price before a rejected leap with one after it."""
    context = context_of(run_request)
    first = run_study(backtest_of(run_request))
    fetch_bars(context, date(2024, 7, 31))
    fetch_bars(context, date(2024, 1, 3))  # earlier history than it trains on
    reject(context, date(2024, 7, 31))
    assert backtest_of(run_request).id == first.row["id"]
    reject(context, LAST)
    assert backtest_of(run_request).id != first.row["id"]
    restated = (BARS["symbol"] == "L01") & (BARS["session"] == pd.Timestamp("2024-03-06"))
    bars = BARS[restated].assign(close=1.02 * BARS["close"], high=1.02 * BARS["high"])
    with transaction(context.engine) as conn:
        prices.append_prices(
            conn, context.name, bars, source="simulated", known_at=datetime.now(UTC)
        )
    second = run_study(backtest_of(run_request))
    with reading(context.engine) as conn:
        one, other = (
            stored_runs.run(conn, each.folds["run_id"].iloc[0]) for each in (first, second)
        )
    assert one["id"] != other["id"]  # its sessions predicted differ, and those trained on do not
    assert one["checkpoint_hash"] == other["checkpoint_hash"]


def reject(context, day):
    leap = pd.DataFrame({"symbol": ["L01"], "session": pd.to_datetime([day])})
    leap = leap.assign(reason="unexplained_return", value="+0.900")
    with transaction(context.engine) as conn:
        save(
            conn,
            "rejected_bar",
            leap,
            market=context.name,
            source="simulated",
            first_known_at=datetime.now(UTC),
        )


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("", "--prices"),  # nothing of the market is stored
        ("--cluster nonsense", "--cluster"),
        ("--cluster tcp://host", "--cluster"),
        ("--workers 2 --cluster tcp://host:1", "--workers"),
        *((f"--half-spread {cost}", f"'{cost}'") for cost in ("nan", "inf", "-1", "10001", "low")),
    ],
)
def test_a_command_that_cannot_be_run_is_the_users_mistake(wrong, named, command):
    span = f"--from {FIRST} --to {LAST}"
    code, _, complaint = command("backtest", "kdd17", *span.split(), *wrong.split())
    assert code == 2
    assert named in complaint


def know_each_evening(engine):
    """Date each stored bar as if it had been fetched two hours after its session."""
    with transaction(engine) as conn:
        for day in BARS["session"].dt.date.unique():
            evening = session_close("XNYS", day) + timedelta(hours=2)
            conn.execute(
                update(tables.price).where(tables.price.c.session == day).values(known_at=evening)
            )


def restate(engine):
    """Correct every price by up to 2 %, today."""
    ratio = 1 + 0.02 * np.random.default_rng(0).random(len(BARS))
    named = ["open", "high", "low", "close", "adj_close"]
    bars = BARS.assign(**{name: BARS[name] * ratio for name in named})
    with transaction(engine) as conn:
        stored = prices.prices(conn, "past", FIRST, FIRST)["symbol"]
        bars = bars[bars["symbol"].isin(stored) & (bars["session"] <= pd.Timestamp("2024-05-31"))]
        prices.append_prices(conn, "past", bars, source="simulated", known_at=datetime.now(UTC))


def made(run_request, prices_known):
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
@sqlite_alone
def test_a_restatement_changes_a_backtest_on_prices_known_now_and_none_on_those_known_then(
    run_request, engine
):
    know_each_evening(engine)
    before = made(run_request, "then")
    restate(engine)
    pd.testing.assert_frame_equal(made(run_request, "then"), before, check_exact=True)
    assert not made(run_request, "now")["probability"].equals(before["probability"])


@sqlite_alone
def test_a_store_that_was_filled_later_knew_nothing_then(run_request):
    day = previous_session("XNYS", FIRST)
    with pytest.raises(UsageError, match=f"bars of past:.*{day}"):
        backtest_of(run_request, prices_known="then")


def test_the_id_of_a_study_depends_on_the_prices_that_it_reads():
    restated = BARS.assign(close=1.01 * BARS["close"])
    first, again, other = (study_id("any", FIRST, [], bars) for bars in (BARS, BARS, restated))
    assert first == again != other


def test_all_folds_compute_where_all_of_them_together_train_sooner(run_request, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "prepare_cuda", lambda: None)
    asked = replace(run_request, device="auto")
    load = context_of(asked).load
    of_one_training = load.core_seconds / min(load.cores, os.cpu_count())
    monkeypatch.setattr(devices, "GPU_STEP_S", 0.0)
    monkeypatch.setattr(devices, "GPU_START_S", 2 * of_one_training)
    assert context_of(asked).place.type == "cpu"
    backtest = backtest_of(asked)
    assert len(backtest.folds) == 3
    assert backtest.context.place.type == backtest.request.device == "cuda"
