"""Train the models of the published experiment, read its test span once, and publish the scores.

Only `PublishedExperiment.read_test` loads bars of the test span, called once by `make`, after
models, epochs, configurations and rule were chosen before it. The page comes from the store alone.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy import ndarray
from sqlalchemy import Connection, Engine

from db import where
from db.engine import reading, transaction
from db.read import read, read_row
from db.rows import backtests, predictions, prices
from db.save import save
from dtml.baselines.classifiers import Kind, fit_classifier
from dtml.baselines.naive_rules import choose_rule, directions_on, stock_directions
from dtml.checkpoints import Ensemble, save_ensemble
from dtml.devices import Load, choose_device
from dtml.errors import DtmlError
from dtml.evaluation.calibration import count_bins, curve_with_intervals
from dtml.evaluation.scoreboard import Predictor, common_stock_days, member_scores, scoreboard
from dtml.evaluation.survivorship import survivorship_of
from dtml.inference import member_probabilities
from dtml.machine import computed_by, torch_build
from dtml.pages.benchmark import benchmark_page
from dtml.prices.returns import adjusted_price, returns_between
from dtml.published import PublishedSet, Recipe, grid
from dtml.training import (
    EpochReport,
    Fit,
    Member,
    fit_members,
    no_report,
    stack_members,
)
from dtml.windows import WindowConfig, Windows
from flows.nightly.context import MarketContext, stored_bars
from flows.nightly.train import windows_of
from flows.progress import training_progress
from flows.service.tasks import as_task
from flows.settings import data_folder
from flows.studies.backtest import stock_day_rows, store_outcomes
from flows.studies.study import Study, study_id

log = logging.getLogger(__name__)

OfMembers = Float[ndarray, "members days stocks"]


@dataclass(frozen=True)
class Trial:
    """One configuration of one model, fitted with every seed.

    `window` in sessions. `members`: `seed`, `validation_acc`, `validation_loss`, `best_epoch`,
    `epochs`, the last three not of classifiers. `probability` predicts windows with all.
    """

    settings: dict[str, Any]
    window: int
    members: list[dict[str, Any]]
    probability: Callable[[Windows], OfMembers]
    tried: int = 1  # settings that the fit of a classifier compared on validation
    ensemble: Ensemble | None = None  # the weights, of a network

    @property
    def validation_acc(self) -> float:
        """Return the mean accuracy over the seeds, by which a configuration is chosen."""
        return float(np.mean([member["validation_acc"] for member in self.members]))


Trials = Mapping[str, list[Trial]]  # by model; the best on validation comes first


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as stored: its row, and its rows of `benchmark_score` and `benchmark_seed`."""

    row: dict[str, Any]
    scores: pd.DataFrame
    seeds: pd.DataFrame
    number: int  # among the benchmarks of its set, from 1 on


@dataclass(frozen=True)
class PublishedExperiment(Study[Benchmark]):
    """A published set, the models to train on it, and the prices before its test span."""

    context: MarketContext
    paper: PublishedSet
    seeds: tuple[int, ...]
    with_grid: bool = False  # whether DTML is trained with other configurations too

    table = "benchmark"
    read_at = "test_read_at"

    @property
    def engine(self) -> Engine:
        """Return the store."""
        return self.context.engine

    @property
    def place(self) -> torch.device:
        """Return the device that computes, which "auto" chooses by all trainings."""
        first, last = self.paper.train
        loads = [
            Load.of(
                recipe.model,
                recipe.training,
                seeds=len(self.seeds),
                days=len(pd.bdate_range(first, last)),
                stocks=len(self.context.market.symbols),
                window=recipe.window,
            )
            for recipes in self.recipes.values()
            for recipe in recipes
        ]
        return choose_device(self.context.device, loads)

    @cached_property
    def known(self) -> tuple[pd.DataFrame, datetime]:
        """Return the bars up to the end of validation, and their watermark."""
        return stored_bars(self.context, date.min, self.paper.validation[1])

    @cached_property
    def last_session(self) -> date | None:
        """Return the last session that the index and half of the stocks reach, or None."""
        with reading(self.engine) as conn:
            stored = prices.last_sessions(conn, self.context.name)
        stocks = self.context.market.symbols
        latest_first = stored.reindex(list(stocks)).sort_values(ascending=False)
        # That of the stock in the middle, missing for more than half: half of them reach it.
        of_half_the_stocks = latest_first.iloc[(len(stocks) + 1) // 2 - 1]
        of_index = stored.get(self.context.market.index.symbol)
        ends = pd.Series([of_half_the_stocks, of_index, pd.Timestamp(self.paper.test[1])])
        last = ends.min(skipna=False)
        return None if pd.isna(last) else last.date()

    def require_test_span(self) -> None:
        """Raise DtmlError unless the store holds the test span, or its public prices."""
        due = self.paper.last_session
        last = self.last_session
        if last is None or last < due:
            name = self.paper.market
            stored = f"has prices of {name} up to {last}"
            if last is None:
                stored = (
                    f"lacks the index {self.context.market.index.symbol} of {name}, or more than "
                    "half of its stocks"
                )
            raise DtmlError(
                f"the store {stored}, but the test span, which is read only once, ends on {due}: "
                f"run `dtml benchmark {name} --prices FILE --index FILE` with files of the whole "
                "set"
            )

    @property
    def window(self) -> int:
        """Return the length of DTML's window, in sessions, which decides the days scored."""
        return self.paper.recipes["dtml"].window

    @property
    def windows(self) -> list[int]:
        """Return every length of window among the models, the longest first."""
        lengths = {recipe.window for recipes in self.recipes.values() for recipe in recipes}
        return sorted(lengths, reverse=True)

    @cached_property
    def recipes(self) -> dict[str, list[Recipe]]:
        """Return the configurations of each network, the published one first."""
        recipes = {name: [published] for name, published in self.paper.recipes.items()}
        if self.with_grid:
            published = self.paper.recipes["dtml"]
            recipes["dtml"] += [recipe for recipe in grid(published) if recipe != published]
        return recipes

    @cached_property
    def id(self) -> str:
        """Return the name of the experiment, without prices of the test span."""
        market = self.context.market
        settings = [
            {name: list(map(recipe_settings, each)) for name, each in self.recipes.items()},
            [asdict(self.window_config(window)) for window in self.windows],
            [self.paper.train, self.paper.validation, self.paper.test, self.last_session],
            self.seeds,
            market.index.symbol,
            market.symbols,
            [torch_build(), version("scikit-learn"), self.place.type],
        ]
        return study_id(self.paper.market, self.paper.test[0], settings, self.known[0])

    def spans(self, window: int) -> tuple[Windows, Windows]:
        """Return training and validation days, in such windows; DtmlError without a label."""
        windows = self._known_windows[window]
        train = self._days_of(windows, self.paper.train)
        return train, self._days_of(windows, self.paper.validation)

    def read_test(self) -> tuple[dict[int, Windows], pd.DataFrame, datetime]:
        """Return the test days by length of windows, the bars up to their end, and their watermark.

        Nothing else loads bars of the test span before. Raises DtmlError without a label.
        """
        bars, known_at = stored_bars(self.context, date.min, self.paper.test[1])
        test_days = {}
        for window, windows in self._windows_of(bars).items():
            days = self._days_of(windows, self.paper.test)
            # Else the last day would be the one after the last bar, which has no outcome.
            day_places = days.movement.isfinite().any(dim=1).nonzero()  # [days with a return, 1]
            test_days[window] = days.days(slice(int(day_places[0]), int(day_places[-1]) + 1))
        return test_days, bars, known_at

    def _days_of(self, windows: Windows, span: Sequence[date]) -> Windows:
        first, last = span
        days = windows.between(pd.Timestamp(first), pd.Timestamp(last))
        if not days.labelled("published").any():
            raise DtmlError(
                f"the store has no outcome of {self.paper.market} from {first} to {last}: run "
                f"`dtml fetch {self.paper.market} --again --prices FILE --index FILE` with files "
                "of the whole set"
            )
        return days

    @cached_property
    def _known_windows(self) -> dict[int, Windows]:
        return self._windows_of(self.known[0])

    def _windows_of(self, bars: pd.DataFrame) -> dict[int, Windows]:
        symbols = self.context.market.symbols
        return {
            window: windows_of(self.context, bars, self.window_config(window), symbols)
            for window in self.windows
        }

    def window_config(self, window: int) -> WindowConfig:
        """Return the settings by which the market's bars become windows of this length."""
        return replace(self.context.experiment.windows, window=window)

    def rule_directions(
        self, bars: pd.DataFrame, windows: Windows
    ) -> dict[str, Float[ndarray, "days stocks"]]:
        """Return the directions of the naive rules for the stock-days of these windows."""
        market = self.context.market
        of_days = directions_on(windows.as_of, bars, market.index.symbol)
        priced = bars.assign(price=adjusted_price(bars, market.returns))
        prices = priced.set_index(["symbol", "session"])["price"].sort_index()
        shape = windows.movement.shape
        return {
            str(rule): np.broadcast_to(of_day.to_numpy()[:, None], shape)
            for rule, of_day in of_days.items()
        } | stock_directions(windows.as_of, prices, windows.symbols)

    def members(self, window: int | None = None) -> dict[tuple[str, Recipe, int], Member]:
        """Return the networks to train, of this or any `window`, by model, recipe and seed."""
        return {
            (name, recipe, seed): Member(seed, recipe.model, recipe.training)
            for name, recipes in self.recipes.items()
            for recipe in recipes
            for seed in self.seeds
            if window in (None, recipe.window)
        }

    def stored(self) -> Benchmark | None:
        """Return the benchmark from the store, None if it is not stored."""
        with reading(self.engine) as conn:
            row = read_row(conn, "benchmark", id=self.id)
            if row is None:
                return None
            of_benchmark: dict[str, Any] = {"columns": "-benchmark_id", "benchmark_id": self.id}
            scores = read(conn, "benchmark_score", order="protocol, predictor", **of_benchmark)
            seeds = read(conn, "benchmark_seed", **of_benchmark)
            # Its place among those of its market, in the order in which they read the test span: 3
            # says that two others had read it before.
            until = where.until(row["test_read_at"])
            so_far = read(conn, "benchmark", columns="id", market=row["market"], test_read_at=until)
        return Benchmark(row, scores, seeds, number=len(so_far))

    def page(self, stored: Benchmark) -> str:
        """Render the page from what is stored."""
        with reading(self.engine) as conn:
            curves = _calibration_curves(conn, stored)
        return benchmark_page(
            benchmark=stored.row,
            scores=stored.scores,
            seed_scores=stored.seeds,
            curves=curves,
            number=stored.number,
        )

    def make(self) -> None:
        """Train every model, read the test span once, and store its scores.

        Raises DtmlError where stored prices end before it, or a span has no label.
        """
        self.require_test_span()
        trials, decided = as_task("train and choose", lambda: _choose(self))
        as_task("read the test span", lambda: _score_and_store(self, trials, decided))


def recipe_settings(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values, for a digest or a row."""
    return {
        "window": recipe.window,
        "network": type(recipe.model).__name__,
        **asdict(recipe.model),
        **asdict(recipe.training),
    }


def train_models(
    experiment: PublishedExperiment, on_epoch: EpochReport = no_report
) -> dict[str, list[Trial]]:
    """Fit every configuration of every model with every seed, resuming; trials by model."""
    fits: dict[tuple[str, Recipe, int], Fit] = {}
    for window in experiment.windows:
        members = experiment.members(window)
        fits_of_window = fit_members(
            *experiment.spans(window),
            list(members.values()),
            device=experiment.place,
            state_folder=experiment.folder / str(window),
            on_epoch=on_epoch,
        )
        fits.update(zip(members, fits_of_window, strict=True))
    trials: dict[str, list[Trial]] = {name: [] for name in experiment.recipes}
    for name, recipes in experiment.recipes.items():
        for recipe in recipes:
            of_recipe = [fits[name, recipe, seed] for seed in experiment.seeds]
            trials[name].append(_network_trial(experiment, recipe, of_recipe))
    return trials | {kind: [_train_classifier(experiment, kind)] for kind in get_args(Kind)}


def _network_trial(experiment: PublishedExperiment, recipe: Recipe, fits: list[Fit]) -> Trial:
    ensemble = Ensemble(
        market=experiment.paper.market,
        symbols=experiment.context.market.symbols,
        seeds=experiment.seeds,
        model=recipe.model,
        windows=experiment.window_config(recipe.window),
        weights=stack_members(fits),
    )
    device = experiment.place
    members = []
    for fit in fits:
        best = fit.epochs[fit.best_epoch - 1]  # epochs are numbered from 1
        members.append(
            {
                "seed": fit.member.seed,
                "best_epoch": best.number,
                "validation_acc": best.validation_acc,
                "validation_loss": best.validation_loss,
                "epochs": [asdict(epoch) for epoch in fit.epochs],
            }
        )
    return Trial(
        settings=recipe_settings(recipe),
        window=recipe.window,
        members=members,
        probability=lambda windows: (
            member_probabilities(ensemble, windows, device).double().numpy()
        ),
        ensemble=ensemble,
    )


def _train_classifier(experiment: PublishedExperiment, kind: Kind) -> Trial:
    """Fit a classifier on DTML's windows with every seed, a logistic regression once."""
    spans = experiment.spans(experiment.window)
    seeds = experiment.seeds[:1] if kind == "logistic_regression" else experiment.seeds
    classifiers = []
    for seed in seeds:
        log.info("fitting %s, seed %d", kind, seed)
        classifiers.append(fit_classifier(kind, *spans, "published", seed))
    unknown: dict[str, Any] = {"best_epoch": None, "validation_loss": None, "epochs": []}
    chosen = [dict(classifier.chosen) for classifier in classifiers]
    return Trial(
        settings={"window": experiment.window, "chosen": chosen},
        window=experiment.window,
        members=[
            {"seed": seed, "validation_acc": classifier.validation_acc, **unknown}
            for seed, classifier in zip(seeds, classifiers, strict=True)
        ],
        probability=lambda windows: np.stack([each.probability(windows) for each in classifiers]),
        tried=classifiers[0].tried,  # the same number for every seed
    )


def _choose(experiment: PublishedExperiment) -> tuple[Trials, dict[str, Any]]:
    """Return the trials, and `best_rule` on the training span and `seconds` (None: in parts)."""
    start = time.perf_counter()
    was_begun = any(experiment.folder.rglob("*.safetensors"))
    members = experiment.members()
    windows = [recipe.window for _model, recipe, _seed in members]
    with training_progress(list(members.values()), windows) as on_epoch:
        trained = train_models(experiment, on_epoch)
    # The sort is stable: among equals, the published configuration stays first.
    trials = {
        name: sorted(each, key=lambda trial: -trial.validation_acc)
        for name, each in trained.items()
    }
    train, _validation = experiment.spans(experiment.window)
    directions = experiment.rule_directions(experiment.known[0], train)
    best_rule = choose_rule(directions, train.movement.numpy())
    seconds = None if was_begun else time.perf_counter() - start
    return trials, {"best_rule": best_rule, "seconds": seconds}


def _score_and_store(
    experiment: PublishedExperiment, trials: Trials, decided: Mapping[str, Any]
) -> None:
    """Read the test span, score every model and rule on it, and store the benchmark with its runs.

    Once, after all choices. Its outcomes are stored too, and nights scored (`record_outcomes`).
    """
    read_at = datetime.now(UTC)
    market = experiment.context.market
    windows, bars, known_at = experiment.read_test()
    days = windows[experiment.window]
    probabilities = {
        name: [trial.probability(windows[trial.window]) for trial in each]
        for name, each in trials.items()
    }
    # The movement of the windows is in single precision. These returns are computed in double
    # precision, as a night's outcomes are, for the stock-days on which the windows have one.
    returns = returns_between(bars, days.as_of, days.target, days.symbols, market.returns)
    movement = np.where(days.movement.isfinite().numpy(), returns, np.nan)
    predictors = [
        Predictor(
            name,
            probabilities[name][0],  # of the chosen trial
            configurations=sum(trial.tried for trial in each),
        )
        for name, each in trials.items()
    ]
    for rule, directions in experiment.rule_directions(bars, days).items():
        predictors.append(Predictor(rule, directions[None], is_rule=True))  # one member
    scores = scoreboard(predictors, movement=movement, target=days.target)
    # Those of the paper are under its own label protocol.
    of_paper = {name: asdict(figure) for name, figure in experiment.paper.published.items()}
    published = pd.DataFrame.from_dict(of_paper, orient="index").add_prefix("published_")
    named = scores["predictor"].where(scores["protocol"] == "published")
    scores = scores.join(published.reindex(named).set_axis(scores.index))
    run_ids = f"{experiment.id}-" + scores["predictor"]
    scores["run_id"] = run_ids.astype(object).mask(scores["is_rule"], None)
    # Seeds are scored on none but the stock-days that all predictors have.
    is_common = common_stock_days(predictors, movement, days.target)
    seeds = _seed_rows(trials, probabilities, np.where(is_common, movement, np.nan))
    train, validation = experiment.spans(experiment.window)
    spans = {"train": train, "validation": validation, "test": days}
    config: dict[str, Any] = {name: each[0].settings for name, each in trials.items()}
    if experiment.paper.notes:
        config["data"] = experiment.paper.notes
    config["list"] = asdict(survivorship_of(market, days.target, bars))
    row = {
        "id": experiment.id,
        "market": experiment.paper.market,
        "title": market.title,
        "config": config,
        "code_version": version("dtml-nightshift"),
        "data_watermark": known_at,
        "stocks": len(days.symbols),
        **{f"{name}_first": span.target[0].date() for name, span in spans.items()},
        **{f"{name}_last": span.target[-1].date() for name, span in spans.items()},
        **decided,
        "device": experiment.place.type,
        "test_read_at": read_at,
    }
    with transaction(experiment.engine) as conn:
        for name, each in trials.items():
            run = _run_of(experiment, name, each[0], read_at)
            save(conn, "run", run)
            of_members = probabilities[name][0]  # [members days stocks] of the chosen trial
            predicted = stock_day_rows(
                windows[each[0].window],
                probability=of_members.mean(axis=0),
                probability_std=of_members.std(axis=0),
            )
            owner = {"market": row["market"], "known_at": known_at, "made_at": read_at}
            save(conn, "prediction", predicted.assign(run_id=run["id"]), **owner)
        last = experiment.paper.test[1]
        store_outcomes(conn, experiment.context, last, days, movement, known_at=known_at)
        backtests.save_benchmark(conn, row, scores, seeds)


def _seed_rows(
    trials: Trials,
    probabilities: Mapping[str, list[OfMembers]],
    movement: Float[ndarray, "days stocks"],
) -> pd.DataFrame:
    rows = []
    for name, each in trials.items():
        for number, trial in enumerate(each):
            scores = member_scores(probabilities[name][number], movement)
            rows.append(
                pd.DataFrame(trial.members)
                .drop(columns="epochs")
                .astype({"best_epoch": object, "validation_loss": object})
                .assign(
                    predictor=name,
                    configuration=number,
                    settings=pd.Series([trial.settings] * len(trial.members), dtype=object),
                    kept=number == 0,  # the chosen trial comes first
                    **scores,
                )
            )
    return pd.concat(rows, ignore_index=True)


def _run_of(
    experiment: PublishedExperiment, name: str, trial: Trial, created_at: datetime
) -> dict[str, Any]:
    """Save the weights of a network, and return the row of its run."""
    run_id = f"{experiment.id}-{name}"
    path = Path("models") / f"{run_id}.safetensors"
    sha = None
    if trial.ensemble is not None:
        sha = save_ensemble(trial.ensemble, data_folder() / path)
    train, validation = experiment.spans(trial.window)
    return {
        "id": run_id,
        "market": experiment.paper.market,
        "kind": "benchmark",
        "model": name,
        "config": trial.settings,
        "seeds": [member["seed"] for member in trial.members],
        "code_version": version("dtml-nightshift"),
        "data_watermark": experiment.known[1],  # of the bars on which it was trained and chosen
        "checkpoint_path": None if sha is None else str(path),
        "checkpoint_hash": sha,
        "losses": [
            {key: member[key] for key in ("seed", "best_epoch", "epochs")}
            for member in trial.members
        ],
        "train_first": train.target[0].date(),
        "train_last": validation.target[-1].date(),
        "created_at": created_at,
        "computed_by": computed_by(experiment.place),
    }


def _calibration_curves(conn: Connection, stored: Benchmark) -> dict[str, pd.DataFrame]:
    row = stored.row
    history = predictions.prediction_history(
        conn,
        market=row["market"],
        kind="benchmark",
        first=row["test_first"],
        last=row["test_last"],
    )
    models = stored.scores[~stored.scores["is_rule"]]
    runs = dict(zip(models["predictor"], models["run_id"], strict=True))
    is_of_run = history["run_id"].isin(runs.values())  # not of other benchmarks of the set
    settled = history[is_of_run].dropna(subset="realised_return")
    # The stock-days that every model predicted, as in the protocol "all".
    of_stock_day = settled.groupby(["target", "symbol"])["run_id"]
    common = settled[of_stock_day.transform("nunique") == len(set(runs.values()))]
    common = common.assign(rise=common["realised_return"] > 0)
    return {
        name: curve_with_intervals(count_bins(common[common["run_id"] == run]))
        for name, run in runs.items()
    }
