"""Read the test span of a benchmark once, score every model on it, and publish the scores.

The page comes from the store alone, so that it is the same when it is written again.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray
from sqlalchemy import Connection, Engine

from db.engine import reading, transaction
from db.rows import backtests, predictions
from db.rows import runs as stored_runs
from dtml.checkpoints import save_ensemble
from dtml.evaluation.calibration import calibration_curve
from dtml.evaluation.scoreboard import Predictor, common_stock_days, member_scores, scoreboard
from dtml.evaluation.survivorship import Survivorship, survivorship_of
from dtml.inference import choose_device
from dtml.machine import computed_by
from dtml.pages.benchmark import benchmark_page
from dtml.prices.returns import returns_between
from dtml.training.fit import EpochReport, no_report
from dtml.windows import Windows
from flows.benchmark.train import PublishedExperiment, Trial, train_models, was_begun
from flows.nightly.bars import NightBars
from flows.nightly.night import Stage, directly
from flows.nightly.score import outcome_rows, record_outcomes
from flows.settings import data_folder, page_of, write_page
from translation.atomic_files import write_whole


@dataclass(frozen=True)
class Benchmark:
    """Hold a benchmark as stored, and where its page is.

    `row` is its row of the table `benchmark`; `scores` and `seeds` are its rows of
    `benchmark_score` and `benchmark_seed`.
    """

    row: Mapping[str, Any]
    scores: pd.DataFrame
    seeds: pd.DataFrame
    number: int  # among the benchmarks of its set, from 1 on
    page: Path


@dataclass(frozen=True)
class Chosen:
    """Hold all that is decided before the test span is read."""

    models: Mapping[str, list[Trial]]  # by model; the best trial on validation comes first
    best_rule: str  # the naive rule that was best on the training span
    seconds: float | None  # of all trainings; None if an earlier process did a part


@dataclass(frozen=True)
class Test:
    """Hold the test span as read, and the predictions of every model and rule for it.

    `probabilities` has the probabilities of each model's trials, in the order of `Chosen.models`.
    `rules` has a row for each day and a column for each rule: 1 for a rise, 0 for a fall, or NaN.
    `days` are the windows of DTML's length, whose stock-days are scored. `movement` is the return
    in double precision, a ratio minus 1, NaN where it is unknown. `survivorship` counts the stocks
    of the list on these days.
    """

    read_at: datetime
    known_at: datetime
    windows: Mapping[int, Windows]  # by their length
    probabilities: Mapping[str, list[Float[ndarray, "members days stocks"]]]
    rules: pd.DataFrame
    days: Windows
    movement: Float[ndarray, "days stocks"]
    survivorship: Survivorship


def run_benchmark(
    experiment: PublishedExperiment, stage: Stage = directly, on_epoch: EpochReport = no_report
) -> Benchmark:
    """Train every model, read the test span once, store its scores, and write the page.

    A benchmark that is already stored is returned without training; its page is written if missing.
    Raises DtmlError where the stored prices end before the test span does, and where they have no
    label in one of the spans.
    """
    experiment.require_test_span()
    stored = stored_benchmark(experiment.context.engine, experiment.id)
    if stored is not None:
        return stored
    chosen = stage("train and choose", lambda: _choose(experiment, on_epoch))
    stage(
        "read the test span",
        lambda: _score_and_store(experiment, chosen, _read_test_once(experiment, chosen)),
    )
    stored = stored_benchmark(experiment.context.engine, experiment.id)
    assert stored is not None
    return stored


def stored_benchmark(engine: Engine, benchmark_id: str) -> Benchmark | None:
    """Return a benchmark from the store, None if it is not stored; write its page if missing."""
    with reading(engine) as conn:
        row = backtests.benchmark(conn, benchmark_id)
        if row is None:
            return None
        scores = backtests.benchmark_scores(conn, benchmark_id)
        seeds = backtests.benchmark_seeds(conn, benchmark_id)
        # The number of this benchmark among those of its market, in the order in which they read
        # the test span: 3 says that two others had read it before.
        ids_of_set = backtests.benchmarks(conn, row["market"])["id"].tolist()
        number = ids_of_set.index(benchmark_id) + 1
        page_file = page_of("benchmark", row)
        if not page_file.exists():
            # Of the stock-days of the scoreboard's protocol "all": with an outcome, predicted by
            # every model.
            history = predictions.prediction_history(
                conn,
                market=row["market"],
                kind="benchmark",
                first=row["test_first"],
                last=row["test_last"],
            )
            models = scores[~scores["is_rule"]]
            runs = dict(zip(models["predictor"], models["run_id"], strict=True))
            is_of_run = history["run_id"].isin(runs.values())  # not of other benchmarks of the set
            has_outcome = history["realised_return"].notna()
            # A row a stock-day, a column a run. `dropna` leaves the stock-days that every model
            # predicted.
            probabilities = (
                history[is_of_run & has_outcome]
                .pivot(
                    index=["target", "symbol", "realised_return"],
                    columns="run_id",
                    values="probability",
                )
                .dropna()
            )
            rose = probabilities.index.get_level_values("realised_return") > 0
            curves = {
                name: calibration_curve(probabilities[run].to_numpy(), rose)
                for name, run in runs.items()
            }
            page = benchmark_page(
                benchmark=row, scores=scores, seed_scores=seeds, curves=curves, number=number
            )
            write_page(page_file, page)
    return Benchmark(row=row, scores=scores, seeds=seeds, number=number, page=page_file)


def _choose(experiment: PublishedExperiment, on_epoch: EpochReport) -> Chosen:
    """Train every model, sort the trials of each, and choose the naive rule to beat.

    Trials are sorted by accuracy on validation, best first.
    """
    start = time.perf_counter()
    # An earlier process may have done a part, whose time is not known.
    is_whole = not was_begun(experiment)
    models: dict[str, list[Trial]] = {}
    for name, trials in train_models(experiment, on_epoch).items():
        # The sort is stable: among equals, the published configuration stays first.
        models[name] = sorted(trials, key=lambda trial: -trial.validation_acc)
    best_rule = experiment.best_rule()
    seconds = time.perf_counter() - start if is_whole else None
    return Chosen(models=models, best_rule=best_rule, seconds=seconds)


def _read_test_once(experiment: PublishedExperiment, chosen: Chosen) -> Test:
    """Load the test span, and predict it with every trial of every model.

    It is called once, by `run_benchmark`, after all choices were made (`chosen`): a test span that
    is read before could influence them.
    """
    read_at = datetime.now(UTC)
    windows, bars, known_at = experiment.read_test()
    days = windows[experiment.window]
    probabilities = {
        name: [trial.probability(windows[trial.window]) for trial in trials]
        for name, trials in chosen.models.items()
    }
    # The movement of the windows is in single precision. These returns are computed in double
    # precision, as a night's outcomes are, for the stock-days on which the windows have one.
    returns = returns_between(
        bars, days.as_of, days.target, days.symbols, experiment.context.market.returns
    )
    movement = np.where(days.movement.isfinite().numpy(), returns, np.nan)
    return Test(
        read_at=read_at,
        known_at=known_at,
        windows=windows,
        probabilities=probabilities,
        rules=experiment.rule_directions(bars, days),
        days=days,
        movement=movement,
        survivorship=survivorship_of(experiment.context.market, days.target, bars),
    )


def _score_and_store(experiment: PublishedExperiment, chosen: Chosen, test: Test) -> None:
    """Score every model and rule on the test span, and store the benchmark with its runs.

    The outcomes of the test span are stored too, and nights of the market that they settle are
    scored (`record_outcomes`). A page of the benchmark's name is removed.
    """
    predictors: list[Predictor] = []
    for name, trials in chosen.models.items():
        configurations = sum(trial.tried for trial in trials)
        of_chosen_trial = test.probabilities[name][0]
        predictors.append(Predictor(name, of_chosen_trial, configurations=configurations))
    for rule in test.rules.columns:
        by_day = test.rules[rule].to_numpy(dtype=float)
        # A rule is one member that says the same of every stock: [1 member, days, stocks].
        directions = np.broadcast_to(by_day[None, :, None], (1, *test.movement.shape))
        predictors.append(Predictor(rule, directions, is_rule=True))
    scores = scoreboard(predictors, movement=test.movement, target=test.days.target)
    published = [_published_figures(experiment, row) for row in scores.to_dict("records")]
    scores = scores.join(pd.DataFrame(published))  # a row for each score, in the same order
    scores["run_id"] = [
        None if row.is_rule else f"{experiment.id}-{row.predictor}" for row in scores.itertuples()
    ]
    # Seeds are scored on none but the stock-days that all predictors have.
    is_common = common_stock_days(predictors, test.movement, test.days.target)
    movement = np.where(is_common, test.movement, np.nan)
    rows: list[dict[str, Any]] = []
    for name, trials in chosen.models.items():
        for number, trial in enumerate(trials):
            acc, mcc = member_scores(test.probabilities[name][number], movement)
            for position, member in enumerate(trial.members):
                rows.append(
                    {
                        "predictor": name,
                        "configuration": number,
                        "seed": member.seed,
                        "settings": trial.settings,
                        "kept": number == 0,  # the chosen trial comes first
                        "best_epoch": member.best_epoch,
                        "validation_acc": member.validation_acc,
                        "validation_loss": member.validation_loss,
                        "acc": acc[position],
                        "mcc": mcc[position],
                    }
                )
    seeds = pd.DataFrame(rows)
    row = _benchmark_row(experiment, chosen, test)
    with transaction(experiment.context.engine) as conn:
        for name, trials in chosen.models.items():
            _store_run(conn, experiment, name, trials[0], test)
        returns = _stock_day_rows(test.days, realised_return=test.movement)
        outcomes = outcome_rows(
            returns["symbol"], returns["target"], returns["realised_return"].to_numpy()
        )
        record_outcomes(
            conn,
            experiment.context,
            # From these bars come the rules beside which the settled nights are scored.
            NightBars(experiment.context, experiment.paper.test[1]),
            outcomes,
            known_at=test.known_at,
            recorded_at=test.read_at,
        )
        backtests.save_benchmark(conn, row, scores, seeds)
    # A page of this name may be left from another store. `stored_benchmark` writes the new one.
    page_of("benchmark", row).unlink(missing_ok=True)


def _published_figures(experiment: PublishedExperiment, row: Mapping[Any, Any]) -> dict[str, float]:
    """Return the paper's ACC and MCC of the predictor of a score, with their standard deviations.

    The names are those of columns, such as `published_acc_sd`. They are NaN if the paper has no
    figures of the predictor, or if the score is under another label protocol than the paper's,
    "published".
    """
    figure = None
    if row["protocol"] == "published":
        figure = experiment.paper.published.get(row["predictor"])
    names = ("acc", "acc_sd", "mcc", "mcc_sd")
    return {
        f"published_{name}": np.nan if figure is None else getattr(figure, name) for name in names
    }


def _benchmark_row(experiment: PublishedExperiment, chosen: Chosen, test: Test) -> dict[str, Any]:
    """Return the row of a benchmark: its spans, and the settings of the chosen trials.

    A model's chosen trial is its first. Beside the settings lie the counts of the list of stocks,
    under "list", and the notes of the published set on its data, if it has any, under "data".
    """
    train, validation = experiment.spans(experiment.window)
    spans = {"train": train, "validation": validation, "test": test.days}
    config: dict[str, Any] = {name: trials[0].settings for name, trials in chosen.models.items()}
    if experiment.paper.notes:
        config["data"] = list(experiment.paper.notes)
    config["list"] = test.survivorship.stored
    return {
        "id": experiment.id,
        "market": experiment.paper.market,
        "title": experiment.context.market.title,
        "config": config,
        "code_version": version("dtml-nightshift"),
        "data_watermark": test.known_at,
        "stocks": len(test.days.symbols),
        **{f"{name}_first": days.target[0].date() for name, days in spans.items()},
        **{f"{name}_last": days.target[-1].date() for name, days in spans.items()},
        "best_rule": chosen.best_rule,
        "seconds": chosen.seconds,
        "device": choose_device(experiment.context.device).type,
        "test_read_at": test.read_at,
    }


def _store_run(
    conn: Connection, experiment: PublishedExperiment, name: str, trial: Trial, test: Test
) -> None:
    """Store a model as a run with its predictions of the test span, and its weights on disk.

    `trial` is the model's chosen one, its first. A classifier has no weights to store.
    """
    run_id = f"{experiment.id}-{name}"
    path = Path("models") / f"{run_id}.safetensors"
    sha = None
    if trial.ensemble is not None:
        sha = save_ensemble(trial.ensemble, data_folder() / path, write_whole)
    train, validation = experiment.spans(trial.window)
    _bars, watermark = experiment.known  # the bars on which the model was trained and chosen
    losses = [
        {"seed": member.seed, "best_epoch": member.best_epoch, "epochs": list(member.epochs)}
        for member in trial.members
    ]
    run = {
        "id": run_id,
        "market": experiment.paper.market,
        "kind": "benchmark",
        "model": name,
        "config": trial.settings,
        "seeds": [member.seed for member in trial.members],
        "code_version": version("dtml-nightshift"),
        "data_watermark": watermark,
        "checkpoint_path": None if sha is None else str(path),
        "checkpoint_hash": sha,
        "losses": losses,
        "train_first": train.target[0].date(),
        "train_last": validation.target[-1].date(),
        "created_at": test.read_at,
        "computed_by": computed_by(choose_device(experiment.context.device)),
    }
    stored_runs.save_run(conn, run)
    probabilities = test.probabilities[name][0]  # [members days stocks] of the chosen trial
    rows = _stock_day_rows(
        test.windows[trial.window],
        probability=probabilities.mean(axis=0),
        probability_std=probabilities.std(axis=0),
    )
    rows = rows.assign(run_id=run_id)
    predictions.save_predictions(
        conn, experiment.paper.market, rows, known_at=test.known_at, made_at=test.read_at
    )


def _stock_day_rows(windows: Windows, **values: Float[ndarray, "days stocks"]) -> pd.DataFrame:
    """Return a row for each stock-day on which the first of the values is known.

    Columns: as_of, target, symbol, and the values under their names.
    """
    first_values = next(iter(values.values()))
    # The places of each known value on the axes of days and of stocks.
    day_places, stock_places = np.nonzero(np.isfinite(first_values))
    columns: dict[str, Any] = {
        "as_of": windows.as_of[day_places],
        "target": windows.target[day_places],
        "symbol": pd.Index(windows.symbols)[stock_places],
    }
    for name, value in values.items():
        columns[name] = value[day_places, stock_places]
    return pd.DataFrame(columns)
