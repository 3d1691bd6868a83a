"""Store what the folds of a backtest found, score it, follow it with portfolios, and publish the page."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from sqlalchemy import Engine

from db import backtests, queries, repositories
from db.engine import reading, transaction
from dtml.backtest_report import backtest_page
from dtml.inference import choose_device
from dtml.performance import performance, session_sharpe
from dtml.portfolio import (
    FREE,
    YEAR,
    Costs,
    Fill,
    Form,
    Quotes,
    Strategy,
    equal_weight_track,
    follow,
    index_track,
    positions,
)
from dtml.scoreboard import calibration_curve
from dtml.sessions import sessions_between
from dtml.slices import rolling_mcc, slice_scores
from flows.backtest import Backtest, Runner, jobs_of, one_by_one, read_attention, read_card, read_predictions
from flows.backtest_history import History, read_history, save_outcomes, scored_bars
from flows.settings import reports_folder

OnFold = Callable[[int], None]  # called with the number of folds done


@dataclass(frozen=True)
class Result:
    """A backtest as it is stored, and its page."""

    row: Mapping[str, Any]
    folds: pd.DataFrame
    scores: pd.DataFrame
    portfolios: pd.DataFrame
    page: Path


def run_backtest(backtest: Backtest, runner: Runner = one_by_one, on_fold: OnFold = lambda _done: None) -> Result:
    """Walk forward, fold by fold, then score; what an interrupted backtest had done is not done again."""
    if stored_backtest(backtest.desk.engine, backtest.id) is not None:
        return _stored(backtest)
    with transaction(backtest.desk.engine) as conn:
        backtests.save_backtest(conn, _row(backtest))
    begun = time.perf_counter()
    jobs = jobs_of(backtest)
    resumed = any(job.card.exists() for job in jobs)
    for done, card in enumerate(runner(jobs), start=1):
        _store_fold(backtest, card)
        on_fold(done)
    _finish(backtest, None if resumed else time.perf_counter() - begun)
    shutil.rmtree(backtest.folder, ignore_errors=True)
    return _stored(backtest)


def _stored(backtest: Backtest) -> Result:
    """The finished backtest; a page that is not there is written."""
    stored = stored_backtest(backtest.desk.engine, backtest.id)
    assert stored is not None
    if not stored.page.exists():
        write_page(backtest, stored)
    return stored


def stored_backtest(engine: Engine, backtest_id: str) -> Result | None:
    """A finished backtest from the store."""
    with reading(engine) as conn:
        row = backtests.backtest(conn, backtest_id)
        if row is None or row["finished_at"] is None:
            return None
        folds = backtests.backtest_folds(conn, backtest_id)
        return Result(
            row,
            folds.assign(validation_acc=[_validation_acc(queries.run(conn, run_id)) for run_id in folds["run_id"]]),
            backtests.backtest_scores(conn, backtest_id),
            backtests.backtest_portfolios(conn, backtest_id),
            page_of(row),
        )


def _validation_acc(run: Mapping[str, Any]) -> float:
    """The validation accuracy that chose the epoch, the mean over the members."""
    return float(np.mean([each["epochs"][each["best_epoch"] - 1]["validation_acc"] for each in run["losses"]]))


def page_of(row: Mapping[str, Any]) -> Path:
    """Where the page of a backtest lies."""
    return reports_folder() / str(row["market"]) / f"backtest-{row['id']}.html"


def _row(backtest: Backtest) -> dict[str, Any]:
    desk, plan, market = backtest.desk, backtest.plan, backtest.desk.market
    return {
        "id": backtest.id,
        "market": desk.name,
        "first": plan.first,
        "last": plan.last,
        "retrain_every": plan.retrain_every,
        "config": backtest.config,
        "seeds": list(range(desk.experiment.members)),
        "code_version": version("dtml-nightshift"),
        "data_watermark": backtest.known_at,
        "created_at": datetime.now(UTC),
        "list_is_snapshot": market.is_snapshot,
        "list_as_of": market.constituents_as_of,
        "device": choose_device(desk.device).type,
    }


def _store_fold(backtest: Backtest, file: Path) -> None:
    """The fold's run, its predictions and its attention, in one transaction; what is stored stays."""
    card, made = read_card(file), read_predictions(file)
    run, fold = card["run"], card["fold"]
    now, market = datetime.now(UTC), backtest.desk.name
    with transaction(backtest.desk.engine) as conn:
        repositories.save_run(conn, run)
        made = made.assign(run_id=run["id"])
        repositories.save_predictions(conn, market, made, known_at=backtest.known_at, made_at=now)
        if (seen := read_attention(file)) is not None:
            backtests.save_attention(conn, market, seen.assign(run_id=run["id"]))
        dates = {name: date.fromisoformat(fold[name]) for name in ("as_of", "first", "last")}
        counts = {"predictions": len(made), "refused": card["refused"]}
        backtests.save_fold(conn, backtest.id, {"number": fold["number"], "run_id": run["id"]} | dates | counts)


def _finish(backtest: Backtest, seconds: float | None) -> None:
    """Score and follow the predictions, and write figures and page."""
    desk = backtest.desk
    bars = scored_bars(backtest)
    history = read_history(backtest, bars)
    scores = slice_scores(history.calls(), history.movement, history.target, history.fold, history.symbols)
    tracks, strategies = _tracks(backtest, history, bars)
    with reading(desk.engine) as conn:
        before = backtests.sharpe_ratios(conn, desk.name, other_than=backtest.id)
    trials = [*(before / np.sqrt(YEAR)), *(session_sharpe(tracks[name]["net"].to_numpy()) for name in strategies)]
    portfolios = [
        {"portfolio": name, "strategy": strategies.get(name)} | asdict(performance(track, trials=trials))
        for name, track in tracks.items()
    ]
    predicted = np.isfinite(history.probability).any(axis=0)
    with transaction(desk.engine) as conn:
        save_outcomes(conn, backtest, history)
        backtests.finish_backtest(
            conn,
            backtest.id,
            scores=scores,
            returns=pd.concat([track.assign(portfolio=name) for name, track in tracks.items()], ignore_index=True),
            portfolios=pd.DataFrame(portfolios),
            counts={"stocks": int(predicted.sum()), "tried": len(trials)} | _survivorship(backtest, bars),
            finished_at=datetime.now(UTC),
            seconds=seconds,
        )


def _tracks(
    backtest: Backtest, history: History, bars: pd.DataFrame
) -> tuple[dict[str, pd.DataFrame], dict[str, dict[str, Any]]]:
    """What each portfolio earned, by its name, and how those that follow the predictions were made."""
    desk, plan = backtest.desk, backtest.plan
    sessions = sessions_between(desk.market.calendar, bars["session"].min().date(), bars["session"].max().date())
    quotes = Quotes.of(bars, sessions, history.symbols, desk.market.returns)
    index = Quotes.of(bars, sessions, (desk.market.index.symbol,), desk.market.returns)
    tracks, strategies = {}, {}
    costs: dict[Fill, Costs] = {"next_open": plan.costs, "close": FREE}
    for fill, form in product(costs, get_args(Form)):
        strategy = Strategy(form, fill, plan.top, plan.max_weight, costs[fill])
        weights = positions(history.probability, strategy)
        tracks[strategy.name] = follow(weights, history.as_of, quotes, strategy)
        strategies[strategy.name] = asdict(strategy)
    tracks["index"] = index_track(index, history.as_of, "next_open")
    tracks["equal weight"] = equal_weight_track(history.probability, history.as_of, quotes, "next_open")
    return {name: track for name, track in tracks.items() if len(track)}, strategies  # an index may have no opens


def _survivorship(backtest: Backtest, bars: pd.DataFrame) -> dict[str, int]:
    """Days of membership in the span, and how many of them have no bar."""
    desk, plan = backtest.desk, backtest.plan
    days = sessions_between(desk.market.calendar, plan.first, plan.last)
    there = bars.assign(there=True).pivot(index="session", columns="symbol", values="there")
    priced = there.reindex(index=days, columns=list(desk.market.symbols)).notna().to_numpy()
    members = desk.market.membership(days)
    return {"member_days": int(members.sum()), "without_price": int((members & ~priced).sum())}


def write_page(backtest: Backtest, result: Result) -> None:
    """Write the page from what is stored, whole or not at all."""
    history = read_history(backtest, scored_bars(backtest))
    calls = history.calls()
    known = np.isfinite(history.movement)
    with reading(backtest.desk.engine) as conn:
        returns = backtests.backtest_returns(conn, backtest.id)
    page = backtest_page(
        backtest=result.row,
        folds=result.folds,
        scores=result.scores,
        tracks=returns,
        performances=result.portfolios,
        rolling=rolling_mcc(calls, history.movement, history.target),
        calibration=calibration_curve(np.where(known, history.probability, np.nan), history.movement > 0),
    )
    result.page.parent.mkdir(parents=True, exist_ok=True)
    partial = result.page.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(page, encoding="utf-8")
    partial.replace(result.page)
