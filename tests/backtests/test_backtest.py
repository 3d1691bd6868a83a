"""A backtest is the nights it stands for; whatever interrupts it, the rows are the same."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from db.admin.copying import table_counts
from db.engine import reading, transaction
from db.read import read
from db.rows import predictions as stored_predictions
from db.rows import prices
from db.rows import runs as stored_runs
from db.save import save
from dtml import training
from dtml.errors import DtmlError, UsageError
from dtml.prices.sessions import previous_session, sessions_between
from flows.markets.opened import RunRequest
from flows.nightly.context import stored_bars
from flows.nightly.fetch import fetch_bars, history_start
from flows.nightly.night import run_night
from flows.nightly.train import windows_of
from flows.settings import page_of
from flows.studies import backtest as backtest_module
from flows.studies.backtest import (
    Backtest,
    Fold,
    FoldRun,
    Job,
    Plan,
    Result,
    one_by_one,
    open_backtest,
    run_fold,
    run_seed,
)
from flows.studies.study import run_study
from tests.support.backtest_market import FIRST, LAST, backtest_of, context_of
from tests.support.bounds import assert_arrays_close_in_float32
from tests.support.commands import Command
from tests.support.nights import BARS, FrameSource

pytestmark = pytest.mark.slow


def predictions(backtest: Backtest) -> pd.DataFrame:
    with reading(backtest.context.engine) as conn:
        folds = read(conn, "backtest_fold", backtest_id=backtest.id)
        parts = [
            read(
                conn,
                "prediction",
                market=backtest.context.name,
                run_id=run_id,
                order="target, symbol, made_at",
            )
            for run_id in folds["run_id"]
        ]
    return pd.concat(parts, ignore_index=True)


def everything(backtest: Backtest) -> dict[str, pd.DataFrame]:
    """All rows that a backtest leaves, but for the moments at which they were written."""
    with reading(backtest.context.engine) as conn:
        tables = {
            "folds": read(conn, "backtest_fold", backtest_id=backtest.id),
            "scores": read(conn, "backtest_score", backtest_id=backtest.id),
            "returns": read(conn, "backtest_return", backtest_id=backtest.id),
            "portfolios": read(conn, "backtest_portfolio", backtest_id=backtest.id),
        }
    return tables | {"predictions": predictions(backtest).drop(columns="made_at")}


def assert_same(found: dict[str, pd.DataFrame], expected: dict[str, pd.DataFrame]) -> None:
    for name, frame in expected.items():
        pd.testing.assert_frame_equal(
            found[name].drop(columns="seconds", errors="ignore"),
            frame.drop(columns="seconds", errors="ignore"),
            check_exact=True,
            obj=name,
        )


@pytest.mark.soak
@pytest.mark.parametrize(
    ("run_request", "store_url"), [("shared", "sqlite"), ("per_stock", "postgresql")], indirect=True
)
def test_a_prediction_of_a_backtest_is_the_one_that_its_night_makes(
    run_request: RunRequest,
) -> None:
    backtest = backtest_of(run_request)
    run_study(backtest)
    context = context_of(run_request)
    for day in sessions_between(
        "XNYS", previous_session("XNYS", FIRST), previous_session("XNYS", LAST)
    ):
        run_night(context, day.date())
    with reading(context.engine) as conn:
        nightly = stored_predictions.prediction_history(conn, market=context.name)
        runs = read(conn, "run", market=context.name, order="created_at, id")
    assert runs["kind"].tolist().count("nightly") == runs["kind"].tolist().count("backtest") == 3
    columns = ["as_of", "target", "symbol", "probability", "probability_std"]
    nights = nightly[columns].sort_values(["target", "symbol"], ignore_index=True)
    found = predictions(backtest)[columns].sort_values(["target", "symbol"], ignore_index=True)
    pd.testing.assert_frame_equal(found, nights, check_exact=True)
    assert found["target"].nunique() == 16


def test_a_stock_is_in_the_backtest_only_while_it_was_a_member(run_request: RunRequest) -> None:
    backtest = backtest_of(run_request)
    result = run_study(backtest)
    made = predictions(backtest)
    gone, come = made[made["symbol"] == "F02B"], made[made["symbol"] == "F03A"]
    assert come["as_of"].min() == pd.Timestamp("2024-03-11")
    asked = sessions_between("XNYS", date(2024, 3, 1), previous_session("XNYS", LAST))
    assert list(gone["as_of"]) == [
        day for day in asked if not date(2024, 3, 13) <= day.date() < date(2024, 3, 20)
    ]
    days = sessions_between("XNYS", FIRST, LAST)
    absent = int(
        ((days >= "2024-03-13") & (days < "2024-03-20")).sum() + (days < "2024-03-11").sum()
    )
    assert result.row["constituent_days"] == 9 * len(days) - absent
    assert result.row["without_price"] == 0
    assert result.row["config"]["source"] == "simulated"
    page = page_of("backtest", result.row).read_text()
    assert "The prices are simulated" in page
    assert "Predicted and actual share of rises, dtml" in page
    assert not result.row["list_is_snapshot"]


@pytest.mark.soak
def test_a_rerun_adds_no_row_and_trains_nothing(
    run_request: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_study(backtest_of(run_request))
    with reading(backtest_of(run_request).context.engine) as conn:
        before = table_counts(conn)
    monkeypatch.setattr(backtest_module, "fit_model", None)
    file = page_of("backtest", first.row)
    page = file.read_text()
    file.unlink()
    again = run_study(backtest_of(run_request))
    with reading(backtest_of(run_request).context.engine) as conn:
        assert table_counts(conn) == before
    assert again.row == first.row
    assert file.read_text() == page


@pytest.mark.soak
def test_an_interrupted_backtest_goes_on_at_the_fold_it_was_in(run_request: RunRequest) -> None:
    backtest = backtest_of(run_request)
    trained: list[int] = []

    def cut_short(jobs: Sequence[Job]) -> Iterator[FoldRun]:
        yield run_fold(jobs[2])  # on several machines the last one may be done first
        yield run_fold(jobs[0])
        raise KeyboardInterrupt

    def counted(jobs: Sequence[Job]) -> Iterator[FoldRun]:
        for job in jobs:
            trained.append(job.fold.number)
            yield run_fold(job)

    with pytest.raises(KeyboardInterrupt):
        run_study(replace(backtest, runner=cut_short))
    run_study(replace(backtest, runner=counted))
    assert trained == [2]
    interrupted = everything(backtest)
    with backtest.context.engine.begin() as conn:
        for table in (
            "backtest_score",
            "backtest_return",
            "backtest_portfolio",
            "backtest_fold",
            "backtest",
            *(
                "attention_weight",
                "abstention_count",
                "calibration_bin",
                "abstention_band",
                "rule_direction",
            ),
            "prediction",
            "run",
        ):
            conn.exec_driver_sql(f"delete from {table}")
    run_study(backtest)
    assert_same(everything(backtest), interrupted)


@pytest.mark.soak
def test_an_oracle_scores_one_and_a_coin_nothing_through_the_whole_path(
    run_request: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = BARS.pivot(index="session", columns="symbol", values="adj_close")
    rises = wide.pct_change(fill_method=None).shift(-1) > 0
    coin = np.random.default_rng(6)  # a 95 % interval: one seed in twenty fails

    def told(made: pd.DataFrame) -> pd.DataFrame:
        rose = [rises.loc[row.as_of, row.symbol] for row in made.itertuples()]
        return made.assign(probability=np.where(rose, 0.9, 0.1))

    def tossed(made: pd.DataFrame) -> pd.DataFrame:
        return made.assign(probability=coin.random(len(made)))

    honest = backtest_module.predict_night
    long = {"first": date(2024, 2, 1), "last": date(2024, 5, 20), "retrain_every": 80}

    def run(change: Callable[[pd.DataFrame], pd.DataFrame], run_request: RunRequest) -> Result:
        monkeypatch.setattr(backtest_module, "predict_night", lambda *asked: change(honest(*asked)))
        return run_study(backtest_of(run_request, **long))

    oracle, luck = (
        run(told, run_request),
        run(tossed, replace(run_request, overrides={"epochs": 1})),
    )
    whole = oracle.scores[
        (oracle.scores["slice"] != "symbol") & (oracle.scores["predictor"] == "dtml")
    ]
    assert (whole[["acc", "mcc"]] == 1).all(axis=None)
    portfolios = oracle.portfolios.set_index("portfolio")
    assert portfolios.loc["long, close, no costs (the paper's)", "hit_rate"] > 0.9
    assert (
        portfolios.loc["long, close, no costs (the paper's)", "sharpe_low"]
        > portfolios.loc["index", "sharpe"]
    )
    (guess,) = luck.scores[
        (luck.scores["slice"] == "all")
        & (luck.scores["protocol"] == "all")
        & (luck.scores["predictor"] == "dtml")
    ].to_dict("records")
    assert guess["mcc_low"] < 0 < guess["mcc_high"]
    assert guess["acc_low"] < 0.5 < guess["acc_high"]
    assert guess["n"] == len(predictions(backtest_of(run_request, **long)))


@pytest.mark.soak
def test_a_night_that_would_be_refused_has_no_prediction_and_its_reason_is_kept(
    run_request: RunRequest,
) -> None:
    lost = date(2024, 3, 6)
    backtest = backtest_of(run_request)
    with backtest.context.engine.begin() as conn:
        conn.exec_driver_sql(
            "delete from price where session = '2024-03-06' and instrument_id in "
            "(select id from instrument where symbol in ('L01', 'L02', 'F01A'))"
        )
    result = run_study(backtest)
    made = predictions(backtest)
    assert lost not in set(made["as_of"].dt.date)
    assert date(2024, 3, 5) in set(made["as_of"].dt.date)
    refused = result.folds["refused"].iloc[0]
    # a window holds three sessions
    assert list(refused) == [
        "2024-03-06",
        "2024-03-07",
        "2024-03-08",
    ]
    assert re.search("3 of 8.*good bar", refused["2024-03-06"])
    assert re.search("3 of 8.*cannot", refused["2024-03-07"])


@pytest.mark.soak
def test_a_warm_start_goes_on_from_the_fold_before(run_request: RunRequest) -> None:
    warm = replace(run_request, overrides={"warm_start": True})
    cold, started = run_study(backtest_of(run_request)), run_study(backtest_of(warm))
    with reading(backtest_of(run_request).context.engine) as conn:
        first = [
            stored_runs.run(conn, run_id)["checkpoint_hash"] for run_id in cold.folds["run_id"]
        ]
        then = [
            stored_runs.run(conn, run_id)["checkpoint_hash"] for run_id in started.folds["run_id"]
        ]
    assert first[0] == then[0]
    assert first[1] != then[1]


@pytest.mark.soak
def test_attention_is_kept_for_the_days_asked_for(run_request: RunRequest) -> None:
    backtest = backtest_of(run_request)
    run_study(backtest)
    run_study(replace(backtest, attention=[date(2024, 3, 6)]))
    with reading(backtest.context.engine) as conn:
        run_id = read(conn, "backtest_fold", backtest_id=backtest.id)["run_id"].iloc[0]
        seen = read(
            conn,
            "attention_weight",
            columns="symbol, source, weight",
            run_id=run_id,
            target=date(2024, 3, 6),
        )
        assert read(
            conn,
            "attention_weight",
            columns="symbol, source, weight",
            run_id=run_id,
            target=date(2024, 3, 7),
        ).empty
    assert_arrays_close_in_float32(seen.groupby("symbol")["weight"].sum(), 1)
    assert seen["symbol"].nunique() == 8
    with pytest.raises(UsageError, match=r"2024-03-09 \(Saturday\)"):
        open_backtest(run_request, backtest.plan, attention=[date(2024, 3, 9)])
    with pytest.raises(UsageError, match=r"2024-04-01.*outside 2024-03-04 \.\. 2024-03-25"):
        open_backtest(run_request, backtest.plan, attention=[date(2024, 4, 1)])


@pytest.mark.parametrize("where", [{"workers": 2}, {"cluster": "tcp://host:1"}])
def test_folds_with_a_warm_start_are_trained_in_one_place(
    run_request: RunRequest, where: dict[str, Any]
) -> None:
    warm = replace(run_request, overrides={"warm_start": True})
    plan = Plan(first=date(2024, 3, 4), last=date(2024, 3, 25), retrain_every=10)
    with pytest.raises(UsageError, match="warm_start"):
        open_backtest(warm, plan, **where)


def test_spans_that_cannot_be_walked_are_the_users_mistake(run_request: RunRequest) -> None:
    with pytest.raises(UsageError, match=r"2024-05-31.*2024-06-20"):
        backtest_of(run_request, last=date(2024, 6, 20))
    with pytest.raises(UsageError, match="is after"):
        backtest_of(run_request, first=date(2024, 4, 1))
    with pytest.raises(UsageError, match=r"no session.*2024-03-30.*2024-03-31"):
        backtest_of(run_request, first=date(2024, 3, 30), last=date(2024, 3, 31))
    between_sessions = backtest_of(run_request, first=date(2024, 3, 2), last=date(2024, 3, 10))
    friday, monday = date(2024, 3, 1), date(2024, 3, 4)
    assert between_sessions.folds == (Fold(1, friday, monday, date(2024, 3, 8)),)


def test_a_backtest_from_before_the_history_names_the_first_day_that_can_be_predicted(
    run_request: RunRequest,
) -> None:
    context = context_of(run_request)
    first = date(2023, 3, 1)
    with pytest.raises(UsageError, match=rf"from {first}: the first model needs \d+") as said:
        backtest_of(run_request, first=first)
    with pytest.raises(DtmlError, match="no bars of past"):
        backtest_of(run_request, first=date(1999, 6, 14), last=date(2001, 6, 1))
    with pytest.raises(UsageError, match=r"too late for a backtest from .*; fetch earlier prices"):
        backtest_of(replace(run_request, overrides={"validation_sessions": 300}))
    named = re.search(r"choose --from (\S+) or later", str(said.value))
    assert named is not None
    possible = date.fromisoformat(named[1])
    assert backtest_of(run_request, first=possible).folds
    before = previous_session("XNYS", possible)
    with pytest.raises(UsageError, match=f"choose --from {possible} or later"):
        backtest_of(run_request, first=before)
    for as_of, is_enough in ((before, True), (previous_session("XNYS", before), False)):
        bars, _ = stored_bars(context, history_start(context, as_of), as_of)
        windows = windows_of(context, bars, context.experiment.windows, context.market.symbols)
        with nullcontext() if is_enough else pytest.raises(DtmlError, match="at least"):
            context.experiment.spans(windows, as_of)


@pytest.mark.soak
def test_what_a_backtest_does_not_read_does_not_make_it_another(run_request: RunRequest) -> None:
    first = run_study(backtest_of(run_request))
    fetch_bars(context_of(run_request), date(2024, 7, 31))
    fetch_bars(context_of(run_request), date(2024, 1, 3))  # earlier history than it trains on
    assert backtest_of(run_request).id == first.row["id"]


def test_another_rejected_bar_makes_another_backtest(run_request: RunRequest) -> None:
    """A portfolio compares no price before a rejected leap with one after it."""
    before = backtest_of(run_request).id
    context = context_of(run_request)
    leaps = pd.DataFrame(
        {"symbol": ["L01", "L02"], "session": pd.to_datetime([LAST, "2024-07-31"])}
    )
    leaps = leaps.assign(reason="unexplained_return", value="+0.900")
    ids = []
    for number in (1, 0):  # the later one lies after the plan's last session
        with transaction(context.engine) as conn:
            save(
                conn,
                "rejected_bar",
                leaps.iloc[[number]],
                market=context.name,
                source="simulated",
                first_known_at=datetime.now(UTC),
            )
        ids.append(backtest_of(run_request).id)
    assert ids[0] == before
    assert ids[1] != before


@pytest.mark.soak
def test_a_restated_bar_among_the_sessions_predicted_makes_another_backtest_beside_the_first(
    run_request: RunRequest,
) -> None:
    first = run_study(backtest_of(run_request))
    scrambled = BARS.copy()
    restated = (scrambled["symbol"] == "L01") & (scrambled["session"] == pd.Timestamp("2024-03-06"))
    scrambled.loc[restated, ["high", "close", "adj_close"]] *= 1.02
    context = replace(context_of(run_request), source=FrameSource(scrambled))
    with transaction(context.engine) as conn:
        prices.append_prices(
            conn, context.name, scrambled[restated], source="simulated", known_at=datetime.now(UTC)
        )
    second = run_study(backtest_of(run_request))
    assert second.row["id"] != first.row["id"]
    assert second.folds["run_id"].iloc[0] != first.folds["run_id"].iloc[0]
    with reading(context.engine) as conn:
        hashes = [
            stored_runs.run(conn, each.folds["run_id"].iloc[0])["checkpoint_hash"]
            for each in (first, second)
        ]
    assert hashes[0] == hashes[1]


@pytest.mark.soak
def test_a_second_process_at_the_same_backtest_is_turned_away(run_request: RunRequest) -> None:
    backtest = backtest_of(run_request)

    def meanwhile(jobs: Sequence[Job]) -> Iterator[FoldRun]:
        with pytest.raises(DtmlError, match="another process"):
            run_study(backtest_of(run_request))
        yield from one_by_one(jobs)

    run_study(replace(backtest, runner=meanwhile))


@pytest.mark.soak
def test_a_history_of_refused_nights_alone_ends_with_the_reason(run_request: RunRequest) -> None:
    backtest = backtest_of(run_request)
    with backtest.context.engine.begin() as conn:
        conn.exec_driver_sql(
            "delete from price where session >= '2024-03-01' and instrument_id in "
            "(select id from instrument where symbol in ('L01', 'L02', 'F01A'))"
        )
    with pytest.raises(
        DtmlError,
        match=r"16 nights.*: 3 of",
    ):
        run_study(backtest_of(run_request))


def test_a_plan_that_no_portfolio_can_follow_is_refused_before_anything_is_trained(
    run_request: RunRequest,
) -> None:
    with pytest.raises(UsageError, match="--max-weight"):
        backtest_of(run_request, max_weight=2.0)


SPAN = ("backtest", "kdd17", "--from", str(FIRST), "--to", str(LAST))


def test_a_market_of_which_nothing_is_stored_says_where_prices_may_come_from(
    command: Command,
) -> None:
    code, _, complaint = command(*SPAN)
    assert code == 2
    assert "kdd17" in complaint
    assert "--prices" in complaint


@pytest.mark.parametrize(
    "where",
    [
        "--cluster nonsense",
        "--cluster tcp://host",
        "--workers 2 --cluster tcp://host:1",
    ],
)
def test_a_place_that_no_fold_can_run_at_is_the_users_mistake(where: str, command: Command) -> None:
    code, _, complaint = command(*SPAN, *where.split())
    assert code == 2
    assert complaint.startswith(("error: --cluster", "error: --workers"))


@pytest.mark.parametrize("cost", ["nan", "inf", "-1", "10001", "low"])
def test_a_cost_out_of_range_is_the_users_mistake(cost: str, command: Command) -> None:
    code, _, complaint = command(*SPAN, "--half-spread", cost)
    assert code == 2
    assert f"'--half-spread': '{cost}' is not a number from 0 to" in complaint


@pytest.mark.soak
def test_a_fold_whose_seeds_were_trained_apart_trains_nothing_and_says_the_same(
    run_request: RunRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trains(*_: object) -> None:
        raise AssertionError("a step of a seed that was trained")

    backtest = backtest_of(run_request)
    (job, *_) = backtest.jobs
    seeds = backtest.context.experiment.seeds
    assert seeds > 1
    whole = run_fold(job).predictions
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "anew"))
    for seed in reversed(range(seeds)):
        run_seed(job, seed)
    monkeypatch.setattr(training, "_step", trains)
    pd.testing.assert_frame_equal(run_fold(job).predictions, whole, check_exact=True)
