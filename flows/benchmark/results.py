"""Read the test span of a benchmark once, score every model on it, store the scores and publish
their page.

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
from db.rows import benchmarks, predictions
from db.rows import runs as stored_runs
from dtml.checkpoints import save_ensemble
from dtml.evaluation.calibration import calibration_curve
from dtml.evaluation.scoreboard import Predictor, common_stock_days, member_scores, scoreboard
from dtml.inference import choose_device
from dtml.pages.benchmark import benchmark_page
from dtml.prices.returns import returns_between
from dtml.training.fit import EpochReport, no_report
from dtml.windows import Windows
from flows.benchmark.train import PublishedExperiment, Trial, train_models, was_begun
from flows.nightly.night import Stage, directly
from flows.nightly.score import outcome_rows, record_outcomes
from flows.settings import data_folder, page_of, write_page
from translation.atomic_files import write_whole


@dataclass(frozen=True)
class Benchmark:
    """Hold a benchmark as stored: its row, scores, seeds, its number among
    those of its set, and its page.
    """

    row: Mapping[str, Any]
    scores: pd.DataFrame
    seeds: pd.DataFrame
    number: int
    page: Path


@dataclass(frozen=True)
class Chosen:
    """Hold all that is decided before the test span is read; each model's best
    configuration on validation is first.
    """

    models: Mapping[str, list[Trial]]
    best_rule: str
    seconds: float | None  # of all trainings; None if an earlier process did a part


@dataclass(frozen=True)
class Test:
    """Hold the test span as read: windows by their length, what each model said, and what the rules
    said.

    `movement` is in double precision, a ratio minus 1, NaN where it is unknown.
    """

    read_at: datetime
    known_at: datetime
    windows: Mapping[int, Windows]
    said: Mapping[str, list[Float[ndarray, "members days stocks"]]]  # by model and configuration
    rules: pd.DataFrame
    days: Windows
    movement: Float[ndarray, "days stocks"]


def run_benchmark(
    experiment: PublishedExperiment, stage: Stage = directly, on_epoch: EpochReport = no_report
) -> Benchmark:
    """Train every model, then read the test span and store its scores; a stored
    benchmark is returned as it is.
    """
    experiment.require_test_span()
    if (stored := stored_benchmark(experiment.context.engine, experiment.id)) is None:
        chosen = stage("train and choose", lambda: _choose(experiment, on_epoch))
        stage(
            "read the test span",
            lambda: _score(experiment, chosen, _read_test_once(experiment, chosen)),
        )
        stored = stored_benchmark(experiment.context.engine, experiment.id)
        assert stored is not None
    return stored


def stored_benchmark(engine: Engine, benchmark_id: str) -> Benchmark | None:
    """Return a benchmark from the store, or None; write its page where it is missing."""
    with reading(engine) as conn:
        row = benchmarks.benchmark(conn, benchmark_id)
        if row is None:
            return None
        scores = benchmarks.benchmark_scores(conn, benchmark_id)
        seeds = benchmarks.benchmark_seeds(conn, benchmark_id)
        number = benchmarks.benchmarks(conn, row["market"])["id"].tolist().index(benchmark_id) + 1
        found = Benchmark(row, scores, seeds, number, page_of("benchmark", row))
        if not found.page.exists():
            curves = _curves(conn, row, scores)
            page = benchmark_page(
                benchmark=row, scores=scores, seed_scores=seeds, curves=curves, number=number
            )
            write_page(found.page, page)
    return found


def _curves(
    conn: Connection, row: Mapping[str, Any], scores: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """Return the calibration of each model's ensemble, on the stock-days that
    the scoreboard has under 'all'.
    """
    span = {"first": row["test_first"], "last": row["test_last"]}
    history = predictions.prediction_history(conn, market=row["market"], kind="benchmark", **span)
    models = scores[~scores["is_rule"]]
    runs = dict(zip(models["predictor"], models["run_id"], strict=True))
    said = history[history["run_id"].isin(runs.values()) & history["realised_return"].notna()]
    said = said.pivot(
        index=["target", "symbol", "realised_return"], columns="run_id", values="probability"
    ).dropna()
    rose = said.index.get_level_values("realised_return") > 0
    return {name: calibration_curve(said[run].to_numpy(), rose) for name, run in runs.items()}


def _choose(experiment: PublishedExperiment, on_epoch: EpochReport) -> Chosen:
    begun, is_whole = time.perf_counter(), not was_begun(experiment)
    models = {
        name: sorted(trials, key=lambda trial: -trial.validation_acc)  # stable: published first
        for name, trials in train_models(experiment, on_epoch).items()
    }
    return Chosen(models, experiment.best_rule(), time.perf_counter() - begun if is_whole else None)


def _read_test_once(experiment: PublishedExperiment, chosen: Chosen) -> Test:
    """Load the test span and predict it with every model."""
    read_at = datetime.now(UTC)
    windows, bars, known_at = experiment.read_test()
    days = windows[experiment.window]
    said = {
        name: [each.probability(windows[each.window]) for each in trials]
        for name, trials in chosen.models.items()
    }
    # In double precision, from prices, as a night's outcomes are.
    returns = returns_between(
        bars, days.as_of, days.target, days.symbols, experiment.context.market.returns
    )
    movement = np.where(days.movement.isfinite().numpy(), returns, np.nan)
    return Test(
        read_at, known_at, windows, said, experiment.rule_directions(bars, days), days, movement
    )


def _score(experiment: PublishedExperiment, chosen: Chosen, test: Test) -> None:
    predictors = [
        Predictor(name, test.said[name][0], configurations=sum(trial.tried for trial in trials))
        for name, trials in chosen.models.items()
    ]
    everyone = (1, *test.movement.shape)
    for rule in test.rules.columns:
        directions = np.broadcast_to(
            test.rules[rule].to_numpy(dtype=float)[None, :, None], everyone
        )
        predictors.append(Predictor(rule, directions, is_rule=True))
    scores = scoreboard(
        predictors, movement=test.movement, target=test.days.target, best_rule=chosen.best_rule
    )
    scores = scores.join(
        pd.DataFrame([_published(experiment, row) for row in scores.to_dict("records")])
    )
    scores["run_id"] = [
        None if row.is_rule else f"{experiment.id}-{row.predictor}" for row in scores.itertuples()
    ]
    counted = np.where(
        common_stock_days(predictors, test.movement, test.days.target), test.movement, np.nan
    )
    row, seeds = _benchmark_row(experiment, chosen, test), _seeds(chosen, test, counted)
    with transaction(experiment.context.engine) as conn:
        for name, trials in chosen.models.items():
            _store_run(conn, experiment, name, trials[0], test)
        known = _long(test.days, realised_return=test.movement)
        outcomes = outcome_rows(
            known["symbol"], known["target"], known["realised_return"].to_numpy()
        )
        record_outcomes(
            conn, experiment.context, outcomes, known_at=test.known_at, recorded_at=test.read_at
        )
        benchmarks.save_benchmark(conn, row, scores, seeds)
    page_of("benchmark", row).unlink(missing_ok=True)  # it may be left from another store


def _published(experiment: PublishedExperiment, row: Mapping[Any, Any]) -> dict[str, float]:
    """Return the published figure, which is of the paper's labels."""
    figure = (
        experiment.paper.published.get(row["predictor"]) if row["protocol"] == "paper" else None
    )
    names = ("acc", "acc_sd", "mcc", "mcc_sd")
    return {
        f"published_{name}": np.nan if figure is None else getattr(figure, name) for name in names
    }


def _benchmark_row(experiment: PublishedExperiment, chosen: Chosen, test: Test) -> dict[str, Any]:
    """Return the row of a benchmark: its spans, and the settings of the chosen trials.

    A model's chosen trial is its first. Notes on the data lie beside the settings.
    """
    train, validation = experiment.spans(experiment.window)
    spans = {"train": train, "validation": validation, "test": test.days}
    data = {"data": list(experiment.paper.notes)} if experiment.paper.notes else {}
    return {
        "id": experiment.id,
        "market": experiment.paper.market,
        "title": experiment.context.market.title,
        "config": {name: trials[0].settings for name, trials in chosen.models.items()} | data,
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


def _seeds(chosen: Chosen, test: Test, movement: Float[ndarray, "days stocks"]) -> pd.DataFrame:
    """Return one row a model, configuration and seed, scored where `movement` is known."""
    rows = []
    for name, trials in chosen.models.items():
        for number, trial in enumerate(trials):
            acc, mcc = member_scores(test.said[name][number], movement)
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
    return pd.DataFrame(rows)


def _store_run(
    conn: Connection, experiment: PublishedExperiment, name: str, trial: Trial, test: Test
) -> None:
    """Store the model as a run with its predictions of the test span, and its
    weights in a checkpoint.
    """
    run_id = f"{experiment.id}-{name}"
    path = Path("models") / f"{run_id}.safetensors"
    sha = (
        None
        if trial.ensemble is None
        else save_ensemble(trial.ensemble, data_folder() / path, write_whole)
    )
    train, validation = experiment.spans(trial.window)
    losses = [
        {"seed": each.seed, "best_epoch": each.best_epoch, "epochs": list(each.epochs)}
        for each in trial.members
    ]
    run = {
        "id": run_id,
        "market": experiment.paper.market,
        "kind": "benchmark",
        "model": name,
        "config": trial.settings,
        "seeds": [member.seed for member in trial.members],
        "code_version": version("dtml-nightshift"),
        "data_watermark": experiment.known[1],
        "checkpoint_path": None if sha is None else str(path),
        "checkpoint_hash": sha,
        "losses": losses,
        "train_first": train.target[0].date(),
        "train_last": validation.target[-1].date(),
        "created_at": test.read_at,
    }
    stored_runs.save_run(conn, run)
    windows, said = test.windows[trial.window], test.said[name][0]
    made = _long(windows, probability=said.mean(axis=0), probability_std=said.std(axis=0)).assign(
        run_id=run_id
    )
    predictions.save_predictions(
        conn, experiment.paper.market, made, known_at=test.known_at, made_at=test.read_at
    )


def _long(windows: Windows, **values: Float[ndarray, "days stocks"]) -> pd.DataFrame:
    """Return one row for each stock-day that has the first of the values."""
    day, stock = np.nonzero(np.isfinite(next(iter(values.values()))))
    keys = {
        "as_of": windows.as_of[day],
        "target": windows.target[day],
        "symbol": pd.Index(windows.symbols)[stock],
    }
    return pd.DataFrame(keys | {name: value[day, stock] for name, value in values.items()})
