"""Train the models of the published experiment, read its test span once, and publish the scores.

Until the scores are made, only `PublishedExperiment.read_test` loads bars of the test span, and
`run_benchmark` calls it once. Models, epochs, configurations and the naive rule to beat are chosen
on the training and validation spans, which lie before it. The page comes from the store alone, so
that it is the same when it is written again."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray
from sqlalchemy import Connection, Engine

from db import where
from db.engine import reading, transaction
from db.read import read, read_row
from db.rows import backtests, predictions, prices
from db.save import save
from dtml.baselines.classifiers import Fitted, Kind, fit_classifier
from dtml.baselines.naive_rules import choose_rule, directions_on
from dtml.checkpoints import Ensemble, save_ensemble
from dtml.errors import DtmlError
from dtml.evaluation.calibration import calibration_curve
from dtml.evaluation.scoreboard import Predictor, common_stock_days, member_scores, scoreboard
from dtml.evaluation.survivorship import Survivorship, survivorship_of
from dtml.inference import choose_device, member_probabilities
from dtml.machine import computed_by, torch_build
from dtml.pages.benchmark import benchmark_page
from dtml.prices.returns import returns_between
from dtml.published import PublishedSet, Recipe, grid
from dtml.training.fit import EpochReport, fit_members, no_report, stack_members
from dtml.training.recipe import Member
from dtml.training.state import Fit, StateFolder
from dtml.windows import WindowConfig, Windows
from flows.nightly.context import MarketContext, Tonight, stored_bars
from flows.nightly.night import Stage, directly
from flows.nightly.score import outcome_rows, record_outcomes
from flows.nightly.train import windows_of
from flows.settings import data_folder, page_of, write_page
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)

Probabilities = Callable[[Windows], Float[ndarray, "members days stocks"]]


@dataclass(frozen=True)
class TrainedMember:
    """Hold one seed of one configuration, and its figures on validation.

    A classifier has the accuracy alone: it has no loss and no epochs.
    """

    seed: int
    validation_acc: float
    validation_loss: float | None = None
    best_epoch: int | None = None
    epochs: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Trial:
    """Hold one configuration of one model, a network or a classifier, fitted with every seed.

    `window` is the length of its windows in sessions. `probability` predicts windows with all its
    members, [members days stocks].
    """

    settings: dict[str, Any]
    window: int
    members: list[TrainedMember]
    probability: Probabilities
    tried: int = 1  # settings that the fit of a classifier compared on validation
    ensemble: Ensemble | None = None  # the weights, of a network

    @property
    def validation_acc(self) -> float:
        """Return the mean accuracy over the seeds, by which a configuration is chosen."""
        return float(np.mean([member.validation_acc for member in self.members]))


@dataclass(frozen=True)
class PublishedExperiment:
    """Hold a published set, the models to train on it, and the prices before its test span.

    Prices and windows are read and built when they are first asked for.
    """

    context: MarketContext
    paper: PublishedSet
    seeds: tuple[int, ...]
    with_grid: bool = False  # whether DTML is trained with other configurations too
    # The windows of the days up to the end of validation, by their length.
    _windows: dict[int, Windows] = field(default_factory=dict, repr=False)

    @cached_property
    def known(self) -> tuple[pd.DataFrame, datetime]:
        """Return the bars up to the end of validation, and their watermark."""
        return stored_bars(self.context, date.min, self.paper.validation[1])

    @cached_property
    def last_session(self) -> date | None:
        """Return the last session that the index and at least half of the stocks reach.

        It is at most the end of the test span. It is None if the store lacks the index or more than
        half of the stocks.
        """
        with reading(self.context.engine) as conn:
            stored = prices.last_sessions(conn, self.context.name)
        stocks = self.context.market.symbols
        index = self.context.market.index.symbol
        latest_first = sorted(stored[stored.index.isin(stocks)], reverse=True)
        if index not in stored or 2 * len(latest_first) < len(stocks):
            return None
        # The last session of the stock in the middle: half of the stocks, rounded up, reach it.
        half_of_stocks = (len(stocks) + 1) // 2
        of_half_the_stocks = latest_first[half_of_stocks - 1].date()
        of_index = stored[index].date()
        return min(of_half_the_stocks, of_index, self.paper.test[1])

    def require_test_span(self) -> None:
        """Raise DtmlError unless the store holds the test span to its end.

        If the last prices of a set are not public, the end is that of the public prices.
        """
        due = self.paper.last_session
        last = self.last_session
        if last is None or last < due:
            name = self.paper.market
            index = self.context.market.index.symbol
            stored = f"has prices of {name} up to {last}"
            if last is None:
                with reading(self.context.engine) as conn:
                    has_index = index in prices.last_sessions(conn, name)
                lacking = "more than half of the stocks" if has_index else f"the index {index}"
                stored = f"lacks {lacking} of {name}"
            raise DtmlError(
                f"the store {stored}, but the test span, which is read only once, ends on {due}: "
                f"run `dtml benchmark {name} --prices FILE --index FILE` with files of the whole "
                "set"
            )

    @property
    def window(self) -> int:
        """Return the length of DTML's window, in sessions.

        Classifiers see as many sessions, and all models are scored on the days of these windows.
        """
        return self.paper.recipes["dtml"].window

    @property
    def windows(self) -> list[int]:
        """Return every length of window among the models, the longest first."""
        lengths: set[int] = set()
        for recipes in self.recipes.values():
            lengths.update(recipe.window for recipe in recipes)
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
        """Return the name of the experiment: its set, and a digest of all that decides the scores.

        Of the prices in the test span, the digest has only the last session: they are not read yet.
        """
        settings_of_recipes = {
            name: [recipe_settings(recipe) for recipe in recipes]
            for name, recipes in self.recipes.items()
        }
        settings_of_windows = [asdict(self.window_config(window)) for window in self.windows]
        spans = [self.paper.train, self.paper.validation, self.paper.test, self.last_session]
        device = choose_device(self.context.device).type
        made_by = [version("dtml-nightshift"), torch_build(), version("scikit-learn"), device]
        settings = [
            settings_of_recipes,
            settings_of_windows,
            spans,
            self.seeds,
            self.context.market.index.symbol,
            self.context.market.symbols,
            made_by,
        ]
        bars, _watermark = self.known
        row_hashes = pd.util.hash_pandas_object(bars, index=False)
        digest = hashlib.sha256(json.dumps(settings, default=str).encode())
        digest.update(row_hashes.to_numpy().tobytes())
        return f"{self.paper.market}-{digest.hexdigest()[:8]}"

    def spans(self, window: int) -> tuple[Windows, Windows]:
        """Return the training days and the validation days, in windows of this length.

        Raises DtmlError if no day of one of the two has a label.
        """
        if window not in self._windows:
            bars, _watermark = self.known
            self._windows[window] = self._build_windows(bars, window)
        windows = self._windows[window]
        train = self._days_of(windows, self.paper.train)
        validation = self._days_of(windows, self.paper.validation)
        return train, validation

    def read_test(self) -> tuple[dict[int, Windows], pd.DataFrame, datetime]:
        """Return the test days by the length of their windows, and the bars up to their end.

        The third value is the watermark of these bars. Until the scores are made, nothing else
        loads bars of the test span. Raises DtmlError if no test day has a label.
        """
        bars, known_at = stored_bars(self.context, date.min, self.paper.test[1])
        test_days: dict[int, Windows] = {}
        for window in self.windows:
            days = self._days_of(self._build_windows(bars, window), self.paper.test)
            # Else the last day would be the one after the last bar, which has no outcome.
            has_return = days.movement.isfinite().any(dim=1)  # [days], of any stock
            day_places = has_return.nonzero()  # [days with a return, 1]
            test_days[window] = days.days(slice(int(day_places[0]), int(day_places[-1]) + 1))
        return test_days, bars, known_at

    def _days_of(self, windows: Windows, span: tuple[date, date]) -> Windows:
        first, last = span
        days = windows.between(pd.Timestamp(first), pd.Timestamp(last))
        if not days.labelled("published").any():
            raise DtmlError(
                f"the store has no outcome of {self.paper.market} from {first} to {last}: run "
                f"`dtml fetch {self.paper.market} --again --prices FILE --index FILE` with files "
                "of the whole set"
            )
        return days

    def _build_windows(self, bars: pd.DataFrame, window: int) -> Windows:
        return windows_of(
            self.context, bars, self.window_config(window), self.context.market.symbols
        )

    def window_config(self, window: int) -> WindowConfig:
        """Return the settings by which the market's bars become windows of this length."""
        return replace(self.context.experiment.windows, window=window)

    def rule_directions(self, bars: pd.DataFrame, windows: Windows) -> pd.DataFrame:
        """Return the direction that each naive rule predicts for each day of these windows."""
        return directions_on(windows.as_of, bars, self.context.market.index.symbol)

    def best_rule(self) -> str:
        """Return the name of the naive rule that was best on the training span."""
        train, _validation = self.spans(self.window)
        bars, _watermark = self.known
        return choose_rule(self.rule_directions(bars, train), train.movement.numpy())


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
    """Fit every configuration of every model with every seed, and return the trials by model.

    The logistic regression, which no seed changes, is fitted once. The training of a network that
    was interrupted resumes after the last epoch that was kept.
    """
    fits: dict[tuple[str, Recipe, int], Fit] = {}
    for window in experiment.windows:
        train, validation = experiment.spans(window)
        members = members_of(experiment, window)
        fits_of_window = fit_members(
            train,
            validation,
            list(members.values()),
            device=choose_device(experiment.context.device),
            state_folder=_state_folder(experiment.paper.market, train, validation),
            on_epoch=on_epoch,
        )
        fits.update(zip(members, fits_of_window, strict=True))
    trials: dict[str, list[Trial]] = {}
    for name, recipes in experiment.recipes.items():
        trials[name] = []
        for recipe in recipes:
            fits_of_recipe = [fits[name, recipe, seed] for seed in experiment.seeds]
            trials[name].append(_network_trial(experiment, recipe, fits_of_recipe))
    for kind in get_args(Kind):
        trials[kind] = [_train_classifier(experiment, kind)]
    return trials


def was_begun(experiment: PublishedExperiment) -> bool:
    """Return whether an earlier process left the state of a training, which then resumes."""
    device = choose_device(experiment.context.device)
    for window in experiment.windows:
        train, validation = experiment.spans(window)
        folder = _state_folder(experiment.paper.market, train, validation)
        members = members_of(experiment, window)
        if any(folder.file(member, device).exists() for member in members.values()):
            return True
    return False


def members_of(
    experiment: PublishedExperiment, window: int | None = None
) -> dict[tuple[str, Recipe, int], Member]:
    """Return the networks to train, by the model's name, the configuration and the seed.

    They are those with a window of this length, or all if `window` is None.
    """
    members: dict[tuple[str, Recipe, int], Member] = {}
    for name, recipes in experiment.recipes.items():
        for recipe in recipes:
            if window not in (None, recipe.window):
                continue
            for seed in experiment.seeds:
                members[name, recipe, seed] = Member(seed, recipe.model, recipe.training)
    return members


def _network_trial(experiment: PublishedExperiment, recipe: Recipe, fits: list[Fit]) -> Trial:
    ensemble = Ensemble(
        market=experiment.paper.market,
        symbols=experiment.context.market.symbols,
        seeds=experiment.seeds,
        model=recipe.model,
        windows=experiment.window_config(recipe.window),
        weights=stack_members(fits),
    )
    device = choose_device(experiment.context.device)

    def probability(windows: Windows) -> Float[ndarray, "members days stocks"]:
        return member_probabilities(ensemble, windows, device).double().numpy()

    return Trial(
        settings=recipe_settings(recipe),
        window=recipe.window,
        members=[_trained_member(fit) for fit in fits],
        probability=probability,
        ensemble=ensemble,
    )


def _trained_member(fit: Fit) -> TrainedMember:
    best = fit.epochs[fit.best_epoch - 1]  # epochs are numbered from 1
    return TrainedMember(
        seed=fit.member.seed,
        validation_acc=best.validation_acc,
        validation_loss=best.validation_loss,
        best_epoch=best.number,
        epochs=tuple(asdict(epoch) for epoch in fit.epochs),
    )


def _train_classifier(experiment: PublishedExperiment, kind: Kind) -> Trial:
    """Fit a classifier on DTML's windows, with every seed.

    A logistic regression has one solution, whatever the seed: it is fitted once.
    """
    train, validation = experiment.spans(experiment.window)
    seeds = experiment.seeds[:1] if kind == "logistic_regression" else experiment.seeds
    classifiers: list[Fitted] = []
    members: list[TrainedMember] = []
    for seed in seeds:
        log.info("fitting %s, seed %d", kind, seed)
        classifier = fit_classifier(kind, train, validation, "published", seed)
        classifiers.append(classifier)
        members.append(TrainedMember(seed, classifier.validation_acc))

    def probability(windows: Windows) -> Float[ndarray, "members days stocks"]:
        return np.stack([classifier.probability(windows) for classifier in classifiers])

    return Trial(
        settings={
            "window": experiment.window,
            "chosen": [dict(classifier.chosen) for classifier in classifiers],
        },
        window=experiment.window,
        members=members,
        probability=probability,
        tried=classifiers[0].tried,  # the same number for every seed
    )


def _state_folder(market: str, train: Windows, validation: Windows) -> StateFolder:
    """Return the folder from which trainings on exactly these days resume.

    Its name has a digest of the days and of the versions that compute, so that a training never
    resumes from a state of other days or versions.
    """
    versions = f"{version('dtml-nightshift')} {version('torch')}"
    digest = hashlib.sha256(versions.encode())
    for windows in (train, validation):
        for values in (windows.rows(), windows.observed, windows.movement):
            digest.update(values.contiguous().numpy().tobytes())
    name = f"paper-{market}-{train.window}-{digest.hexdigest()[:8]}"
    return StateFolder(data_folder() / "training" / name, write_whole)


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
        row = read_row(conn, "benchmark", id=benchmark_id)
        if row is None:
            return None
        scores = read(
            conn,
            "benchmark_score",
            columns="-benchmark_id",
            benchmark_id=benchmark_id,
            order="protocol, predictor",
        )
        seeds = read(conn, "benchmark_seed", columns="-benchmark_id", benchmark_id=benchmark_id)
        # The number of this benchmark among those of its market, in the order in which they read
        # the test span: 3 says that two others had read it before.
        earlier = where.until(row["test_read_at"])
        read_so_far = read(
            conn, "benchmark", columns="id", market=row["market"], test_read_at=earlier
        )
        number = len(read_so_far)
        page_file = page_of("benchmark", row)
        if not page_file.exists():
            page = benchmark_page(
                benchmark=row,
                scores=scores,
                seed_scores=seeds,
                curves=_calibration_curves(conn, row, scores),
                number=number,
            )
            write_page(page_file, page)
    return Benchmark(row=row, scores=scores, seeds=seeds, number=number, page=page_file)


def _calibration_curves(
    conn: Connection, row: Mapping[str, Any], scores: pd.DataFrame
) -> dict[str, pd.DataFrame]:
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
    # [stock-days runs], of the stock-days that every model predicted, as in the protocol "all".
    probabilities = (
        history[is_of_run & has_outcome]
        .pivot(
            index=["target", "symbol", "realised_return"], columns="run_id", values="probability"
        )
        .dropna()
    )
    rose = probabilities.index.get_level_values("realised_return") > 0
    return {
        name: calibration_curve(probabilities[run].to_numpy(), rose) for name, run in runs.items()
    }


def _choose(experiment: PublishedExperiment, on_epoch: EpochReport) -> Chosen:
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
    seeds = _seed_rows(chosen, test, np.where(is_common, test.movement, np.nan))
    train, validation = experiment.spans(experiment.window)
    spans = {"train": train, "validation": validation, "test": test.days}
    config: dict[str, Any] = {name: trials[0].settings for name, trials in chosen.models.items()}
    if experiment.paper.notes:
        config["data"] = list(experiment.paper.notes)
    config["list"] = test.survivorship.stored
    row = {
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
    with transaction(experiment.context.engine) as conn:
        for name, trials in chosen.models.items():
            _store_run(conn, experiment, name, trials[0], test)
        returns = _stock_day_rows(test.days, realised_return=test.movement)
        outcomes = outcome_rows(
            returns["symbol"], returns["target"], returns["realised_return"].to_numpy()
        )
        record_outcomes(
            conn,
            # From these bars come the rules beside which the settled nights are scored.
            Tonight(experiment.context, experiment.paper.test[1]),
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


def _seed_rows(chosen: Chosen, test: Test, movement: Float[ndarray, "days stocks"]) -> pd.DataFrame:
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
    return pd.DataFrame(rows)


def _store_run(
    conn: Connection, experiment: PublishedExperiment, name: str, trial: Trial, test: Test
) -> None:
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
    save(conn, "run", run)
    probabilities = test.probabilities[name][0]  # [members days stocks] of the chosen trial
    rows = _stock_day_rows(
        test.windows[trial.window],
        probability=probabilities.mean(axis=0),
        probability_std=probabilities.std(axis=0),
    )
    rows = rows.assign(run_id=run_id)
    save(
        conn,
        "prediction",
        rows,
        market=experiment.paper.market,
        known_at=test.known_at,
        made_at=test.read_at,
    )


def _stock_day_rows(windows: Windows, **values: Float[ndarray, "days stocks"]) -> pd.DataFrame:
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
