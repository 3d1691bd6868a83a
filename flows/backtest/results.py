"""Store what the folds of a backtest found, score it, follow it with
portfolios, and publish the page.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from jaxtyping import Float, Int
from numpy import ndarray
from sqlalchemy import Connection, Engine

from db.engine import reading, transaction
from db.rows import attention, backtests, calibration, outcomes, predictions, runs
from dtml.backtest.performance import expected_best, performance, session_sharpe
from dtml.backtest.portfolio import Fill, equal_weight_track, follow, index_track, positions
from dtml.baselines.naive_rules import MODEL, directions_on, rules_read_from
from dtml.errors import DtmlError, UsageError
from dtml.evaluation.breakdowns import (
    Directions,
    order_scores,
    rolling_mcc,
    rolling_rank_ic,
    slice_scores,
)
from dtml.evaluation.calibration import calibration_curve, coverage
from dtml.inference import choose_device
from dtml.markets.definition import YEAR
from dtml.pages.backtest import backtest_page
from dtml.prices.returns import on_grid, returns_between
from dtml.prices.sessions import previous_session, require_session, sessions_between
from flows.backtest.folds import Backtest, Runner, jobs_of, known_before, one_by_one, read_card
from flows.nightly.context import quotes_of, read_bars
from flows.nightly.predict import first_needed, look
from flows.nightly.score import dated_directions, outcome_rows, record_outcomes, save_counts
from flows.nightly.train import load_run
from flows.settings import page_of, write_page

OnFold = Callable[[int], None]  # called with the number of folds done


@dataclass(frozen=True)
class Result:
    """Hold a backtest as it is stored, and its page."""

    row: Mapping[str, Any]
    folds: pd.DataFrame
    scores: pd.DataFrame
    portfolios: pd.DataFrame
    page: Path


def run_backtest(
    backtest: Backtest,
    runner: Runner = one_by_one,
    on_fold: OnFold = lambda _: None,
    attention_on: Sequence[date] = (),
) -> Result:
    """Train and predict fold by fold, then score; work that an interrupted backtest finished is not
    repeated.

    Attention between stocks is kept for the sessions asked for, also for a backtest that is
    finished. Raises DtmlError when another process is running the same backtest.
    """
    _require_sessions(backtest, attention_on)
    backtest.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(backtest.folder.with_suffix(".lock"))
    try:
        with lock.acquire(timeout=0):
            if stored_backtest(backtest.context.engine, backtest.id) is None:
                _walk(backtest, runner, on_fold)
            shutil.rmtree(backtest.folder, ignore_errors=True)
            keep_attention(backtest, attention_on)
            stored = stored_backtest(backtest.context.engine, backtest.id)
            assert stored is not None
            if not stored.page.exists():
                _write_page(backtest, stored)
            return stored
    except Timeout as error:
        raise DtmlError(f"another process is at the backtest {backtest.id}: wait for it") from error


def _walk(backtest: Backtest, runner: Runner, on_fold: OnFold) -> None:
    with transaction(backtest.context.engine) as conn:
        backtests.save_backtest(conn, _row(backtest))
    begun = time.perf_counter()
    jobs = jobs_of(backtest)
    resumed = any(job.card.exists() for job in jobs)
    for done, card in enumerate(runner(jobs), start=1):
        _store_fold(backtest, card)
        on_fold(done)
    _finish(backtest, None if resumed else time.perf_counter() - begun)


def _require_sessions(backtest: Backtest, days: Sequence[date]) -> None:
    for day in days:
        require_session(backtest.context.market.calendar, day)
        if not backtest.plan.first <= day <= backtest.plan.last:
            raise UsageError(
                f"--attention-on {day} lies outside {backtest.plan.first} .. {backtest.plan.last}"
            )


def keep_attention(backtest: Backtest, days: Sequence[date]) -> None:
    """Store who looked at whom on predicted sessions, by the models of their
    folds; a refused night has none.
    """
    context = backtest.context
    with reading(context.engine) as conn:
        folds = backtests.backtest_folds(conn, backtest.id)
    for day in days:
        row = folds[
            (folds["first"] <= pd.Timestamp(day)) & (pd.Timestamp(day) <= folds["last"])
        ].iloc[0]
        as_of = previous_session(context.market.calendar, day)
        if str(as_of) in row["refused"]:
            continue
        with reading(context.engine) as conn:
            model = load_run(context, runs.run(conn, row["run_id"]))
        known_at = known_before(context, as_of, backtest.known_at, backtest.plan.prices_known)
        bars = read_bars(
            context, first_needed(context, model.ensemble.windows, as_of), as_of, known_at
        )
        pairs = (
            look(context, model, as_of, bars)
            .rows()
            .assign(run_id=model.run_id, target=pd.Timestamp(day))
        )
        with transaction(context.engine) as conn:
            attention.save_attention(conn, context.name, pairs)


def stored_backtest(engine: Engine, backtest_id: str) -> Result | None:
    """Return a finished backtest from the store, or None."""
    with reading(engine) as conn:
        row = backtests.backtest(conn, backtest_id)
        if row is None or row["finished_at"] is None:
            return None
        folds = backtests.backtest_folds(conn, backtest_id)
        folds = folds.assign(
            validation_acc=[_validation_acc(runs.run(conn, run_id)) for run_id in folds["run_id"]]
        )
        scores = backtests.backtest_scores(conn, backtest_id)
        return Result(
            row,
            folds,
            scores,
            backtests.backtest_portfolios(conn, backtest_id),
            page_of("backtest", row),
        )


def _validation_acc(run: Mapping[str, Any]) -> float:
    """Return the validation accuracy that chose the epoch, the mean over the seeds."""
    return float(
        np.mean(
            [each["epochs"][each["best_epoch"] - 1]["validation_acc"] for each in run["losses"]]
        )
    )


def _row(backtest: Backtest) -> dict[str, Any]:
    context, plan, market = backtest.context, backtest.plan, backtest.context.market
    return {
        "id": backtest.id,
        "market": context.name,
        "first": plan.first,
        "last": plan.last,
        "retrain_every": plan.retrain_every,
        "config": backtest.config,
        "seeds": list(range(context.experiment.seeds)),
        "code_version": version("dtml-nightshift"),
        "data_watermark": backtest.known_at,
        "created_at": datetime.now(UTC),
        "list_is_snapshot": market.is_snapshot,
        "list_as_of": market.constituents_as_of,
        "device": choose_device(context.device).type,
    }


def _store_fold(backtest: Backtest, file: Path) -> None:
    """Store the fold's run and its predictions in one transaction; rows that are stored stay."""
    card, made = read_card(file), pd.read_parquet(file.with_suffix(".parquet"))
    run, fold, market = card["run"], card["fold"], backtest.context.name
    said = {"predictions": len(made), "refused": card["refused"], "seconds": card["seconds"]}
    now = datetime.now(UTC)
    with transaction(backtest.context.engine) as conn:
        runs.save_run(conn, run)
        if card["bands"]:
            level = backtest.context.market.level
            calibration.save_bands(conn, run["id"], pd.DataFrame(card["bands"]), default=level)
        for known_at in made["known_at"].unique() if len(made) else ():
            rows = made[made["known_at"] == known_at].assign(run_id=run["id"])
            predictions.save_predictions(
                conn, market, rows, known_at=known_at.to_pydatetime(), made_at=now
            )
        backtests.save_fold(conn, backtest.id, fold | {"run_id": run["id"]} | said)


@dataclass(frozen=True)
class TrackRecord:
    """Hold all that was predicted and what came of it, on the predicted sessions.

    `probability` is NaN where nothing was predicted, `movement` a ratio minus 1, NaN where it is
    not known.
    """

    probability: Float[ndarray, "days stocks"]
    movement: Float[ndarray, "days stocks"]
    as_of: pd.DatetimeIndex
    target: pd.DatetimeIndex
    fold: Int[ndarray, " days"]
    symbols: tuple[str, ...]
    rules: pd.DataFrame  # a column a rule, a row a day
    losers: Float[
        ndarray, "days stocks"
    ]  # the fall to each `as_of` from the session before: a rule that orders stocks

    def directions(self) -> Directions:
        """Return what the model and each rule predicted, stock by stock."""
        model = np.where(np.isfinite(self.probability), self.probability > 0.5, np.nan)
        everyone = np.ones_like(self.probability)
        rules = {str(rule): everyone * self.rules[rule].to_numpy()[:, None] for rule in self.rules}
        return {MODEL: model, **rules}


def scored_bars(backtest: Backtest) -> pd.DataFrame:
    """Read the bars of the predicted sessions, and of those before that the rules read."""
    first = rules_read_from(backtest.context.market.calendar, backtest.plan.first)
    return read_bars(backtest.context, first, backtest.plan.last, backtest.known_at)


def read_record(backtest: Backtest, bars: pd.DataFrame) -> TrackRecord:
    """Read the predictions of all folds and what came of them by `bars`; raise
    DtmlError when no night has any.
    """
    context = backtest.context
    with reading(context.engine) as conn:
        made = backtests.backtest_predictions(conn, backtest.id)
        folds = backtests.backtest_folds(conn, backtest.id)
    if made.empty:
        reasons = pd.Series([reason for refused in folds["refused"] for reason in refused.values()])
        raise DtmlError(
            f"every one of {len(reasons)} nights was refused, such as: {reasons.iloc[0]}"
        )
    days = made[["as_of", "target"]].drop_duplicates().sort_values("target", ignore_index=True)
    fold = folds["number"].to_numpy()[folds["first"].searchsorted(days["target"], side="right") - 1]
    symbols = context.market.symbols
    as_of, target = pd.DatetimeIndex(days["as_of"]), pd.DatetimeIndex(days["target"])
    probability = on_grid(
        made.rename(columns={"target": "session"}), "probability", target, symbols
    )
    movement = returns_between(bars, as_of, target, symbols, context.market.returns)
    rules = directions_on(as_of, bars, context.market.index.symbol)
    before = pd.DatetimeIndex(
        [previous_session(context.market.calendar, day.date()) for day in as_of]
    )
    losers = -returns_between(bars, before, as_of, symbols, context.market.returns)
    return TrackRecord(probability, movement, as_of, target, fold, symbols, rules, losers)


def save_outcomes(conn: Connection, backtest: Backtest, record: TrackRecord) -> None:
    """Store what became of every prediction, as a night's scoring would."""
    day, stock = np.nonzero(np.isfinite(record.probability) & np.isfinite(record.movement))
    rows = outcome_rows(
        pd.Index(record.symbols)[stock], record.target[day], record.movement[day, stock]
    )
    record_outcomes(
        conn, backtest.context, rows, known_at=backtest.known_at, recorded_at=datetime.now(UTC)
    )


def _finish(backtest: Backtest, seconds: float | None) -> None:
    """Score and follow the predictions, and write figures and page."""
    context = backtest.context
    bars = scored_bars(backtest)
    record = read_record(backtest, bars)
    scores = slice_scores(
        record.directions(), record.movement, record.target, record.fold, record.symbols
    )
    orders = order_scores(
        record.probability, record.losers, record.movement, record.target, record.fold
    )
    orders = orders.assign(predictor=MODEL, protocol="all")
    scores = scores.merge(orders, how="left", on=["slice", "value", "protocol", "predictor"])
    tracks, strategies, indices = _tracks(backtest, record, bars)
    with reading(context.engine) as conn:
        before = backtests.sharpe_ratios(conn, context.name, other_than=backtest.id)
    trials = [
        *(before / np.sqrt(YEAR)),
        *(session_sharpe(tracks[name]["net"].to_numpy()) for name in strategies),
    ]
    portfolios = [
        {"portfolio": name, "strategy": strategies.get(name)}
        | asdict(
            performance(
                track, trials=trials if name in strategies else None, index=indices.get(name)
            )
        )
        for name, track in tracks.items()
    ]
    predicted = np.isfinite(record.probability).any(axis=0)
    best = expected_best(trials) * np.sqrt(YEAR) if np.isfinite(trials).any() else 0.0
    with transaction(context.engine) as conn:
        save_outcomes(conn, backtest, record)
        predictions.save_rule_directions(
            conn, context.name, dated_directions(record.rules, record.target)
        )
        settled = outcomes.settled_folds(conn, backtest.id)
        save_counts(conn, settled, calibration.bands_of(conn, settled["run_id"].unique().tolist()))
        returns = pd.concat(
            [track.assign(portfolio=name) for name, track in tracks.items()], ignore_index=True
        )
        counts = {"stocks": int(predicted.sum()), "tried": len(trials), "expected_best": best}
        backtests.finish_backtest(
            conn,
            backtest.id,
            scores=scores,
            returns=returns,
            portfolios=pd.DataFrame(portfolios),
            counts=counts | _survivorship(backtest, bars),
            finished_at=datetime.now(UTC),
            seconds=seconds,
        )


def _tracks(
    backtest: Backtest, record: TrackRecord, bars: pd.DataFrame
) -> tuple[dict[str, pd.DataFrame], dict[str, dict[str, Any]], dict[str, pd.DataFrame]]:
    """Return what each portfolio earned, by its name; of those that follow
    predictions the strategy, and the index.
    """
    # The index is filled as the portfolio is, so that the two have the same sessions.
    context = backtest.context
    quotes, index = (
        quotes_of(context, bars, symbols)
        for symbols in (record.symbols, (context.market.index.symbol,))
    )
    filled = {fill: index_track(index, record.as_of, fill) for fill in get_args(Fill)}
    tracks, strategies, indices = {}, {}, {}
    for strategy in backtest.plan.strategies:
        track = follow(positions(record.probability, strategy), record.as_of, quotes, strategy)
        tracks[strategy.name], indices[strategy.name] = track, filled[strategy.fill]
        if len(track):
            strategies[strategy.name] = asdict(strategy)
    indices["equal weight"] = tracks["index"] = filled["next_open"]
    tracks["equal weight"] = equal_weight_track(
        record.probability, record.as_of, quotes, "next_open"
    )
    followed = {
        name: track for name, track in tracks.items() if len(track)
    }  # an index may have no opens
    return followed, strategies, indices


def _survivorship(backtest: Backtest, bars: pd.DataFrame) -> dict[str, int]:
    """Count the days of membership in the span, and those of them without a bar."""
    context, plan = backtest.context, backtest.plan
    days = sessions_between(context.market.calendar, plan.first, plan.last)
    priced = np.isfinite(on_grid(bars, "close", days, context.market.symbols))
    constituents = context.market.membership(days)
    return {
        "constituent_days": int(constituents.sum()),
        "without_price": int((constituents & ~priced).sum()),
    }


def _write_page(backtest: Backtest, result: Result) -> None:
    """Write the page from what is stored, whole or not at all."""
    record = read_record(backtest, scored_bars(backtest))
    known = np.isfinite(record.movement)
    with reading(backtest.context.engine) as conn:
        returns = backtests.backtest_returns(conn, backtest.id)
        counts = calibration.fold_counts(conn, backtest.id)
    page = backtest_page(
        backtest=result.row,
        folds=result.folds,
        scores=result.scores,
        tracks=returns,
        performances=result.portfolios,
        rolling=rolling_mcc(record.directions(), record.movement, record.target).merge(
            rolling_rank_ic(record.probability, record.movement, record.target),
            how="left",
            on=["session", "predictor"],
        ),
        curve=calibration_curve(np.where(known, record.probability, np.nan), record.movement > 0),
        coverage=coverage(counts),
    )
    write_page(result.page, page)
